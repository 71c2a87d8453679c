"""`make demo`: a graph of some hundred thousand edges, from its schema to a server that answers questions about it."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import omnigraph
from examples import papers
from omnigraph.cli import main as command_line

HERE = Path(__file__).parent
PAPERS = 50_000
STARS = "orbits of comets"
NEWEST = {"name": "paper", "params": {"slug": "new"}}


class DemoError(Exception):
    """The demo shows something else than it should."""


def show(title: str) -> None:
    print(f"\n== {title}", flush=True)


def must(fact: bool, what: str) -> None:  # noqa: FBT001 - a fact is true or not
    if not fact:
        raise DemoError(what)


def command(line: str, params: dict[str, Any] | None = None, *, expected: int = 0) -> None:
    """Run a command of `omnigraph`. It runs in this process, so that Python, Arrow and Spark start only once."""
    print(f"$ omnigraph {line}{_shortened(params)}", flush=True)
    given = [] if params is None else ["--params", json.dumps(params)]
    sys.argv = ["omnigraph", *shlex.split(line), *given]
    try:
        command_line()
        status: Any = 0
    except SystemExit as end:
        status = end.code or 0
    must(status == expected, f"the command ended with {status}, not with {expected}")


def _shortened(params: dict[str, Any] | None) -> str:
    if params is None:
        return ""
    shown = {name: [*value[:2], "..."] if isinstance(value, list) else value for name, value in params.items()}
    return f" --params '{json.dumps(shown)}'"


def build(made: papers.Made) -> None:
    show("A schema and a file of queries, checked against each other")
    command("lint --schema papers.pg --query papers.gq")
    show("How mistakes are told, before anything runs")
    command("lint --schema papers.pg --query papers_mistakes.gq", expected=1)
    show("A graph of that schema, and all the data in one commit, read and checked on Spark")
    command("init graph --schema papers.pg")
    command("load graph --data data --mode append --engine spark --as nightly --quiet")
    show("Data that breaks the rules: every problem is named by its line, nothing is loaded")
    command("load graph --data papers_broken.jsonl --mode merge --quiet", expected=1)
    with omnigraph.open("graph", read_only=True) as graph:
        must(graph.commits()[0].actor_id == "nightly", "something came after the load")
        rows = {key: entry.row_count for key, entry in graph.snapshot().entries.items()}
        edges = sum(count for key, count in rows.items() if key.startswith("edge:"))
        must(sum(rows.values()) == made.nodes + made.edges, f"not all is loaded: {rows}")
        must(edges == made.edges, f"not all edges are loaded: {rows}")


def ask(made: papers.Made) -> None:
    show("Which papers most others rest on: one question over all citations")
    command("query most_cited --store graph --query papers.gq")
    counts = np.bincount(made.cited)
    with omnigraph.open("graph", read_only=True) as graph:
        [first, *_] = graph.query("papers.gq", name="most_cited")
    must(first["citations"] == counts.max(), "the paper with most citations has another number of them")
    show("What one paper rests on, up to three steps back")
    command("query foundations --store graph --query papers.gq", {"slug": f"p-{made.citing[-1]}"})
    show("Who writes with whom")
    command("query colleagues --store graph --query papers.gq", {"slug": "a-7"})
    show(f"Hybrid search: papers near the meaning of astronomy, or with the words `{STARS}`, and who wrote them")
    command("query like --store graph --query papers.gq", {"text": STARS, "vector": papers.vector_of("astronomy")})


def branch() -> None:
    show("A branch for an agent. It costs nothing until something is changed, and nobody else sees what is")
    command("branch create agent --uri graph --quiet")
    change = "mutate {} --store graph --query papers.gq --branch agent --as agent"
    command(change.format("retract"), {"slug": "p-0", "note": "the figures were wrong"})
    command(change.format("forget"), {"slug": "p-1"})
    show("What the branch changed. The edges of a paper go with it")
    command("diff main agent --uri graph --stat")
    show("Meanwhile on main: a new paper, its author, its topic and what it cites, in one commit")
    new = {"slug": "new", "title": "Comets after all", "year": 2024}
    links = {"author": "a-7", "topic": "astronomy", "rests_on": "p-3"}
    command("mutate publish --store graph --query papers.gq --as eve", new | links)
    show("What a merge would do, and the merge: one commit with two parents")
    command("branch merge agent --uri graph --dry-run")
    command("branch merge agent --uri graph --delete-branch --as eve --quiet")


def travel() -> None:
    show("The history, and a paper now and as it was loaded: every commit can be read")
    command("log graph --draw")
    command("query paper --store graph --query papers.gq", {"slug": "p-0"})
    with omnigraph.open("graph", read_only=True) as graph:
        loaded = graph.commits(actor="nightly")[0].commit_id
        now, then = (graph.query("papers.gq", {"slug": "p-1"}, name="paper", snapshot=at).rows for at in (None, loaded))
    must((len(now), len(then)) == (0, 1), "the paper p-1 should be gone now, and be there before")
    command(f"query paper --store graph --query papers.gq --snapshot {loaded}", {"slug": "p-0"})
    show("Upkeep, which changes no answer, and a check-up")
    command("optimize graph --quiet")
    command("doctor graph")


def serve() -> None:
    show("The same graph, served to whoever has a token; one may read, one may write")
    tokens = {role: {"token": secrets.token_hex(16), "role": role} for role in ("read", "write")}
    with server(tokens) as address:
        show("Asked with nothing but HTTP")
        answer = ask_over_http(address, tokens["read"]["token"], {"query": Path("papers.gq").read_text(), **NEWEST})
        must([row["p.title"] for row in answer["rows"]] == ["Comets after all"], f"another answer: {answer}")
        show("Asked with `omnigraph.connect`: the same methods, results and errors as above")
        with omnigraph.connect(f"http://{address}", token=tokens["write"]["token"]) as graph:
            vector = papers.vector_of("astronomy")
            found = graph.query("papers.gq", {"text": STARS, "vector": vector}, name="like")
            print(f">>> graph.query(..., name='like').rows[0]\n{found.rows[0]}")
            done = graph.mutate("papers.gq", {"slug": "new", "note": "read by many"}, name="retract")
            [last, *_] = graph.commits()
            print(f">>> graph.mutate(..., name='retract').commit.actor_id\n{last.actor_id!r}")
            must(done.commit == last, "the change is not the last commit")
        show("What a token does not allow is refused")
        with omnigraph.connect(f"http://{address}", token=tokens["read"]["token"]) as graph:
            try:
                graph.mutate("papers.gq", {"slug": "new"}, name="forget")
            except omnigraph.errors.ForbiddenError as error:
                print(error)
            else:
                raise DemoError("a token that may only read has changed the graph")


@contextmanager
def server(tokens: dict[str, Any]) -> Iterator[str]:
    """Start a server at a port that the kernel chooses, and give its address; at the end it is stopped and gone."""
    environment = {**os.environ, "OMNIGRAPH_SERVER_BEARER_TOKENS_JSON": json.dumps(tokens)}
    print("$ omnigraph-server graph --bind 127.0.0.1:0")
    command = [sys.executable, "-m", "omnigraph.server", "graph", "--bind", "127.0.0.1:0"]
    with (
        Path("server.log").open("wb") as log,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True) as process,  # noqa: S603
    ):
        try:
            ready = (process.stdout or sys.stdin).readline().strip()
            must(ready.startswith("OMNIGRAPH_LISTEN_ADDR="), f"no server: {Path('server.log').read_text()}")
            print(ready)
            yield ready.partition("=")[2]
        finally:
            process.terminate()
    must(process.returncode == 0, f"the server ended with {process.returncode}")
    print(f"its log, last line: {Path('server.log').read_text().splitlines()[-1][:200]}")


def ask_over_http(address: str, token: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{address}/query", json.dumps(body).encode(), headers)
    print(f"POST http://{address}/query {json.dumps({**body, 'query': '...'})}")
    with urllib.request.urlopen(request, timeout=30) as answered:  # noqa: S310 - an address of our own
        answer: dict[str, Any] = json.load(answered)
    print(f"200 {json.dumps(answer)}")
    return answer


@contextmanager
def workplace(folder: str, count: int) -> Iterator[papers.Made]:
    """A directory to work in, with the files of the demo and as much data as was asked for."""
    for file in HERE.glob("papers*"):
        Path(folder, file.name).write_bytes(file.read_bytes())
    made = papers.write(Path(folder, "data"), count)
    print(f"made up {made.nodes:,} nodes and {made.edges:,} edges, as Parquet files")
    with chdir(folder):
        yield made


def timed(stage: Callable[..., None], *given: Any) -> None:
    started = time.perf_counter()
    stage(*given)
    print(f"   ({stage.__name__}: {time.perf_counter() - started:.1f} s)", flush=True)


def main() -> None:
    started = time.perf_counter()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that what was started is stopped
    count = max(int(sys.argv[1]), papers.SMALLEST) if len(sys.argv) > 1 else PAPERS
    os.environ.setdefault("COLUMNS", "140")
    with tempfile.TemporaryDirectory() as folder, workplace(folder, count) as made:
        timed(build, made)
        timed(ask, made)
        timed(branch)
        timed(travel)
        timed(serve)
    print(
        f"\nAll of it took {time.perf_counter() - started:.0f} s, and nothing of it is left. Next: docs/quickstart.md"
    )


if __name__ == "__main__":
    main()
