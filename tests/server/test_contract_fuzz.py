"""Whatever is asked, the answer is as the OpenAPI document tells: its status, its type and its form, and no fault.

With OMNIGRAPH_SOAK set it asks many times as much, and something else every time.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from schemathesis import APIOperation, BaseSchema, Case, GenerationMode, HookContext, SerializationContext, checks
from schemathesis.core.result import Ok

from omnigraph.server.settings import QueryFile, ServedGraph, Serving
from tests.support.likely import FORMS, LIKELY
from tests.support.serving import ADD, AGE, ALL, bearer, known_tokens, people_graph, running

SOAKING = "OMNIGRAPH_SOAK" in os.environ
EXAMPLES = 100 if SOAKING else 2
STRIDE = 1 if SOAKING else 6  # there are thousands of bounds
SETTINGS = settings(
    max_examples=EXAMPLES,
    derandomize=not SOAKING,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large],
)
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.unsupported_method,
]
Operation = APIOperation[Any, Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """A server, what it says of itself, and somebody who may ask it everything."""

    address: str
    document: BaseSchema
    session: requests.Session
    state: State

    def operations(self) -> Iterator[Operation]:
        return (found.ok() for found in self.document.get_all_operations() if isinstance(found, Ok))

    def told(self, case: Case[Any]) -> bool:
        """Whether the answer is one that the document tells; what is wrong with one that is not is raised."""
        return case.call_and_validate(session=self.session, checks=CHECKS).status_code < 500

    def send(self, method: str, path: str, **more: Any) -> requests.Response:
        return self.session.request(method, f"{self.address}{path}", **more)

    def names(self, kind: str) -> list[str]:
        """The names of the branches, or of the tags, that there are."""
        found = self.send("GET", f"/{kind}").json()[kind]
        return [one if isinstance(one, str) else one["name"] for one in found]


class State(Enum):
    """Whom a server knows: those with tokens, or everybody."""

    CLOSED = "closed"
    OPEN = "open"


@schemathesis.serializer("application/x-ndjson")
def as_lines(_context: SerializationContext, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


@pytest.fixture(scope="module", params=list(State), ids=lambda state: state.value)
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    serving = _serving(tmp_path_factory.mktemp("asked"), request.param)
    with running(serving) as address, requests.Session() as session:
        session.headers.update(bearer("admin") if request.param is State.CLOSED else {})
        assert session.post(f"{address}/branches", json={"name": "review/x"}).ok
        assert session.post(f"{address}/tags", json={"name": "old"}).ok
        yield Asked(address, _document(address), session, request.param)


def _serving(folder: Path, state: State) -> Serving:
    queries = folder / "stored.gq"
    queries.write_text(f"{ALL}\n{ADD}\n{AGE}")
    graph = ServedGraph(people_graph(folder / "graph"), queries=(QueryFile(str(queries)),))
    who: dict[str, Any] = {"open_mode": True} if state is State.OPEN else {"tokens": known_tokens()}
    return Serving({"default": graph}, "default", **who)


def _document(address: str) -> BaseSchema:
    document = schemathesis.openapi.from_url(f"{address}/openapi.json")
    document.hook("flatmap_body")(_likely_body)
    document.hook("flatmap_query")(_likely_values)
    document.hook("flatmap_path_parameters")(_likely_values)
    return document


def _likely_body(context: HookContext, body: Any) -> SearchStrategy[Any]:
    known = [form for name in body for form in FORMS.get(name, ())] if isinstance(body, dict) else []
    values = _likely_values(context, body)
    return st.sampled_from(known) | values if known else values


def _likely_values(_context: HookContext, values: Any) -> SearchStrategy[Any]:
    known = [name for name in values if name in LIKELY] if isinstance(values, dict) else []
    some = st.fixed_dictionaries({}, optional={name: st.sampled_from(LIKELY[name]) for name in known})
    return some.map(lambda chosen: {**values, **chosen}) if known else st.just(values)


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_answer_is_one_that_the_document_tells(asked: Asked, mode: GenerationMode) -> None:
    for operation in asked.operations():
        if mode is GenerationMode.NEGATIVE and not _takes_something(operation):
            continue

        @SETTINGS
        @given(operation.as_strategy(generation_mode=mode))
        def ask(case: Case[Any]) -> None:
            assert asked.told(case)

        ask()


def _takes_something(operation: Operation) -> bool:
    """Whether there is something to get wrong: whatever stands in a path is a text, as it is to be."""
    return bool([*operation.query, *operation.headers, *operation.body])


def test_the_bounds_of_every_parameter_and_every_method_are_told(asked: Asked) -> None:
    """The routes with the name of a graph are asked where everybody is known, those without where not."""
    made, modes = asked.document.config.generation, list(GenerationMode)
    for operation in asked.operations():
        if operation.path.startswith("/graphs/{") is not (asked.state is State.OPEN):
            continue
        cases = asked.document.iter_coverage_cases(operation, generation_modes=modes, generation_config=made)
        for case in itertools.islice(cases, 0, None, STRIDE):
            if "graph_id" in case.path_parameters:
                case.path_parameters["graph_id"] = "default"
            assert asked.told(case)


ODD_NAMES = st.text(st.characters(categories=["L", "N"]) | st.sampled_from("./-_ %\\\u202e"), min_size=1, max_size=12)


@pytest.mark.parametrize("kind", ["branches", "tags"])
def test_whatever_name_is_taken_is_listed_read_and_deleted_by_that_name(asked: Asked, kind: str) -> None:
    @settings(SETTINGS, max_examples=2 * EXAMPLES)
    @given(ODD_NAMES)
    def make(name: str) -> None:
        made = asked.send("POST", f"/{kind}", json={"name": name})
        if made.status_code != 200:
            assert made.status_code in (400, 409)
            return
        path = f"/{kind}/{quote(name, safe='')}"
        assert made.json()["name"] in asked.names(kind)
        assert asked.send("GET", f"/states/{quote(name, safe='')}").status_code == 200
        assert asked.send("DELETE", path).status_code == 200
        assert made.json()["name"] not in asked.names(kind)
        assert asked.send("DELETE", path).status_code == 404

    make()


def test_the_methods_of_all_routes_at_a_path_are_told(asked: Asked) -> None:
    for path, methods in {"/branches": "GET, POST", "/graphs/default/tags": "GET, POST", "/query": "POST"}.items():
        answer = asked.send("PATCH", path)
        assert (answer.status_code, answer.headers["Allow"]) == (405, methods)


# What no generator of JSON makes: bytes that are none, or that stand for nothing.
BROKEN = [
    b"{",
    b"nothing",
    b"\xff\xfe{}",
    b'{"query": "\xc3("}',
    b'{"query": "\\ud800"}',
    b'{"name": "\\udfff\\ud800", "source": "\\ud800"}',
    b'{"data": NaN, "query": Infinity}',
    b'{"query": 1' + b"0" * 5000 + b"}",
    b'{"query": 1e999, "query": "twice"}',
    b"[" * 200,
    b'{"params": ' * 200,
]


def test_a_body_that_is_no_json_is_refused_as_the_document_tells(asked: Asked) -> None:
    taking = [one for one in asked.operations() if "application/json" in one.get_request_payload_content_types()]
    paths = [one.path.replace("{graph_id}", "default").replace("{name}", "add") for one in taking]
    assert len(paths) > 30
    for path in paths:
        for body in BROKEN:
            answer = asked.send("POST", path, data=body, headers={"Content-Type": "application/json"})
            assert answer.status_code in (400, 413, 422), (path, body[:40], answer.text[:200])
            assert answer.json()["code"] == "bad_request"
