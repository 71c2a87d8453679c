"""Exports of a graph that is served: lines as they come, or a file of them on this side."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence

from omnigraph.api.documents import from_document
from omnigraph.api.operation import NDJSON
from omnigraph.api.operations import ExportFiles, ExportLines
from omnigraph.api.results import ExportResult, NamedState
from omnigraph.client.requests import options
from omnigraph.client.steps import Request, Steps, Stream, segment
from omnigraph.core.location import Location
from omnigraph.errors import NotServedError
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.source import Source

_ENDINGS = (".jsonl", ".ndjson")
_HEAD = re.compile(rb'^\{"(type|edge)":"([^"]*)"', re.MULTILINE)


def export_lines(asked: ExportLines) -> Stream[str]:
    """Stream the entities as lines of JSON."""
    _check(asked, _ENDINGS[0])
    if asked.types is not None and not asked.types:  # a server takes no types for all of them
        return Stream(Request("GET", "/snapshot", options(branch=asked.branch)), lambda _: ())
    return Stream(_request(asked, asked.snapshot), lambda line: (f"{line}\n",))


def export_file(asked: ExportFiles) -> Steps[ExportResult]:
    """Write the entities of one state into a file."""
    from omnigraph.formats.files import written  # noqa: PLC0415 - loads the engine

    _check(asked, os.fspath(asked.path))
    # One request finds the head and its schema; the export is then of that commit, whatever is written meanwhile.
    ref = asked.branch if asked.snapshot is None else asked.snapshot
    answer = yield Request("GET", f"/states/{segment(ref)}")
    state = from_document(NamedState, answer.document)
    assert state.commit is not None, "a server serves graphs that have a first commit"
    counted = _EntityCounter(_none_yet(compile_schema(Source(state.schema)), asked.types))
    location = Location.parse(asked.path)
    with written(location) as stream:

        def sink(chunk: bytes) -> None:
            stream.write(chunk)
            counted.add(chunk)

        if asked.types is None or asked.types:  # a server takes no types for all of them
            yield _request(asked, state.commit.commit_id, sink)
    nodes, edges = counted.of("type"), counted.of("edge")
    return ExportResult(location.uri, asked.format, asked.branch.strip(), state.commit, nodes, edges, (location.uri,))


def _check(asked: ExportLines | ExportFiles, path: str) -> None:
    if asked.format != "jsonl" or not path.lower().endswith(_ENDINGS):
        message = f"a server exports lines of JSON, not {asked.format} to {path}"
        hint = f"name a file that ends in {_ENDINGS[0]}; `omnigraph export --store URI` writes other formats"
        raise NotServedError(message, operation="export", hint=hint)


def _request(
    asked: ExportLines | ExportFiles, snapshot: str | None, sink: Callable[[bytes], None] | None = None
) -> Request:
    place = {"branch": asked.branch} if snapshot is None else {"snapshot": snapshot}
    keys = [name for name in asked.types or () if ":" in name]
    names = [name for name in asked.types or () if ":" not in name]
    chosen = {"type_names": names, "table_keys": keys}
    document = {**place, **{name: value for name, value in chosen.items() if value}}
    return Request("POST", "/export", document=document, accept=NDJSON, sink=sink)


def _none_yet(catalog: Catalog, types: Sequence[str] | None) -> Counter[tuple[str, str]]:
    """The types that an export is of, each with no entities yet."""
    declared = [("type", f"node:{name}") for name in catalog.nodes] + [
        ("edge", f"edge:{name}") for name in catalog.edges
    ]
    named = [(word, key.partition(":")[2], key) for word, key in declared]
    return Counter({(word, name): 0 for word, name, key in named if types is None or name in types or key in types})


class _EntityCounter:
    """Counts the entities of each type in lines of JSON, which come in chunks."""

    def __init__(self, counts: Counter[tuple[str, str]]) -> None:
        self._counts = counts
        self._rest = b""

    def add(self, chunk: bytes) -> None:
        block, _, self._rest = (self._rest + chunk).rpartition(b"\n")
        self._counts.update((word.decode(), name.decode()) for word, name in _HEAD.findall(block))

    def of(self, wanted: str) -> dict[str, int]:
        return {name: count for (word, name), count in sorted(self._counts.items()) if word == wanted}
