"""Loads in the background: from allowed places only, told while they run, one commit of whoever began them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from omnigraph.api import problems
from omnigraph.api.access import Principal, Role
from omnigraph.errors import ForbiddenError, LoadNotFoundError, OutcomeUnknownError
from omnigraph.graph import open as open_graph
from omnigraph.lang.identity import new_id
from omnigraph.server.loads import LoadOrder, Loads, check_addresses
from omnigraph.server.metrics import Metrics
from omnigraph.server.settings import Limits, Serving
from tests.support.server_process import served, writes_waiting
from tests.support.serving import client, one_graph, people_graph, running


def people(count: int, first: int = 0) -> str:
    lines = ({"type": "Person", "data": {"name": f"p{at}", "age": at}} for at in range(first, first + count))
    return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a graph, an inbox from which the server loads, and files outside of it."""
    place = tmp_path_factory.mktemp("loads")
    people_graph(place / "graph")
    (place / "inbox" / "deep").mkdir(parents=True)
    (place / "inbox2").mkdir()
    (place / "inbox" / "people.jsonl").write_text(people(50))
    (place / "inbox" / "wrong.jsonl").write_text('{"type": "Person", "data": {"name": "x", "age": "old"}}\n')
    (place / "inbox2" / "others.jsonl").write_text(people(1, 900))
    (place / "outside.jsonl").write_text(people(1, 901))
    (place / "inbox" / "link").symlink_to(place / "inbox2")
    return place


@pytest.fixture(scope="module")
def http(place: Path) -> Iterator[httpx.Client]:
    serving = one_graph(str(place / "graph"), load_roots=(str(place / "inbox"),), limits=Limits(loads=1))
    with running(serving) as url, client(url, "write") as asking:
        yield asking


def begin(http: httpx.Client, *data: Path | str, **more: Any) -> httpx.Response:
    return http.post("/loads", json={"data": [str(one) for one in data], **more})


def ended(http: httpx.Client, load_id: str) -> dict[str, Any]:
    while (state := http.get(f"/loads/{load_id}").json())["state"] == "running":
        assert state.keys() == {"load_id", "state", "phase", "done", "total", "rows"}
        time.sleep(0.05)
    found: dict[str, Any] = state
    return found


@pytest.mark.slow
def test_a_load_runs_in_the_background_and_tells_what_came_of_it(place: Path, http: httpx.Client) -> None:
    begun = begin(http, place / "inbox" / "people.jsonl", mode="merge")
    assert begun.status_code == 202
    state = ended(http, begun.json()["load_id"])
    assert (state["state"], state["result"]["total_entities"]) == ("done", 50)
    commit = http.get("/commits").json()["commits"][0]
    assert (commit["graph_commit_id"], commit["actor_id"]) == (
        state["result"]["commit"]["graph_commit_id"],
        "act-write",
    )


@pytest.mark.slow
def test_a_load_that_fails_tells_every_problem(place: Path, http: httpx.Client) -> None:
    before = http.get("/commits").json()
    state = ended(http, begin(http, place / "inbox" / "wrong.jsonl").json()["load_id"])
    assert state["state"] == "failed"
    assert "wrong.jsonl:1" in state["error"]["error"]
    assert state["error"]["problem"]["type"] == "LoadRejectedError"
    assert http.get("/commits").json() == before


def test_only_so_many_loads_run_at_once(place: Path, http: httpx.Client) -> None:
    with writes_waiting(place / "graph"):
        first = begin(http, place / "inbox" / "people.jsonl")
        second = begin(http, place / "inbox" / "people.jsonl")
        assert (first.status_code, second.status_code) == (202, 429)
        assert second.headers["retry-after"] == "60"
    assert ended(http, first.json()["load_id"])["state"] == "done"


@pytest.mark.parametrize("role, status", [("read", 403), ("write", 202)])
def test_a_load_is_a_change(place: Path, http: httpx.Client, role: str, status: int) -> None:
    with client(str(http.base_url), role) as asking:
        begun = begin(asking, place / "inbox" / "people.jsonl")
        assert begun.status_code == status
        if status == 202:
            ended(http, begun.json()["load_id"])


@pytest.mark.parametrize(
    "data",
    ["{}/outside.jsonl", "{}/inbox/../outside.jsonl", "{}/inbox2/others.jsonl", "{}/inbox/link/others.jsonl", "/etc/*"],
)
def test_what_is_outside_of_the_roots_is_refused_whether_it_is_there_or_not(
    place: Path, http: httpx.Client, data: str
) -> None:
    address = data.format(place)
    refused, absent = begin(http, address), begin(http, address + "-absent")
    assert refused.status_code == absent.status_code == 403
    assert refused.json()["error"] == absent.json()["error"].replace("-absent", "")


@pytest.mark.parametrize("load_id", ["01M7GKP3NCQBJEMVJEH8FKMWNC", "x", "..%2F..%2Fgraph", "%00"])
def test_a_load_that_nobody_began_is_not_found(http: httpx.Client, load_id: str) -> None:
    assert http.get(f"/loads/{load_id}").status_code == 404


ROOTS = ("/data/in", "s3://bucket/in/")


@pytest.mark.parametrize(
    "address",
    [
        "/data/in/a.csv",
        "/data/in",
        "/data/in/*/b*.csv",
        "file:///data/in/a.csv",
        "s3://bucket/in/a",
        "S3://bucket/in/x/*",
    ],
)
def test_what_is_below_a_root_may_be_loaded(address: str) -> None:
    check_addresses([address], ROOTS)


@pytest.mark.parametrize(
    "address",
    [
        "/data/inside",
        "/data/*/a.csv",
        "/data/in/../x",
        "/data/in/*/../../x",
        "file:///data/in/%2e%2e/x",
        "file://localhost/etc/passwd",
        "s3://bucket/inner/a",
        "s3://bucket2/in/a",
        "s3://bucket/in/../a",
        "s3://buck*/in/a",
        "relative.csv",
        "http://169.254.169.254/latest",
        "",
        "/data/in\0/x",
    ],
)
def test_what_is_not_below_a_root_may_not_be_loaded(address: str) -> None:
    with pytest.raises(ForbiddenError):
        check_addresses([address], ROOTS)


@pytest.mark.parametrize("address", ["inbox/*/others.jsonl", "inbox/**", "linked", "linked/*.jsonl"])
def test_no_pattern_or_directory_leads_out_of_a_root_by_a_link(place: Path, address: str) -> None:
    (place / "linked").mkdir(exist_ok=True)
    (place / "linked" / "one.jsonl").unlink(missing_ok=True)
    (place / "linked" / "one.jsonl").symlink_to(place / "outside.jsonl")
    roots = [str(place / "inbox"), str(place / "linked")]
    check_addresses([str(place / "inbox" / "*.jsonl"), str(place / "inbox" / "nothing")], roots)

    with pytest.raises(ForbiddenError, match="outside the load roots"):
        check_addresses([str(place / address)], roots)


def test_without_roots_nothing_may_be_loaded() -> None:
    with pytest.raises(ForbiddenError, match="load_roots"):
        check_addresses(["/"], ())


def test_a_load_can_be_asked_about_in_another_process_and_is_not_running_when_its_own_has_ended(
    place: Path, tmp_path: Path
) -> None:
    serving = Serving({}, load_roots=(str(place / "inbox"),), folder=str(tmp_path))
    mine, other = Loads(serving, Metrics()), Loads(serving, Metrics())
    graph = open_graph(place / "graph").acting_as(Principal("ann", Role.WRITE))
    operation = new_id()
    load_id = mine.start("people", graph, LoadOrder((str(place / "inbox" / "people.jsonl"),), operation_id=operation))
    mine.close()
    made = graph.outcome(operation)
    assert made == graph.commits()[0]
    assert other.state("people", load_id)["state"] == "done"
    with pytest.raises(LoadNotFoundError):
        other.state("books", load_id)
    (file,) = tmp_path.glob("people.*.json")
    gone = subprocess.Popen(["true"])
    gone.wait()
    known = {**json.loads(file.read_text()), "state": "running", "pid": gone.pid}
    file.write_text(json.dumps(known))
    told = other.state("people", load_id)
    error = problems.raised(503, told["error"])
    assert told["state"] == "failed"
    assert isinstance(error, OutcomeUnknownError)
    assert error.operation_id == operation


def test_a_load_that_cannot_begin_leaves_its_place_to_the_next(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    serving = Serving({}, load_roots=(str(place / "inbox"),), folder=str(folder), limits=Limits(loads=1))
    loads, graph = Loads(serving, Metrics()), open_graph(place / "graph")
    order = LoadOrder((str(place / "inbox" / "people.jsonl"),))
    with pytest.raises(FileNotFoundError):  # the folder is not there: as on a full disk, the state cannot be written
        loads.start("people", graph, order)
    folder.mkdir()
    load_id = loads.start("people", graph, order)
    loads.close()
    assert loads.state("people", load_id)["state"] == "done"


def test_a_large_load_starts_spark_which_ends_with_the_server(place: Path, tmp_path: Path) -> None:
    people_graph(tmp_path / "graph")
    (place / "inbox" / "deep" / "many.jsonl").write_text(people(9_000))
    written = {"graphs": {"people": {"uri": "graph"}}, "server": {"load_roots": [str(place / "inbox")]}}
    (tmp_path / "omnigraph.yaml").write_text(json.dumps(written))
    with served("--unauthenticated", folder=tmp_path) as server:
        with httpx.Client(base_url=server.url) as asking:
            assert not _javas(server.process.pid)
            state = ended(asking, begin(asking, place / "inbox" / "deep").json()["load_id"])
            assert (state["state"], state["result"]["total_entities"]) == ("done", 9_000)
            assert (state["done"], state["phase"] is not None) == (state["total"], True)
        javas = _javas(server.process.pid)
        assert len(javas) == 1
        assert server.end() == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in javas)


def _javas(pid: int) -> list[str]:
    """The Java processes that a process has started, in whichever of its threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = [child for task in tasks for child in (task / "children").read_text().split()]
    return [child for child in children if "java" in Path(f"/proc/{child}/comm").read_text()]
