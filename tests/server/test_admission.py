"""How much one actor may have under way: more than that is refused, after it is known who asks, before it is read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from omnigraph.errors import TooManyRequestsError
from omnigraph.server.admission import Admission, size_of
from omnigraph.server.settings import Limits
from tests.support.server_process import writes_waiting
from tests.support.serving import ADD, ALL, client, one_graph, people_graph, running


def test_an_actor_gets_no_more_places_than_there_are_and_gets_them_back() -> None:
    admission = Admission(Limits(actor_requests=2))
    with admission.admit("ann", 1), admission.admit("ann", 1), admission.admit("bob", 1):
        assert admission.in_progress() == 3
        with pytest.raises(TooManyRequestsError, match="'ann' has the maximum of 2 changes"), admission.admit("ann", 1):
            pass
    assert admission.in_progress() == 0
    with admission.admit("ann", 1):
        assert admission.in_progress() == 1


def test_an_actor_gets_no_more_bytes_than_there_are() -> None:
    admission = Admission(Limits(actor_bytes=10))
    with admission.admit("ann", 6):
        with pytest.raises(TooManyRequestsError, match="10 bytes"), admission.admit("ann", 5):
            pass
        with admission.admit("ann", 4), admission.admit(None, 10):
            assert admission.in_progress() == 3


def test_all_actors_together_leave_threads_for_those_who_read() -> None:
    admission = Admission(Limits(changes=2))
    with admission.admit("ann", 1), admission.admit("bob", 1):
        assert admission.in_progress() == 2
        with (
            pytest.raises(TooManyRequestsError, match="the server has the maximum of 2 changes"),
            admission.admit("cid", 1),
        ):
            pass
    with admission.admit("cid", 1):
        assert admission.in_progress() == 1


def test_a_change_that_fails_gives_its_place_back() -> None:
    admission = Admission(Limits(actor_requests=1))
    with pytest.raises(ZeroDivisionError), admission.admit("ann", 1):
        raise ZeroDivisionError
    assert admission.in_progress() == 0


def test_many_threads_never_have_more_than_the_limit() -> None:
    admission, inside, most = Admission(Limits(actor_requests=3)), threading.Semaphore(3), 500

    def work(_: int) -> str:
        try:
            with admission.admit("ann", 1):
                assert inside.acquire(blocking=False), "more than the limit are inside"
                inside.release()
                return "in"
        except TooManyRequestsError:
            return "out"

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(work, range(most))) <= {"in", "out"}
    assert admission.in_progress() == 0


@pytest.mark.parametrize("said, counted", [("5", 5), (None, 100), ("x", 100), ("500", 100)])
def test_a_body_counts_for_what_it_says_or_for_the_most_that_it_may_have(said: str | None, counted: int) -> None:
    assert size_of(said, 100) == counted


# Over HTTP -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(people_graph(tmp_path_factory.mktemp("admission") / "graph"))


@pytest.fixture(scope="module")
def address(graph: Path) -> Iterator[str]:
    with running(one_graph(str(graph), limits=Limits(actor_requests=2))) as url:
        yield url


def test_past_the_limit_changes_are_refused_and_reads_are_not(graph: Path, address: str) -> None:
    def add(name: str) -> httpx.Response:
        return admin.post("/mutate", json={"query": ADD, "params": {"name": name}})

    with client(address) as admin, client(address, "write") as writer, client(address, "read") as reader:
        with ThreadPoolExecutor(3) as pool:
            with writes_waiting(graph):
                first = [pool.submit(add, name) for name in ("cid", "dan")]
                while "omnigraph_http_requests_in_flight 3.0" not in reader.get("/metrics").text:
                    pass  # two changes, and the question itself
                third = add("eve")
                assert (third.status_code, third.headers["retry-after"]) == (429, "60")
                assert third.json()["code"] == "too_many_requests"
                assert httpx.post(f"{address}/mutate", json={}).status_code == 401
                assert reader.post("/mutate", json={}).status_code == 403
                assert reader.post("/query", json={"query": ALL}).json()["row_count"] == 2
                other = pool.submit(writer.post, "/mutate", json={"query": ADD, "params": {"name": "fay"}})
                assert not other.done()
            assert [one.result().status_code for one in (*first, other)] == [200, 200, 200]
        names = [row["p.name"] for row in reader.post("/query", json={"query": ALL}).json()["rows"]]
        assert names == ["ann", "bob", "cid", "dan", "fay"]
        assert add("eve").status_code == 200


def test_a_server_that_is_full_says_so_and_can_still_be_asked_how_it_is(graph: Path) -> None:
    with running(one_graph(str(graph), limits=Limits(requests=1))) as url, client(url) as admin:
        with ThreadPoolExecutor(1) as pool, writes_waiting(graph):
            running_one = pool.submit(admin.post, "/mutate", json={"query": ADD, "params": {"name": "gus"}})
            while "omnigraph_http_requests_in_flight 2.0" not in admin.get("/metrics").text:
                assert not running_one.done(), "it was refused: a look at the metrics took its place"
            refused = admin.post("/query", json={"query": ALL})
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "60")
            assert admin.get("/healthz").status_code == 200
        assert running_one.result().status_code == 200
