"""One graph in four places: opened or behind a server, on a local disk or in a store that speaks the S3 protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import omnigraph
from omnigraph import Graph, RemoteGraph
from tests.support.s3 import S3Server
from tests.support.serving import one_graph, running
from tests.support.templates import Templates

ACTOR, TOKEN = "act-admin", "admin-token"  # whose token the client has; who opens a graph says so
SCHEMA = """
node Person {
    name: String @key
    age: I32?
    born: Date?
    nicks: [String]?
    photo: Blob?
    rating: F64?
    @range(age, 0..150)
}
node Company { name: String @key }
edge Knows: Person -> Person { since: Date? }
edge WorksAt: Person -> Company
"""
PEOPLE = """\
{"type":"Person","data":{"name":"ann","age":30,"born":"1990-05-06","nicks":["A","\u2028"],"photo":"base64:AAEC"}}
{"type":"Person","data":{"name":"bob","age":40,"rating":0.1}}
{"type":"Company","data":{"name":"acme"}}
{"edge":"Knows","from":"ann","to":"bob","data":{"id":"k1","since":"2020-01-01"}}
{"edge":"WorksAt","from":"ann","to":"acme","data":{"id":"w1"}}
"""
Reached = Graph | RemoteGraph
_WAYS = ("embedded-local", "http-local", "embedded-s3", "http-s3")


@pytest.fixture(scope="module", params=_WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def storage(way: str, request: pytest.FixtureRequest) -> S3Server | None:
    """The server of an object store, for the ways that lead to one."""
    return request.getfixturevalue("s3_server") if way.endswith("s3") else None


@pytest.fixture(scope="module")
def shared(
    way: str, storage: S3Server | None, templates: Templates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reached]:
    """A graph of people, for all tests of a module; a test that changes it works on a branch of its own."""
    directory = tmp_path_factory.mktemp("graph")
    with reached(way, storage, directory, _copied(templates, directory)) as graph:
        yield graph


@pytest.fixture
def own(way: str, storage: S3Server | None, templates: Templates, tmp_path: Path) -> Iterator[Reached]:
    """A graph of people for one test."""
    with reached(way, storage, tmp_path, _copied(templates, tmp_path)) as graph:
        yield graph


def _copied(templates: Templates, directory: Path) -> Callable[[str], Graph]:
    def make(uri: str) -> None:
        omnigraph.init(uri, SCHEMA).load(_file(directory), mode="append", actor=ACTOR)

    return lambda uri: templates.copy("accepted", make, uri)


@pytest.fixture
def branch(shared: Reached, request: pytest.FixtureRequest) -> str:
    """A branch for one test alone."""
    name = f"tests/{request.node.originalname}-{len(shared.branches())}"
    shared.create_branch(name)
    return name


def _file(directory: Path) -> Path:
    data = directory / "people.jsonl"
    data.write_text(PEOPLE)
    return data


@contextmanager
def reached(
    way: str,
    s3: S3Server | None,
    directory: Path,
    make: Callable[[str], Graph] = lambda uri: omnigraph.init(uri, SCHEMA),
) -> Iterator[Reached]:
    """A new graph, and a way to it."""
    with pytest.MonkeyPatch.context() as environment:
        uri = _bucket(s3, environment) if s3 else str(directory / "graph")
        made = make(uri)
        if way.startswith("embedded"):
            yield made
            return
        with running(one_graph(uri)) as address, omnigraph.connect(address, token=TOKEN) as graph:
            yield graph


def _bucket(s3: S3Server, environment: pytest.MonkeyPatch) -> str:
    for name, value in s3.environment.items():
        environment.setenv(name, value)
    return f"s3://{s3.create_bucket()}/graphs/one"
