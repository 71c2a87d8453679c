"""Named places where a test can make an operation raise, die or wait. Unarmed, they cost one dictionary lookup."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

INIT_AFTER_SCHEMA_PG_WRITTEN = "init.after_schema_pg_written"
INIT_AFTER_SCHEMA_CONTRACT_WRITTEN = "init.after_schema_contract_written"
INIT_AFTER_MANIFEST_CREATED = "init.after_manifest_created"
PUBLISH_AFTER_GATES = "publish.after_gates"
PUBLISH_AFTER_SIDECAR = "publish.after_sidecar"
PUBLISH_AFTER_TABLE_COMMIT = "publish.after_table_commit"
PUBLISH_BEFORE_MANIFEST = "publish.before_manifest"
PUBLISH_AFTER_MANIFEST = "publish.after_manifest"
BRANCH_CREATED = "branch_create.post_native"
BRANCH_DELETED = "branch_delete.before_table_cleanup"
RECOVERY_SIDECAR_WRITE = "recovery.sidecar_write"
RECOVERY_SIDECAR_DELETE = "recovery.sidecar_delete"
RECOVERY_SIDECAR_LIST = "recovery.sidecar_list"
RECOVERY_AFTER_LIST = "recovery.after_list"
RECOVERY_BEFORE_ROLL_FORWARD = "recovery.before_roll_forward_publish"
RECOVERY_AFTER_TABLE_RESTORE = "recovery.after_table_restore"
RECOVERY_RECORD_AUDIT = "recovery.record_audit"
CLEANUP_BEFORE_REMOVAL = "cleanup.before_removal"
PIPELINE_PLANNED = "pipeline.planned"
PIPELINE_LOADED = "pipeline.loaded"
PIPELINE_STEP = "pipeline.step"

_armed: dict[str, Callable[[], None]] = {}


def reach(name: str) -> None:
    """Run the action that a test armed here, if any."""
    # Two lookups when armed, one when not: this is called in every commit of every release.
    if _armed:
        action = _armed.get(name)
        if action:
            action()


@contextmanager
def armed(name: str, action: Callable[[], None]) -> Iterator[None]:
    """Arm a failpoint within a block."""
    assert name not in _armed, f"{name} is armed already"
    _armed[name] = action
    try:
        yield
    finally:
        del _armed[name]


def die() -> None:
    """End the process like a power cut: nothing is flushed, nothing is cleaned up."""
    # Without `atexit`, destructors and flushing, as a kill by the kernel; 137 is the exit code of SIGKILL in a shell.
    os._exit(137)


class Rendezvous:
    """Hold the first thread that arrives until the test releases it; later ones pass."""

    def __init__(self, timeout: float = 300) -> None:
        self._timeout = timeout
        self._lock = threading.Lock()
        self._reached = threading.Event()
        self._released = threading.Event()

    def __call__(self) -> None:
        with self._lock:
            first = not self._reached.is_set()
            self._reached.set()
        if first:
            assert self._released.wait(self._timeout), "the rendezvous was not released in time"

    def wait_until_reached(self) -> None:
        assert self._reached.wait(self._timeout), "the rendezvous was not reached in time"

    def release(self) -> None:
        self._released.set()
