"""A plugin of pytest for `make mutants`: run chosen tests in order, within a budget, and note which one failed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest

_KINDS = {"s3", "process", "slow"}


@pytest.hookimpl(wrapper=True)  # a wrapper has the last word: the suite itself sorts the longest files to the front
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Keep the chosen tests in their order, behind those that are younger than the map and quick."""
    yield
    given = json.loads(Path(os.environ["MUTANTS_CHOSEN"]).read_text())
    if given is not None:
        place = {test: at for at, test in enumerate(given["chosen"])}
        known = set(given["known"])
        young = [one for one in items if one.nodeid not in known and not _KINDS.intersection(one.keywords)]
        items[:] = young + sorted((one for one in items if one.nodeid in place), key=lambda one: place[one.nodeid])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol() -> bool | None:
    """Leave out the rest once the budget is spent. Time of the processor, so that a busy machine changes nothing."""
    return True if time.process_time() > float(os.environ["MUTANTS_SECONDS"]) else None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        kinds = sorted(_KINDS.intersection(report.keywords))
        Path(os.environ["MUTANTS_KILLER"]).write_text(json.dumps([report.nodeid, kinds]))
