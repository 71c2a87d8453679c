"""Whatever is asked, the answer is one that the OpenAPI document tells: its status, its type and its form, and no fault.

With OMNIGRAPH_SOAK set it asks many times as much, and something else every time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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

from omnigraph.server.settings import QueryFile, ServedGraph, Serving
from tests.support.serving import ADD, AGE, ALL, PEOPLE, SCHEMA, bearer, known_tokens, people_graph, running

SOAKING = "OMNIGRAPH_SOAK" in os.environ
EXAMPLES = 200 if SOAKING else 3
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
REFUSED = range(400, 500)

# Random text is refused at once nearly everywhere, so some of it is replaced by what leads further in.
NO_COMMIT = "01JD0000000000000000000000"
NAMES = [
    "main",
    "review/x",
    "old",
    "ännchen",
    "",
    "main/x",
    "..",
    "a%2Fb",
    "x" * 10_000,
    "\u202eniam",
    "a\x00b",
    NO_COMMIT,
]
STATES = ["main", "old", "review/x", NO_COMMIT, f"main@{NO_COMMIT}", "\x00", "*", f"after:{NO_COMMIT}"]
NUMBERS = [0, -1, 1, 8193, 2**31, 2**63, 10**400, 1e308, 0.5]
LIKELY: dict[str, list[Any]] = {
    "graph_id": ["default"],
    **dict.fromkeys(["branch", "source", "target", "tag", "name", "query_name"], ["all", "add", *NAMES]),
    **dict.fromkeys(["commit_id", "snapshot", "after", "operation_id", "ref", "from", "to", "start"], STATES),
    **dict.fromkeys(
        ["query", "query_source"], [f"{ALL}\n{ADD}\n{AGE}", "query", "query q() { match {", "\x00", "x.gq"]
    ),
    "params": [{"name": name, "age": age} for name, age in zip(NAMES, NUMBERS, strict=False)],
    "data": ['{"type": "Person"}', "{", "\n", '{"edge": "Knows", "from": "ann", "to": "zoe"}', ["/etc"], '{"a": ' * 99],
    "schema_source": ["node", "schema.pg", "node Person { name: String @key }"],
    "resolve": ["ours", {"Person": "ours"}, [{"row_id": "ann"}], {"Nobody": "x"}, [{}]],
    "mapping": [{"Person": "people.csv"}, {"Person": 1}, {"": {"a": []}}],
    **dict.fromkeys(["kind", "type", "op", "type_names"], [["node"], ["Person"], ["insert"], ["nothing"]]),
    **dict.fromkeys(["limit", "max_bytes", "max_commits"], NUMBERS),
}
FORMS: dict[str, list[dict[str, Any]]] = {
    "query": [
        {"query": ALL},
        {"query": ALL, "branch": "review/x"},
        {"query": ALL, "snapshot": "old"},
        {"query": ADD, "params": {"name": "cy", "age": 3}},
        {"query": ADD, "params": {"name": "cy"}, "branch": "review/x"},
        {"query": AGE, "params": {"name": "ann", "age": 2**31}},
    ],
    "query_source": [{"query_source": ALL}, {"query_source": f"{ALL}\n{ADD}", "query_name": "all"}],
    "expect_mutation": [{}, {"expect_mutation": False}, {"params": {"name": "ann", "age": 31}}, {"branch": "review/x"}],
    "data": [
        {"data": PEOPLE},
        {"data": PEOPLE, "mode": "overwrite"},
        {"data": PEOPLE, "branch": "new", "from": "main"},
    ],
    "source": [
        {"source": "review/x"},
        {"source": "review/x", "dry_run": True},
        {"source": "main", "target": "review/x"},
    ],
    "from": [{"name": "review/y", "from": "old"}, {"name": "z"}],
    "ref": [{"name": "older"}, {"name": "v/1", "ref": "review/x"}],
    "commit_id": [{"commit_id": "old"}, {"commit_id": NO_COMMIT, "resolve": "ours"}],
    "schema_source": [{"schema_source": SCHEMA}, {"schema_source": f"{SCHEMA} node Town {{ name: String @key }}"}],
    "type_names": [{}, {"type_names": ["Person"]}, {"table_keys": ["edge:Knows"], "snapshot": "old"}],
    "kind": [{}, {"kind": ["node"]}, {"type": ["Person"], "op": ["insert"]}],
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A server, what it says of itself, and somebody who may ask it everything."""

    document: BaseSchema
    session: requests.Session

    def operations(self) -> Iterator[Operation]:
        return (found.ok() for found in self.document.get_all_operations())

    def ask(self, case: Case) -> schemathesis.Response:
        return case.call_and_validate(session=self.session, checks=CHECKS)


@schemathesis.serializer("application/x-ndjson")
def as_lines(_context: SerializationContext, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


@pytest.fixture(scope="module", params=["with tokens", "open"])
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    folder = tmp_path_factory.mktemp("asked")
    with running(_serving(folder, request.param == "open")) as address, requests.Session() as session:
        session.headers.update({} if request.param == "open" else bearer("admin"))
        assert session.post(f"{address}/branches", json={"name": "review/x"}).ok
        assert session.post(f"{address}/tags", json={"name": "old"}).ok
        yield Asked(_document(address), session)


def _serving(folder: Path, open_mode: bool) -> Serving:  # noqa: FBT001 - as the setting
    queries = folder / "stored.gq"
    queries.write_text(f"{ALL}\n{ADD}\n{AGE}")
    graph = ServedGraph(people_graph(folder / "graph"), queries=(QueryFile(str(queries)),))
    who: dict[str, Any] = {"open_mode": True} if open_mode else {"tokens": known_tokens()}
    return Serving({"default": graph}, "default", **who)


def _document(address: str) -> BaseSchema:
    document = schemathesis.openapi.from_url(f"{address}/openapi.json")
    for place in ("body", "query", "path_parameters"):
        document.hook(f"flatmap_{place}")(_likelier)
    return document


def _likelier(_context: HookContext, values: Any) -> SearchStrategy[Any]:
    """Replace some of the values whose names are known, or all of them by what makes sense together."""
    known = [name for name in values if name in LIKELY] if isinstance(values, dict) else []
    if not known:
        return st.just(values)
    some = st.fixed_dictionaries({}, optional={name: st.sampled_from(LIKELY[name]) for name in known})
    forms = [form for name in values for form in FORMS.get(name, ())]
    replaced = some.map(lambda chosen: {**values, **chosen})
    return st.sampled_from(forms) | replaced if forms else replaced


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_answer_is_one_that_the_document_tells(asked: Asked, mode: GenerationMode) -> None:
    for operation in asked.operations():
        if mode is GenerationMode.NEGATIVE and not _takes_something(operation):
            continue

        @SETTINGS
        @given(operation.as_strategy(generation_mode=mode))
        def ask(case: Case) -> None:
            asked.ask(case)

        ask()


def _takes_something(operation: Operation) -> bool:
    """Whether there is something to get wrong: whatever stands in a path is a text, as it is to be."""
    return bool([*operation.query, *operation.headers, *operation.body])


def test_the_bounds_of_every_parameter_and_every_method_are_told(asked: Asked) -> None:
    made = asked.document.config.generation
    for operation in asked.operations():
        modes = list(GenerationMode)
        for case in asked.document.iter_coverage_cases(operation, generation_modes=modes, generation_config=made):
            if "graph_id" in case.path_parameters:
                case.path_parameters["graph_id"] = "default"
            asked.ask(case)
