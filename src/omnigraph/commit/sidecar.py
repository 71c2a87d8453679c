"""The recovery record: written before the first head moves, deleted when the change is visible."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from omnigraph.commit import failpoints
from omnigraph.commit.plan import PublishPlan
from omnigraph.errors import SidecarError
from omnigraph.lang.identity import new_id
from omnigraph.storage.objects import ObjectStore

DIRECTORY = "__recovery"
SCHEMA_VERSION = 3  # 1 and 2 know heads by number only; since 3 a pin names the transactions that move its table


@dataclass(frozen=True, slots=True)
class Pin:
    """What a write does to one table: from which version, by which transaction, undone by which."""

    table_key: str
    table_path: str
    expected_version: int
    post_commit_pin: int
    table_branch: str | None = None
    transaction_uuid: str | None = None
    rollback_uuid: str | None = None
    confirmed_version: int | None = None


@dataclass(frozen=True, slots=True)
class Registration:
    table_key: str
    table_path: str
    table_branch: str | None = None


@dataclass(frozen=True, slots=True)
class Tombstone:
    table_key: str
    tombstone_version: int


@dataclass(frozen=True, slots=True)
class Sidecar:
    schema_version: int
    operation_id: str
    started_at: str
    branch: str | None
    actor_id: str | None
    writer_kind: str
    tables: tuple[Pin, ...]
    commit_id: str | None = None
    recovery_commit_id: str | None = None
    merge_source_commit_id: str | None = None
    additional_registrations: tuple[Registration, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()

    @property
    def table_keys(self) -> list[str]:
        return [pin.table_key for pin in self.tables]

    def to_json(self) -> bytes:
        return json.dumps(_plain(self), indent=2).encode()


def arm(plan: PublishPlan, rollback_uuids: Iterable[str]) -> Sidecar:
    """Describe a plan, with every id that carrying it out or undoing it will need."""
    pins = tuple(
        Pin(
            action.table_key,
            action.staged.base.path,
            action.staged.base.version,
            action.staged.base.version + 1,
            action.staged.base.branch,
            action.staged.uuid,
            undo,
        )
        for action, undo in zip(plan.actions, rollback_uuids, strict=True)
    )
    return Sidecar(
        SCHEMA_VERSION,
        new_id(),
        str(time.time_ns() // 1000),
        plan.branch,
        plan.lineage.actor_id,
        plan.kind,
        pins,
        plan.lineage.commit_id,
        new_id(),
        plan.lineage.merged_parent_id,
        tuple(Registration(row.table_key, row.path) for row in plan.registrations),
        tuple(Tombstone(row.table_key, row.version) for row in plan.tombstones),
    )


class Sidecars:
    """The recovery records of one graph."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def write(self, sidecar: Sidecar) -> None:
        failpoints.reach(failpoints.RECOVERY_SIDECAR_WRITE)
        self._objects.write(_name(sidecar.operation_id), sidecar.to_json())

    def delete(self, operation_id: str) -> None:
        failpoints.reach(failpoints.RECOVERY_SIDECAR_DELETE)
        self._objects.delete(_name(operation_id))

    def pending(self) -> list[str]:
        """List the operations that are under way or were left behind, oldest first. An empty answer is one request."""
        failpoints.reach(failpoints.RECOVERY_SIDECAR_LIST)
        names = self._objects.list(DIRECTORY)
        return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))

    def read(self, operation_id: str) -> Sidecar | None:
        """Read a record; None if its writer has finished meanwhile."""
        data = self._objects.read_if_exists(_name(operation_id))
        return None if data is None else _parse(data, f"{DIRECTORY}/{operation_id}.json")


def _name(operation_id: str) -> str:
    return f"{DIRECTORY}/{operation_id}.json"


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        pairs = ((name, _plain(getattr(value, name))) for name in value.__dataclass_fields__)
        return {name: item for name, item in pairs if item not in (None, [])}
    return value


def _parse(data: bytes, path: str) -> Sidecar:
    try:
        document = json.loads(data)
        version = int(document["schema_version"])
    except (ValueError, TypeError, KeyError) as error:
        hint = "move the file away only if you know what the operation did"
        raise SidecarError(f"the recovery record {path} cannot be read", path=path, hint=hint) from error
    if version > SCHEMA_VERSION:
        message = f"the recovery record {path} has version {version}; this omnigraph knows up to {SCHEMA_VERSION}"
        raise SidecarError(message, path=path, hint="upgrade omnigraph")
    try:
        return _sidecar(document)
    except (ValueError, TypeError, KeyError) as error:
        raise SidecarError(f"the recovery record {path} is incomplete", path=path) from error


def _sidecar(document: dict[str, Any]) -> Sidecar:
    lists = {"tables": Pin, "additional_registrations": Registration, "tombstones": Tombstone}
    fields: dict[str, Any] = {name: document.get(name) for name in Sidecar.__dataclass_fields__}
    for name, kind in lists.items():
        fields[name] = tuple(_known(kind, item) for item in document.get(name, ()))
    for name in ("operation_id", "writer_kind"):
        fields[name] = str(document[name])
    return Sidecar(**fields)


def _known(kind: type[Any], item: dict[str, Any]) -> Any:
    return kind(**{name: item[name] for name in kind.__dataclass_fields__ if name in item})
