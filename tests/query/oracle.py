"""What a query must answer, told by trying everything: plain Python over plain rows, as slow and simple as can be."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import eq, ge, gt, le, lt, ne
from typing import Any

import numpy as np

from tests.query import search_oracle

Row = Mapping[str, Any]
Rows = list[list[Any]]
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
_MOST = 3_000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


# What a query says ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prop:
    variable: str
    name: str
    kind: str


@dataclass(frozen=True)
class Given:
    """A literal, or a parameter if it has a name. Date-times are milliseconds."""

    value: Any
    kind: str
    name: str | None = None


@dataclass(frozen=True)
class Node:
    """A bare variable."""

    variable: str


@dataclass(frozen=True)
class Bind:
    variable: str
    type: str
    entries: tuple[tuple[Prop, Given], ...] = ()


@dataclass(frozen=True)
class Walk:
    """A traversal as it is written; `along` says whether the written source is the source of the edges."""

    source: str
    edge: str
    target: str
    least: int = 1
    most: int = 1
    along: bool = True
    undirected: bool = False
    edge_variable: str | None = None


@dataclass(frozen=True)
class Test:
    left: Prop | Given
    operator: str
    right: Prop | Given


@dataclass(frozen=True)
class Not:
    clauses: tuple[Clause, ...]


@dataclass(frozen=True)
class Search:
    """A node whose text holds a word."""

    variable: str
    query: str


Clause = Bind | Walk | Test | Search | Not


@dataclass(frozen=True)
class Ranking:
    """How near the vector of a node is, how well its text matches, or both."""

    variable: str
    function: str
    vector: tuple[float, ...]
    query: str


@dataclass(frozen=True)
class Item:
    expression: Prop | Given | Node
    alias: str | None = None
    function: str | None = None

    @property
    def column(self) -> str:
        if self.alias:
            return self.alias
        match self.expression:
            case Prop(variable, name, _):
                return f"{variable}.{name}"
            case Node(variable):
                return variable
            case Given(_, _, name):
                return name or "literal"


@dataclass(frozen=True)
class Key:
    """A property, or the name of a column."""

    by: Prop | str
    descending: bool = False


@dataclass(frozen=True)
class Query:
    clauses: tuple[Clause, ...]
    items: tuple[Item, ...]
    order: tuple[Key, ...] = ()
    limit: int | None = None
    ranking: Ranking | None = None


@dataclass(frozen=True)
class Data:
    """All rows of a graph, and the types that each edge type connects."""

    nodes: Mapping[str, list[Row]]
    edges: Mapping[str, list[Row]]
    ends: Mapping[str, tuple[str, str]]


# Match ---------------------------------------------------------------------------------------------

Bindings = dict[str, Row]


class TooManyError(Exception):
    """There are too many bindings to try them all."""


def matches(data: Data, clauses: Iterable[Clause], outer: Bindings) -> list[Bindings]:
    """Every way to bind the variables, given some that are bound."""
    clauses = tuple(clauses)
    found = [outer]
    for clause in clauses:
        if isinstance(clause, Bind):
            found = _few(new for one in found for new in _bound(data, clause, one))
        elif isinstance(clause, Walk):
            links = list(_links(data, clause))
            found = _few(new for one in found for new in _walked(data, clause, links, one))
    for clause in clauses:
        if isinstance(clause, Test):
            found = [one for one in found if _holds(clause, one)]
        elif isinstance(clause, Bind):
            tests = [Test(prop, "contains" if prop.kind.startswith("[") else "=", to) for prop, to in clause.entries]
            found = [one for one in found if all(_holds(test, one) for test in tests)]
        elif isinstance(clause, Search):
            found = [one for one in found if search_oracle.found(one[clause.variable]["words"], clause.query)]
        elif isinstance(clause, Not):
            found = [one for one in found if not matches(data, clause.clauses, one)]
    return found


def _few(bindings: Iterable[Bindings]) -> list[Bindings]:
    found = list(islice(bindings, _MOST + 1))
    if len(found) > _MOST:
        raise TooManyError
    return found


def _bound(data: Data, clause: Bind, one: Bindings) -> Iterator[Bindings]:
    if clause.variable in one:
        yield one
        return
    for row in data.nodes[clause.type]:
        yield {**one, clause.variable: row}


Link = tuple[Any, Any, Row | None]


def _walked(data: Data, walk: Walk, links: Sequence[Link], one: Bindings) -> Iterator[Bindings]:
    types = data.ends[walk.edge] if walk.along else data.ends[walk.edge][::-1]
    rows = [{row["id"]: row for row in data.nodes[name]} for name in types]
    for source, target, edge in links:
        new = dict(one)
        for variable, row in ((walk.source, rows[0][source]), (walk.target, rows[1][target])):
            if variable != "_" and new.setdefault(variable, row)["id"] != row["id"]:
                break
        else:
            yield {**new, walk.edge_variable: edge} if walk.edge_variable and edge else new


def _links(data: Data, walk: Walk) -> Iterator[Link]:
    """Who is linked with whom, in the direction that is written: once, or once for each edge if these are bound."""
    links = [(edge["src"], edge["dst"], edge) for edge in data.edges[walk.edge]]
    back = [(target, source, edge) for source, target, edge in links]
    if walk.undirected:
        links += [link for link in back if link[0] != link[1]]
    elif not walk.along:
        links = back
    if walk.edge_variable not in (None, "_"):
        yield from links
        return
    near: dict[Any, set[Any]] = defaultdict(set)
    for source, target, _ in links:
        near[source].add(target)
    one_type = len(set(data.ends[walk.edge])) == 1
    for source in list(near):
        if one_type:
            reached = _reached(near, source, walk.least, walk.most)
        else:
            reached = near[source] if walk.least == 1 else set()
        yield from ((source, target, None) for target in reached)


def _reached(near: Mapping[Any, set[Any]], start: Any, least: int, most: int) -> set[Any]:
    visited, frontier, reported = {start}, {start}, set()
    for depth in range(1, most + 1):
        following = set()
        for node in frontier:
            for other in near.get(node, ()):
                if other == node and depth >= least:
                    reported.add(other)
                if other not in visited:
                    following.add(other)
        visited |= following
        if depth >= least:
            reported |= following
        frontier = following
    return reported


# Comparing -----------------------------------------------------------------------------------------


def _value(side: Prop | Given | Node, one: Bindings) -> Any:
    match side:
        case Prop(variable, name, _):
            return one[variable][name]
        case Given(value, _, _):
            return value
        case Node(variable):
            return one[variable]["id"]


def _holds(test: Test, one: Bindings) -> bool:
    left, right = _value(test.left, one), _value(test.right, one)
    if left is None or right is None:
        return False
    if test.operator == "contains" and not isinstance(left, str):
        wanted = _as_stored(right, test.right, test.left)
        return any(item == wanted for item in left if item is not None)
    if test.operator == "contains":
        return right in left
    if test.operator == "starts_with":
        return bool(left.startswith(right))
    left, right = _as_stored(left, test.left, test.right), _as_stored(right, test.right, test.left)
    if isinstance(left, str):
        left, right = left.encode(), right.encode()
    return _OPERATORS[test.operator](left, right)


def _as_stored(value: Any, side: Prop | Given, other: Prop | Given) -> Any:
    """A value is given to a property as it would be stored."""
    rounded = isinstance(side, Given) and isinstance(other, Prop) and other.kind.strip("[]") == "F32"
    return float(np.float32(value)) if rounded else value


# Return --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """All rows, before the limit, with what they are ordered by; in order of these and, if that is known, in full."""

    rows: Rows
    keys: Rows
    is_total: bool
    limit: int | None

    def check(self, found: Rows) -> None:
        """Fail unless these rows are an answer, whatever the order of rows is where it is not told."""
        expected = len(self.rows) if self.limit is None else min(self.limit, len(self.rows))
        assert len(found) == expected, f"{len(found)} rows instead of {expected}: {found} is not {self.rows}"
        if self.is_total:
            assert _alike(found, self.rows[:expected]), f"{found} is not {self.rows[:expected]}"
            return
        left = list(zip(self.rows, self.keys, strict=True))
        for at, row in enumerate(found):
            fits = [one for one in left if one[1] == self.keys[at] and _alike(one[0], row)]
            assert fits, f"row {at}, {row}, has no business there: {self.rows}"
            left.remove(fits[0])


def _alike(left: Any, right: Any) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_alike, left, right))
    if type(left) is float and type(right) is float:
        return abs(left - right) <= 1e-9 * max(abs(left), abs(right))
    return type(left) is type(right) and bool(left == right)


def answer(data: Data, query: Query) -> Answer:
    found = matches(data, query.clauses, {})
    if any(item.function for item in query.items):
        return _grouped(query, found)
    columns = [item.column for item in query.items]
    named = sorted({name for one in found for name in one})
    shaped: list[Any] = []
    places = _places(data, query, found)
    if query.ranking is not None:
        found = [one for one in found if one[query.ranking.variable]["id"] in places]
    for one in found:
        cells = [_value(item.expression, one) for item in query.items]
        keys = [
            _value(key.by, one) if isinstance(key.by, Prop) else cells[columns.index(key.by)] for key in query.order
        ]
        place = places[one[query.ranking.variable]["id"]] if query.ranking else (0, 0)
        shaped.append((_encoded(query, cells), keys, [one[name]["id"].encode() for name in named], place))
    shaped.sort(key=lambda row: (row[3][1], row[2]))
    _sort(shaped, query.order)
    shaped.sort(key=lambda row: row[3][0])
    is_total = bool(query.order) or query.ranking is not None
    return Answer([row[0] for row in shaped], [row[1] for row in shaped], is_total, query.limit)


def _places(data: Data, query: Query, found: Iterable[Bindings]) -> Mapping[str, tuple[float, int]]:
    """The score of each entity that a ranking keeps, the best is the smallest, and its place among equal ones."""
    ranking = query.ranking
    if ranking is None:
        return {}
    population = {one[ranking.variable]["id"] for one in found}
    rows = data.nodes["A"]
    away = search_oracle.distances({row["id"]: row["place"] for row in rows}, ranking.vector)
    near = search_oracle.best_first(away, descending=False).among(population)
    scores = search_oracle.bm25({row["id"]: row["words"] for row in rows}, ranking.query)
    words = search_oracle.best_first(scores, descending=True).among(population)
    match ranking.function:
        case "nearest":
            return {one: (near.scores[one], 0) for one in near.ids}
        case "bm25":
            return {one: (-round(words.scores[one], 9), 0) for one in words.ids}
        case _:
            fused = search_oracle.fused(near.among(population, query.limit), words, 60)
            return {one: (-round(fused.scores[one], 12), at) for at, one in enumerate(fused.ids)}


def _grouped(query: Query, found: Sequence[Bindings]) -> Answer:
    groups: dict[str, list[Bindings]] = defaultdict(list)
    plain = [item for item in query.items if item.function is None]
    if not plain:
        groups[""] = []
    for one in found:
        groups[repr([_grouped_by(_value(item.expression, one)) for item in plain]) if plain else ""].append(one)
    columns = [item.column for item in query.items]
    shaped = []
    for members in groups.values():
        cells = [
            _folded(item.function, [_value(item.expression, one) for one in members])
            if item.function
            else _value(item.expression, members[0])
            for item in query.items
        ]
        names = [f"{key.by.variable}.{key.by.name}" if isinstance(key.by, Prop) else key.by for key in query.order]
        shaped.append((_encoded(query, cells), [cells[columns.index(name)] for name in names], None))
    _sort(shaped, query.order)
    return Answer([row[0] for row in shaped], [row[1] for row in shaped], is_total=False, limit=query.limit)


def _grouped_by(value: Any) -> Any:
    """The two zeros are one value."""
    if isinstance(value, list):
        return [*map(_grouped_by, value)]
    return value + 0.0 if isinstance(value, float) else value


def _folded(function: str, values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    if function == "count":
        return len(known)
    if not known:
        return None
    match function:
        case "sum":
            return float(sum(known))
        case "avg":
            return float(sum(known)) / len(known)
        case "min":
            return min(known, key=_sortable)
        case _:
            return max(known, key=_sortable)


def _sort(shaped: list[Any], order: Sequence[Key]) -> None:
    for at, key in reversed(list(enumerate(order))):
        shaped.sort(key=lambda row: (row[1][at] is not None, _sortable(row[1][at])), reverse=key.descending)


def _sortable(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else 0 if value is None else value


def _encoded(query: Query, cells: Sequence[Any]) -> list[Any]:
    kinds = [
        "count"
        if item.function == "count"
        else item.expression.kind
        if isinstance(item.expression, Prop | Given)
        else ""
        for item in query.items
    ]
    return [encode(cell, kind) for cell, kind in zip(cells, kinds, strict=True)]


def encode(cell: Any, kind: str) -> Any:
    """A cell as JSON has it."""
    if cell is None:
        return None
    if kind == "Date":
        return cell.isoformat()
    if kind == "DateTime":
        moment = _EPOCH + dt.timedelta(milliseconds=cell)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{cell % 1000:03d}Z"
    return [encode(item, kind.strip("[]")) for item in cell] if kind.startswith("[") else cell
