"""Random mutations against a plain model of the graph: what is stored, counted, committed and refused."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import count
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import omnigraph
from omnigraph.errors import ConstraintError, OmnigraphError, QueryError, ValueRejectedError
from tests.support.faults import assert_settled
from tests.support.graphs import contents
from tests.support.mutations import (
    KNOWS,
    NOTE,
    PERSON,
    SCHEMA,
    WROTE,
    Query,
    broken_rules,
    build_index,
    compact,
    store_of,
)

Row = dict[str, Any]
Image = dict[str, dict[str, Row]]
OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
KEYS = {"Person": PERSON, "Note": NOTE, "Knows": KNOWS, "Wrote": WROTE}
TYPES = {
    PERSON: {"name": "String", "nickName": "String", "age": "I32", "score": "F64"},
    NOTE: {"text": "String", "rank": "I64"},
    KNOWS: {"from": "String", "to": "String", "how": "String"},
    WROTE: {"from": "String", "to": "String"},
}
ENDS = {KNOWS: (PERSON, PERSON), WROTE: (PERSON, NOTE)}
COLUMNS = {"from": "src", "to": "dst"}
INDEXED = {PERSON: ("id", "nickName"), NOTE: ("id", "rank"), KNOWS: ("src", "dst"), WROTE: ("id", "src", "dst")}
I32_MAX = 2**31 - 1


# What a query says ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Where:
    name: str
    operator: str
    value: Any

    def matches(self, row: Row) -> bool:
        """Null on either side satisfies nothing."""
        stored = row[COLUMNS.get(self.name, self.name)]
        return stored is not None and self.value is not None and OPERATORS[self.operator](stored, self.value)


@dataclass(frozen=True, slots=True)
class Insert:
    type: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Update:
    type: str
    values: Mapping[str, Any]
    where: Where


@dataclass(frozen=True, slots=True)
class Delete:
    type: str
    where: Where


Statement = Insert | Update | Delete


class Writer:
    """Writes statements as a query: plain values as literals, others as parameters."""

    def __init__(self) -> None:
        self.declared: list[str] = []
        self.values: dict[str, Any] = {}

    def query(self, statements: Iterable[Statement]) -> Query:
        body = "\n".join(self._statement(statement) for statement in statements)
        return Query(f"({', '.join(self.declared)}) {{\n{body}\n}}", self.values)

    def _statement(self, statement: Statement) -> str:
        types = TYPES[KEYS[statement.type]]
        match statement:
            case Insert(name, values):
                return f"insert {name} {{ {self._values(types, values)} }}"
            case Update(name, values, where):
                return f"update {name} set {{ {self._values(types, values)} }} where {self._where(types, where)}"  # noqa: S608
            case Delete(name, where):
                return f"delete {name} where {self._where(types, where)}"

    def _values(self, types: Mapping[str, str], values: Mapping[str, Any]) -> str:
        return ", ".join(f"{name}: {self._value(types[name], value)}" for name, value in values.items())

    def _where(self, types: Mapping[str, str], where: Where) -> str:
        return f"{where.name} {where.operator} {self._value(types[where.name], where.value)}"

    def _value(self, type_: str, value: Any) -> str:
        if isinstance(value, int) and 0 <= value <= I32_MAX:
            return str(value)
        if isinstance(value, str) and value.isascii() and value.isalnum():
            return f'"{value}"'
        name = f"p{len(self.values)}"
        self.values[name] = value
        self.declared.append(f"${name}: {'I64' if type_ == 'I32' else type_}?")
        return f"${name}"


# What it must do -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refused:
    """What becomes of a change with a value that does not fit, or that breaks rules, any of which may be named."""

    error: type[OmnigraphError]
    reasons: set[tuple[str, str | None]]


class MisfitError(Exception):
    """A value does not fit; the arguments are the type and the property."""


@dataclass(slots=True)
class Model:
    """The graph as dictionaries. Entities whose ids are generated have a number until their ids are known."""

    image: Image
    nodes: int = 0
    edges: int = 0
    changed: bool = False

    def after(self, statements: Iterable[Statement], numbers: Iterable[int]) -> Model | Refused:
        """Return the model after a query, or why there must be no such."""
        try:
            return self._after(statements, iter(numbers))
        except MisfitError as misfit:
            return Refused(ValueRejectedError, {misfit.args})

    def _after(self, statements: Iterable[Statement], numbers: Iterator[int]) -> Model | Refused:
        new = Model(deepcopy(self.image))
        removed: Counter[tuple[str, str]] = Counter()
        for statement in statements:
            match statement:
                case Insert():
                    new._insert(statement, f"new {next(numbers)}")
                case Update():
                    new._update(statement)
                case Delete():
                    removed.update(new._delete(statement))
        new.changed = bool(new.nodes or new.edges)
        broken = new._broken(removed)
        return Refused(ConstraintError, broken) if broken else new

    def _insert(self, statement: Insert, fresh: str) -> None:
        key = KEYS[statement.type]
        row: Row = dict.fromkeys(COLUMNS.get(name, name) for name in TYPES[key])
        row |= {COLUMNS.get(name, name): value for name, value in _fitting(statement).items()}
        identity = row["name"] if key == PERSON else fresh
        self.image[key][identity] = {"id": identity, **row}
        self.nodes += key not in ENDS
        self.edges += key in ENDS

    def _update(self, statement: Update) -> None:
        values = _fitting(statement)
        found = [row for row in self.image[KEYS[statement.type]].values() if statement.where.matches(row)]
        for row in found:
            row.update(values)
        self.nodes += len(found)

    def _delete(self, statement: Delete) -> Iterable[tuple[str, str]]:
        """Remove what matches and the edges of removed nodes; return the type and source of every edge that went."""
        key = KEYS[statement.type]
        gone = {identity for identity, row in self.image[key].items() if statement.where.matches(row)}
        for identity in sorted(gone):
            row = self.image[key].pop(identity)
            if key in ENDS:
                self.edges += 1
                yield key, row["src"]
        self.nodes += len(gone) if key not in ENDS else 0
        for edge, ends in ENDS.items() if key not in ENDS else ():
            sides = [side for side, end in zip(("src", "dst"), ends, strict=True) if end == key]
            for identity, row in list(self.image[edge].items()):
                if any(row[side] in gone for side in sides):
                    del self.image[edge][identity]
                    self.edges += 1
                    yield edge, row["src"]

    def _broken(self, removed: Counter[tuple[str, str]]) -> set[tuple[str, str | None]]:
        """The rules that may be the first to be reported: values come first, then nodes, then edges type by type."""
        people, notes = self.image[PERSON], self.image[NOTE]
        ages = [row["age"] for row in people.values() if row["age"] is not None]
        if not all(0 <= age <= 120 for age in ages):
            return {("range", "Person")}
        nodes: dict[tuple[str, str | None], bool] = {
            ("unique", "Person"): _repeats(row["nickName"] for row in people.values()),
            ("unique", "Note"): _repeats(row["rank"] for row in notes.values()),
        }
        found = {reason for reason, is_broken in nodes.items() if is_broken}
        return found or {reason for key in ENDS for reason in self._broken_of_edges(key, removed)[:1]}

    def _broken_of_edges(self, key: str, removed: Counter[tuple[str, str]]) -> list[tuple[str, str | None]]:
        edges, name = self.image[key].values(), key.removeprefix("edge:")
        per_source = Counter(row["src"] for row in edges)
        emptied = [src for edge, src in removed if edge == key and src in self.image[PERSON] and not per_source[src]]
        source, target = ENDS[key]
        most = 3 if key == KNOWS else 2
        checks = {
            "unique": key == WROTE and _repeats((row["src"], row["dst"]) for row in edges),
            "endpoint": any(
                row["src"] not in self.image[source] or row["dst"] not in self.image[target] for row in edges
            ),
            "cardinality": any(number > most for number in per_source.values()) or (key == WROTE and bool(emptied)),
        }
        return [(rule_, name) for rule_, is_broken in checks.items() if is_broken]


def _fitting(statement: Insert | Update) -> Row:
    for name, value in statement.values.items():
        too_large = name == "age" and value is not None and value > I32_MAX
        if too_large or (value is None and name in ("text", "name")):
            raise MisfitError(statement.type, name)
    return dict(statement.values)


def _repeats(values: Iterable[Any]) -> bool:
    return any(number > 1 for value, number in Counter(values).items() if value is not None)


# Random queries ------------------------------------------------------------------------------------

NAMES = st.sampled_from(["ann", "bob", "cat", "D'Or", 'É"va', "", "null"])
NICKNAMES = st.sampled_from([None, None, "x", "it's", "Ünder_score", "x "])
AGES = st.sampled_from([None, 0, 1, 30, 30, 119, 120, 120, -1, 121, 2**31])
SCORES = st.sampled_from([None, -0.0, 0.0, 1.5, -2.25, 1e300])
TEXTS = st.sampled_from(["a", "b", "'; --", "", None])
RANKS = st.sampled_from([None, 1, 2, 2**40, -7])
HOWS = st.sampled_from([None, "work", "'school'"])
OPERATION = st.sampled_from(sorted(OPERATORS))
VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "name": NAMES,
    "nickName": NICKNAMES,
    "age": AGES,
    "score": SCORES,
    "text": TEXTS,
    "rank": RANKS,
    "how": HOWS,
    "from": NAMES,
    "to": st.sampled_from(["ann", "nothing", ""]),
}
PEOPLE = st.fixed_dictionaries({"name": NAMES}, optional={"nickName": NICKNAMES, "age": AGES, "score": SCORES})
NOTES = st.fixed_dictionaries({"text": TEXTS}, optional={"rank": RANKS})


def wheres(image: Image, type_: str) -> st.SearchStrategy[Where]:
    """Predicates, mostly on a value that is there, and mostly for equality, so that something is left."""
    stored = [
        Where(name, "=", row[COLUMNS.get(name, name)])
        for row in image[KEYS[type_]].values()
        for name in TYPES[KEYS[type_]]
    ]
    others = [st.tuples(st.just(name), VALUES[name]) for name in TYPES[KEYS[type_]]]
    any_ = st.builds(lambda pair, operator: Where(pair[0], operator, pair[1]), st.one_of(*others), OPERATION)
    if not stored:
        return any_
    there = st.sampled_from(stored)
    return st.one_of(
        there, there, st.builds(lambda one, operator: replace(one, operator=operator), there, OPERATION), any_
    )


def endpoints(image: Image, key: str) -> st.SearchStrategy[str]:
    """Mostly the id of a node; a name that may come with the same query, or never."""
    known = st.sampled_from(sorted(image[key]) or ["nobody"])
    return st.one_of(*[known] * 7, VALUES["from"] if key == PERSON else VALUES["to"])


def edges(image: Image) -> st.SearchStrategy[Insert]:
    people, notes = endpoints(image, PERSON), endpoints(image, NOTE)
    knows = st.fixed_dictionaries({"from": people, "to": people}, optional={"how": HOWS})
    wrote = st.fixed_dictionaries({"from": people, "to": notes})
    return st.builds(Insert, st.just("Knows"), knows) | st.builds(Insert, st.just("Wrote"), wrote)


def updates(image: Image) -> st.SearchStrategy[Update]:
    people = st.sampled_from(["nickName", "age", "score"]).flatmap(_one_value)
    notes = st.sampled_from(["text", "rank"]).flatmap(_one_value)
    return st.builds(Update, st.just("Person"), people, wheres(image, "Person")) | st.builds(
        Update, st.just("Note"), notes, wheres(image, "Note")
    )


def _one_value(name: str) -> st.SearchStrategy[Mapping[str, Any]]:
    return st.fixed_dictionaries({name: VALUES[name]})


def deletes(image: Image) -> st.SearchStrategy[Delete]:
    return st.sampled_from(sorted(KEYS)).flatmap(lambda name: st.builds(Delete, st.just(name), wheres(image, name)))


NODES = st.builds(Insert, st.just("Person"), PEOPLE) | st.builds(Insert, st.just("Note"), NOTES)


# The machine ---------------------------------------------------------------------------------------


class Mutations(RuleBasedStateMachine):
    """A graph and its model, changed alike."""

    template: Path

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.uri = str(shutil.copytree(self.template, Path(self.directory.name) / "graph"))
        self.graph = omnigraph.open(self.uri)
        self.store = store_of(self.uri)
        self.model = Model({key: {} for key in TYPES})
        self.commits = 1
        self.numbers = count()

    def teardown(self) -> None:
        self.directory.cleanup()

    @initialize()
    def begin_with_something(self) -> None:
        people = [
            Insert("Person", {"name": name, "age": age}) for name, age in (("ann", 30), ("bob", None), ("cat", 1))
        ]
        self._run([*people, Insert("Note", {"text": "a"}), Insert("Note", {"text": "b", "rank": 1})])
        self.the_graph_is_the_model()
        one, other = self.model.image[NOTE]
        knows = [Insert("Knows", {"from": source, "to": "cat"}) for source in ("ann", "ann", "bob", "cat")]
        wrote = [
            Insert("Wrote", {"from": source, "to": to}) for source, to in (("ann", one), ("bob", one), ("bob", other))
        ]
        self._run([*knows, *wrote])

    @rule(data=st.data())
    def insert(self, data: st.DataObject) -> None:
        some = edges(self.model.image)
        self._run_some(data, st.one_of(some, NODES, some))

    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        self._run_some(data, updates(self.model.image))

    @rule(data=st.data())
    def construct(self, data: st.DataObject) -> None:
        self._run_some(data, NODES | edges(self.model.image) | updates(self.model.image))

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self._run([data.draw(deletes(self.model.image))])

    @rule(data=st.data())
    def destroy(self, data: st.DataObject) -> None:
        self._run_some(data, deletes(self.model.image))

    @rule(data=st.data())
    def do_something_else(self, data: st.DataObject) -> None:
        """Mix what cannot be mixed, open the graph anew, build an index, compact a table."""
        data.draw(st.sampled_from([self.mix, self.reopen, self.index, self.compact]))(data)

    def mix(self, data: st.DataObject) -> None:
        both = [data.draw(NODES | updates(self.model.image)), data.draw(deletes(self.model.image))]
        with pytest.raises(QueryError, match="split into separate mutations"):
            Writer().query(data.draw(st.permutations(both))).run(self.graph)

    def reopen(self, _: st.DataObject) -> None:
        self.graph = omnigraph.open(self.uri)

    def index(self, data: st.DataObject) -> None:
        indexed = [(key, column) for key, columns in INDEXED.items() if self.model.image[key] for column in columns]
        if indexed:
            build_index(self.store, *data.draw(st.sampled_from(indexed)))
            self.commits += 1

    def compact(self, data: st.DataObject) -> None:
        self.commits += compact(self.store, data.draw(st.sampled_from(sorted(TYPES))))

    @invariant()
    def the_graph_is_the_model(self) -> None:
        found = contents(self.store)
        self._learn_ids(found)
        assert {key: sorted(rows.values(), key=_by_id) for key, rows in self.model.image.items()} == found
        assert broken_rules(found) == []

    @invariant()
    def every_change_is_one_commit_and_nothing_is_left_over(self) -> None:
        assert len(self.graph.commits()) == self.commits
        assert_settled(self.store)

    def _run_some(self, data: st.DataObject, statements: st.SearchStrategy[Any]) -> None:
        self._run(data.draw(st.lists(statements, min_size=1, max_size=4)))

    def _run(self, statements: Sequence[Statement]) -> None:
        query = Writer().query(statements)
        expected = self.model.after(statements, self.numbers)
        if isinstance(expected, Refused):
            with pytest.raises(expected.error) as caught:
                query.run(self.graph)
            assert _reason(caught.value) in expected.reasons
            return
        done = query.run(self.graph)
        assert (done.affected_nodes, done.affected_edges) == (expected.nodes, expected.edges)
        assert (done.commit is not None) == expected.changed
        if done.commit:
            assert self.graph.commits()[0] == done.commit
        self.model = expected
        self.commits += expected.changed

    def _learn_ids(self, found: Mapping[str, list[Row]]) -> None:
        """Give the entities that the model only numbered the ids that were generated for such ones."""
        for key, rows in self.model.image.items():
            fresh = [row for row in found[key] if row["id"] not in rows]
            numbered = [rows[number] for number in list(rows) if number.startswith("new ")]
            for row, real in zip(sorted(numbered, key=_by_value), sorted(fresh, key=_by_value), strict=True):
                rows[real["id"]] = {**rows.pop(row["id"]), "id": real["id"]}


def _by_id(row: Row) -> str:
    return str(row["id"])


def _by_value(row: Row) -> str:
    return str(sorted((name, str(value)) for name, value in row.items() if name != "id"))


def _reason(error: OmnigraphError) -> tuple[str, str | None]:
    if isinstance(error, ConstraintError):
        return error.violations[0].rule, error.violations[0].type_name
    assert isinstance(error, ValueRejectedError)
    return error.type_name, error.property


def test_random_mutations_do_to_the_graph_what_they_do_to_a_model(tmp_path: Path) -> None:
    omnigraph.init(tmp_path / "template", SCHEMA)
    Mutations.template = tmp_path / "template"
    examples = max(1, settings().max_examples // 6)
    run_state_machine_as_test(Mutations, settings=settings(max_examples=examples, stateful_step_count=20))
