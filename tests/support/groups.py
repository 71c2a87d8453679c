"""Keep the tests of a group in one process of a run with several.

`--dist loadgroup` of pytest-xdist 3.8 does that by itself, but not with pytest 9.2: there nothing may change the names
of tests, and with them the groups got from the processes that collect tests to the one that hands them out. Here they
go through a file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]

from tests.support.markers import group

_FILE = "file_of_groups"


class GroupScheduling(LoadGroupScheduling):  # type: ignore[misc]
    """Hands out whole groups, as its parent does with names that end with them."""

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        groups = json.loads(Path(node.workerinput[_FILE]).read_text(encoding="utf-8"))
        super().add_node_collection(node, [f"{name}@{one}" for name, one in zip(collection, groups, strict=True)])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    return GroupScheduling(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    folder = TemporaryDirectory(prefix="groups-")
    node.config.add_cleanup(folder.cleanup)
    node.workerinput[_FILE] = str(Path(folder.name) / "groups.json")


def write(session: pytest.Session) -> None:
    """Write down the groups of the tests that this process has collected, if another one hands them out."""
    if file := getattr(session.config, "workerinput", {}).get(_FILE):
        Path(file).write_text(json.dumps([group(item) for item in session.items]), encoding="utf-8")
