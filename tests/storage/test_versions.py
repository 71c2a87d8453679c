"""Looking for the newest version of a local dataset: the hint saves a listing, and never wins against the files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from omnigraph.storage import bases, versions

ROW = pa.table({"a": [1]})


class Dataset:
    """A dataset of four versions, and the directory of their files."""

    def __init__(self, uri: str, *, early: bool = False) -> None:
        self.uri, self.folder, self.early = uri, Path(uri, "_versions"), early
        for _ in range(4):
            self.commit()

    def commit(self) -> None:
        mode = "append" if self.folder.exists() else "create"
        lance.write_dataset(ROW, self.uri, mode=mode, enable_v2_manifest_paths=not self.early)

    def file(self, version: int) -> Path:
        return self.folder / bases.file_name(version)

    def hint(self, content: str) -> None:
        (self.folder / versions.HINT).write_text(content)

    def newest(self, count: int = 1) -> list[int]:
        found = versions.newest_files(self.uri, count)
        assert [Path(path).name for _, path in found] == [
            path.name for _, path in versions.version_files(self.uri)[:count]
        ]
        return [number for number, _ in found]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Dataset(str(tmp_path / "table"))


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    made: list[Path] = []
    real = versions._from_listing

    def listed(directory: str, count: int) -> list[tuple[int, str]]:
        made.append(Path(directory))
        return real(directory, count)

    monkeypatch.setattr(versions, "_from_listing", listed)
    return made


def test_the_first_look_lists_the_files_and_later_ones_do_not(dataset: Dataset, listings: list[Path]) -> None:
    assert dataset.newest() == [4]
    assert listings == [dataset.folder]
    dataset.commit()
    assert dataset.newest() == [5]
    assert dataset.newest(2) == [5, 4]
    assert listings == [dataset.folder]


def test_a_version_whose_hint_was_not_written_is_seen(dataset: Dataset) -> None:
    dataset.newest()
    before = (dataset.folder / versions.HINT).read_text()
    dataset.commit()
    dataset.hint(before)
    assert dataset.newest() == [5]


def test_versions_under_the_names_of_early_releases_are_seen(tmp_path: Path) -> None:
    dataset = Dataset(str(tmp_path / "early"), early=True)
    assert (dataset.folder / "4.manifest").exists()
    assert dataset.newest(2) == [4, 3]
    before = (dataset.folder / versions.HINT).read_text()
    dataset.commit()
    dataset.hint(before)
    assert dataset.newest() == [5]


def test_versions_behind_a_gap_are_seen(dataset: Dataset) -> None:
    """A cleanup removes what lies between a version that is kept and the head."""
    dataset.newest()
    for _ in range(3):
        dataset.commit()
    for version in (5, 6):
        dataset.file(version).unlink()
    assert dataset.newest() == [7]
    assert dataset.newest(2) == [7, 4]


def test_a_hint_behind_what_was_seen_is_not_believed(dataset: Dataset) -> None:
    dataset.commit()
    dataset.commit()
    assert dataset.newest() == [6]
    dataset.file(5).unlink()
    dataset.hint('{"version": 4}')
    assert dataset.newest() == [6]


def test_a_hint_is_believed_for_a_minute_only(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that leaves no hint, and removes versions: only a listing finds what it made."""
    dataset.newest()
    for _ in range(2):
        dataset.commit()
    dataset.file(5).unlink()
    dataset.hint('{"version": 4}')
    monkeypatch.setattr(versions, "LISTED_FOR", 0)
    assert dataset.newest() == [6]


def test_a_directory_that_was_put_in_its_place_is_listed(dataset: Dataset) -> None:
    dataset.newest()
    for _ in range(2):
        dataset.commit()
    dataset.file(5).unlink()
    dataset.hint('{"version": 4}')
    shutil.copytree(dataset.folder, f"{dataset.folder}-copy")
    dataset.folder.rename(f"{dataset.folder}-moved")
    Path(f"{dataset.folder}-copy").rename(dataset.folder)
    assert dataset.newest() == [6]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"version": "4"}', json.dumps({"version": 2**64})])
def test_a_hint_that_names_no_version_is_passed_over(dataset: Dataset, content: str) -> None:
    dataset.newest()
    dataset.hint(content)
    assert dataset.newest() == [4]


def _set_aside(dataset: Dataset) -> None:
    dataset.file(4).rename(f"{dataset.file(4)}.torn")


@pytest.mark.parametrize("lose", [_set_aside, lambda dataset: dataset.file(4).unlink()])
def test_a_hint_at_a_version_that_is_gone_is_passed_over(dataset: Dataset, lose: Callable[[Dataset], None]) -> None:
    dataset.newest()
    lose(dataset)
    assert dataset.newest() == [3]
    assert dataset.newest(2) == [3, 2]


def test_a_torn_newest_version_is_the_newest_all_the_same(dataset: Dataset) -> None:
    """Whether it is torn is judged by its bytes, elsewhere."""
    dataset.newest()
    dataset.file(5).touch()
    assert dataset.newest() == [5]
    dataset.hint('{"version": 5}')
    assert dataset.newest(2) == [5, 4]


def test_the_memory_of_listings_is_bounded(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_MOST_LISTED", 1)
    dataset.newest()
    other = Dataset(f"{dataset.uri}-2")
    other.newest()
    assert list(versions._listed) == [str(other.folder)]
