"""Exports of a graph that is served: lines as they come, or a file of them on this side."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from omnigraph.api.http import NDJSON
from omnigraph.api.results import Commit, ExportResult
from omnigraph.client.asking import members, options
from omnigraph.client.reading import Asked, ReadCalls
from omnigraph.client.steps import Request, Steps, Stream
from omnigraph.core.location import Location
from omnigraph.errors import NotServedError
from omnigraph.lang.catalog import Catalog

_ENDINGS = (".jsonl", ".ndjson")
_HEAD = re.compile(rb'^\{"(type|edge)":"([^"]*)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Export:
    """What is exported, and how."""

    asked: Asked
    types: Sequence[str] | None
    format: str

    def lines(self) -> Stream[str]:
        """The entities as lines of JSON."""
        self._check(_ENDINGS[0])
        if self.types is not None and not self.types:
            return Stream(Request("GET", "/snapshot", options(branch=self.asked.branch)), lambda _: ())
        return Stream(self.request(), lambda line: (f"{line}\n",))

    def file(self, calls: ReadCalls, path: str | os.PathLike[str]) -> Steps[ExportResult]:
        """Write the entities of one state into a file."""
        from omnigraph.formats.files import written  # noqa: PLC0415 - loads the engine

        self._check(os.fspath(path))
        commit = yield from self._commit(calls)
        counted = _Counted(_none_yet((yield from calls.catalog()), self.types))
        location = Location.parse(path)
        with written(location) as stream:

            def sink(chunk: bytes) -> None:
                stream.write(chunk)
                counted.add(chunk)

            if self.types is None or self.types:  # a server takes no types for all of them
                yield replace(self, asked=replace(self.asked, snapshot=commit.commit_id)).request(sink)
        nodes, edges, branch = counted.of("type"), counted.of("edge"), self.asked.branch.strip()
        return ExportResult(location.uri, self.format, branch, commit, nodes, edges, (location.uri,))

    def _commit(self, calls: ReadCalls) -> Steps[Commit]:
        """The commit that made the state."""
        if self.asked.snapshot is not None:
            return (yield from calls.commit(self.asked.snapshot))
        return (yield from calls.commits(self.asked.branch))[0]

    def _check(self, path: str) -> None:
        if self.format != "jsonl" or not path.lower().endswith(_ENDINGS):
            message = "a server exports lines of JSON, and nothing else"
            hint = f"name a file that ends in {_ENDINGS[0]}; `omnigraph export --store URI` writes other formats"
            raise NotServedError(message, operation="export", hint=hint)

    def request(self, sink: Callable[[bytes], None] | None = None) -> Request:
        keys = [name for name in self.types or () if ":" in name]
        names = [name for name in self.types or () if ":" not in name]
        document = members(**self.asked.members(), type_names=names or None, table_keys=keys or None)
        return Request("POST", "/export", document=document, accept=NDJSON, sink=sink)


def _none_yet(catalog: Catalog, types: Sequence[str] | None) -> Counter[tuple[str, str]]:
    """The types that an export is of, each with no entities yet."""
    declared = [("type", f"node:{name}") for name in catalog.nodes] + [
        ("edge", f"edge:{name}") for name in catalog.edges
    ]
    named = [(word, key.partition(":")[2], key) for word, key in declared]
    return Counter({(word, name): 0 for word, name, key in named if types is None or name in types or key in types})


class _Counted:
    """Counts the entities of each type in lines of JSON, which come in chunks."""

    def __init__(self, counts: Counter[tuple[str, str]]) -> None:
        self._counts = counts
        self._rest = b""

    def add(self, chunk: bytes) -> None:
        block, _, self._rest = (self._rest + chunk).rpartition(b"\n")
        self._counts.update((word.decode(), name.decode()) for word, name in _HEAD.findall(block))

    def of(self, wanted: str) -> dict[str, int]:
        return {name: count for (word, name), count in sorted(self._counts.items()) if word == wanted}
