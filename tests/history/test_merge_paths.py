"""A merge found from what the versions record is the merge found by comparing them in full, and what a model says."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import omnigraph
from omnigraph.api.options import Resolution
from omnigraph.api.results import TableVersion
from omnigraph.history import delta
from omnigraph.history.three_way import MergeBase, MergedTable, TableMerge
from omnigraph.storage.columns import table_key
from omnigraph.storage.layout import Addresses
from omnigraph.storage.observe import counted
from tests.history import merging
from tests.history.tables import THING, Versions, any_row, exact, plain
from tests.support.mutations import small_graph

KEY = table_key(THING)
RESOLUTIONS = [None, "ours", "theirs"]


@dataclass(frozen=True, slots=True)
class Found:
    """What a merge comes to, so that two can be compared."""

    inserted: Mapping[str, object]
    updated: Mapping[str, object]
    deleted: set[str]
    conflicts: set[tuple[str, str]]
    replaced: list[int]


def _written(one: random.Random, versions: Versions, base: TableVersion) -> TableVersion:
    rows = [any_row(one, f"t{number}") for number in one.sample(range(12), k=one.randint(1, 5))]
    return one.choice([versions.upsert, versions.replace])(base, rows)


def _shrunk(one: random.Random, versions: Versions, base: TableVersion) -> TableVersion:
    there = sorted(versions.states[base])
    return versions.delete(base, one.sample(there, k=one.randint(1, min(3, len(there))))) if there else base


def _compacted(_: random.Random, versions: Versions, base: TableVersion) -> TableVersion:
    return versions.compact(base) if versions.states[base] else base


def _history(one: random.Random, folder: Path) -> Versions:
    """Some twenty versions on up to four native branches, with compactions between the changes."""
    versions = Versions.create(folder, THING)
    heads = [versions.upsert(versions.first, [any_row(one, f"t{number}") for number in range(8)])]
    for _ in range(18):
        at = one.randrange(len(heads))
        if len(heads) < 4 and one.random() < 0.3:
            heads.append(versions.branch(heads[at], f"b{len(heads)}"))
        else:
            step = one.choice([_written, _written, _shrunk, _compacted])
            heads[at] = step(one, versions, heads[at])
    return versions


def _run(
    versions: Versions, past: MergeBase, sides: tuple[TableVersion, TableVersion], resolve: str | None
) -> Found | None:
    combination = TableMerge(THING, past, *sides)
    combined = combination.run(versions.storage, Resolution.of(resolve))
    return _found(versions, combined, sides[1]) if combined else None


def _found(versions: Versions, combined: MergedTable, target: TableVersion) -> Found:
    inserted, updated = (
        {str(row["id"]): exact(row) for row in plain(rows)} for rows in (combined.inserted, combined.updated)
    )
    deleted = set(combined.deleted["id"].to_pylist())
    if not combined.conflicts:
        assert _at(versions, target, combined.replaced) == updated.keys() | deleted
    conflicts = {(conflict.kind, str(conflict.id)) for conflict in combined.conflicts}
    return Found(inserted, updated, deleted, conflicts, combined.replaced.tolist())


def _at(versions: Versions, table: TableVersion, addresses: Addresses) -> set[str]:
    """The ids of the rows at some addresses, each of which must be there."""
    found = versions.storage.rows_at(table, addresses, ["id"])["id"].to_pylist() if len(addresses) else []
    assert len(found) == len(addresses)
    return set(found)


def _expected(
    versions: Versions, past: MergeBase, sides: tuple[TableVersion, TableVersion], resolve: str | None
) -> tuple[dict[str, object], set[tuple[str, str]]]:
    """What changes, None for what goes, and what contradicts; as a plain comparison of the rows has it."""
    common, unknown = _past(versions, past)
    source, target = (_image(versions, one) for one in sides)
    expected = merging.Combination(common, unknown, source, target).run("merged", resolve)
    change: dict[str, object] = {
        name: row and tuple(row[key] for key in sorted(row)) for (_, name), row in expected.change.items()
    }
    return change, {(kind, name) for kind, _, name in expected.conflicts}


def _past(versions: Versions, past: MergeBase) -> tuple[merging.Image, set[merging.Unknown]]:
    images = [_image(versions, base[KEY]) for base in past.bases]
    return merging.joined(images, [_past(versions, before) for before in past.before])


def _image(versions: Versions, table: TableVersion) -> merging.Image:
    return {
        (KEY, name): dict(zip(sorted(row), exact(row), strict=True)) for name, row in versions.states[table].items()
    }


def _check(
    versions: Versions,
    past: MergeBase,
    sides: tuple[TableVersion, TableVersion],
    resolve: str | None,
    found: Found | None,
) -> None:
    change, conflicts = _expected(versions, past, sides, resolve)
    if found is None:
        assert (change, conflicts) == ({}, set())
        return
    assert found.conflicts == conflicts
    assert {**found.inserted, **found.updated, **dict.fromkeys(found.deleted)} == change


@pytest.fixture
def compare_in_full(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Have all rows compared from now on, as if the versions had nothing in common."""

    def compare() -> None:
        monkeypatch.setattr(
            delta,
            "_parts",
            lambda tables, *both: (*(delta.whole_table(tables, one) for one in both), True),
        )

    return compare


@pytest.mark.parametrize("seed", range(3))
def test_any_three_versions_merge_alike_on_both_paths_and_as_a_model_says(
    seed: int, tmp_path: Path, compare_in_full: Callable[[], None]
) -> None:
    one = random.Random(seed)  # noqa: S311 - repeatable
    versions = _history(one, tmp_path)
    known = list(versions.states)
    cases = [(base, sides, one.choice(RESOLUTIONS)) for base, sides in _triples(one, known, 30)]
    recorded = [_run(versions, MergeBase([{KEY: base}]), sides, resolve) for base, sides, resolve in cases]
    compare_in_full()
    for (base, sides, resolve), found in zip(cases, recorded, strict=True):
        assert found == _run(versions, MergeBase([{KEY: base}]), sides, resolve)
        _check(versions, MergeBase([{KEY: base}]), sides, resolve, found)


@pytest.mark.parametrize("seed", range(5, 6))
def test_versions_with_several_common_ones_merge_alike_on_both_paths_and_as_a_model_says(
    seed: int, tmp_path: Path, compare_in_full: Callable[[], None]
) -> None:
    one = random.Random(seed)  # noqa: S311 - repeatable
    versions = _history(one, tmp_path)
    known = list(versions.states)
    cases = []
    for source, target, *bases in (one.sample(known, k=6) for _ in range(15)):
        first, second, third, root = ({KEY: base} for base in bases)
        cases.append(
            (
                MergeBase([first, second, third], [MergeBase([root]), MergeBase([first, root], [MergeBase([third])])]),
                (source, target),
            )
        )
    recorded = [_run(versions, past, sides, None) for past, sides in cases]
    compare_in_full()
    for (past, sides), found in zip(cases, recorded, strict=True):
        assert found == _run(versions, past, sides, None)
        _check(versions, past, sides, None, found)
    assert any(found and found.conflicts for found in recorded)
    assert any(found and not found.conflicts for found in recorded)


def test_a_merge_asks_for_no_branch_that_has_nothing_to_do_with_it(tmp_path: Path) -> None:
    """Not even where others were merged and deleted since, so that not all of the past is known any more."""
    assert _requests(tmp_path / "many", idle=12) == _requests(tmp_path / "few", idle=0)


def _requests(folder: Path, *, idle: int) -> int:
    small_graph(str(folder))
    graph = omnigraph.open(folder)
    for number in range(idle):
        graph.create_branch(f"idle{number}")
    for name in ("mine", "first", "second"):
        graph.create_branch(name)
        graph.mutate("query q($n: String) { insert Person { name: $n } }", {"n": name}, branch=name)
    for name in ("first", "second"):
        graph.merge(name)
        graph.delete_branch(name)
    with counted() as requests:
        assert graph.merge("mine", dry_run=True).outcome == "merged"
    return requests.total


def _triples(
    one: random.Random, known: list[TableVersion], number: int
) -> list[tuple[TableVersion, tuple[TableVersion, TableVersion]]]:
    """Mostly three different versions; sometimes a side has done nothing."""
    found = []
    for _ in range(number):
        base, source, target = one.sample(known, k=3)
        found.append((base, (source, base if one.random() < 0.2 else target)))
    return found
