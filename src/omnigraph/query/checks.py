"""Checks of merge requests: queries that must find no rows on a state."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextvars import copy_context
from pathlib import Path

from omnigraph.commit.store import Store
from omnigraph.core.refs import MAIN
from omnigraph.embed.embedder import Embedding
from omnigraph.errors import CheckFailedError, OptionError, QueryKindError
from omnigraph.lang.catalog import Catalog
from omnigraph.lang.compiler import compile_query, parse_queries
from omnigraph.lang.source import Source, source_given
from omnigraph.manifest.state import GraphState
from omnigraph.query.query import Query, QueryReader
from omnigraph.query.view import TableCache

SECONDS = "OMNIGRAPH_CHECK_SECONDS"
_PATIENCE = 60.0
_CACHE = 2**26
_MOST = 100


def checks_given(given: Mapping[str, str] | Sequence[str] | None, catalog: Catalog) -> dict[str, str]:
    """Read checks: texts by name, or sources of queries, each of which is one. They must read, without parameters."""
    if isinstance(given, Mapping):
        found = {str(name): str(text) for name, text in given.items()}
    else:
        found = {}
        for one in given or ():
            if str(one).isidentifier() and not Path(str(one)).exists():
                message = f"'{one}' is no query, and stored queries are on servers only"
                raise OptionError(message, option="checks", hint="give the text of the query, or a .gq file")
            source = source_given(one, ".gq", "<check>")
            found |= {str(query.name): source.text for query in parse_queries(source).queries}
    if len(found) > _MOST:
        raise OptionError(f"{len(found)} checks, at most {_MOST}", option="checks", hint="join some of them")
    for name, text in found.items():
        compiled = compile_query(_source(name, text), catalog, _query_name(name, text))
        if compiled.is_mutation:
            raise QueryKindError(f"the check '{name}' changes the graph", hint="write a query that reads", query=name)
        if compiled.parameters:
            message = f"the check '{name}' has parameters, which a check cannot be given"
            raise OptionError(message, option="checks", hint="write the values into the query")
    return found


def run_checks(store: Store, embedding: Embedding, state: GraphState, checks: Mapping[str, str]) -> Mapping[str, int]:
    """Run checks on a state; return how many rows each finds. A check that fails or takes too long raises."""
    known = store.schema_at(state.snapshot)
    assert known, "the graph was opened"
    # A cache of its own: what is staged is gone in a moment.
    reader = QueryReader(store.tables, state, known.catalog, TableCache(_CACHE), embedding)
    return {name: _run(reader, name, text) for name, text in checks.items()}


def _run(reader: QueryReader, name: str, text: str) -> int:
    done: list[int | BaseException] = []

    def run() -> None:
        try:
            query = Query(_source(name, text), _query_name(name, text), None, MAIN)
            done.append(len(reader.run(query)))
        except BaseException as error:
            done.append(error)
            if not isinstance(error, Exception):
                raise

    # A daemon: a query cannot be stopped, and one that is given up must not keep the process alive.
    worker = threading.Thread(target=copy_context().run, args=(run,), name=f"check {name}", daemon=True)
    worker.start()
    seconds = _seconds()
    worker.join(seconds)
    if not done:
        message = f"the check '{name}' took longer than {seconds:g} s; nothing was changed"
        raise CheckFailedError(message, check=name, rows=0, hint=f"make it cheaper, or raise {SECONDS}")
    found = done[0]
    if isinstance(found, BaseException):
        message = f"the check '{name}' failed: {found}"
        raise CheckFailedError(message, check=name, rows=0, hint="correct the query, or the schema") from found
    return found


def _source(name: str, text: str) -> Source:
    return Source(text, f"<check {name}>")


def _query_name(name: str, text: str) -> str | None:
    """Return which query of a text a check is: that of its name, else the only one."""
    names = [str(query.name) for query in parse_queries(_source(name, text)).queries]
    return name if name in names else None


def _seconds() -> float:
    given = os.environ.get(SECONDS, "").strip()
    try:
        seconds = float(given) if given else _PATIENCE
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise OptionError(f"{SECONDS} is {given!r:.40}", option=SECONDS, hint="give a number of seconds")
    return seconds
