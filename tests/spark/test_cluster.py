import json
from pathlib import Path

from tests.support import steps
from tests.support.spark import PATIENCE, Cluster, program

DRIVER = """
import json, sys
from omnigraph.spark.session import spark_session
from omnigraph.spark.executor import SparkExecutor
from tests.support import steps
executor = SparkExecutor(spark_session(sys.argv[1], {"spark.executor.memory": "512m"}))
tasks = [steps.MeetingTask(sys.argv[2], number) for number in range(6)]
homes = executor.run("read", steps.home_of_the_package, range(2))
types = executor.run("check", steps.types_of, ["node A { x: String }", "node B { y: I32? }"])
print(json.dumps({"homes": homes, "types": types, "results": executor.run("write", steps.meets, tasks)}))
"""


def test_a_worker_that_is_killed_changes_nothing_about_the_result(spark_cluster: Cluster, tmp_path: Path) -> None:
    with program(DRIVER, spark_cluster.master, str(tmp_path)) as driver:
        processes = steps.begun(tmp_path, 2)
        spark_cluster.kill_a_worker()
        steps.ended(processes, at_least=1)
        (tmp_path / "go").touch()
        out, err = driver.communicate(timeout=PATIENCE)
    report = json.loads(out)

    assert err == ""
    assert [number for number, _ in report["results"]] == list(range(6))
    tokens = {token for _, token in report["results"]}
    begun = {file.stem for file in tmp_path.glob("*.begun")}
    assert len(tokens) == 6
    assert tokens < begun, "no task was run again"
    assert report["types"] == [["A"], ["B"]], "the grammar did not come along"
    assert all(".zip/omnigraph/" in home for home in report["homes"]), "the driver's package was not used"
