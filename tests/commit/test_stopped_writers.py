"""A writer that SIGSTOP freezes half-way, with group commit and without: all of its change happens, or nothing.

On a disk it keeps its gates, and others wait for it. On an object store its leases end, others take over, and it wakes
up to find that.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from omnigraph.commit import failpoints
from omnigraph.commit.store import Store
from omnigraph.errors import GateTimeoutError
from tests.commit.child import Child, peopled, store_at
from tests.support.faults import assert_settled
from tests.support.graphs import append, company, contents, plan, write_plan
from tests.support.templates import Templates

COMPANY, PERSON = "node:Company", "node:Person"
LIFETIME = 2.0  # of a lease that is to end
WINDOWS = (
    failpoints.PUBLISH_AFTER_GATES,
    failpoints.PUBLISH_AFTER_SIDECAR,
    failpoints.PUBLISH_AFTER_TABLE_COMMIT,
    failpoints.PUBLISH_BEFORE_MANIFEST,
    failpoints.PUBLISH_AFTER_MANIFEST,
)
VISIBLE = (failpoints.PUBLISH_AFTER_MANIFEST,)


@pytest.fixture(params=["on", "off"])
def grouping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OMNIGRAPH_GROUP_COMMIT", request.param)
    return str(request.param)


@contextmanager
def frozen(uri: str, window: str) -> Iterator[Child]:
    """A process that stands still in the middle of a change of three tables; it goes on at the end of the block."""
    with Child("publish", uri, "--stop-at", window, "--lifetime", str(LIFETIME)) as child:
        child.wait_until_stopped()
        assert child.pid
        os.kill(child.pid, signal.SIGSTOP)
        try:
            child.go_on()  # it would, if it could
            yield child
        finally:
            os.kill(child.pid, signal.SIGCONT)
        child.wait()


def people(store: Store) -> list[str]:
    return [row["id"] for row in contents(store)[PERSON]]


def add_company(store: Store, name: str) -> None:
    write_plan(store, None, lambda txn: plan(txn, append(store, txn, COMPANY, [company(name)])))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.usefixtures("grouping")
def test_on_a_disk_others_wait_for_a_stopped_writer_and_it_ends_well(
    templates: Templates, tmp_path: Path, window: str
) -> None:
    uri = str(tmp_path / "g")
    templates.copy("peopled", lambda at: peopled(str(at)), tmp_path / "g")
    before = people(store_at(uri))
    with frozen(uri, window) as child:
        with pytest.raises(GateTimeoutError) as busy:
            add_company(store_at(uri, timeout=0.05), "yard")
        assert f"process {child.pid} " in busy.value.holder
        assert (people(store_at(uri)) == before) == (window not in VISIBLE)
    child.succeed()
    store = store_at(uri)
    assert people(store) != before
    add_company(store, "yard")
    assert_settled(store)
    assert store.audit.rows() == []


@pytest.mark.parametrize(
    "window, happened",
    [
        (failpoints.PUBLISH_AFTER_GATES, False),
        (failpoints.PUBLISH_AFTER_TABLE_COMMIT, False),
        (failpoints.PUBLISH_BEFORE_MANIFEST, True),
    ],
)
@pytest.mark.usefixtures("grouping")
def test_on_an_object_store_others_take_over_from_a_stopped_writer_and_it_changes_nothing_more(
    s3_uri: str, window: str, *, happened: bool
) -> None:
    store = peopled(s3_uri)
    before = people(store)
    with frozen(s3_uri, window):
        other = store_at(s3_uri, lifetime=LIFETIME)
        add_company(other, "yard")
        seen = contents(store_at(s3_uri))
    after = store_at(s3_uri)
    assert contents(after) == seen, "what it does when it wakes up must not be seen"
    assert (people(after) != before) == happened
    add_company(after, "mill")
    assert_settled(after)
