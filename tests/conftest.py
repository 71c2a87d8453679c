"""Profiles of hypothesis, the markers of each test, and an environment without the settings of this machine."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.support import groups, markers
from tests.support.inbox import inbox
from tests.support.s3 import s3_server, s3_uri
from tests.support.spark import (
    _one_cluster,
    _one_session,
    connect_server,
    only_where_marked,
    spark,
    spark_cluster,
)
from tests.support.templates import templates

pytest_xdist_make_scheduler, pytest_configure_node = groups.pytest_xdist_make_scheduler, groups.pytest_configure_node

# Here and in no other conftest.py, so that a process has one server, one session and one cluster for all of its tests.
__all__ = [
    "_one_cluster",
    "_one_session",
    "connect_server",
    "inbox",
    "s3_server",
    "s3_uri",
    "spark",
    "spark_cluster",
    "templates",
]

# The size of a generated text varies a lot, and so does the time it takes.
settings.register_profile(
    "lean",
    max_examples=40,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=set(Phase) - {Phase.explain},
)
settings.register_profile("soak", settings.get_profile("lean"), max_examples=5_000, derandomize=False)
settings.load_profile(os.environ.get("OMNIGRAPH_HYPOTHESIS_PROFILE", "lean"))

# A power cut during the tests loses nothing of value. Tests of durability ask for it.
os.environ.setdefault("OMNIGRAPH_DURABILITY", "off")

# Whoever runs the tests may have keys, which must not be charged, and a configuration, which the tests must not see.
_OURS = ("OMNIGRAPH_EMBED", "OMNIGRAPH_TOKEN_")
_THEIRS = ("OPENROUTER_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY")
_SETTINGS = ("OMNIGRAPH_PROFILE", "OMNIGRAPH_BEARER_TOKEN", "OMNIGRAPH_CONFIG")
for _name in [name for name in os.environ if name in (*_THEIRS, *_SETTINGS) or name.startswith(_OURS)]:
    del os.environ[_name]
os.environ["OMNIGRAPH_HOME"] = str(Path(__file__).with_name("nowhere"))


gc.disable()  # thousands of tests are collected, and none of them is garbage


def pytest_itemcollected(item: pytest.Item) -> None:
    markers.mark(item)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = {*markers.once_on_s3(items)}
    config.hook.pytest_deselected(items=[*left_out])
    items[:] = [item for item in items if item not in left_out]
    markers.longest_group_first(items)


@pytest.hookimpl(tryfirst=True)  # before the process that hands out tests hears of them
def pytest_collection_finish(session: pytest.Session) -> None:
    groups.write(session)
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with only_where_marked(item):
        return (yield)


@pytest.fixture(params=["local", "s3"])
def root_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An address for a graph, on each kind of storage."""
    uri: str = request.getfixturevalue("s3_uri") if request.param == "s3" else str(tmp_path / "graphs" / "one")
    return uri
