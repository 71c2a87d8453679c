"""Tables of Delta and Iceberg as the input of a load, in a Spark that has their jars."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.spark import said

JARS = os.environ.get("OMNIGRAPH_SPARK_JARS", "")
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
ICEBERG = {
    "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.ice.type": "hadoop",
}
LOAD = """
import sys
from pathlib import Path
import omnigraph
from omnigraph.spark import write
from omnigraph.spark.session import spark_session, stop_session

kind, jars, here, conf = sys.argv[1], sys.argv[2], Path(sys.argv[3]), eval(sys.argv[4])
if kind == "iceberg":
    conf["spark.sql.catalog.ice.warehouse"] = str(here / "warehouse")
spark = spark_session("local[1,4]", {**conf, "spark.jars": jars})
rows = spark.createDataFrame([("Ann", 1), ("Bob", 2)], "name string, age int")
if kind == "delta":
    rows.write.format("delta").save(str(here / "table"))
    found = spark.read.format("delta").load(str(here / "table"))
else:
    rows.writeTo("ice.people").create()
    found = spark.table("ice.people")
graph = omnigraph.init(here / "graph", "node Person { name: String @key  age: I32? }")
print(write(graph, {"Person": found}, mode="append").nodes)
stop_session()
"""


@pytest.mark.slow(30)
@pytest.mark.parametrize("kind, conf", [("delta", DELTA), ("iceberg", ICEBERG)], ids=["delta", "iceberg"])
def test_a_table_is_loaded_like_any_dataframe(tmp_path: Path, kind: str, conf: dict[str, str]) -> None:
    jars = [str(path) for path in sorted(Path(JARS).glob("*.jar")) if kind in path.name] if JARS else []
    if not jars:
        # Delta 4.1.0 and Iceberg 1.11.0, the newest that were found, are for Spark 4.1, and fail on 4.3 in their code.
        pytest.skip(f"no jar of {kind}: name a directory of jars for this Spark in OMNIGRAPH_SPARK_JARS")

    assert said(LOAD, kind, ",".join(jars), str(tmp_path), repr(conf))[:2] == (0, "{'Person': 2}\n")
