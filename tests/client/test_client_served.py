"""A client and a real server: who may do what, how much at once, data that the server fetches, and the event loop."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

import omnigraph
from omnigraph import RemoteGraph
from omnigraph.api.progress import SilentProgress
from omnigraph.errors import (
    BranchNotFoundError,
    ForbiddenError,
    GraphNotFoundError,
    LoadRejectedError,
    MergeConflictError,
    PreconditionFailedError,
    QueryError,
    ResourceLimitError,
    UnauthorizedError,
)
from omnigraph.server.settings import Limits
from tests.support.s3 import S3Server
from tests.support.serving import ADD, AGE, ALL, one_graph, people_graph, running

ADMIN, READ = "admin-token", "read-token"
_SMALL = 64 * 1024


@pytest.fixture(scope="module")
def served_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return people_graph(tmp_path_factory.mktemp("served") / "graph")


@pytest.fixture(scope="module")
def address(served_uri: str) -> Iterator[str]:
    served = one_graph(served_uri, limits=Limits(load_bytes=_SMALL))
    with running(served) as url:
        yield url


@pytest.fixture
def connected(address: str) -> Iterator[Callable[..., RemoteGraph]]:
    """Connects, and lets the connections go at the end."""
    with ExitStack() as stack:
        yield lambda token=ADMIN, **more: stack.enter_context(omnigraph.connect(address, token=token, **more))


Connected = Callable[..., RemoteGraph]


@pytest.mark.slow
def test_a_token_decides_who_may_do_what(connected: Connected) -> None:
    for token in (None, "nobody"):
        with pytest.raises(UnauthorizedError):
            connected(token).query(ALL)
    reader = connected(READ)
    assert len(reader.query(ALL)) >= 2
    with pytest.raises(ForbiddenError, match="default-deny") as caught:
        reader.mutate(ADD, {"name": "x"})
    assert caught.value.action == "change"
    with pytest.raises(ForbiddenError):
        list(connected("other-token").export())


def test_whoever_may_read_may_see_what_a_merge_would_bring(connected: Connected) -> None:
    connected().create_branch("seen")
    connected().mutate(ADD, {"name": "fay"}, branch="seen")

    found = connected(READ).merge("seen", dry_run=True)

    assert (found.outcome, found.commit) == ("fast_forward", None)
    assert found.changes["node:Person"].inserted == 1
    with pytest.raises(ForbiddenError):
        connected(READ).merge("seen")


@pytest.mark.parametrize("chosen", ["kinds", "types", "operations"])
def test_an_empty_choice_chooses_nothing_on_either_side(served_uri: str, connected: Connected, chosen: str) -> None:
    here, there = omnigraph.open(served_uri), connected()
    nothing: dict[str, Any] = {chosen: []}
    first, last = here.commits()[-1].commit_id, here.commits()[0].commit_id

    for graph in (here, there):
        assert list(graph.diff(first, "main", **nothing)) == []
        assert graph.commit_changes(last, **nothing).blocks == here.commit_changes(last, **nothing).blocks
        assert graph.changes(start="beginning", **nothing) == here.changes(start="beginning", **nothing)
        assert graph.baseline(**nothing) == here.baseline(**nothing)


def test_a_graph_that_is_not_served_is_not_found(connected: Connected) -> None:
    assert len(connected(graph="default").branches()) >= 1
    with pytest.raises(GraphNotFoundError):
        connected(graph="other").branches()


def test_who_makes_a_change_is_who_the_token_stands_for(connected: Connected) -> None:
    graph = connected()
    graph.create_branch("actor")

    done = graph.mutate(ADD, {"name": "cy"}, branch="actor", actor="somebody else")

    assert done.commit is not None
    assert (done.actor_id, done.commit.actor_id) == ("act-admin", "act-admin")


@pytest.mark.slow
def test_more_than_the_server_takes_at_once_is_refused_and_changes_nothing(connected: Connected) -> None:
    graph = connected()
    before = graph.commits()[0]
    records = [{"type": "Person", "data": {"name": f"person {at:060}"}} for at in range(50_000)]

    with pytest.raises(ResourceLimitError) as caught:
        graph.load(records, mode="append")

    assert (caught.value.limit, graph.commits()[0]) == (_SMALL, before)


@pytest.mark.slow
def test_an_iterator_that_is_let_go_leaves_its_connection(connected: Connected) -> None:
    graph = connected()
    for _ in range(101):  # more than there are connections
        lines = graph.export()
        next(lines)
    del lines
    gc.collect()

    assert graph.branches()


def test_data_in_shared_storage_is_fetched_by_the_server(s3_server: S3Server, s3_uri: str, tmp_path: Path) -> None:
    bucket = s3_uri.split("/")[2]
    store = S3Store(bucket, config={"endpoint": s3_server.endpoint, "virtual_hosted_style_request": False})
    obstore.put(store, "in/Person.csv", b"name,age\ncy,3\ndan,x\n")
    told: list[str] = []

    class Progress(SilentProgress):
        def phase(self, name: str, total_tasks: int) -> None:  # noqa: ARG002 - the name alone tells
            told.append(name)

    served = one_graph(people_graph(tmp_path / "graph"), load_roots=(f"s3://{bucket}/in",))
    with running(served) as url, omnigraph.connect(url, token=ADMIN) as graph:
        with pytest.raises(LoadRejectedError) as caught:
            graph.load(f"s3://{bucket}/in/Person.csv", mode="append")
        assert [(one.file, one.line) for one in caught.value.violations] == [(f"s3://{bucket}/in/Person.csv", 3)]
        obstore.put(store, "in/Person.csv", b"name,age\ncy,3\n")
        done = graph.load([f"s3://{bucket}/in"], mode="append", progress=Progress())
        assert (done.nodes, done.commit) == ({"Person": 1}, graph.commits()[0])
        with pytest.raises(ForbiddenError):
            graph.load(f"s3://{bucket}/elsewhere", mode="append")
    assert told


# In an event loop


def test_the_same_calls_are_awaited_in_an_event_loop(address: str, tmp_path: Path) -> None:
    asyncio.run(_same_calls(address, tmp_path))


async def _same_calls(address: str, tmp_path: Path) -> None:
    async with omnigraph.connect_async(address, token=ADMIN) as graph:
        await graph.create_branch("loop")
        before = (await graph.commits("loop"))[0]
        found = await graph.query(ALL, branch="loop")
        assert (found.rows[0], found.commit) == ({"p.name": "ann", "p.age": 30}, before)
        done = await graph.mutate(ADD, {"name": "cy"}, branch="loop", if_commit=before.commit_id)
        with pytest.raises(PreconditionFailedError) as lost:
            await graph.mutate(ADD, {"name": "dan"}, branch="loop", if_commit=before.commit_id)
        assert done.commit is not None
        assert lost.value.actual == done.commit.commit_id
        loaded = await graph.load([{"type": "Person", "data": {"name": "dan"}}], mode="append", branch="loop")
        assert loaded.total == 1

        lines = [json.loads(line) async for line in await graph.export(branch="loop", types=["Person"])]
        assert [line["data"]["name"] for line in lines] == ["ann", "bob", "cy", "dan"]
        file = await graph.export(tmp_path / "all.jsonl", snapshot=before.commit_id)
        assert file.nodes == {"Company": 0, "Person": 2}

        diff = await graph.diff(before.commit_id, "loop")
        assert [change.id async for change in diff] == ["cy", "dan"]
        assert ((await diff.stats()).total, (await diff.to_arrow()).num_rows, diff.before.commit) == (2, 2, before)
        pinned = await graph.at(before.commit_id)
        assert (len(await pinned.query(ALL)), pinned.commit, "Person" in pinned.catalog.nodes) == (2, before, True)
        assert len([line async for line in await pinned.export()]) == 3
        assert ("node Person" in await graph.schema, "Company" in (await graph.catalog).nodes) == (True, True)

        async with graph.branch("loop.work", base="loop", merge_into="loop") as work:
            await work.mutate(AGE, {"name": "ann", "age": 31})
        assert (await graph.query(ALL, branch="loop")).rows[0]["p.age"] == 31
        assert "loop.work" not in await graph.branches()


def test_errors_are_raised_in_an_event_loop_as_anywhere(address: str) -> None:
    async def refused() -> None:
        async with omnigraph.connect_async(address, token=ADMIN) as graph:
            with pytest.raises(QueryError):
                await graph.query("nonsense")
            with pytest.raises(BranchNotFoundError):
                await graph.at("nowhere")
            with pytest.raises(LoadRejectedError) as rejected:
                await graph.load([{"type": "Nope"}], mode="append")
            assert rejected.value.violations[0].file == "<records>"
            await graph.create_branch("one")
            await graph.create_branch("two")
            for branch, age in (("one", 31), ("two", 32)):
                await graph.mutate(AGE, {"name": "ann", "age": age}, branch=branch)
            with pytest.raises(MergeConflictError) as conflict:
                await graph.merge("one", "two")
            assert conflict.value.conflicts[0].id == "ann"

    asyncio.run(refused())


def test_many_calls_run_side_by_side_in_an_event_loop(address: str) -> None:
    async def together() -> None:
        async with omnigraph.connect_async(address, token=ADMIN) as graph:
            found = await asyncio.gather(*(graph.query(ALL) for _ in range(20)))
            assert all(one.rows == found[0].rows for one in found)

    asyncio.run(together())
