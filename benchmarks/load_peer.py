"""The same data into another graph database by its COPY; runs in an environment of its own, without Omnigraph."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import time


def main() -> None:
    module, source = sys.argv[1:]
    peer = importlib.import_module(module)
    with tempfile.TemporaryDirectory() as directory:
        connection = peer.Connection(peer.Database(f"{directory}/graph"))
        connection.execute("CREATE NODE TABLE Person(name STRING PRIMARY KEY, age INT32, score DOUBLE)")
        connection.execute("CREATE REL TABLE Knows(FROM Person TO Person)")
        begun = time.perf_counter()
        connection.execute(f"COPY Person FROM '{source}/Person.parquet'")
        connection.execute(f"COPY Knows FROM '{source}/Knows.parquet'")
        connection.execute("CHECKPOINT")
        seconds = time.perf_counter() - begun
        counts = [
            connection.execute(f"MATCH {pattern} RETURN count(*)").get_next()[0]
            for pattern in ("(:Person)", "(:Person)-[:Knows]->(:Person)")
        ]
        ages = connection.execute("MATCH (a:Person)-[:Knows]->(b:Person) RETURN sum(a.age - b.age)").get_next()[0]
    print(json.dumps({"version": peer.__version__, "seconds": seconds, "counts": counts, "ages": int(ages)}))


if __name__ == "__main__":
    main()
