"""Looking for what a power cut tore: a file that cannot be read is an error with a type, and decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from omnigraph.errors import StorageError
from omnigraph.storage import bases, torn, versions

LOOKS: dict[str, Callable[[str], object]] = {
    "is whole": lambda uri: torn.is_whole(uri, *versions.version_files(uri)[0]),
    "torn versions": torn.torn_versions,
    "newest whole": torn.newest_whole,
    "set aside versions": torn.set_aside_versions,
}


@pytest.fixture
def uri(tmp_path: Path) -> str:
    made = lance.write_dataset(pa.table({"a": [1]}), str(tmp_path / "table"), enable_v2_manifest_paths=True)
    return str(made.uri)


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_a_version_file_that_cannot_be_read_is_an_error_of_ours_and_stays(
    uri: str, look: Callable[[str], object]
) -> None:
    unreadable = Path(uri, "_versions", bases.file_name(2))
    unreadable.mkdir()
    with pytest.raises(StorageError, match="Is a directory") as failure:
        look(uri)
    assert failure.value.path == uri
    assert failure.value.hint
    assert unreadable.is_dir()


@pytest.mark.parametrize("look", [torn.has_torn_refs, torn.set_aside_refs])
def test_a_branch_file_that_cannot_be_read_is_an_error_of_ours_and_stays(
    uri: str, look: Callable[[str], object]
) -> None:
    loop = Path(uri, "_refs", "branches", "one.json")
    loop.parent.mkdir(parents=True)
    loop.symlink_to(loop)
    with pytest.raises(StorageError, match="levels of symbolic links"):
        look(uri)
    assert loop.is_symlink()


def test_versions_that_cannot_be_listed_are_an_error_of_ours(uri: str) -> None:
    folder = Path(uri, "_versions")
    folder.rename(f"{folder}-moved")
    folder.symlink_to(folder)
    for look in (versions.version_files, partial(versions.newest_files, count=1)):
        with pytest.raises(StorageError, match="levels of symbolic links"):
            look(uri)
