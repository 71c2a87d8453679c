"""The outline of an OpenAPI document: what a program that was written against it relies on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_REFUSED = 400


def outline(document: Any) -> dict[str, Any]:
    """List per method and path the parameters, the members of bodies and answers, and the statuses of refusals.

    A path with the name of a graph has what the same path without has, so it is left out; all refusals have one form.
    """
    found = {}
    for path, methods in document["paths"].items():
        shared = methods.get("parameters", [])
        for method, operation in methods.items():
            if method != "parameters" and not path.startswith("/graphs/{"):
                found[f"{method.upper()} {path}"] = _operation(document, operation, shared)
    refusal = {"$ref": "#/components/schemas/ErrorOutput"}
    return {**dict(sorted(found.items())), "refusal": sorted(set(_members(document, refusal, "")))}


def _operation(document: Any, operation: Any, shared: list[Any]) -> dict[str, Any]:
    parameters = [*shared, *operation.get("parameters", [])]
    body = operation.get("requestBody")
    answers = dict(sorted(operation["responses"].items()))
    return {
        "parameters": sorted(f"{one['in']} {one['name']}{'!' if one.get('required') else ''}" for one in parameters),
        "body": None if body is None else {"required": body.get("required", False), **_contents(document, body)},
        "answers": {status: _contents(document, one, "") for status, one in answers.items() if int(status) < _REFUSED},
        "refusals": [status for status in answers if int(status) >= _REFUSED],
    }


def _contents(document: Any, described: Any, mark: str = "!") -> dict[str, list[str]]:
    schemas = {kind: one.get("schema", {}) for kind, one in sorted(described.get("content", {}).items())}
    return {kind: sorted(set(_members(document, schema, mark))) for kind, schema in schemas.items()}


def _members(document: Any, schema: Any, mark: str, place: str = "") -> Iterator[str]:
    """Name the members of a schema, those of its parts after a dot. `mark` follows those that are required."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _members(document, one, mark, place)
    if "items" in schema:
        yield from _members(document, schema["items"], mark, f"{place}[]")
    for name, part in schema.get("properties", {}).items():
        where = f"{place}.{name}".removeprefix(".")
        yield where + (mark if name in schema.get("required", ()) else "")
        yield from _members(document, part, mark, where)
