"""The recovery record (sidecar): written before the first head moves, deleted when the change is visible."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from omnigraph.api.results import OPERATION, STREAM, TableVersion
from omnigraph.commit import failpoints
from omnigraph.commit.plan import PublishPlan, TableAction, WriterKind
from omnigraph.errors import SidecarError
from omnigraph.lang.identity import is_new_id, new_id
from omnigraph.manifest.rows import stream_id
from omnigraph.manifest.state import ManifestState
from omnigraph.storage.objects import ObjectStore
from omnigraph.storage.read import transaction_id
from omnigraph.storage.torn import SUFFIX as TORN

DIRECTORY = "__recovery"
SCHEMA_VERSION = 3  # since 3 a pin names the transactions that move its table; 1 and 2 know versions only
GROUP_VERSION = 4  # of a record with several commits, which a program that knows 3 must not take for one


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
class Adoption:
    """A version of main that a branch takes over together with the change."""

    table_key: str
    expected_version: int
    version: int
    row_count: int


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """One of several commits that are published together, and the versions that its tables get."""

    commit_id: str
    writer_kind: str
    versions: dict[str, Any]
    actor_id: str | None = None
    details: dict[str, Any] | None = None


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
    rollback_commit_id: str | None = None
    merge_source_commit_id: str | None = None
    additional_registrations: tuple[Registration, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    if_head: str | None = None
    adoptions: tuple[Adoption, ...] = ()
    details: dict[str, Any] | None = None
    schema_source: str | None = None
    merge_source_branch: str | None = None
    merge_past: dict[str, Any] | None = None
    members: tuple[MemberRecord, ...] = ()

    @property
    def names_transactions(self) -> bool:
        """Whether the record names transactions; records of version 1 and 2 name versions only."""
        return self.schema_version >= SCHEMA_VERSION

    @property
    def table_keys(self) -> list[str]:
        return [*(pin.table_key for pin in self.tables), *(adoption.table_key for adoption in self.adoptions)]

    @property
    def streams(self) -> list[str]:
        """The stream of which the change is a batch, as a plan names what it relies on."""
        found = (self.details or {}).get(STREAM)
        return [stream_id(found["name"])] if found else []

    def is_of(self, operation_id: str) -> bool:
        """Return whether this is the record of an operation, by our id or by the client's."""
        known = [(self.operation_id, self.details), *((one.commit_id, one.details) for one in self.members)]
        return any(operation_id in (own, (details or {}).get(OPERATION)) for own, details in known)

    def to_json(self) -> bytes:
        return json.dumps(_plain(self)).encode()


def arm(plans: Sequence[PublishPlan], state: ManifestState) -> Sidecar:
    """Describe plans that are published together, with every id that carrying them out or undoing them will need."""
    last = plans[-1]
    alone = _arm(last, state)
    if len(plans) == 1:
        return alone
    pins: dict[str, Pin] = {}
    members = []
    for plan in plans:
        for pin in (_moved(action, state) for action in plan.actions):
            before, steps = pins.get(pin.table_key), pin.post_commit_pin - pin.expected_version
            at = before.post_commit_pin if before else pin.expected_version
            pins[pin.table_key] = replace(pin, post_commit_pin=at + steps)
        versions = {key: pins[key].post_commit_pin for key in plan.table_keys}
        details = dict(plan.lineage.details) if plan.lineage.details else None
        members.append(MemberRecord(plan.lineage.commit_id, plan.kind, versions, plan.lineage.actor_id, details))
    return replace(alone, schema_version=GROUP_VERSION, tables=tuple(pins.values()), members=tuple(members))


def _moved(action: TableAction, state: ManifestState) -> Pin:
    """Describe what an action does. The pin is that of the state: maintenance may have been prepared on an earlier."""
    pin = _pin(action.staged.base, state.actual_version(action.table_key), action.staged.uuid)
    return replace(pin, post_commit_pin=pin.expected_version + len(action.staged.steps))


def _arm(plan: PublishPlan, state: ManifestState) -> Sidecar:
    return Sidecar(
        SCHEMA_VERSION,
        plan.lineage.commit_id,  # one id for both, so that an operation id leads to its commit
        _now(),
        plan.branch,
        plan.lineage.actor_id,
        plan.kind,
        tuple(_moved(action, state) for action in plan.actions),
        plan.lineage.commit_id,
        new_id(),
        plan.lineage.merged_parent_id,
        tuple(Registration(row.table_key, row.path, row.branch) for row in plan.registrations),
        tuple(Tombstone(row.table_key, row.version) for row in plan.tombstones),
        plan.if_head,
        tuple(
            Adoption(row.table_key, state.actual_version(row.table_key), row.version, row.row_count)
            for row in plan.adoptions
        ),
        dict(plan.lineage.details) if plan.lineage.details else None,
        plan.schema.source if plan.schema and plan.branch is None else None,
        plan.lineage.merged_branch,
        dict(plan.lineage.past) if plan.lineage.past else None,
    )


def arm_undo(table: TableVersion, state: ManifestState, actor: str) -> Sidecar:
    """Describe an operation that can only be undone: for a transaction that arrived after its record was gone."""
    commit_id = new_id()
    unknown = transaction_id()  # no transaction has this id, so the movement counts as unexpected and is undone
    pins = (_pin(table, state.actual_version(table.key), unknown),)
    kind = WriterKind.MUTATION
    return Sidecar(SCHEMA_VERSION, commit_id, _now(), state.branch, actor, kind, pins, commit_id, new_id())


def _pin(table: TableVersion, version: int, transaction_uuid: str) -> Pin:
    return Pin(table.key, table.path, version, version + 1, table.branch, transaction_uuid, transaction_id())


def _now() -> str:
    return str(time.time_ns() // 1000)


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
        """List the operations that are running or were left behind, oldest first. An empty list costs one request."""
        failpoints.reach(failpoints.RECOVERY_SIDECAR_LIST)
        # By name, which is by time: an id is a ULID. An older operation may explain what a later one found.
        return sorted(name.removesuffix(".json") for name in self._objects.list(DIRECTORY) if _is_record(name))

    def strays(self) -> list[str]:
        """List the files among the records that are none: of other programs, or set aside."""
        return [name for name in self._objects.list(DIRECTORY) if not _is_record(name)]

    def read(self, operation_id: str) -> Sidecar | None:
        """Read a record; None if its writer has deleted it meanwhile, or if the file is no record.

        A record is whole when it gets its name, and on the medium before a commit is published. So one that is not JSON
        was torn by a power cut before that; transaction ids still explain heads that moved.
        """
        data = self._objects.read_if_exists(_name(operation_id))
        return None if data is None or _is_torn(data) else _parse(data, operation_id)

    def set_aside_torn(self, operation_id: str) -> bool:
        """Rename a record that a power cut tore; return whether it did."""
        name = _name(operation_id)
        data = self._objects.read_if_exists(name)
        if data is None or not _is_torn(data):
            return False
        # A copy and a deletion, as an object store has no rename. Dying in between leaves both, and the next sweep
        # repeats it.
        self._objects.write(f"{name}{TORN}", data)
        self._objects.delete(name)
        return True

    def exists(self, operation_id: str) -> bool:
        return self._objects.read_if_exists(_name(operation_id)) is not None

    def with_ids(self, operation_id: str) -> Sidecar | None:
        """Add to a record of version 1 or 2 the ids that recovery needs, and store them, so that it can be repeated.

        Return None if another process finished it or wrote ids first: its ids must stand, and a deleted record must not
        reappear.
        """
        name = _name(operation_id)
        found = self._objects.read_versioned(name)
        if found is None:
            return None
        sidecar = _parse(found[0], operation_id)
        if sidecar.rollback_commit_id is not None:
            return sidecar
        pins = tuple(replace(pin, rollback_uuid=transaction_id()) for pin in sidecar.tables)
        sidecar = replace(sidecar, tables=pins, commit_id=new_id(), rollback_commit_id=new_id())
        failpoints.reach(failpoints.RECOVERY_SIDECAR_WRITE)
        return sidecar if self._objects.rewrite(name, sidecar.to_json(), found[1]) else None


def _is_record(name: str) -> bool:
    return name.endswith(".json") and is_new_id(name.removesuffix(".json"))


def _is_torn(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return True
    return False


def _name(operation_id: str) -> str:
    return f"{DIRECTORY}/{operation_id}.json"


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        pairs = [(name, getattr(value, name)) for name in value.__dataclass_fields__]
        # `tables` is always written: readers of every version require it.
        return {name: _plain(item) for name, item in pairs if name == "tables" or (item is not None and item != ())}
    return value


def _parse(data: bytes, operation_id: str) -> Sidecar:
    """Parse a record, or refuse it whole: acting on a record that is not understood could undo what must stay."""
    path = _name(operation_id)
    try:
        document = json.loads(data)
        version = _version(document)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        hint = "remove the file only if you know what the operation did"
        raise SidecarError(f"the recovery record {path} cannot be read", path=path, hint=hint) from error
    if version > GROUP_VERSION:
        message = f"the recovery record {path} has version {version}; this omnigraph knows up to {GROUP_VERSION}"
        raise SidecarError(message, path=path, hint="upgrade omnigraph")
    try:
        sidecar = _sidecar(document)
        _check(sidecar, operation_id)
    except (ValueError, TypeError, KeyError) as error:
        message = f"the recovery record {path} is invalid: {error}"
        raise SidecarError(
            message, path=path, hint="remove the file only if you know what the operation did"
        ) from error
    return sidecar


def _version(document: dict[str, Any]) -> int:
    version = document["schema_version"]
    if not _is(version, int) or version < 1:
        raise ValueError(version)
    return int(version)


def _check(sidecar: Sidecar, operation_id: str) -> None:
    if sidecar.operation_id != operation_id:
        raise ValueError(f"it names operation {sidecar.operation_id}")
    # An unknown kind is of a later release, whose rules for finishing it are not known here.
    if sidecar.writer_kind not in list(WriterKind):
        raise ValueError(f"unknown writer kind {sidecar.writer_kind}")
    named = all(pin.transaction_uuid and pin.rollback_uuid for pin in sidecar.tables)
    ids = sidecar.commit_id and sidecar.rollback_commit_id
    if sidecar.names_transactions and not (named and ids):
        raise ValueError("an id is missing")
    _check_members(sidecar)


def _check_members(sidecar: Sidecar) -> None:
    if (sidecar.schema_version == GROUP_VERSION) != bool(sidecar.members):
        raise ValueError("only a record of several commits has this version")
    last: dict[str, int] = {}
    for member in sidecar.members:
        last |= member.versions
    if sidecar.members and last != {pin.table_key: pin.post_commit_pin for pin in sidecar.tables}:
        raise ValueError("its commits and its tables do not match")


def _sidecar(document: dict[str, Any]) -> Sidecar:
    optional = ("additional_registrations", "tombstones", "adoptions", "members")
    lists: dict[str, Any] = {**dict.fromkeys(optional, ()), **document}
    tables = {
        "tables": tuple(_typed(Pin, item) for item in _list(lists["tables"])),
        "additional_registrations": tuple(
            _typed(Registration, item) for item in _list(lists["additional_registrations"])
        ),
        "tombstones": tuple(_typed(Tombstone, item) for item in _list(lists["tombstones"])),
        "adoptions": tuple(_typed(Adoption, item) for item in _list(lists["adoptions"])),
        "members": tuple(_typed(MemberRecord, item) for item in _list(lists["members"])),
    }
    return _typed(Sidecar, {**document, **tables})


def _list(value: object) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError("a list is missing")
    return list(value)


_K = TypeVar("_K")


def _typed(kind: type[_K], item: dict[str, Any]) -> _K:
    """Build a dataclass from a JSON object, checking the declared type of every field."""
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, hint in hints.items():
        if name in item:
            kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
            allowed = [get_origin(one) or one for one in kinds]
            if get_origin(hint) is not tuple and not any(_is(item[name], one) for one in allowed):
                raise TypeError(f"{name} is {item[name]!r:.80}")
            values[name] = item[name]
        elif type(None) in get_args(hint):
            values[name] = None
    return kind(**values)


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not (isinstance(value, bool) and kind is int)
