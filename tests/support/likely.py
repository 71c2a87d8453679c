"""What a fuzzer asks a server of people, besides random text: names, states, queries and bodies that make sense."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.support.serving import ADD, AGE, ALL, PEOPLE, SCHEMA


def _for(names: Iterable[str], values: list[Any]) -> dict[str, list[Any]]:
    return {name: list(values) for name in names}


NO_COMMIT = "01JD0000000000000000000000"
NAMES = [
    "main",
    "review/x",
    "old",
    "ännchen",
    "",
    "main/x",
    "..",
    "a%2Fb",
    "x" * 10_000,
    "\u202eniam",
    "a\x00b",
    NO_COMMIT,
]
STATES = ["main", "old", "review/x", NO_COMMIT, f"main@{NO_COMMIT}", "\x00", "*", f"after:{NO_COMMIT}"]
NUMBERS = [0, -1, 1, 8193, 2**31, 2**63, 10**400, 1e308, 0.5]

# Random text is refused at once nearly everywhere, so some of it is replaced by what leads further in: values of
# parameters and members by their names, and whole bodies by a member that they all have.
LIKELY: dict[str, list[Any]] = {
    "graph_id": ["default"],
    **_for(["branch", "source", "target", "tag", "name", "query_name"], ["all", "add", *NAMES]),
    **_for(["commit_id", "snapshot", "after", "operation_id", "ref", "from", "to", "start"], STATES),
    **_for(["query", "query_source"], [f"{ALL}\n{ADD}\n{AGE}", "query", "query q() { match {", "\x00", "x.gq"]),
    "params": [{"name": name, "age": age} for name, age in zip(NAMES, NUMBERS, strict=False)],
    "data": ['{"type": "Person"}', "{", "\n", '{"edge": "Knows", "from": "ann", "to": "zoe"}', ["/etc"], '{"a": ' * 99],
    "schema_source": ["node", "schema.pg", "node Person { name: String @key }"],
    "resolve": ["ours", {"Person": "ours"}, [{"row_id": "ann"}], {"Nobody": "x"}, [{}]],
    "mapping": [{"Person": "people.csv"}, {"Person": 1}, {"": {"a": []}}],
    **_for(["kind", "type", "op", "type_names"], [["node"], ["Person"], ["insert"], ["nothing"]]),
    **_for(["limit", "max_bytes", "max_commits"], NUMBERS),
}
FORMS: dict[str, list[dict[str, Any]]] = {
    "query": [
        {"query": ALL},
        {"query": ALL, "branch": "review/x"},
        {"query": ALL, "snapshot": "old"},
        {"query": ADD, "params": {"name": "cy", "age": 3}},
        {"query": ADD, "params": {"name": "cy"}, "branch": "review/x"},
        {"query": AGE, "params": {"name": "ann", "age": 2**31}},
    ],
    "query_source": [{"query_source": ALL}, {"query_source": f"{ALL}\n{ADD}", "query_name": "all"}],
    "expect_mutation": [{}, {"expect_mutation": False}, {"params": {"name": "ann", "age": 31}}, {"branch": "review/x"}],
    "data": [
        {"data": PEOPLE},
        {"data": PEOPLE, "mode": "overwrite"},
        {"data": PEOPLE, "branch": "new", "from": "main"},
    ],
    "source": [
        {"source": "review/x"},
        {"source": "review/x", "dry_run": True},
        {"source": "main", "target": "review/x"},
    ],
    "from": [{"name": "review/y", "from": "old"}, {"name": "z"}],
    "ref": [{"name": "older"}, {"name": "v/1", "ref": "review/x"}],
    "commit_id": [{"commit_id": "old"}, {"commit_id": NO_COMMIT, "resolve": "ours"}],
    "schema_source": [{"schema_source": SCHEMA}, {"schema_source": f"{SCHEMA} node Town {{ name: String @key }}"}],
    "type_names": [{}, {"type_names": ["Person"]}, {"table_keys": ["edge:Knows"], "snapshot": "old"}],
    "kind": [{}, {"kind": ["node"]}, {"type": ["Person"], "op": ["insert"]}],
}
