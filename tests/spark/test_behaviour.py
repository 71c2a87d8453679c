"""One history of loads on every engine: in this process, on local[*], on Spark Connect; `test_cluster` has the cluster.

Good records, every kind of bad one, all modes, missing ends, duplicates and cardinality, in three formats: what a load
says, and what is in the graph afterwards, is the same word for word.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql.connect.session import SparkSession as ConnectSession

from omnigraph.spark.session import in_thread, spark_session
from tests.support.outcomes import Outcome, outcomes_of
from tests.support.spark import ConnectServer


def test_the_history_has_loads_of_every_end(expected: Mapping[str, Outcome]) -> None:
    ends = {name: outcome.told[0] for name, outcome in expected.items()}
    refused = {name: {one["rule"] for one in expected[name].told[3]} for name, end in ends.items() if end in KINDS}

    assert {name for name, end in ends.items() if end not in KINDS} == {
        "clean",
        "moving",
        "again",
        "smaller",
        "nothing",
    }
    assert {rule for rules in refused.values() for rule in rules} == {
        *("cardinality", "endpoint", "json", "key", "range", "required", "shape", "type", "unique"),
    }


KINDS = ("LoadRejectedError", "KeyConflictError")


def same(found: Mapping[str, Outcome], expected: Mapping[str, Outcome]) -> None:
    assert found.keys() == expected.keys()
    for name, outcome in expected.items():  # one by one: a difference is named by its load
        assert found[name] == outcome, name


@pytest.mark.slow
def test_the_pipeline_in_this_process(history: Path, expected: Mapping[str, Outcome], tmp_path: Path) -> None:
    same(outcomes_of(history, tmp_path / "graph", "local"), expected)


@pytest.mark.usefixtures("spark")
def test_spark_in_local_mode(history: Path, expected: Mapping[str, Outcome], tmp_path: Path) -> None:
    same(outcomes_of(history, tmp_path / "graph", "spark"), expected)


def test_spark_connect(
    history: Path, expected: Mapping[str, Outcome], tmp_path: Path, connect_server: ConnectServer
) -> None:
    def load() -> Mapping[str, Outcome]:
        # In a thread of its own, where this session is the active one, and so the one that a load uses.
        mine = ConnectSession.builder.remote(connect_server.address).create()
        used: object = spark_session()
        assert used is mine
        try:
            return outcomes_of(history, tmp_path / "graph", "spark")
        finally:
            mine.stop()

    same(in_thread(load).result(), expected)
