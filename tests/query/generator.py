"""Random typed graphs, and random queries of them as text and as what the oracle reads."""

from __future__ import annotations

import datetime as dt
import json
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from omnigraph.commit.plan import OpClass, PublishPlan, TableAction, WriterKind
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.store import Store
from omnigraph.graph import Graph
from omnigraph.storage.layout import IndexSpec
from tests.query.oracle import (
    Bind,
    Clause,
    Data,
    Given,
    Item,
    Key,
    Node,
    Not,
    Prop,
    Query,
    Ranking,
    Row,
    Search,
    Test,
    Walk,
    encode,
)
from tests.support.mutations import store_of

SCHEMA = """
node A {
    name: String @key
    s: String?  b: Bool?  i: I32?  l: I64?  u: U32?  w: U64?  f: F32?  d: F64?
    day: Date?  at: DateTime?  kind: enum(red, green, blue)?  tags: [String]?  nums: [I32]?  camelCase: I32?
    reals: [F32]?  moments: [DateTime]?  words: String? @index  place: Vector(2)?
}
node B { name: String @key  s: String?  i: I64?  f: F32?  w: U64? }
node C { num: I32 @key  s: String?  d: F64? }
edge Ra: A -> A { x: I32?  note: String?  since: Date?  at: DateTime? }
edge Rb: A -> A
edge Ab: A -> B { x: I64?  d: F64?  ok: Bool? }
edge Bc: B -> C
edge Bb: B -> B { x: F64? }
"""
NODES: Mapping[str, Mapping[str, str]] = {
    "A": {
        "name": "String", "s": "String", "b": "Bool", "i": "I32", "l": "I64", "u": "U32", "w": "U64", "f": "F32",
        "d": "F64", "day": "Date", "at": "DateTime", "kind": "enum", "tags": "[String]", "nums": "[I32]",
        "camelCase": "I32", "reals": "[F32]", "moments": "[DateTime]",
    },
    "B": {"name": "String", "s": "String", "i": "I64", "f": "F32", "w": "U64"},
    "C": {"num": "I32", "s": "String", "d": "F64"},
}  # fmt: skip
EDGES: Mapping[str, Mapping[str, str]] = {
    "Ra": {"x": "I32", "note": "String", "since": "Date", "at": "DateTime"},
    "Rb": {},
    "Ab": {"x": "I64", "d": "F64", "ok": "Bool"},
    "Bc": {},
    "Bb": {"x": "F64"},
}
ENDS = {"Ra": ("A", "A"), "Rb": ("A", "A"), "Ab": ("A", "B"), "Bc": ("B", "C"), "Bb": ("B", "B")}
INDEXED = {
    "node:A": ("id", "name", "s", "i", "l", "w", "f", "d", "day", "at", "b"),
    "edge:Ra": ("src", "dst", "x"),
    "node:B": ("i",),
    "node:C": ("num",),
}
SEARCHED = {"words": "Text", "place": "Vector"}
"""What nodes of A have for searches, and nothing else."""
NUMBERS = ("I32", "I64", "U32", "U64", "F32", "F64")
TEXTS = ("", "a", "ab", "abc", "b%", "a_b", "Ab", "é", "zz", "it's", '"q"', "日本", "\U0001f600x")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_VALUES: Mapping[str, Sequence[Any]] = {
    "String": TEXTS,
    "enum": ("red", "green", "blue"),
    "Bool": (True, False),
    "I32": (0, 1, 2, 3, 7, -1, -(2**31), 2**31 - 1),
    "I64": (0, 1, 2**53 + 1, 2, 3, -5, 2**53, 2**63 - 1, -(2**63)),
    "U32": (0, 1, 2, 3, 2**32 - 1),
    "U64": (0, 1, 2, 3, 2**53 + 1, 2**63 - 1, 2**64 - 1),
    "F32": (0.0, -0.0, 0.1, 1.0, 2.0, 2.5, -1.5, 0.5, 16777216.0),
    "F64": (0.0, -0.0, 0.1, 1.0, 2.0, 2.5, -1.5, 0.5, 9007199254740992.0),
    "Date": tuple(dt.date(2024, 1, 1) + dt.timedelta(days=day) for day in (-30_000, -1, 0, 1, 60)),
    "DateTime": (0, -1, 1_704_067_200_000, 1_704_067_200_001, 1_704_103_200_500),
    "[String]": (("a", "b"), ("ab",), (), ("é", "a", "a")),
    "[I32]": ((1, 2), (3,), (), (0, -1, 7)),
    "[F32]": ((0.0,), (-0.0,), (0.1, 1.0), (0.1,), ()),
    "[DateTime]": ((1_704_088_800_000,), (1_704_132_000_000,), (0, -1), ()),
    "Text": ("graph", "two graphs", "a tree of trees", "", "the", "Überblick", "graph of a graph"),
    "Vector": ([0.0, 0.0], [1.0, 0.0], [0.0, -0.0], [3.0, 4.0], [0.5, -2.0], [1e6, 1.0]),
}
ASKED = ("graph", "trees", "tree graph", "the", "none", "uberblick")


# Graphs --------------------------------------------------------------------------------------------


def random_value(random: Random, kind: str) -> Any:
    """Mostly one of a few, so that comparisons find something."""
    return random.choice(_VALUES[kind][: 3 if random.random() < 0.7 else None])


def build(random: Random, graph: Graph, *, index_early: bool) -> None:
    """Load a random graph in parts, and delete and update some of it."""
    ids = {"A": [f"a{at}" for at in range(random.choice((1, 6, 7, 8, 9)))]}
    ids["B"] = [*(f"b{at}" for at in range(random.choice((0, 3, 3, 4, 4, 5)))), *ids["A"][:1]]  # one id is in two types
    ids["C"] = [str(at) for at in random.sample((-3, 0, 1, 2, 10, 11, 100), random.choice((0, 3, 4, 4, 5)))]
    keys = {"A": "name", "B": "name", "C": "num"}
    nodes = [
        {
            "type": name,
            "data": {keys[name]: int(one) if name == "C" else one, **_data(random, _kinds(name), keys[name])},
        }
        for name in ids
        for one in ids[name]
    ]
    random.shuffle(nodes)
    graph.load(nodes, mode="append")
    if index_early:
        index(store_of(graph.uri))
    for part in range(2):
        graph.load(list(_edges(random, ids, part)), mode="append")
    more = [{"type": "A", "data": {"name": f"n{at}", **_data(random, _kinds("A"), "name")}} for at in range(2)]
    graph.load(more, mode="append")
    gone = random.choice([*ids["A"], "n0"])
    statements = [
        f"delete A where name = {json.dumps(gone)}",
        f"delete Ra where from = {json.dumps(random.choice(ids['A']))}",
        f"delete Bb where to = {json.dumps(random.choice(ids['B']))}",
        "delete Ab where ok = true",
    ]
    graph.mutate("query gone() {" + "\n".join(random.sample(statements, 3)) + "}")
    names = [json.dumps(name) for name in random.sample(ids["A"], min(2, len(ids["A"])))]
    updates = [f'update A set {{ i: {at}, s: "new" }} where name = {name}' for at, name in enumerate(names)]  # noqa: S608
    graph.mutate("query renew() {" + "\n".join(updates) + "}")


def index(store: Store) -> None:
    """Index many columns of the tables as they are; what is added later is not in the indices."""
    txn = begin(store)
    actions = []
    for key, columns in INDEXED.items():
        specs = [IndexSpec(column, "BTREE") for column in columns]
        actions.append(
            TableAction(store.tables.stage_create_indices(txn.entries[key].table, specs), OpClass.MAINTENANCE)
        )
    publish(store, PublishPlan(txn, WriterKind.ENSURE_INDICES, tuple(actions)))


def _kinds(type_: str) -> Mapping[str, str]:
    return {**NODES[type_], **SEARCHED} if type_ == "A" else NODES[type_]


def _data(random: Random, kinds: Mapping[str, str], key: str = "") -> dict[str, Any]:
    names = [name for name in kinds if name != key and random.random() < 0.7]
    return {name: _json(random_value(random, kinds[name]), kinds[name]) for name in names}


def _json(value: Any, kind: str) -> Any:
    return encode(value, kind) if kind in ("Date", "DateTime") or kind[0] == "[" else value


def _edges(random: Random, ids: Mapping[str, Sequence[str]], part: int) -> Iterator[dict[str, Any]]:
    for name, (source, target) in ENDS.items():
        for at in range(random.choice((0, 4, 6, 7, 9))):
            if not ids[source] or not ids[target]:
                continue
            start, end = random.choice(ids[source]), random.choice(ids[target])
            if random.random() < 0.2 and source == target:
                end = start
            letter = random.choice(string.ascii_letters)  # so that the order of ids is not that of loading
            for copy in range(random.choice((1, 1, 1, 2, 3))):
                data = {"id": f"{letter}{name}{part}{at}{copy}", **_data(random, EDGES[name])}
                yield {"edge": name, "from": start, "to": end, "data": data}


def rows_of(store: Store) -> Data:
    """Everything in a graph, read without its query engine."""
    entries = store.manifest.load().snapshot.entries
    found = {key: _plain(store.tables.open(entry.table).to_table()) for key, entry in entries.items()}
    return Data({name: found[f"node:{name}"] for name in NODES}, {name: found[f"edge:{name}"] for name in EDGES}, ENDS)


def _plain(table: pa.Table) -> list[Row]:
    for at, column in enumerate(table.schema):
        chunks = [_numbers(chunk) for chunk in table.column(at).chunks]
        table = table.set_column(at, column.name, pa.chunked_array(chunks, _numbers(pa.nulls(0, column.type)).type))
    rows: list[Row] = table.to_pylist()
    return rows


def _numbers(column: pa.Array) -> pa.Array:
    """Date-times as milliseconds, also those of lists; other columns as they are."""
    if pa.types.is_list(column.type):
        return pa.ListArray.from_arrays(column.offsets, _numbers(column.values), mask=column.is_null())
    return column.view(pa.int64()) if pa.types.is_date64(column.type) else column


# Queries -------------------------------------------------------------------------------------------


@dataclass
class Scope:
    """What is bound at a point of a query."""

    nodes: dict[str, str] = field(default_factory=dict)
    edges: dict[str, str] = field(default_factory=dict)

    def inner(self) -> Scope:
        return Scope(dict(self.nodes), dict(self.edges))

    def searched(self) -> list[str]:
        """The variables that have texts and vectors."""
        return [name for name, kind in self.nodes.items() if kind == "A"]

    def props(self, kinds: Iterable[str] | None = None) -> list[Prop]:
        wanted = None if kinds is None else set(kinds)
        every = [(name, NODES[self.nodes[name]]) for name in self.nodes]
        every += [(name, EDGES[self.edges[name]]) for name in self.edges]
        return [
            Prop(variable, name, kind)
            for variable, properties in every
            for name, kind in properties.items()
            if wanted is None or kind in wanted
        ]


class Maker:
    """Makes one query; names of variables and parameters are used once."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.parameters: dict[str, Given] = {}
        # An order of names that is not the order of binding.
        self.names = [f"{letter}{at}" for letter in random.sample("vwxyz", 5) for at in range(8)]

    def query(self) -> Query:
        scope, random = Scope(), self.random
        clauses = self._pattern(scope, random.choice((1, 1, 2, 2, 3)))
        clauses += [self._test(scope) for _ in range(random.choice((0, 0, 0, 1, 1)))]
        clauses += [self._not(scope, 2) for _ in range(random.choice((0, 0, 0, 1, 1, 2)))]
        items = self._items(scope)
        order, ranking = self._order(scope, items), self._ranking(scope, items)
        limits = (None, None, None, None, None, 0, 1, 2, 5, 20) if ranking is None else (1, 2, 3, 20)
        return Query(tuple(clauses), items, order, random.choice(limits), ranking)

    # Match

    def _pattern(self, scope: Scope, size: int) -> list[Clause]:
        """Bindings and traversals; most of them hang together."""
        random, clauses = self.random, list[Clause]()
        if random.random() < 0.85:
            clauses.append(self._bind(scope, self._name(), random.choice("AAABC")))
        for _ in range(size):
            clauses.append(self._walk(scope))
            if random.random() < 0.2 and scope.nodes:  # a later binding constrains
                name = random.choice(list(scope.nodes))
                clauses.append(self._bind(scope, name, scope.nodes[name]))
        if random.random() < 0.12:
            clauses.append(self._bind(scope, self._name(), random.choice("ABC")))
        if not scope.nodes:
            clauses.append(self._bind(scope, self._name(), "A"))
        return clauses

    def _name(self) -> str:
        return self.names.pop()

    def _bind(self, scope: Scope, name: str, type_: str) -> Bind:
        entries: list[tuple[Prop, Given]] = []
        for _ in range(self.random.choice((0, 0, 0, 0, 0, 1, 2))):
            prop = Prop(name, *self.random.choice(list(NODES[type_].items())))
            element = prop.kind.strip("[]")
            kind = self.random.choice(NUMBERS) if element in NUMBERS else element
            entries.append((prop, self._given(kind, enum_words=("red", "green"))))
        scope.nodes[name] = type_
        return Bind(name, type_, tuple(entries))

    def _walk(self, scope: Scope) -> Walk:
        random = self.random
        start = random.choice(list(scope.nodes)) if scope.nodes and random.random() < 0.95 else None
        fitting = [edge for edge in ENDS if start is None or scope.nodes[start] in ENDS[edge]]
        edge = random.choice(fitting)
        source_type, target_type = ENDS[edge]
        one_type = source_type == target_type
        start_is_source = random.random() < 0.6 if one_type or start is None else scope.nodes[start] == source_type
        known = [
            name for name, kind in scope.nodes.items() if kind == (target_type if start_is_source else source_type)
        ]
        if random.random() < 0.2:
            other = "_"
        elif known and random.random() < 0.2:
            other = random.choice(known)
        else:
            other = self._name()
        ends = (start or self._name(), other) if start_is_source else (other, start or self._name())
        # Between two types the words may stand in either order, if the type of one is known.
        along = one_type or start is None or random.random() < 0.6
        source, target = ends if along else ends[::-1]
        for name, kind in zip(ends, (source_type, target_type), strict=True):
            if name != "_":
                scope.nodes[name] = kind
        undirected = one_type and random.random() < 0.25
        least, most, bound = 1, 1, None
        if random.random() < 0.3:
            bound = "_" if random.random() < 0.1 else self._name()
            if bound != "_":
                scope.edges[bound] = edge
        elif random.random() < 0.4:
            least = random.choice((1, 1, 1, 2, 3)) if one_type else random.choice((1, 1, 1, 1, 2))
            most = least + random.choice((0, 1, 3))
        return Walk(source, edge, target, least, most, along, undirected, bound)

    def _test(self, scope: Scope) -> Test | Search:
        random = self.random
        searched = scope.searched()
        if searched and random.random() < 0.1:
            return Search(random.choice(searched), random.choice(ASKED))
        left = random.choice(scope.props())
        if left.kind.startswith("["):
            element = left.kind.strip("[]")
            right = self._other(
                scope, NUMBERS if element in NUMBERS else (element, "enum") if element == "String" else (element,)
            )
            return Test(left, "contains", right)
        if left.kind in ("String", "enum") and random.random() < 0.4:
            sides = [left, self._other(scope, ("String", "enum"))]
            random.shuffle(sides)
            return Test(sides[0], random.choice(("contains", "starts_with")), sides[1])
        kinds = NUMBERS if left.kind in NUMBERS else ("String", "enum") if left.kind == "enum" else (left.kind,)
        pair = [left, self._other(scope, kinds)]
        random.shuffle(pair)
        return Test(pair[0], random.choice(("=", "=", "!=", "<", "<=", ">", ">=")), pair[1])

    def _other(self, scope: Scope, kinds: Sequence[str]) -> Prop | Given:
        props = scope.props(kinds)
        if props and self.random.random() < 0.3:
            return self.random.choice(props)
        return self._given(self.random.choice(kinds), enum_words=("red", "nope"))

    def _given(self, kind: str, enum_words: Sequence[str] = ()) -> Given:
        """A literal, or a parameter, which may be null or negative."""
        if kind == "enum":
            return Given(self.random.choice(enum_words), "enum")
        value = random_value(self.random, kind)
        as_parameter = self.random.random() < 0.3 or (kind in NUMBERS and (str(value)[0] == "-" or kind == "U64"))
        if kind in ("I32", "I64", "U32", "U64") and value > 2**63 - 1:
            value = 3
        if not as_parameter:
            return Given(value, kind)
        if self.random.random() < 0.15:
            value = None
        name = f"p{len(self.parameters)}"
        self.parameters[name] = Given(value, kind, name)
        return self.parameters[name]

    def _not(self, outer: Scope, depth: int) -> Not:
        random, scope = self.random, outer.inner()
        form = random.random()
        clauses: list[Clause] = []
        if form < 0.2:
            clauses = [self._test(outer)]
        elif form < 0.75:
            clauses = self._inner_walks(scope)
        else:
            name = self._name()
            clauses = [self._bind(scope, name, random.choice("ABC"))]
            clauses.append(self._joining(outer, Scope({name: scope.nodes[name]})))
        if random.random() < 0.4:
            clauses.append(self._test(scope))
        if depth > 1 and random.random() < 0.3:
            clauses.append(self._not(scope, depth - 1))
        return Not(tuple(clauses))

    def _inner_walks(self, scope: Scope) -> list[Clause]:
        clauses: list[Clause] = []
        outer = scope.inner()
        while not clauses or not any(
            isinstance(one, Walk) and {one.source, one.target} & outer.nodes.keys() for one in clauses
        ):
            clauses.append(self._walk(scope))
        if self.random.random() < 0.3:
            name = self.random.choice(list(scope.nodes))
            clauses.append(self._bind(scope, name, scope.nodes[name]))
        return clauses

    def _joining(self, outer: Scope, inner: Scope) -> Test:
        """A comparison of something outside with something inside."""
        for left in self.random.sample(outer.props(), len(outer.props())):
            kinds = NUMBERS if left.kind in NUMBERS else ("String",) if left.kind == "String" else ()
            fitting = inner.props(kinds)
            if fitting:
                return Test(left, self.random.choice(("=", "!=", "<", ">=")), self.random.choice(fitting))
        raise AssertionError("every node has a text or a number")

    # Return

    def _ranking(self, scope: Scope, items: Sequence[Item]) -> Ranking | None:
        random, searched = self.random, scope.searched()
        if not searched or any(item.function for item in items) or random.random() < 0.7:
            return None
        function = random.choice(("nearest", "bm25", "rrf"))
        vector = (random.choice((0.0, 1.0, 2.5)), random.choice((0.0, 4.0)))  # a literal has no sign
        return Ranking(random.choice(searched), function, vector, random.choice(ASKED))

    def _items(self, scope: Scope) -> tuple[Item, ...]:
        random = self.random
        if random.random() < 0.3:
            return self._folds(scope)
        items = [Item(self._shown(scope)) for _ in range(random.choice((1, 2, 3)))]
        if random.random() < 0.3:
            items.append(
                Item(self._given(random.choice(("I64", "F64", "String", "Bool", "Date", "DateTime"))), "given")
            )
        return _distinct(items)

    def _shown(self, scope: Scope) -> Prop | Node:
        if self.random.random() < 0.3:
            return Node(self.random.choice(list(scope.nodes)))
        return self.random.choice(scope.props())

    def _folds(self, scope: Scope) -> tuple[Item, ...]:
        random, items = self.random, list[Item]()
        for _ in range(random.choice((0, 1, 1, 2))):
            items.append(
                Item(Node(random.choice(list(scope.nodes))) if random.random() < 0.3 else random.choice(scope.props()))
            )
        for at in range(random.choice((1, 2))):
            function = random.choice(("count", "count", "sum", "avg", "min", "max"))
            # Sums of what a double cannot hold are a test of their own.
            kinds = ("I32", "U32", "F32", "F64") if function in ("sum", "avg") else (*NUMBERS, "String", "enum")
            fitting = scope.props(None if function == "count" else kinds)
            if function == "count" and random.random() < 0.5:
                items.append(Item(Node(random.choice(list(scope.nodes))), f"fold{at}", function))
            elif fitting:
                items.append(Item(random.choice(fitting), f"fold{at}", function))
            else:
                items.append(Item(Given(1, "I64"), f"fold{at}", "count"))
        random.shuffle(items)
        return _distinct(items)

    def _order(self, scope: Scope, items: Sequence[Item]) -> tuple[Key, ...]:
        random = self.random
        folds = any(item.function for item in items)
        named: list[Prop | str] = [item.column for item in items if item.alias]
        shown = [item.expression for item in items if isinstance(item.expression, Prop) and not item.alias]
        props = [prop for prop in (shown if folds else scope.props()) if prop.kind[0] != "["]
        keys = [*named, *props]
        chosen = random.sample(keys, min(len(keys), random.choice((0, 0, 1, 1, 2, 3))))
        return tuple(Key(by, random.random() < 0.4) for by in chosen)


def _distinct(items: Iterable[Item]) -> tuple[Item, ...]:
    return tuple({item.column: item for item in items}.values())


# Text ----------------------------------------------------------------------------------------------


def spelled(query: Query, parameters: Mapping[str, Given]) -> tuple[str, dict[str, Any]]:
    """The text of a query, and its parameters as JSON has them."""
    declared = ", ".join(f"${name}: {one.kind}?" for name, one in parameters.items())
    items = "\n".join(_item(item) for item in query.items)
    text = f"query q({declared}) {{\nmatch {{\n{_clauses(query.clauses)}\n}}\nreturn {{\n{items}\n}}"
    keys = [f"{_key(key)}{' desc' if key.descending else ''}" for key in query.order]
    if query.ranking is not None:
        keys.insert(0, _ranked(query.ranking))
    if keys:
        text += f"\norder {{ {', '.join(keys)} }}"
    if query.limit is not None:
        text += f"\nlimit {query.limit}"
    given = {name: None if one.value is None else _json(one.value, one.kind) for name, one in parameters.items()}
    return text + "\n}", given


def _clauses(clauses: Iterable[Clause]) -> str:
    return "\n".join(map(_clause, clauses))


def _clause(clause: Clause) -> str:
    match clause:
        case Bind(variable, type_, entries):
            inner = ", ".join(f"{prop.name}: {_operand(value)}" for prop, value in entries)
            return f"${variable}: {type_}" + (f" {{ {inner} }}" if inner else "")
        case Walk():
            word = clause.edge[0].lower() + clause.edge[1:]
            word = f"<{word}>" if clause.undirected else word
            hops = f"{{{clause.least},{clause.most}}}" if (clause.least, clause.most) != (1, 1) else ""
            bound = f"${clause.edge_variable}:" if clause.edge_variable else ""
            return f"${clause.source} {bound}{word}{hops} ${clause.target}"
        case Test(left, operator, right):
            return f"{_operand(left)} {operator} {_operand(right)}"
        case Search(variable, query):
            return f"search(${variable}.words, {json.dumps(query)})"
        case Not(inner_clauses):
            return f"not {{\n{_clauses(inner_clauses)}\n}}"


def _ranked(ranking: Ranking) -> str:
    near = f"nearest(${ranking.variable}.place, {json.dumps(list(ranking.vector))})"
    words = f"bm25(${ranking.variable}.words, {json.dumps(ranking.query)})"
    return {"nearest": near, "bm25": words, "rrf": f"rrf({near}, {words})"}[ranking.function]


def _item(item: Item) -> str:
    text = _operand(item.expression)
    text = f"{item.function}({text})" if item.function else text
    return f"{text} as {item.alias}" if item.alias else text


def _key(key: Key) -> str:
    return key.by if isinstance(key.by, str) else _operand(key.by)


def _operand(side: Prop | Given | Node) -> str:
    match side:
        case Prop(variable, name, _):
            return f"${variable}.{name}"
        case Node(variable):
            return f"${variable}"
        case Given(value, kind, name):
            return f"${name}" if name else _literal(value, kind)


def _literal(value: Any, kind: str) -> str:
    if kind in ("Date", "DateTime"):
        return f'{kind.lower()}("{encode(value, kind)}")'
    if kind in ("F32", "F64"):
        return np.format_float_positional(value, trim="0")
    return json.dumps(value, ensure_ascii=False)
