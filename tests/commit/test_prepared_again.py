"""When a write is prepared a second time: only if a cleanup removed what it reads, which a later commit allowed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import omnigraph
from omnigraph.commit.plan import PublishPlan, WriteTxn
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import StorageDeniedError, StorageError
from tests.support.graphs import COMPANY, PERSON, SCHEMA, append, company, contents, person, plan, write_plan
from tests.support.templates import Templates


class Insert:
    """An insert of a person that fails the first time it is prepared."""

    def __init__(self, store: Store, failure: StorageError | None, *, after_a_commit: bool) -> None:
        self.store = store
        self.failure = failure
        self.after_a_commit = after_a_commit
        self.prepared = 0

    def __call__(self, txn: WriteTxn) -> PublishPlan:
        self.prepared += 1
        if self.prepared == 1 and self.after_a_commit:
            write_plan(self.store, None, lambda txn: plan(txn, append(self.store, txn, COMPANY, [company("Acme")])))
        if self.prepared == 1 and self.failure:
            raise self.failure
        if self.prepared == 1:
            self.store.tables.open(replace(txn.entries[PERSON].table, version=99))  # there is no such file
        return plan(txn, append(self.store, txn, PERSON, [person("Ann")]))


@pytest.fixture
def store(tmp_path: Path, templates: Templates) -> Store:
    templates.copy("people", lambda uri: omnigraph.init(uri, SCHEMA), tmp_path / "g")
    return Store.at(Location.parse(tmp_path / "g"))


def test_a_write_that_misses_a_file_after_another_commit_is_prepared_again(store: Store) -> None:
    insert = Insert(store, None, after_a_commit=True)

    assert write_plan(store, None, insert)

    assert insert.prepared == 2
    assert contents(store)[PERSON] == [person("Ann")]


@pytest.mark.parametrize(
    "failure, after_a_commit",
    [(None, False), (StorageDeniedError("the storage denied access", path="x", operation="read"), True)],
    ids=["nothing was committed since", "nothing is missing"],
)
def test_any_other_failure_of_the_storage_is_raised_at_once(
    store: Store, failure: StorageError | None, *, after_a_commit: bool
) -> None:
    insert = Insert(store, failure, after_a_commit=after_a_commit)

    with pytest.raises(StorageError):
        write_plan(store, None, insert)

    assert insert.prepared == 1
    assert contents(store)[PERSON] == []
