"""A standalone cluster with two workers, which has neither our package nor our credentials."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import omnigraph
from omnigraph.errors import SparkError
from omnigraph.spark.package import check_package, digest
from tests.support import steps
from tests.support.outcomes import Outcome
from tests.support.spark import Cluster

SUBMITTED = """
import json, pickle, sys
from pathlib import Path
from omnigraph.errors import SparkError
from omnigraph.spark.executor import SparkExecutor
from omnigraph.spark.session import spark_session
from tests.support import steps
from tests.support.outcomes import outcomes_of

here = Path(sys.argv[1])
installed = str(here / "installed")
outcomes = outcomes_of(Path(sys.argv[2]), here / "graph", "spark", split=600)
(here / "outcomes").write_bytes(pickle.dumps(outcomes))
session = spark_session()
executor = SparkExecutor(session)
found = {"master": session.sparkContext.master}
found["types"] = executor.run("check", steps.types_of, ["node A { x: String }", "node B { y: I32? }"])

# A Python without site-packages, as on a cluster that has none of our dependencies.
ours, session.sparkContext.pythonExec = session.sparkContext.pythonExec, str(here / "python")
try:
    executor.run("read", steps.squared, [3])
except SparkError as error:
    found["bare"] = str(error)
session.sparkContext.pythonExec = ours

# Spark keeps the workers of a job. These have imported another omnigraph, for somebody else.
def imports_another(batches):
    import os, sys, time
    from pathlib import Path
    sys.path.insert(0, installed)
    import omnigraph
    Path(installed, f"{os.getpid()}.pid").write_text(omnigraph.__file__)
    while len(list(Path(installed).glob("*.pid"))) < 2:  # one in each executor
        time.sleep(0.05)
    yield from batches

session.sparkContext.environment["NEW"] = "workers"
session.range(0, 2, 1, 2).mapInArrow(imports_another, "id bigint").collect()
found["homes"] = executor.run("read", steps.home_of_the_package, range(6))

tasks = [steps.MeetingTask(str(here / "meeting"), number) for number in range(6)]
found["results"] = executor.run("write", steps.meets, tasks)
(here / "found").write_text(json.dumps(found))
"""


def test_a_program_of_spark_submit_does_what_this_process_does(
    spark_cluster: Cluster, history: Path, expected: Mapping[str, Outcome], tmp_path: Path
) -> None:
    """One program, because its JVMs take their time to start: loads, a bare Python, a killed worker."""
    bare, installed, meeting = tmp_path / "python", tmp_path / "installed", tmp_path / "meeting"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    shutil.copytree(Path(omnigraph.__file__).parent, installed / "omnigraph", ignore=shutil.ignore_patterns("*.pyc"))
    (installed / "omnigraph" / "later.py").touch()
    meeting.mkdir()

    with spark_cluster.submitted(SUBMITTED, tmp_path, history):
        processes = steps.begun(meeting, 2)
        spark_cluster.kill_a_worker()
        steps.ended(processes, at_least=1)
        (meeting / "go").touch()

    outcomes = pickle.loads((tmp_path / "outcomes").read_bytes())  # noqa: S301 - of our program
    assert outcomes.keys() == expected.keys()
    for name, outcome in expected.items():  # one by one: a difference is named by its load
        assert outcomes[name] == outcome, name
    found = json.loads((tmp_path / "found").read_text())
    assert found["master"] == spark_cluster.master
    assert found["types"] == [["A"], ["B"]], "the grammar did not come along"
    assert "No module named" in found["bare"]
    assert "PYSPARK_PYTHON names the Python" in found["bare"]
    before = {file.read_text() for file in installed.glob("*.pid")}
    assert before == {f"{installed}/omnigraph/__init__.py"}, "no worker had imported another one"
    assert all(f"-{digest()[:12]}.zip/omnigraph/" in home for home in found["homes"]), "the driver's was not used"
    _each_result_counts_once(found["results"], meeting)


def _each_result_counts_once(results: list[tuple[int, str]], meeting: Path) -> None:
    assert [number for number, _ in results] == list(range(6))
    tokens = {token for _, token in results}
    begun = {file.stem for file in meeting.glob("*.begun")}
    assert len(tokens) == 6
    assert tokens < begun, "no task was run again"


def test_another_package_than_that_of_the_driver_is_an_error() -> None:
    check_package(digest())

    with pytest.raises(SparkError, match="runs another omnigraph than this one") as caught:
        check_package("0" * 64)

    assert "start a new Spark session" in str(caught.value.hint)
