"""Many branches: five workflows of agents that branch, change, ask, compare, prune and merge, and what a branch costs.

    python -m benchmarks.branching            the mini size of each workflow
    python -m benchmarks.branching --full     the full size; takes long

The workflows and their parameters follow BranchBench (arXiv 2604.17180).
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa

import omnigraph
from omnigraph.graph import Graph
from omnigraph.storage.observe import counted

SCHEMA = """
node Product { name: String @key  price: I32  stock: I32?  @range(price, 0..1000000) }
node Shop { name: String @key  city: String? }
edge Sells: Shop -> Product { since: I32? }
"""
ROWS = 100_000  # over all types
AT_ONCE = 4  # workers of a workflow run in so many threads
SECONDS = 10.0  # of a mini workflow
BRANCHES = 1000
GROWTH = 1.3
CHANGE = "query change($name: String, $price: I32) { update Product set { price: $price } where name = $name }"
TOTAL = "query total() { match { $p: Product } return { sum($p.price) as total } }"


@dataclass(frozen=True, slots=True)
class Workflow:
    """So many workers do so many steps each. A step makes a branch below one that has room, and works on it.

    `root` and `inner` are the fan-outs, `depth` that of the tree; `compared` differences, `mutations` and `queries` are
    made on each branch; a share `pruned` of the branches is deleted, and the best one of each worker merged.
    """

    name: str
    workers: int
    steps: int
    root: int
    inner: int
    depth: int
    compared: int
    mutations: int
    queries: int
    pruned: float
    merges: bool = True


MINI = [
    Workflow("software development", 2, 5, 3, 2, 3, 1, 1, 2, 0.1),
    Workflow("failure reproduction", 1, 10, 10, 0, 1, 0, 45, 1, 1.0, merges=False),
    Workflow("data cleaning", 3, 6, 3, 2, 3, 1, 1, 1, 0.0),
    Workflow("tree search", 3, 8, 5, 3, 5, 0, 1, 1, 0.1),
    Workflow("simulation", 60, 1, 60, 0, 1, 1, 50, 1, 1.0, merges=False),
]
FULL = [
    Workflow("software development", 5, 20, 5, 3, 4, 1, 1, 2, 0.1),
    Workflow("failure reproduction", 1, 10, 10, 0, 1, 0, 45, 1, 1.0, merges=False),
    Workflow("data cleaning", 10, 20, 10, 3, 3, 2, 1, 1, 0.0),
    Workflow("tree search", 10, 100, 10, 10, 25, 0, 1, 1, 0.1),
    Workflow("simulation", 1000, 1, 1000, 0, 1, 1, 50, 1, 1.0, merges=False),
]


@dataclass(slots=True)
class Node:
    """A branch of a worker's tree, and the total of prices that was found on it."""

    name: str
    depth: int
    room: int
    children: int = 0
    value: int = 0


@dataclass(slots=True)
class Spent:
    """The seconds that each kind of work took, over all workers, and the steps that were done."""

    seconds: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    branches: int = 0

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - start


def filled(folder: Path, rows: int) -> Graph:
    graph = omnigraph.init(folder / "graph", SCHEMA)
    products, shops = rows // 2, rows // 10
    names = [f"p{number}" for number in range(products)]
    owners = [f"s{number}" for number in range(shops)]
    sold = rows - products - shops
    tables = {
        "Product": pa.table({"name": names, "price": pa.array(range(products), pa.int32()), "stock": [1] * products}),
        "Shop": pa.table({"name": owners, "city": ["Rome"] * shops}),
        "Sells": pa.table(
            {
                "from": [owners[number % shops] for number in range(sold)],
                "to": [names[number % products] for number in range(sold)],
            }
        ),
    }
    graph.load(tables, mode="append", engine="local")
    graph.ensure_indices()
    return graph


def worked(graph: Graph, flow: Workflow, number: int) -> Spent:
    """Do the steps of one worker."""
    spent, choose = Spent(), random.Random(number)  # noqa: S311 - a benchmark
    nodes = [Node("main", 0, flow.root)]
    for step in range(flow.steps):
        open_ones = [one for one in nodes if one.children < one.room and one.depth < flow.depth]
        if not open_ones:  # the tree is full: a search goes on from its root
            nodes[0].room += 1
            open_ones = [nodes[0]]
        above = choose.choice(open_ones)
        node = Node(f"{flow.name.split()[0]}-{number}-{step}", above.depth + 1, flow.inner)
        with spent.on("create"):
            graph.create_branch(node.name, above.name)
        _work(graph, flow, node, spent, choose)
        above.children += 1
        spent.steps += 1
        spent.branches += 1
        if choose.random() < flow.pruned and not node.children:
            with spent.on("delete"):
                graph.delete_branch(node.name)
            above.children -= 1
        else:
            nodes.append(node)
    if flow.merges and len(nodes) > 1:
        best = max(nodes[1:], key=lambda one: one.value)
        with spent.on("merge"):
            graph.merge(best.name, resolve="theirs")
    return spent


def _work(graph: Graph, flow: Workflow, node: Node, spent: Spent, choose: random.Random) -> None:
    for _ in range(flow.mutations):
        values = {"name": f"p{choose.randrange(1000)}", "price": choose.randrange(1_000_000)}
        with spent.on("mutate"):
            graph.mutate(CHANGE, values, branch=node.name)
    for _ in range(flow.queries):
        with spent.on("query"):
            [found] = graph.query(TOTAL, branch=node.name).rows
        node.value = found["total"]
    for _ in range(flow.compared):
        with spent.on("compare"):
            changes = list(graph.diff(f"main...{node.name}"))
        assert changes, "a branch has changed something"


def run(flow: Workflow, rows: int) -> tuple[float, int]:
    """Run a workflow; return its seconds and the steps that were done."""
    with tempfile.TemporaryDirectory(prefix="omnigraph-branching-") as folder:
        graph = filled(Path(folder), rows)
        start = time.perf_counter()
        with ThreadPoolExecutor(min(AT_ONCE, flow.workers)) as pool:
            spent = list(pool.map(partial(worked, graph, flow), range(flow.workers)))
        seconds = time.perf_counter() - start
        left = len(graph.branches()) - 1
    steps = sum(one.steps for one in spent)
    kinds = sorted({name for one in spent for name in one.seconds})
    shares = "  ".join(f"{name} {sum(one.seconds.get(name, 0) for one in spent):.1f}" for name in kinds)
    all_steps = flow.workers * flow.steps
    print(f"{flow.name:<21}{seconds:8.1f} s  {steps:>5} of {all_steps} steps  {left:>4} branches left  ({shares})")
    return seconds, steps


def costs(branches: int) -> float:
    """Return how many times the requests of the first branch the last of many takes: to create it, and to read it."""
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="omnigraph-branching-") as folder:
        graph = filled(Path(folder), 1000)
        graph.create_branch("warm")  # what is done once for a graph
        graph.query(TOTAL, branch="warm")
        graph.delete_branch("warm")
        found: dict[str, list[int]] = {"create": [], "first read": [], "delete": []}
        for number in range(branches):
            name = f"b{number}"
            with counted() as created:
                graph.create_branch(name)
            if number not in (0, branches - 1):
                continue
            graph.mutate(CHANGE, {"name": f"p{number % 9}", "price": 1}, branch=name)
            with counted() as read:
                omnigraph.open(graph.uri, read_only=True).query(TOTAL, branch=name)
            with counted() as deleted:
                graph.delete_branch(name)
            for what, requests in zip(found, (created, read, deleted), strict=True):
                found[what].append(requests.requests.total)
    for what, (first, last) in found.items():
        ratio = last / first
        # Lance reads every branch before it deletes one; see docs/limits.md.
        limit = "no limit yet" if what == "delete" else f"at most {GROWTH}"
        worst = worst if what == "delete" else max(worst, ratio)
        print(f"{what:<21}{first} requests for the first branch, {last} for the {branches:,}th: {ratio:.2f} ({limit})")
    return worst


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--only", help="the beginning of the name of one workflow, or costs")
    given = parser.parse_args()
    good = True
    for flow in FULL if given.full else MINI:
        if given.only is None or flow.name.startswith(given.only):
            seconds, steps = run(flow, ROWS)
            good &= steps == flow.workers * flow.steps and (given.full or seconds < SECONDS)
    if given.only in (None, "costs"):
        good &= costs(BRANCHES) <= GROWTH
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
