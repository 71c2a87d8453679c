"""Version files of forks: which root they name, and how that is changed without touching anything else."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from omnigraph.core.location import Location
from omnigraph.errors import CorruptGraphError
from omnigraph.storage.bases import (
    TablePlace,
    at_present_root,
    fork_of_version_file,
    former_roots,
    moved_file,
    version_file,
)

TABLE = "nodes/0123456789abcdef"
ROOTS = ("short", "one that has a much longer name", "x/nodes/0123456789abcdef/tree/b", "tree", "ü %20")


def place(root: Path) -> TablePlace:
    return TablePlace(Location.parse(root), TABLE)


def forked(root: Path) -> Path:
    """A table with the forks `b` and `c`, which is made from `b`; return the version file of `c`."""
    table = lance.write_dataset(pa.table({"x": [1, 2, 3]}), root / TABLE, enable_stable_row_ids=True)
    b = table.create_branch("b", 1)
    b.delete("x = 2")
    c = lance.dataset(str(root / TABLE / "tree" / "b")).create_branch("c", 2)
    return root / TABLE / "tree" / "c" / version_file(c.version)


@pytest.mark.parametrize("name", ROOTS)
def test_a_moved_version_file_names_the_present_root_and_reads_the_same(tmp_path: Path, name: str) -> None:
    file = forked(tmp_path / "original")
    moved = tmp_path / name
    moved.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "original").rename(moved)
    file = moved / file.relative_to(tmp_path / "original")
    before = file.read_bytes()
    assert former_roots(before, place(moved)) == {str(tmp_path / "original")}
    after = moved_file(before, place(moved))
    assert former_roots(after, place(moved)) == set()
    assert len(after) >= len(before)  # a reader may know the length from a listing
    assert moved_file(after, place(moved)) == after
    for fork in ("b", "c"):
        for version in (moved / TABLE / "tree" / fork / "_versions").glob("*.manifest"):
            version.write_bytes(moved_file(version.read_bytes(), place(moved)))
    found = lance.dataset(str(moved / TABLE / "tree" / "c"))
    assert found.to_table()["x"].to_pylist() == [1, 3]
    assert sorted(one.path for one in found.base_paths().values()) == [
        str(moved / TABLE),
        str(moved / TABLE / "tree" / "b"),
    ]


def test_a_handle_of_a_moved_fork_finds_its_files_and_nothing_is_written(tmp_path: Path) -> None:
    file = forked(tmp_path / "original")
    (tmp_path / "original").rename(tmp_path / "moved")
    file = tmp_path / "moved" / file.relative_to(tmp_path / "original")
    before = file.read_bytes()
    stale = lance.dataset(str(tmp_path / "moved" / TABLE / "tree" / "c"))
    with pytest.raises((OSError, ValueError), match="Not found"):
        stale.to_table()
    found = at_present_root(stale, Location.parse(tmp_path / "moved"))
    assert found.to_table()["x"].to_pylist() == [1, 3]
    assert file.read_bytes() == before


def test_a_handle_that_is_where_it_was_written_stays_as_it_is(tmp_path: Path) -> None:
    forked(tmp_path)
    location = Location.parse(tmp_path)
    for uri in (TABLE, f"{TABLE}/tree/b", f"{TABLE}/tree/c"):
        dataset = lance.dataset(str(tmp_path / uri))
        assert at_present_root(dataset, location) is dataset


def test_a_base_of_something_else_is_left_alone(tmp_path: Path) -> None:
    data = forked(tmp_path / "original").read_bytes()
    other = TablePlace(Location.parse(tmp_path / "moved"), "edges/0123456789abcdef")
    assert former_roots(data, other) == set()
    assert moved_file(data, other) == data


@pytest.mark.parametrize("cut", [0, 3, 19, 40, -1])
def test_half_a_version_file_is_refused(tmp_path: Path, cut: int) -> None:
    data = forked(tmp_path / "original").read_bytes()
    with pytest.raises(CorruptGraphError, match="incomplete or in an unknown format"):
        moved_file(data[:cut], place(tmp_path))


def test_a_manifest_that_breaks_off_is_refused(tmp_path: Path) -> None:
    data = bytearray(forked(tmp_path / "original").read_bytes())
    start = int.from_bytes(data[-16:-8], "little") + 4
    data[start : start + 2] = b"\xff\xff"  # a tag that goes on and on, into the next fields
    with pytest.raises(CorruptGraphError, match="unknown format"):
        moved_file(bytes(data), place(tmp_path / "moved"))


@pytest.mark.parametrize(
    "name, expected",
    [
        ("__manifest/tree/a/_versions/1.manifest", ("__manifest", "a")),
        ("nodes/x/tree/01M/a/tree/b/_versions/1.manifest", ("nodes/x", "01M/a/tree/b")),
        ("nodes/x/_versions/1.manifest", None),
        ("nodes/x/tree/a/_versions/latest_version_hint.json", None),
        ("nodes/x/tree/a/data/1.lance", None),
    ],
)
def test_version_files_of_forks_are_known_by_their_names(name: str, expected: tuple[str, str] | None) -> None:
    assert fork_of_version_file(name) == expected
