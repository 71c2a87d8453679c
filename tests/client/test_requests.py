"""What a call sends: no more requests than it needs, and what a server can decide is left to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from omnigraph import RemoteGraph
from omnigraph.api import operations as op
from omnigraph.api.documents import to_document
from omnigraph.api.operation import OPERATIONS, Operation
from omnigraph.api.results import Commit
from omnigraph.client.calls import steps_of
from omnigraph.client.requests import Answer, Lines, Request
from omnigraph.errors import NotServedError, ParameterError
from omnigraph.server.settings import QueryFile, ServedGraph, Serving
from tests.support.serving import ADD, ALL, SCHEMA, known_tokens, people_graph, running

HEAD = Commit("01M7GKP7Q2W3ZB5D1S8T6VXA0K", None, 3, None, None, None, 1)


def sent(operation: Operation[Any], answer: Callable[[Request], Any]) -> list[Request]:
    """The requests of an operation, each answered by a function."""
    requests: list[Request] = []
    steps = steps_of(operation)
    try:
        step = next(steps)
        while True:
            assert isinstance(step, Request)
            requests.append(step)
            content = answer(step)
            if step.sink is not None:
                step.sink(b"")
            step = steps.send(Answer(200, json.dumps(content).encode()))
    except StopIteration:
        return requests


def test_an_export_learns_the_head_and_its_schema_with_one_request(tmp_path: Path) -> None:
    state = {"branch": "main", "commit": to_document(HEAD), "schema_source": SCHEMA}
    requests = sent(op.ExportFiles(tmp_path / "all.jsonl"), lambda _: state)

    assert [request.path for request in requests] == ["/states/main", "/export"]
    assert requests[1].document == {"snapshot": HEAD.commit_id}


def test_the_commits_of_an_actor_are_chosen_by_the_server() -> None:
    (request,) = sent(op.ListCommits("side", "ann"), lambda _: {"commits": []})

    assert (request.path, request.query) == ("/commits", [("branch", "side"), ("actor", "ann")])


def test_a_change_that_makes_a_commit_has_an_id_and_no_other_has() -> None:
    done = {"name": "v1", "commit": to_document(HEAD)}
    (tagged,) = sent(op.CreateTag("v1"), lambda _: done)
    (read,) = sent(op.ListTags(), lambda _: {"tags": []})
    merged = {"source": "b", "target": "main", "outcome": "merged", "changes": {}, "conflicts": [], "compared": []}
    (merge,) = sent(op.MergeBranch("b"), lambda _: {**merged, "commit": None})
    (preview,) = sent(op.MergeBranch("b", dry_run=True), lambda _: {**merged, "commit": None})

    assert [one.changes for one in (tagged, read, merge, preview)] == [True, False, True, False]
    assert [one.operation_id is not None for one in (tagged, read, merge, preview)] == [False, False, True, False]
    assert preview.path == "/branches/merge/preview"


@pytest.mark.parametrize("kind", [one.kind for one in OPERATIONS.values() if one.command in ("optimize", "doctor")])
def test_what_needs_the_storage_is_refused_with_the_command_to_run(kind: type[Operation[Any]]) -> None:
    with pytest.raises(NotServedError, match="--store URI"):
        sent(kind(), lambda _: {})


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteGraph]:
    place = tmp_path_factory.mktemp("stored")
    (place / "stored.gq").write_text(f"{ALL}\n{ADD}")
    served = ServedGraph(people_graph(place / "graph"), queries=(QueryFile(str(place / "stored.gq")),))
    with (
        running(Serving({"g": served}, "g", tokens=known_tokens())) as url,
        omnigraph.connect(url, token="admin-token") as connected,  # noqa: S106 - of a test
    ):
        yield connected


@pytest.mark.slow
def test_stored_queries_are_listed_and_run(graph: RemoteGraph) -> None:
    known = {one.name: one for one in graph.stored_queries()}

    assert (known["all"].mutation, known["add"].mutation) == (False, True)
    assert [one["name"] for one in known["add"].params] == ["name", "age"]
    assert graph.invoke_query("all").rows == graph.query(ALL).rows


def test_a_stored_mutation_has_an_id_by_which_its_outcome_is_found(graph: RemoteGraph) -> None:
    done = graph.invoke_mutation("add", {"name": "cy"})

    assert done.commit is not None
    assert done.commit.operation_id is not None
    assert graph.outcome(done.commit.operation_id) == done.commit


def test_lines_are_the_same_however_they_are_cut_into_chunks() -> None:
    text = "a\n\nbé\u2028c\nlast".encode()
    for size in range(1, len(text) + 1):
        lines = Lines()
        found = [line for at in range(0, len(text), size) for line in lines.feed(text[at : at + size])]
        assert [*found, *lines.end()] == ["a", "", "bé\u2028c", "last"]


def test_a_line_in_very_many_chunks_is_not_copied_with_each_of_them() -> None:
    lines = Lines()
    chunk, count = b"x" * 256, 2**16

    # Copied with each chunk these would be half a terabyte.
    assert [lines.feed(chunk) for _ in range(count)] == [[]] * count
    (line,) = lines.feed(b"\n")

    assert len(line) == len(chunk) * count


@pytest.mark.parametrize(
    "operation", [op.FindCommit("\udc80"), op.ListCommits("main", "\udc80"), op.ReadLog(["\udc80"])]
)
def test_a_name_that_is_not_text_is_refused_before_anything_is_sent(operation: Operation[Any]) -> None:
    with pytest.raises(ParameterError, match="not text"):
        sent(operation, lambda _: pytest.fail("a request was sent"))
