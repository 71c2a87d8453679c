"""The delta of two versions of a table is what a plain comparison of their rows says."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

import pytest

from omnigraph.api.results import TableVersion
from omnigraph.storage import maintain
from omnigraph.storage.read import TableReader
from tests.history.tables import LINK, THING, State, Versions, any_row, exact, plain, table_delta


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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_the_delta_of_any_two_versions_is_what_comparing_them_says(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:  # a rewrite forgets the versions of rows as soon as it may
        monkeypatch.setattr(maintain, "_MOST_RUN_BYTES", 0)
        monkeypatch.setattr(maintain, "_EXACT", 2)
    one = random.Random(seed)  # noqa: S311 - repeatable
    versions = Versions.create(tmp_path, THING)
    heads = [versions.upsert(versions.first, [any_row(one, f"t{number}") for number in range(8)])]
    for _ in range(14):
        _step(one, versions, heads)

    pairs = list(itertools.permutations(versions.states, 2))
    for before, after in one.sample(pairs, k=min(len(pairs), 60)):
        _check(versions, before, after)


def test_versions_without_a_common_past_are_compared_in_full(tmp_path: Path) -> None:
    one, other = Versions.create(tmp_path, THING), Versions.create(tmp_path / "other", THING)
    rows = [any_row(random.Random(3), f"t{number}") for number in range(5)]  # noqa: S311 - repeatable
    before, after = one.append(one.first, rows), other.append(other.first, [{**rows[0], "count": 7}, *rows[1:4]])
    moved = replace(after, path=f"other/{after.path}")

    found = table_delta(one.storage, before, moved, THING)

    assert found.compared
    assert found.inserted.num_rows == 0
    assert found.updated["id"].to_pylist() == ["t0"]
    assert found.deleted["id"].to_pylist() == ["t4"]


def test_the_delta_of_one_version_is_empty_and_that_of_none_is_everything(tmp_path: Path) -> None:
    versions = Versions.create(tmp_path, LINK)
    table = versions.append(versions.first, [{"id": "l1", "src": "a", "dst": "b", "weight": 0.5}])

    same = table_delta(versions.storage, table, table, LINK)
    assert (same.inserted.num_rows, same.updated.num_rows, same.deleted.num_rows) == (0, 0, 0)
    made = table_delta(versions.storage, None, table, LINK)
    assert made.inserted.to_pylist() == [{"id": "l1", "src": "a", "dst": "b", "weight": 0.5}]
    gone = table_delta(versions.storage, table, None, LINK)
    assert gone.deleted.to_pylist() == [{"id": "l1", "src": "a", "dst": "b"}]
    assert not made.compared
    assert not gone.compared


def _bytes_read() -> int:
    """How much this process has read from files so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.slow
def test_what_is_read_for_a_delta_follows_the_change_and_not_the_table(tmp_path: Path) -> None:
    versions = Versions.create(tmp_path, LINK)
    many = [{"id": f"l{number:05d}", "src": token_hex(50), "dst": token_hex(50)} for number in range(60_000)]
    before = versions.append(versions.first, many)
    written = versions.upsert(before, [{**many[7], "weight": 1.5}])
    table_delta(versions.storage, versions.first, written, LINK)  # so that whatever is loaded once is there

    for after in (written, versions.compact(written)):
        start = _bytes_read()
        found = table_delta(TableReader(versions.storage.location), before, after, LINK)
        read = _bytes_read() - start

        assert found.updated["id"].to_pylist() == ["l00007"]
        assert read < 4 * 2**18, "a few blocks; the table has 12 MB"
