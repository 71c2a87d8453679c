"""Operations are data: what is derived from them is complete, and one is added in few places."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import get_type_hints

from omnigraph.api.methods import AsyncGraphMethods, AsyncRequestMethods, GraphMethods, RequestMethods
from omnigraph.api.operation import OPERATIONS
from omnigraph.graph import _HANDLERS, Graph
from scripts.generate_methods import TARGET, generated

SRC = Path(__file__).parents[2] / "src" / "omnigraph"


def test_the_methods_are_those_that_the_operations_make() -> None:
    assert TARGET.read_text(encoding="utf-8") == generated(), "run scripts/generate_methods.py"


def test_every_operation_has_a_handler_that_takes_it() -> None:
    assert set(_HANDLERS) == set(OPERATIONS)
    for kind, handler in _HANDLERS.items():
        hints = get_type_hints(handler)
        assert next(iter(hints.values())) is kind, kind
        assert hints["return"] is not None


def test_every_operation_with_a_method_is_one_of_a_graph() -> None:
    for known in OPERATIONS.values():
        if known.method:
            group, _, name = known.method.rpartition(".")
            one, other = (RequestMethods, AsyncRequestMethods) if group else (GraphMethods, AsyncGraphMethods)
            own = inspect.signature(getattr(one, name))
            assert own.parameters == inspect.signature(getattr(one if group else Graph, name)).parameters
            assert inspect.iscoroutinefunction(getattr(other, name))


def test_routes_differ_and_name_only_fields() -> None:
    routes = [(route.verb, route.path) for known in OPERATIONS.values() for route in known.routes]

    assert len(routes) == len(set(routes))
    for known in OPERATIONS.values():
        for route in known.routes:
            names = {route.wire_name(name) for name in known.sent}
            assert set(re.findall(r"\{(\w+)\}", route.path)) <= names, route.path
            assert set(route.names) <= set(known.parameters), route.path


def test_an_operation_is_written_in_three_places() -> None:
    """The value, its handler, and how the command line prints the result; the engine below has one function."""
    places = set()
    for path in sorted(SRC.rglob("*.py")):
        if path == TARGET:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = getattr(node, "attr", None) or getattr(node, "id", None) or getattr(node, "name", None)
            if named in ("create_tag", "CreateTag"):
                places.add(path.relative_to(SRC).as_posix())

    engine = {place for place in places if place.startswith(("history/", "manifest/", "storage/"))}
    commands = {place for place in places if place.startswith("cli/")}
    assert len(commands) <= 1
    assert places - commands - engine == {"api/operations.py", "graph.py"}
