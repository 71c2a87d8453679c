"""A plugin of pytest for `make mutants`: run the cheapest tests first, within a budget, and note which one failed."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

_KINDS = {"s3", "process", "slow"}


@pytest.hookimpl(wrapper=True)  # a wrapper has the last word: the suite itself sorts the longest files to the front
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Sort: what needs nothing first, then a case of each test before a second one, then by file as given."""
    yield
    files = [Path(name).name for name in config.args]
    seen: Counter[str] = Counter()
    place: dict[str, tuple[bool, int, int]] = {}
    for item in items:
        seen[function := item.nodeid.partition("[")[0]] += 1
        rank = files.index(item.path.name) if item.path.name in files else len(files)
        place[item.nodeid] = (bool(_KINDS.intersection(item.keywords)), seen[function], rank)
    items.sort(key=lambda item: place[item.nodeid])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol() -> bool | None:
    """Leave out the rest once the budget is spent. Time of the processor, so that a busy machine changes nothing."""
    return True if time.process_time() > float(os.environ["MUTANTS_SECONDS"]) else None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        kinds = sorted(_KINDS.intersection(report.keywords))
        Path(os.environ["MUTANTS_KILLER"]).write_text(json.dumps([report.nodeid, kinds]))
