"""A plugin of pytest for `make mutants`: note which tests execute each line that is mutated, and what each costs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

_COPY = Path(os.environ["MUTANTS_SOURCE"])
_MEASURED = [str(_COPY / name) for name in ("commit/*", "manifest/*", "history/*", "write/validate.py")]


class Measure:
    def __init__(self) -> None:
        self._coverage = coverage.Coverage(data_file=None, config_file=False, include=_MEASURED)
        self._coverage.start()
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._coverage.switch_context(item.nodeid)
        began = time.process_time()
        result = yield
        self._coverage.switch_context("")
        if item.nodeid not in self._failed:
            self._seconds[item.nodeid] = round(time.process_time() - began, 3)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:  # what fails without a mutant notices none
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        data = self._coverage.get_data()
        lines = {
            str(Path(file).relative_to(_COPY)): {
                line: [test for test in tests if test in self._seconds] for line, tests in found.items()
            }
            for file in data.measured_files()
            for found in [data.contexts_by_lineno(file)]
        }
        Path(os.environ["MUTANTS_MAP"]).write_text(json.dumps({"lines": lines, "seconds": self._seconds}))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Measure())
