"""The answer of a query, its plan, and the content of a Blob."""

from __future__ import annotations

import html
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from omnigraph.api.results import Commit
from omnigraph.core.extras import library
from omnigraph.errors import ParameterError

if TYPE_CHECKING:
    import pyarrow as pa


_WIDTH = 60


@dataclass(slots=True)
class PlanStep:
    """One step that ran; `inner` are the steps of a `not`.

    `expansion` says how edges were found, and `reason` why so; of a step that the match begins with, why it does.
    """

    kind: str
    text: str
    estimated_rows: int
    rows: int = 0
    requests: int = 0
    seconds: float = 0.0
    expansion: str | None = None
    reason: str | None = None
    inner: list[PlanStep] = field(default_factory=list)


@dataclass(frozen=True)
class Explanation:
    """How a query was carried out. Printed, it is a tree; `to_dict` is the same for programs."""

    query_name: str
    branch: str
    commit: Commit | None
    steps: Sequence[PlanStep]
    rows: int
    requests: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "query_name": self.query_name,
            "target": {"branch": self.branch, "commit": self.commit.commit_id if self.commit else None},
            "row_count": self.rows,
            "requests": self.requests,
            "seconds": self.seconds,
            "steps": [asdict(step) for step in self.steps],
        }

    def __str__(self) -> str:
        head = f"{self.query_name}: {self.rows} rows, {self.requests} requests, {self.seconds * 1e3:.1f} ms"
        title = f"{'step':{_WIDTH}} {'estimated':>10} {'rows':>10} {'requests':>9} {'ms':>9}"
        return "\n".join([head, title, *_lines(self.steps, "")])


def _lines(steps: Sequence[PlanStep], indent: str) -> Iterator[str]:
    for step in steps:
        name = f"{indent}{step.kind} {step.text}"
        numbers = f"{step.estimated_rows:>10} {step.rows:>10} {step.requests:>9} {step.seconds * 1e3:>9.2f}"
        yield f"{name:{_WIDTH}} {numbers}" if len(name) <= _WIDTH else f"{name}\n{'':{_WIDTH}} {numbers}"
        if step.reason:
            yield f"{indent}  by {step.expansion}: {step.reason}" if step.expansion else f"{indent}  {step.reason}"
        yield from _lines(step.inner, indent + "  ")


@dataclass(frozen=True, slots=True)
class Cell:
    """A property of an entity, by names."""

    type_name: str
    id: str
    property: str
    kind: str = "node"

    def __str__(self) -> str:
        return f"{self.type_name}.{self.property} of '{self.id}'"


@dataclass(frozen=True, slots=True)
class Blob:
    """What a Blob property holds. `etag` is another one whenever the content is."""

    size: int
    # Compared as a whole, never parsed.
    etag: str
    _read: Callable[[int, int], bytes]

    def read(self, start: int = 0, end: int | None = None) -> bytes:
        """Read the bytes from one place up to another; all of them, if none is named."""
        # Never beyond the end: a range that begins there is an error over HTTP and empty in a file.
        until = self.size if end is None else min(end, self.size)
        return self._read(start, until) if start < until else b""


def _text(row: Mapping[str, Any]) -> str:
    return json.dumps(row, default=str)


def _beyond(rows: Sequence[dict[str, Any]], left: Counter[str]) -> list[dict[str, Any]]:
    """Return so many of the rows, in their order, as are left of each."""
    found = []
    for row in rows:
        if left[text := _text(row)] > 0:
            left[text] -= 1
            found.append(row)
    return found


@dataclass(frozen=True)
class Result:
    """The rows of a query, the names of their columns in order, and the commit that was read."""

    query_name: str
    branch: str
    table: pa.Table
    commit: Commit | None

    @property
    def columns(self) -> list[str]:
        return list(self.table.column_names)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows as plain values, dates and date-times as texts; of columns with one name the last counts."""
        names = self.table.column_names
        return [dict(zip(names, row, strict=True)) for row in self.cells()]

    def cells(self) -> Iterator[tuple[Any, ...]]:
        """The values of each row in the order of the columns, also if two of these have one name."""
        from omnigraph.api.arrow import plain_values  # noqa: PLC0415 - a client without rows loads no Arrow

        return zip(*(plain_values(column) for column in self.table.columns), strict=True)

    def difference(self, other: Result) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the rows that only this answer has, and those that only the other has; repeated rows are counted."""
        one, two = self.rows, other.rows
        here, there = (Counter(map(_text, rows)) for rows in (one, two))
        return _beyond(one, here - there), _beyond(two, there - here)

    def to_arrow(self) -> pa.Table:
        return self.table

    def to_pandas(self) -> Any:
        """A data frame. Integers beside nulls have the nullable integer types of pandas, which keep every digit."""
        pandas = library("pandas")  # which PyArrow needs for this, and reports as a missing module
        frame = self.table.to_pandas(integer_object_nulls=True)
        for at, kind in enumerate(map(str, self.table.schema.types)):
            # By default pandas would make floats of them, and round what is beyond 2**53.
            if self.table[at].null_count and kind in _NULLABLE:
                frame.isetitem(at, pandas.array(frame.iloc[:, at], _NULLABLE[kind]))
        return frame

    def to_polars(self) -> Any:
        return library("polars").from_arrow(self.table)

    def to_networkx(self, source: str | None = None, target: str | None = None) -> Any:
        """A directed multigraph with an edge for each row: from one column to another, the others its attributes.

        The first two columns are the ends, unless others are named. A row that lacks an end adds no edge, only a node.
        Where the ends are nodes of two types, each is a pair of its type and its id: both types may have the same id.
        """
        networkx = library("networkx")
        made = networkx.MultiDiGraph()
        start, end = (self._end(name, at) for at, name in enumerate((source, target)))
        others = [(at, name) for at, name in enumerate(self.columns) if at not in (start, end)]
        types = [_node_type(self.table.schema.field(at)) for at in (start, end)]
        apart = types[0] != types[1] and None not in types
        for row in self.cells():
            ends = [
                (type_, row[at]) if apart and row[at] is not None else row[at]
                for at, type_ in zip((start, end), types, strict=True)
            ]
            # Nodes first, so that a row with one end (an optional match) still adds the end that it has.
            made.add_nodes_from(one for one in ends if one is not None)
            if None not in ends:
                made.add_edges_from([(*ends, {name: row[at] for at, name in others})])
        return made

    def _end(self, name: str | None, default: int) -> int:
        """The column that holds the ends of edges."""
        names = self.columns
        at = default if name is None else names.index(name) if name in names else len(names)
        if at >= len(names):
            message = f"the result has no column {repr(name) if name else default + 1} for the ends of edges"
            raise ParameterError(message, parameter=name, hint=f"name one of {', '.join(names)}")
        if self.table.schema.types[at].num_fields:  # lists and vectors
            message = f"the column '{names[at]}' holds lists, which cannot be nodes"
            raise ParameterError(message, parameter=names[at], hint="name a column of single values")
        return at

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        # A notebook keeps what it shows; a million rows of HTML would be saved with it.
        shown = itertools.islice(self.cells(), _SHOWN)
        lines = ("".join(f"<td>{html.escape(str(value))}</td>" for value in row) for row in shown)
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        hidden = len(self) - _SHOWN
        note = f"<caption>{hidden:,} more rows are not shown</caption>" if hidden > 0 else ""
        return f"<table>{note}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


_SHOWN = 100
_NULLABLE = {f"{sign}int{bits}": f"{sign.upper()}Int{bits}" for sign in ("", "u") for bits in (32, 64)}
NODE_TYPE = b"omnigraph.node_type"
"""In the metadata of a column that holds the ids of nodes: the type of the nodes."""


def _node_type(column: pa.Field) -> str | None:
    found = (column.metadata or {}).get(NODE_TYPE)
    return None if found is None else found.decode()
