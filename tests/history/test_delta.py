"""The delta of two versions of a table is what a plain comparison of their rows says."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from omnigraph.history.delta import table_delta
from omnigraph.storage.tables import TableVersion
from tests.history.tables import THING, State, Versions, any_row, exact, plain


def _delta(
    versions: Versions, before: TableVersion | None, after: TableVersion | None
) -> tuple[State, State, set[str]]:
    found = table_delta(versions.storage, before, after, versions.declared)
    inserted, updated = ({row["id"]: row for row in plain(part)} for part in (found.inserted, found.updated))
    assert len(inserted) == found.inserted.num_rows
    assert len(updated) == found.updated.num_rows
    return inserted, updated, set(found.deleted["id"].to_pylist())


def _expected(versions: Versions, before: TableVersion, after: TableVersion) -> tuple[State, State, set[str]]:
    old, new = versions.states[before], versions.states[after]
    updated = {key: new[key] for key in old.keys() & new.keys() if exact(old[key]) != exact(new[key])}
    return {key: new[key] for key in new.keys() - old.keys()}, updated, set(old.keys() - new.keys())


def _check(versions: Versions, before: TableVersion, after: TableVersion) -> None:
    found, expected = _delta(versions, before, after), _expected(versions, before, after)
    for part, its in zip(found[:2], expected[:2], strict=True):
        assert part.keys() == its.keys(), (before, after)
        assert {key: exact(part[key]) for key in part} == {key: exact(its[key]) for key in its}
    assert found[2] == expected[2]


def _write(one: random.Random, versions: Versions, base: TableVersion) -> TableVersion:
    rows = [any_row(one, f"t{number}") for number in one.sample(range(12), k=one.randint(1, 5))]
    write = one.choice([versions.upsert, versions.upsert, versions.replace, versions.overwrite, versions.append])
    if write == versions.append:
        rows = [row for row in rows if row["id"] not in versions.states[base]]
    return write(base, rows) if rows else base


def _delete(one: random.Random, versions: Versions, base: TableVersion) -> TableVersion:
    there = sorted(versions.states[base])
    return versions.delete(base, one.sample(there, k=min(len(there), one.randint(1, 4)))) if there else base


def _keep_up(one: random.Random, versions: Versions, base: TableVersion) -> TableVersion:
    upkeep = one.choice([versions.compact, versions.compact, versions.index])
    return upkeep(base) if versions.states[base] else base


def _restore(one: random.Random, versions: Versions, base: TableVersion) -> TableVersion:
    known = [table.version for table in versions.states if table.branch == base.branch and table != base]
    return versions.restore(base, one.choice(known)) if known else base


def _step(one: random.Random, versions: Versions, heads: list[TableVersion]) -> None:
    at = one.randrange(len(heads))
    if len(heads) < 4 and one.random() < 0.15:
        heads.append(versions.branch(heads[at], f"b{len(heads)}"))
    else:
        step = one.choice([_write, _write, _write, _delete, _keep_up, _restore])
        heads[at] = step(one, versions, heads[at])


@pytest.mark.parametrize("seed", range(8))
def test_the_delta_of_any_two_versions_is_what_comparing_them_says(seed: int, tmp_path: Path) -> None:
    one = random.Random(seed)  # noqa: S311 - repeatable
    versions = Versions.create(tmp_path, THING)
    heads = [versions.upsert(versions.first, [any_row(one, f"t{number}") for number in range(8)])]
    for _ in range(14):
        _step(one, versions, heads)

    pairs = list(itertools.permutations(versions.states, 2))
    for before, after in one.sample(pairs, k=min(len(pairs), 60)):
        _check(versions, before, after)
