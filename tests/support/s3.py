"""An S3 server for tests: moto in a process of its own, one request at a time.

As it comes, moto checks the condition of a put and then acts on it, with nothing in between to keep another put out.
It runs in its own process because a library that waits for an answer with the GIL held would wait for ever on a thread.
One loop serves all connections: a server with threads takes several times as long for a request.

A key with one of these names among its parts meets a fault: `denied` is answered 403, `unreadable` too but can be
listed, `full` is answered 507, and `lost` 500 after the request was carried out.

A bucket can also be armed (`S3Server.arm`): then its n-th write meets a fault, whatever its key is.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import os
import subprocess
import sys
import threading
import urllib.parse
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import pytest

from tests.support.s3_answers import plain
from tests.support.s3_http import Connection

_ROOT = Path(__file__).parents[2]
_AUTHORITIES = Path(__file__).with_name("data") / "certificates"
_CONTROL = "/-/"
_LOG, _COPY, _ARM = "/-/requests/", "/-/copy/", "/-/arm/"
_SLOW_SECONDS = 0.5
_FAULTS = {
    "denied": "403 Forbidden",
    "unreadable": "403 Forbidden",
    "full": "507 Insufficient Storage",
    "lost": "500 Internal Server Error",
}


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server."""

    host: str
    port: int

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to use the server."""
        return {
            "AWS_ACCESS_KEY_ID": "an-access-key",
            "AWS_SECRET_ACCESS_KEY": "a-secret-key",
            "AWS_SESSION_TOKEN": "",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_S3_FORCE_PATH_STYLE": "true",
            "NO_PROXY": self.host,
            # Lance reads the authorities of the machine, a few hundred files, whenever it opens a dataset. Here is one.
            "SSL_CERT_FILE": str(_AUTHORITIES / "only.pem"),
            "SSL_CERT_DIR": str(_AUTHORITIES),
        }

    @classmethod
    def of_environment(cls) -> Self:
        """The server that the environment of this process names."""
        endpoint = urllib.parse.urlsplit(os.environ["AWS_ENDPOINT_URL"])
        return cls(endpoint.hostname or "", endpoint.port or 0)

    def create_bucket(self) -> str:
        bucket = f"bucket-{uuid.uuid4().hex}"
        self._ask("PUT", f"/{bucket}")
        return bucket

    def copy_bucket(self, bucket: str) -> str:
        """Make a bucket with all that is in another one, in a single step."""
        copy = self.create_bucket()
        self.copy_objects(bucket, copy)
        return copy

    def copy_objects(self, bucket: str, other: str) -> None:
        self._ask("POST", f"{_COPY}{bucket}/{other}")

    def requests(self, bucket: str) -> Counter[str]:
        """Count the requests that the bucket has received, by kind."""
        return Counter(json.loads(self._ask("GET", f"{_LOG}{bucket}")))

    def arm(self, bucket: str, fault: str, number: int = 1) -> None:
        """Let the n-th write to a bucket from now on be `lost`, `repeated` or `slow`; `none` calls it off.

        A lost one is carried out and answered 500; a repeated one is carried out twice, and the second answer counts.
        """
        self._ask("POST", f"{_ARM}{bucket}/{fault}/{number}")

    def _ask(self, method: str, path: str) -> bytes:
        connection = http.client.HTTPConnection(self.host, self.port)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            assert answer.status == http.client.OK, answer.read()
            return answer.read()
        finally:
            connection.close()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with running() as server:
        yield server


@pytest.fixture
def s3_uri(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix in a new bucket, and the environment to reach it by."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3_server.create_bucket()}/graphs/one"


@contextmanager
def running() -> Iterator[S3Server]:
    """Run a server for the length of a block, or of this process, whichever ends first."""
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            port = process.stdout.readline()
            assert port, "the S3 server did not start"
            yield S3Server("127.0.0.1", int(port))
        finally:
            process.stdin.close()
            process.wait(timeout=120)


class _Application:
    """Moto's application behind a log and the faults."""

    def __init__(self, moto: WSGIApplication, backend: Any) -> None:
        self._moto = moto
        self._backend = backend
        self._log: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._armed: dict[str, tuple[str, int]] = {}

    async def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        path = str(environ["PATH_INFO"])
        if path.startswith(_CONTROL):
            return self._control(path, start_response)
        due = self._due(environ, path.split("/")[1])
        if due == "slow":  # others are served meanwhile
            await asyncio.sleep(_SLOW_SECONDS)
        self._log[path.split("/")[1]][_kind(environ)] += 1
        if due == "repeated":
            body = environ["wsgi.input"].getvalue()
            list(self._moto({**environ, "wsgi.input": io.BytesIO(body)}, _ignore))
        fault = "lost" if due == "lost" else _fault(environ)
        if fault is None and (answer := plain(self._backend, environ)):
            start_response(answer.status, [*answer.headers, ("Content-Length", str(len(answer.body)))])
            return [b"" if environ["REQUEST_METHOD"] == "HEAD" else answer.body]
        if fault is None:
            return list(self._moto(environ, start_response))
        if fault == "lost":
            list(self._moto(environ, _ignore))
        return _answer(start_response, _FAULTS[fault])

    def _control(self, path: str, start_response: StartResponse) -> list[bytes]:
        """Do what a test asks of the server itself."""
        if path.startswith(_LOG):
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self._log[path.removeprefix(_LOG)]).encode()]
        if path.startswith(_COPY):
            bucket, copy = path.removeprefix(_COPY).split("/")
            for key in list(self._backend.get_bucket(bucket).keys.values()):
                self._backend.copy_object(key, copy, key.name)
            return _answer(start_response, "200 OK")
        bucket, fault, number = path.removeprefix(_ARM).split("/")
        self._armed[bucket] = fault, int(number)
        return _answer(start_response, "200 OK")

    def _due(self, environ: WSGIEnvironment, bucket: str) -> str | None:
        """Return the fault that a request meets because its bucket is armed."""
        if _kind(environ) not in ("put", "delete"):
            return None
        fault, left = self._armed.get(bucket, ("none", 0))
        self._armed[bucket] = fault, left - 1
        return fault if left == 1 else None


def _kind(environ: WSGIEnvironment) -> str:
    query = urllib.parse.parse_qs(environ["QUERY_STRING"], keep_blank_values=True)
    if "delete" in query:
        return "delete"
    method = "list" if "list-type" in query else str(environ["REQUEST_METHOD"]).lower()
    return "put" if method == "post" else method


def _fault(environ: WSGIEnvironment) -> str | None:
    parts = str(environ["PATH_INFO"]).split("/")
    if _kind(environ) == "list":
        listed = urllib.parse.parse_qs(environ["QUERY_STRING"]).get("prefix", [""])[0]
        parts = [part for part in listed.split("/") if part != "unreadable"]
    return next((part for part in parts if part in _FAULTS), None)


def _answer(start_response: StartResponse, status: str) -> list[bytes]:
    body = f"<?xml version='1.0' encoding='utf-8'?>\n<Error><Message>{status}</Message></Error>".encode()
    start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


def _ignore(*_: Any) -> Any:
    return io.BytesIO().write


async def _serve() -> None:
    # Only the process of the server pays for these.
    from moto.core.models import DEFAULT_ACCOUNT_ID  # noqa: PLC0415
    from moto.moto_server.werkzeug_app import create_backend_app  # noqa: PLC0415
    from moto.s3.models import s3_backends  # noqa: PLC0415

    application = _Application(create_backend_app("s3"), s3_backends[DEFAULT_ACCOUNT_ID]["aws"])
    server = await asyncio.get_running_loop().create_server(lambda: Connection(application), "127.0.0.1", 0)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - how the parent learns it
    await server.serve_forever()


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(_serve())
