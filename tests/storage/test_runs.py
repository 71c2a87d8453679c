"""Which version wrote a row is kept exactly for new rows, and roughly for old ones: a commit costs what it changes."""

from __future__ import annotations

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.api.results import TableVersion
from omnigraph.core.location import Location
from omnigraph.storage import maintain
from omnigraph.storage.layout import WRITTEN, layout_of
from omnigraph.storage.stage import TableStorage

COMMITS = 320


def _rewritten(tables: TableStorage, table: TableVersion) -> TableVersion:
    made_of = layout_of(tables, table)
    done = maintain.rewrite(tables, table, [part.number for part in made_of.parts])
    version = tables.commit_staged(maintain.stage_rewrite(tables, table, made_of, [done]), table.version + 1).version
    return TableVersion(table.key, table.path, version)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> tuple[TableStorage, TableVersion]:
    """A table that many commits appended one row to, each in a fragment of its own."""
    root = tmp_path_factory.mktemp("runs")
    for at in range(COMMITS):
        rows, mode = pa.table({"id": [f"r{at}"]}), "append" if at else "create"
        lance.write_dataset(rows, root / "t", mode=mode, enable_stable_row_ids=True)
    return TableStorage(Location.parse(root)), TableVersion("node:T", "t", lance.dataset(root / "t").version)


def _versions(tables: TableStorage, table: TableVersion) -> dict[str, int]:
    found = tables.open(table).to_table(columns=["id", WRITTEN])
    return dict(zip(found["id"].to_pylist(), found[WRITTEN].to_pylist(), strict=True))


def test_the_encoding_is_that_of_lance(tmp_path: Path) -> None:
    for at in range(12):
        rows = pa.table({"a": pa.array([at] * (1 + 40 * at), pa.int64())})
        lance.write_dataset(rows, tmp_path / "t", mode="append" if at else "create", enable_stable_row_ids=True)
    lance.dataset(tmp_path / "t").optimize.compact_files()
    dataset = lance.dataset(tmp_path / "t")
    [fragment] = dataset.get_fragments()
    versions = dataset.to_table(columns=[WRITTEN])[WRITTEN].to_numpy().astype(np.int64)
    stored = fragment.metadata.to_json()["last_updated_at_version_meta"]
    assert stored == {"inline": list(maintain.encoded_runs(versions))}


def test_a_rewritten_table_knows_new_rows_exactly_and_old_ones_roughly(
    long: tuple[TableStorage, TableVersion],
) -> None:
    tables, table = long
    before, after = _versions(tables, table), _versions(tables, _rewritten(tables, table))
    assert before.keys() == after.keys()
    assert all(before[row] <= after[row] <= table.version for row in before)
    newest = [row for row, version in before.items() if version > table.version - 64]
    assert [after[row] for row in newest] == [before[row] for row in newest]
    assert len(set(after.values())) < 64 + COMMITS / 64 + 2


@given(st.lists(st.integers(1, 20_000), min_size=1), st.integers(0, 20_000))
def test_a_row_is_never_said_to_be_older_than_it_is(versions: list[int], later: int) -> None:
    now = max(versions) + later
    once = maintain.coarse_versions(np.array(versions), now)
    again = maintain.coarse_versions(once, now)
    assert (once >= versions).all()
    assert (again >= once).all()
    assert (again <= now).all()
