"""`make demo`: what Omnigraph does today, shown by its own commands."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
GRAPH = "{graph}"
MARY = {"slug": "mary", "name": "Mary Somerville", "born": "1780-12-26"}
STARS = {"slug": "stars", "title": "Mechanism of the Heavens", "genre": "essay", "author": "mary", "year": 1831}
VECTOR = [0.1, 0.4, 0.7, 0.0, 0.3, 0.6, 0.9, 0.2]


def query(name: str, params: dict[str, object]) -> str:
    return f"query {name} --store {GRAPH} --query library.gq --params {shlex.quote(json.dumps(params))}"


def mutate(query: str, params: dict[str, object]) -> str:
    return f"mutate {query} --store {GRAPH} --query library.gq --as demo --params {shlex.quote(json.dumps(params))}"


STEPS = (
    ("A schema and a file of queries, checked", "lint --schema library.pg --query library.gq", 0),
    ("How mistakes are told", "lint --schema library.pg --query mistakes.gq", 1),
    ("Both files are in their canonical layout", "fmt --check library.pg library.gq", 0),
    ("A graph of that schema", f"init {GRAPH} --schema library.pg", 0),
    ("The same queries, checked against the graph", f"lint {GRAPH} --query library.gq", 0),
    (
        "Data, loaded and checked on Spark: one commit",
        f"load {GRAPH} --data library.jsonl --mode append --engine spark --as demo",
        0,
    ),
    (
        "Data that breaks the rules: every problem is named, nothing is loaded",
        f"load {GRAPH} --data broken.jsonl --mode merge",
        1,
    ),
    ("Who wrote what a book rests on, up to three steps back", query("influences", {"slug": "passages"}), 0),
    ("Books that no other book cites", query("uncited", {}), 0),
    ("Hybrid search: words and vectors", query("like", {"text": "engine", "vector": VECTOR}), 0),
    ("An author", mutate("add_author", {**MARY}), 0),
    ("A book and who wrote it: two types, one commit", mutate("add_book", {**STARS}), 0),
    (
        "A change that would break a rule of the schema: nothing of it happens",
        mutate("correct", {"slug": "stars", "title": "Stars", "pages": 9999}),
        1,
    ),
    ("Which version of each table the graph consists of now", f"snapshot {GRAPH}", 0),
    ("A book goes, and its edges with it", mutate("retire", {"slug": "notes"}), 0),
    ("The same question again: one step is missing now", query("influences", {"slug": "passages"}), 0),
    ("A branch for an agent, which costs nothing until it changes something", f"branch create agent {GRAPH}", 0),
    (
        "It works there; main does not see it",
        mutate("correct", {"slug": "stars", "title": "The Heavens", "pages": 621}) + " --branch agent",
        0,
    ),
    ("What the branch has and main has not", f"diff main agent --store {GRAPH}", 0),
    ("What a merge would do", f"branch merge agent {GRAPH} --dry-run", 0),
    ("The merge: one commit with two parents", f"branch merge agent {GRAPH} --delete-branch --as demo", 0),
    ("The history: a commit for each change, none for what was refused", f"log {GRAPH} --graph", 0),
    (
        "What next year's schema would take, and what stands in its way",
        f"schema plan {GRAPH} --schema library_next.pg",
        0,
    ),
    ("A check-up", f"doctor {GRAPH}", 0),
)


def main() -> None:
    colour = {"FORCE_COLOR": "1"} if sys.stdout.isatty() else {}
    with tempfile.TemporaryDirectory() as directory:
        for title, line, expected in STEPS:
            arguments = shlex.split(line.replace(GRAPH, f"{directory}/library"))
            print(f"\n== {title}\n$ omnigraph {line.replace(GRAPH, 'library')}", flush=True)
            command = [sys.executable, "-m", "omnigraph", *arguments]
            done = subprocess.run(command, cwd=HERE, env={**os.environ, **colour}, check=False)  # noqa: S603
            if done.returncode != expected:
                sys.exit(f"the demo expected exit code {expected} here, not {done.returncode}")
    print("\nThat is what is here today; docs/index.md tells more.")


if __name__ == "__main__":
    main()
