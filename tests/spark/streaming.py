"""A stream of files into a graph, in a process of its own that is killed where a test says so.

    python -m tests.spark.streaming <directory> <place> <number>

It kills itself and its JVM with SIGKILL when the place is reached for the n-th time; without a place it ends by itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import omnigraph
import omnigraph.spark
from omnigraph.commit import failpoints
from omnigraph.spark.session import spark_session
from tests.support.spark import ROOT

SCHEMA = """
node Customer { name: String @key }
node Order { number: I64 @key  amount: I64 }
edge Placed: Customer -> Order { }
"""
COLUMNS = "customer string, number long, amount long"
BEFORE_BATCH, AFTER_SINK = "before_batch", "after_sink"
"""Between the checkpoint of one batch and the next batch; between our commit and the checkpoint."""
_PATIENCE = 300


@dataclass(frozen=True)
class Shop:
    """A graph, the files of a stream, and its checkpoint."""

    directory: Path

    @property
    def graph(self) -> str:
        return str(self.directory / "graph")

    @property
    def events(self) -> Path:
        return self.directory / "events"

    def checkpoint(self, name: str = "checkpoint") -> str:
        return str(self.directory / name)

    def make(self, files: int, rows: int) -> None:
        """Make the graph, with two customers, and files of orders of them; their names are in the order of time."""
        graph = omnigraph.init(self.graph, SCHEMA)
        graph.load([{"type": "Customer", "data": {"name": name}} for name in ("ann", "bob")], mode="append")
        self.events.mkdir()
        for number in range(files):
            self.write(number, [number * rows + at for at in range(rows)])

    def write(self, file: int, numbers: list[int]) -> None:
        lines = (json.dumps({"customer": "ann" if n % 2 else "bob", "number": n, "amount": n * 10}) for n in numbers)
        path = self.events / f"{file:05d}.json"
        path.write_text("".join(f"{line}\n" for line in lines))
        os.utime(path, (1_700_000_000 + file, 1_700_000_000 + file))  # the file source reads the oldest first

    def stream(self, spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(str(self.events))


def orders_of(batch: DataFrame) -> DataFrame:
    return batch.select("number", "amount")


def placed_of(batch: DataFrame) -> DataFrame:
    return batch.selectExpr("concat('p', number) as id", "customer as from", "cast(number as string) as to")


TYPES = {"Order": orders_of, "Placed": placed_of}


def run(
    shop: Shop, spark: SparkSession, around: Callable[[str], None] = lambda _: None, checkpoint: str = "checkpoint"
) -> None:
    """Read all that there is; `around` is called at the places between our commit and the checkpoint."""
    sink = omnigraph.spark.sink(omnigraph.open(shop.graph), "orders", TYPES, mode="append")

    def each(batch: DataFrame, number: int) -> None:
        around(BEFORE_BATCH)
        sink(batch, number)
        around(AFTER_SINK)

    writing = shop.stream(spark).writeStream.foreachBatch(each).trigger(availableNow=True)
    writing.option("checkpointLocation", shop.checkpoint(checkpoint)).start().awaitTermination()


def start_and_kill(shop: Shop, place: str, number: int) -> None:
    """Run the stream in a process that is killed at a place."""
    command = [sys.executable, "-m", "tests.spark.streaming", str(shop.directory), place, str(number)]
    # A session of its own: the JVM is killed with it, and this process is not.
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE)
    _, said = process.communicate(timeout=_PATIENCE)
    assert process.returncode == -signal.SIGKILL, said.decode()


def _main(directory: str, place: str, number: str) -> None:
    at, arrivals = int(number), count(1)

    def arrive() -> None:
        if next(arrivals) == at:
            os.killpg(0, signal.SIGKILL)

    def around(name: str) -> None:
        if name == place:
            arrive()

    with ExitStack() as stack:
        if place not in (BEFORE_BATCH, AFTER_SINK):
            stack.enter_context(failpoints.armed(place, arrive))
        run(Shop(Path(directory)), spark_session(), around)


if __name__ == "__main__":
    _main(*sys.argv[1:])
