"""The JSON schema of mappings accepts what a load accepts, and refuses what it refuses for its form."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator, meta

from omnigraph.errors import InputMappingError, OptionError
from omnigraph.formats.sources import discover
from omnigraph.lang import Source, compile_schema

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs/reference/mapping.schema.json").read_text())
CATALOG = compile_schema(Source("node Person { name: String @key }\nedge Knows: Person -> Person"))
WHOLE: dict[str, Any] = {
    "$schema": "mapping.schema.json",
    "files": {
        "a.csv": {
            "type": "node:Person",
            "columns": {"full": "name", "remark": None},
            "when": "full",
            "distinct": True,
            "csv": {"delimiter": ";", "date_format": "%d.%m.%Y", "nulls": ["NA"], "names": ["full"], "header": True},
        },
        "b.csv": [{"type": "Person"}, {"type": "Knows", "columns": {}, "distinct": False}],
    },
    "csv": {"delimiter": "tab", "quote": "'", "trim": True, "decimal": ",", "datetime_format": None},
}
VALUES = [None, True, 1, "", "x", "xy", "%Y", "Person", [], ["x"], [1], {}, {"x": "y"}, {"x": 1}]
"""What is put in the place of each member."""


def is_loadable(mapping: Any, folder: Path) -> bool:
    (folder / "Person.csv").write_text("name\n")
    try:
        discover(folder, CATALOG, mapping=mapping)
    except (InputMappingError, OptionError):
        return False
    return True


def changed(document: Any) -> Iterator[Any]:
    """The document with another value in each place, and with one member less or more in each object."""
    for path in _paths(document, ()):
        for value in VALUES:
            yield _with(document, path, value)
        yield _with(document, path[:-1], {**dict(_at(document, path[:-1])), "unknown": 1})
        yield _with(document, path[:-1], {k: v for k, v in _at(document, path[:-1]).items() if k != path[-1]})


def _paths(document: Any, above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, value in document.items() if isinstance(document, dict) else ():
        yield (*above, name)
        yield from _paths(value, (*above, name))


def _at(document: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        document = document[name]
    return document


def _with(document: Any, path: tuple[str, ...], value: Any) -> Any:
    if not path:
        return value
    found = copy.deepcopy(document)
    _at(found, path[:-1])[path[-1]] = value
    return found


def _is_about_meaning(mapping: Any, folder: Path) -> bool:
    """Whether a mapping of the right form is refused for what only a graph knows, or for options together."""
    with pytest.raises((InputMappingError, OptionError)) as caught:
        discover(folder, CATALOG, mapping=mapping)
    words = ("unknown type", "is not a pattern", "the delimiter", "there are no names")
    return any(word in caught.value.message for word in words)


def test_the_schema_is_one_and_the_whole_form_is_valid(tmp_path: Path) -> None:
    assert meta.is_valid(SCHEMA)
    assert Draft202012Validator(SCHEMA).is_valid(WHOLE)
    assert is_loadable(WHOLE, tmp_path)


def test_the_schema_and_a_load_agree_on_every_changed_mapping(tmp_path: Path) -> None:
    validator, ends = Draft202012Validator(SCHEMA), set()
    for mapping in changed(WHOLE):
        valid, loadable = validator.is_valid(mapping), is_loadable(mapping, tmp_path)
        assert valid == loadable or (valid and _is_about_meaning(mapping, tmp_path)), mapping
        ends.add(loadable)
    assert ends == {True, False}
