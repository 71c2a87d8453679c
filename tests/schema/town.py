"""A small graph whose schema is changed, and every kind of change with what it makes of the graph."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import omnigraph
from omnigraph.graph import Graph

SCHEMA = """
node Person {
    name: String @key
    age: I32?
    mood: enum(calm, glad)?
    bio: String? @index
    @index(age)
}
node Town { name: String @key }
edge Knows: Person -> Person { since: I32? }
edge LivesIn: Person -> Town
"""
NAMES = ("ann", "bob", "cat")
PERSON, TOWN, KNOWS, LIVES_IN = "node:Person", "node:Town", "edge:Knows", "edge:LivesIn"

Record = dict[str, Any]
Becomes = Callable[[Record], Record | None]
"""What a record of the graph is after a change; None if it is gone."""


def node(type_name: str, /, **data: Any) -> Record:
    return {"type": type_name, "data": data}


def edge(type_name: str, source: str, target: str, /, **data: Any) -> Record:
    return {"edge": type_name, "from": source, "to": target, "data": data}


def make(uri: str) -> Graph:
    """Three people, one town, who knows whom and who lives there; with indices over all of it."""
    graph = omnigraph.init(uri, SCHEMA)
    people = [node("Person", name=name, age=at, mood="calm", bio=f"likes {name}") for at, name in enumerate(NAMES)]
    edges = [edge("Knows", "ann", "bob", id="k1", since=1), edge("LivesIn", "cat", "Ulm", id="l1")]
    graph.load([*people, node("Town", name="Ulm"), *edges], mode="append")
    graph.ensure_indices()
    return graph


def look(graph: Graph, snapshot: str | None = None, branch: str = "main") -> list[Record]:
    """All entities, in an order of their own, as an export tells them."""
    found = [json.loads(line) for line in graph.export(snapshot=snapshot, branch=branch)]
    return in_order(found)


def in_order(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda record: (type_of(record), record["data"]["id"]))


def type_of(record: Record) -> str:
    return str(record.get("type") or record.get("edge"))


def properties(type_name: str, change: Callable[[Record], Record]) -> Becomes:
    """Change the properties of the entities of one type."""
    return lambda one: {**one, "data": change(one["data"])} if type_of(one) == type_name else one


def renamed(data: Record, old: str, new: str) -> Record:
    return {new if name == old else name: value for name, value in data.items()}


def without(data: Record, name: str) -> Record:
    return {key: value for key, value in data.items() if key != name}


@dataclass(frozen=True, slots=True)
class Change:
    """A schema to go to: the steps to it, what it makes of every record, and a record that it takes afterwards."""

    schema: str
    steps: tuple[str, ...]
    becomes: Becomes = lambda record: record
    takes: Record = field(default_factory=lambda: node("Person", age=9, mood="glad", bio=None))
    moves: tuple[str, ...] = ()  # the tables that get another version


def edited(*edits: tuple[str, str]) -> str:
    text = SCHEMA
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def _after_many(one: Record) -> Record | None:
    if type_of(one) in ("LivesIn", "Town"):
        return None
    if type_of(one) != "Person":
        return one
    return {"type": "Human", "data": {**without(renamed(one["data"], "age", "years"), "bio"), "city": None}}


CHANGES = {
    "add a node type": Change(
        SCHEMA + "node Club { name: String @key }",
        ("add node type 'Club'",),
        takes=node("Club"),
    ),
    "add an edge type": Change(
        SCHEMA + "edge Likes: Person -> Town",
        ("add edge type 'Likes'",),
    ),
    "add an interface": Change(
        SCHEMA + "interface Named { title: String? }",
        ("add interface type 'Named'",),
    ),
    "add a property": Change(
        edited(("age: I32?", "age: I32? \n city: String?")),
        ("add property 'Person.city' (String?) on node 'Person'",),
        properties("Person", lambda data: {**data, "city": None}),
        node("Person", age=9, mood="glad", bio=None, city="Rom"),
        (PERSON,),
    ),
    "add a property of an edge": Change(
        edited(("since: I32?", "since: I32? how: String?")),
        ("add property 'Knows.how' (String?) on edge 'Knows'",),
        properties("Knows", lambda data: {**data, "how": None}),
        moves=(KNOWS,),
    ),
    "rename a node type": Change(
        edited(
            ("node Person {", 'node Human @rename_from("Person") {'),
            ("edge Knows: Person -> Person", "edge Knows: Human -> Human"),
            ("edge LivesIn: Person", "edge LivesIn: Human"),
        ),
        ("rename node type 'Person' -> 'Human'",),
        lambda one: {**one, "type": "Human"} if type_of(one) == "Person" else one,
        node("Human", age=9, mood="glad", bio=None),
    ),
    "rename an edge type": Change(
        edited(("edge Knows: Person -> Person {", 'edge Met: Person -> Person @rename_from("Knows") {')),
        ("rename edge type 'Knows' -> 'Met'",),
        lambda one: {**one, "edge": "Met"} if type_of(one) == "Knows" else one,
    ),
    "rename a property": Change(
        edited(("age: I32?", 'years: I32? @rename_from("age")'), ("@index(age)", "@index(years)")),
        ("rename property 'Person.age' -> 'Person.years' on node 'Person'",),
        properties("Person", lambda data: renamed(data, "age", "years")),
        node("Person", years=9, mood="glad", bio=None),
        (PERSON,),
    ),
    "rename a type and change its properties": Change(
        edited(
            ("node Town { name: String @key }", 'node City @rename_from("Town") { name: String @key  size: I64? }'),
            ("edge LivesIn: Person -> Town", "edge LivesIn: Person -> City"),
        ),
        ("rename node type 'Town' -> 'City'", "add property 'City.size' (I64?) on node 'City'"),
        lambda one: {"type": "City", "data": {**one["data"], "size": None}} if type_of(one) == "Town" else one,
        node("City", size=3),
        (TOWN,),
    ),
    "drop a property": Change(
        edited(("age: I32?\n", ""), ("    @index(age)\n", "")),
        ("drop property 'Person.age' of node 'Person' (soft mode)",),
        properties("Person", lambda data: without(data, "age")),
        node("Person", mood="glad", bio=None),
        (PERSON,),
    ),
    "drop an edge type": Change(
        edited(("edge LivesIn: Person -> Town\n", "")),
        ("drop edge type 'LivesIn' (soft mode)",),
        lambda one: None if type_of(one) == "LivesIn" else one,
    ),
    "drop a node type and its edges": Change(
        edited(("node Town { name: String @key }\n", ""), ("edge LivesIn: Person -> Town\n", "")),
        ("drop edge type 'LivesIn' (soft mode)", "drop node type 'Town' (soft mode)"),
        lambda one: None if type_of(one) in ("LivesIn", "Town") else one,
    ),
    "extend an enum": Change(
        edited(("enum(calm, glad)", "enum(calm, glad, wild)")),
        ("extend enum 'Person.mood' with wild",),
        takes=node("Person", age=9, mood="wild", bio=None),
    ),
    "add an index": Change(
        edited(("mood: enum(calm, glad)?", "mood: enum(calm, glad)? @index")),
        ("add constraint @index(mood) on node 'Person'",),
    ),
    "widen a property": Change(
        edited(("age: I32?", "age: I64?")),
        ("widen property 'Person.age' from I32? to I64?",),
        takes=node("Person", age=2**40, mood="glad", bio=None),
        moves=(PERSON,),
    ),
    "widen a property of an edge": Change(
        edited(("since: I32?", "since: F64?")),
        ("widen property 'Knows.since' from I32? to F64?",),
        properties("Knows", lambda data: {**data, "since": float(data["since"])}),
        moves=(KNOWS,),
    ),
    "widen and rename a property": Change(
        edited(("age: I32?", 'years: I64? @rename_from("age")'), ("@index(age)", "@index(years)")),
        (
            "rename property 'Person.age' -> 'Person.years' on node 'Person'",
            "widen property 'Person.years' from I32? to I64?",
        ),
        properties("Person", lambda data: renamed(data, "age", "years")),
        node("Person", years=2**40, mood="glad", bio=None),
        (PERSON,),
    ),
    "make a property required": Change(
        edited(("age: I32?", "age: I32")),
        ("make property 'Person.age' required",),
    ),
    "add rules": Change(
        edited(("@index(age)", '@index(age) @unique(age) @range(age, 0..9) @check(bio, "likes")')),
        (
            "add constraint @check(bio, \"likes\") on node 'Person'",
            "add constraint @range(age, 0..9) on node 'Person'",
            "add constraint @unique(age) on node 'Person'",
        ),
        takes=node("Town"),
    ),
    "add a rule of an edge": Change(
        edited(("since: I32? }", "since: I32? @unique(src, dst) }")),
        ("add constraint @unique(dst, src) on edge 'Knows'",),
    ),
    "change a cardinality": Change(
        edited(("LivesIn: Person -> Town", "LivesIn: Person -> Town @card(0..1)")),
        ("change cardinality of edge 'LivesIn' from @card(0..) to @card(0..1)",),
    ),
    "drop a rule": Change(
        edited(("    @index(age)\n", "")),
        ("drop constraint @index(age) on node 'Person'",),
    ),
    "reduce an enum": Change(
        edited(("enum(calm, glad)", "enum(calm)")),
        ("reduce enum 'Person.mood' by glad",),
        takes=node("Person", age=9, mood="calm", bio=None),
    ),
    "describe": Change(
        edited(
            ("node Town {", 'node Town @description("where people live") {'),
            ("age: I32?", 'age: I32? @description("in years")'),
        ),
        ("update description of property 'Person.age'", "update description of node 'Town'"),
    ),
    "many things at once": Change(
        edited(
            ("node Person {", 'node Human @rename_from("Person") {'),
            ("edge Knows: Person -> Person", "edge Knows: Human -> Human"),
            ("edge LivesIn: Person -> Town\n", "edge Likes: Human -> Club\n"),
            ("node Town { name: String @key }", "node Club { name: String @key }"),
            ("age: I32?", 'years: I32? @rename_from("age")  city: String?'),
            ("@index(age)", "@index(years)"),
            ("enum(calm, glad)", "enum(calm, glad, wild)"),
            ("    bio: String? @index\n", ""),
        ),
        (
            "rename node type 'Person' -> 'Human'",
            "add node type 'Club'",
            "add edge type 'Likes'",
            "rename property 'Human.age' -> 'Human.years' on node 'Human'",
            "add property 'Human.city' (String?) on node 'Human'",
            "extend enum 'Human.mood' with wild",
            "drop property 'Human.bio' of node 'Human' (soft mode)",
            "drop edge type 'LivesIn' (soft mode)",
            "drop node type 'Town' (soft mode)",
        ),
        _after_many,
        node("Human", years=9, mood="wild", city="Rom"),
        (PERSON,),
    ),
}


@dataclass(frozen=True, slots=True)
class Apply:
    """An order to make one of the changes, for a process that dies while it does."""

    name: str

    def run(self, graph: Graph) -> object:
        return graph.apply_schema(CHANGES[self.name].schema)
