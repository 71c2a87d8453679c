"""What each write does to a plain image of the graph: a dictionary of entities, each with its row."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.history.merging import Entity, Image, Row, broken
from tests.support.mutations import KNOWS, NOTE, PERSON, SCHEMA, WROTE

Values = Mapping[str, Any]
Change = dict[Entity, Row | None]

COLUMNS = {
    PERSON: ("name", "nickName", "age", "score"),
    NOTE: ("text", "rank"),
    KNOWS: ("src", "dst", "how"),
    WROTE: ("src", "dst"),
}
TYPES = {"n": "String", "m": "String", "t": "String", "x": "String?", "h": "String?", "a": "I64?", "r": "I64?"}
NEW = "?"  # begins the id of an entity whose id the graph generates
MOOD = "mood"  # a property that schema changes add and drop
SCHEMAS = (SCHEMA, SCHEMA.replace("score: F64?", f"score: F64?\n    {MOOD}: String?"))


# Queries -------------------------------------------------------------------------------------------


def add(_: Image, values: Values) -> Change:
    return {(PERSON, values["n"]): _row(PERSON, values["n"], name=values["n"], nickName=values["x"], age=values["a"])}


def meet(_: Image, values: Values) -> Change:
    one, other = values["n"], values["m"]
    people = {(PERSON, name): _row(PERSON, name, name=name) for name in (one, other)}
    return {**people, **_edge(KNOWS, one, other, "?1"), **_edge(KNOWS, other, one, "?2")}


def know(_: Image, values: Values) -> Change:
    return _edge(KNOWS, values["n"], values["m"], "?1", how=values["h"])


def sign(_: Image, values: Values) -> Change:
    return _edge(WROTE, values["n"], values["t"], "?1")


def remove(image: Image, values: Values) -> Change:
    return _gone(image, PERSON, values["n"])


def burn(image: Image, values: Values) -> Change:
    return _gone(image, NOTE, values["t"])


def forget(image: Image, values: Values) -> Change:
    return {one: None for one, row in image.items() if one[0] == KNOWS and row["src"] == values["n"]}


def _setting(key: str, identity: str, column: str, value: str) -> Callable[[Image, Values], Change]:
    def change(image: Image, values: Values) -> Change:
        row = image.get((key, values[identity]))
        return {} if row is None else {(key, values[identity]): as_row(key, {**row, column: values[value]})}

    return change


# A name for each query, its text, and what it does. A note has its id as its text.
WRITES: Mapping[str, tuple[str, Callable[[Image, Values], Change]]] = {
    "add": ("insert Person { name: $n, nickName: $x, age: $a }", add),
    "meet": (
        """insert Person { name: $n } insert Person { name: $m }
        insert Knows { from: $n, to: $m } insert Knows { from: $m, to: $n }""",
        meet,
    ),
    "know": ("insert Knows { from: $n, to: $m, how: $h }", know),
    "sign": ("insert Wrote { from: $n, to: $t }", sign),
    "age": ("update Person set { age: $a } where name = $n", _setting(PERSON, "n", "age", "a")),
    "nick": ("update Person set { nickName: $x } where name = $n", _setting(PERSON, "n", "nickName", "x")),
    "mood": ("update Person set { mood: $h } where name = $n", _setting(PERSON, "n", MOOD, "h")),
    "rank": ("update Note set { rank: $r } where text = $t", _setting(NOTE, "t", "rank", "r")),
    "remove": ("delete Person where name = $n", remove),
    "burn": ("delete Note where text = $t", burn),
    "forget": ("delete Knows where from = $n", forget),
}


def query(name: str, values: Values) -> tuple[str, dict[str, Any]]:
    """Return the text of a query with its parameters declared, and their values."""
    text, _ = WRITES[name]
    used = list(dict.fromkeys(re.findall(r"\$(\w)\b", text)))
    declared = ", ".join(f"${one}: {TYPES[one]}" for one in used)
    return f"query q({declared}) {{ {text} }}", {one: values[one] for one in used}


# Loads ---------------------------------------------------------------------------------------------


def records(values: Values) -> list[dict[str, Any]]:
    """The records of a load, as JSON lines would have them."""
    people = [{"type": "Person", "data": {"name": name, "age": age}} for name, age in values["people"].items()]
    notes = [
        {"type": "Note", "data": {"id": name, "text": name, "rank": rank}} for name, rank in values["notes"].items()
    ]
    knows = [
        {"edge": "Knows", "from": src, "to": dst, "data": {"id": name, "how": how}}
        for name, (src, dst, how) in values["knows"].items()
    ]
    return [*people, *notes, *knows]


def load(image: Image, values: Values) -> Change:
    """What a load brings; an overwrite also removes everything else of its types."""
    change: Change = {(PERSON, name): _row(PERSON, name, name=name, age=age) for name, age in values["people"].items()}
    change |= {(NOTE, name): _row(NOTE, name, text=name, rank=rank) for name, rank in values["notes"].items()}
    for name, (src, dst, how) in values["knows"].items():
        change |= _edge(KNOWS, src, dst, name, how=how)
    if values["mode"] == "overwrite":
        types = {key for key, _ in change}
        change = {**{one: None for one in image if one[0] in types}, **change}
    return change


def is_refused(image: Image, change: Change, *, mode: str = "merge") -> bool:
    """Whether the graph must not take a change."""
    repeats = mode == "append" and bool(change.keys() & image.keys())
    return repeats or any(True for _ in broken(image, change))


# Rows ----------------------------------------------------------------------------------------------


def as_row(key: str, stored: Row) -> Row:
    """A row as an image has it: the properties of the first schema always, later ones if they have a value."""
    later = {name: value for name, value in stored.items() if name not in ("id", *COLUMNS[key]) and value is not None}
    return {"id": stored["id"], **{name: stored.get(name) for name in COLUMNS[key]}, **later}


def without_mood(image: Image) -> Image:
    return {one: {name: value for name, value in row.items() if name != MOOD} for one, row in image.items()}


def adopted(expected: Image, found: Image) -> Image:
    """Give the entities with generated ids the ids that they got, wherever the rest of their row is the same."""
    free = [one for one in found if one not in expected]
    named: dict[Entity, Row] = {}
    for (key, name), row in expected.items():
        fits = (one for one in free if name.startswith(NEW) and found[one] == {**row, "id": one[1]} and one[0] == key)
        other = next(fits, None)
        if other is not None:
            free.remove(other)
        named[other or (key, name)] = row if other is None else found[other]
    return named


def _row(key: str, identity: str, **values: Any) -> Row:
    return as_row(key, {"id": identity, **values})


def _edge(key: str, src: str, dst: str, identity: str, **values: Any) -> Change:
    return {(key, identity): _row(key, identity, src=src, dst=dst, **values)}


def _gone(image: Image, key: str, identity: str) -> Change:
    """Remove a node and its edges."""
    if (key, identity) not in image:
        return {}
    sides = {KNOWS: ("src", "dst"), WROTE: ("src",)} if key == PERSON else {WROTE: ("dst",)}
    edges = [one for one, row in image.items() if any(row[side] == identity for side in sides.get(one[0], ()))]
    return {(key, identity): None, **dict.fromkeys(edges)}
