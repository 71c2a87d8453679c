"""What is told of every request: its id, a line in the log, numbers; and what is never told."""

from __future__ import annotations

import io
import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from omnigraph.errors import StorageFullError
from omnigraph.server import logs
from omnigraph.server.access_log import AccessLog
from omnigraph.server.metrics import Metrics

SECRET = "what a client has sent"


@contextmanager
def log_of_this_process() -> Iterator[io.StringIO]:
    """Let this process log as a server does, for the length of a block."""
    root, stream = logging.getLogger(), io.StringIO()
    before = root.handlers[:], root.level
    names = ("uvicorn.access", "uvicorn.error", "py4j", "asyncio", "httpx")
    levels = {name: logging.getLogger(name).level for name in names}
    hook = threading.excepthook
    logs.set_up("info", stream)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # which asks here, and is part of no server
    try:
        yield stream
    finally:
        threading.excepthook = hook
        root.handlers[:], level = before
        root.setLevel(level)
        for name, known in levels.items():
            logging.getLogger(name).setLevel(known)


async def asked(app: ASGIApp, **headers: str) -> httpx.Response:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        return await client.get("/", params={"token": SECRET}, headers=headers)


def watched(app: ASGIApp, **headers: str) -> tuple[httpx.Response, list[dict[str, Any]], str]:
    """Ask an application that is watched; give its answer, the log, and the numbers."""
    import asyncio  # noqa: PLC0415 - only here

    metrics = Metrics()
    with log_of_this_process() as log:
        answer = asyncio.run(asked(AccessLog(app, metrics), **headers))
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    # Servers that other tests of this process have started may log meanwhile.
    return answer, [line for line in lines if line["logger"].startswith("omnigraph.")], metrics.render().decode()


async def fails(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise ValueError(SECRET)


async def is_full(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise StorageFullError("no space left", path="people", operation="write", hint="make some")


async def answers(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def breaks_off(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"half", "more_body": True})
    raise ValueError(SECRET)


def test_what_nobody_foresaw_is_told_by_its_kind_and_place_and_not_by_what_it_says() -> None:
    answer, [line], numbers = watched(fails, **{"X-Request-Id": "abc"})
    assert answer.status_code == 500
    assert answer.json() == {
        "error": "internal server error\nhint: see the server log for request abc",
        "code": "internal",
    }
    assert (line["level"], line["error"], line["request_id"], line["status"]) == ("error", "ValueError", "abc", 500)
    assert any("test_access_log.py" in frame for frame in line["frames"])
    assert SECRET not in json.dumps(line) + answer.text
    assert 'omnigraph_http_requests_total{method="GET",route="(none)",status="500"} 1.0' in numbers


def test_an_error_of_ours_says_what_it_says() -> None:
    _, [line], _ = watched(is_full)
    assert (line["error"], line["message"]) == ("StorageFullError", "no space left")


def test_an_answer_that_breaks_off_is_an_error_in_the_log() -> None:
    _, [line], _ = watched(breaks_off)
    assert (line["level"], line["status"], line["bytes"]) == ("error", 200, 4)


def test_a_request_is_one_line_without_its_query() -> None:
    answer, [line], numbers = watched(answers, Authorization=f"Bearer {SECRET}")
    assert (line["event"], line["status"], line["method"], line["actor"]) == ("request", 204, "GET", None)
    assert line["request_id"] == answer.headers["x-request-id"]
    assert SECRET not in json.dumps(line)
    assert "omnigraph_http_requests_in_flight 0.0" in numbers
    assert 'omnigraph_http_request_seconds_count{method="GET",route="(none)"} 1.0' in numbers


def test_a_thread_that_fails_is_told_in_the_same_way() -> None:
    def fail() -> None:
        raise ValueError(SECRET)

    with log_of_this_process() as log:
        thread = threading.Thread(target=fail, name="a load")
        thread.start()
        thread.join()
    line = json.loads(log.getvalue())
    assert (line["event"], line["error"], line["thread"]) == ("a thread has failed", "ValueError", "a load")
    assert SECRET not in log.getvalue()


def test_requests_to_the_storage_are_counted() -> None:
    metrics = Metrics()
    assert 'omnigraph_storage_requests_total{kind="get"}' in metrics.render().decode()


@pytest.mark.parametrize("text, level", [("", "info"), ("DEBUG ", "debug"), ("loud", "info"), ("error", "error")])
def test_the_level_is_one_of_few(text: str, level: str) -> None:
    assert logs.level_from(text) == level


def test_to_watch_a_request_costs_little() -> None:
    """A bound that only something very wrong would pass: a thousand lines and numbers in less than two seconds."""
    import asyncio  # noqa: PLC0415

    metrics = Metrics()
    app = AccessLog(answers, metrics)
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}

    async def nothing(_message: Any = None) -> Any:
        return {"type": "http.disconnect"}

    async def many() -> None:
        for _ in range(1_000):
            await app({**scope}, nothing, nothing)

    with log_of_this_process() as log:
        began = time.process_time()
        asyncio.run(many())
        assert time.process_time() - began < 2
    assert len(log.getvalue().splitlines()) == 1_000
