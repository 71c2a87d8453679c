"""The graphs of the case files."""

from __future__ import annotations

from typing import Any

PEOPLE_SCHEMA = """
node Person { name: String @key  age: I32? }
node Company { name: String @key }
edge Knows: Person -> Person { since: Date? }
edge WorksAt: Person -> Company
"""
METRICS_SCHEMA = """
node Metric {
    name: String @key
    label: String? @index
    score: F64?  ratio: F32?  count: I32?  large: U64?  active: Bool?  born: Date?  seen: DateTime?  old: DateTime?
    camelCase: I32?  kind: enum(one, two)?
    marks: [String]?  values: [I32]?  floats: [F64]?  days: [Date]?  times: [DateTime]?  place: Vector(2)?
}
node Tag { tname: String @key }
edge Tagged: Metric -> Tag
"""
DOCS_SCHEMA = """
node Doc {
    slug: String @key
    title: String @index
    body: String @index
    embedding: Vector(4)
    meaning: Vector(4)? @embed(title, model="m-1")
    status: String
    rank: I32
}
edge Cites: Doc -> Doc { note: String? }
"""

Record = dict[str, Any]


def node(type_: str, **data: Any) -> Record:
    return {"type": type_, "data": data}


def edge(type_: str, source: str, target: str, **data: Any) -> Record:
    return {"edge": type_, "from": source, "to": target, "data": data}


PEOPLE = [
    *(node("Person", name=name, age=age) for name, age in (("Alice", 30), ("Bob", 25), ("Charlie", 35), ("Diana", 28))),
    *(node("Company", name=name) for name in ("Acme", "Globex")),
    *(edge("Knows", *ends) for ends in (("Alice", "Bob"), ("Alice", "Charlie"), ("Bob", "Diana"))),
    *(edge("WorksAt", *ends) for ends in (("Alice", "Acme"), ("Bob", "Globex"))),
]
METRICS = [
    node(
        "Metric", name="m1", label="alpha one", score=2.5, ratio=0.5, count=1, large=2**64 - 1, active=True,
        born="2024-06-01", seen="2024-06-01T12:00:00Z", camelCase=1, kind="one", marks=["x"], values=[1, 2],
        floats=[0.1], days=["2024-02-29", "2024-03-01"], times=["2024-02-29T10:00:00.25Z"], place=[0.5, 1.0],
    ),
    node(
        "Metric", name="m2", label="alps", score=1.0, ratio=0.25, count=2, large=2**63, active=False,
        born="2023-01-01", seen="2023-01-01T00:00:00Z", camelCase=2, kind="one", marks=["x", "m2"],
    ),
    node(
        "Metric", name="m3", label="beta ray", score=3.0, ratio=0.75, count=3, active=True, born="2025-01-01",
        seen="2025-01-01T00:00:00Z", old="0999-12-31T23:59:59.999Z", camelCase=3, values=[3],
    ),
    node(
        "Metric", name="m4", score=0.5, ratio=0.1, count=4, active=False, born="2022-12-31",
        seen="2022-12-31T00:00:00Z", camelCase=4,
    ),
    *(node("Tag", tname=name) for name in ("alpine", "basalt")),
    *(edge("Tagged", *ends) for ends in (("m1", "alpine"), ("m1", "basalt"), ("m3", "basalt"))),
]  # fmt: skip
_DOCS = [
    ("ml-intro", "Introduction to Machine Learning", (0.1, 0.2, 0.3, 0.4), "Learning from examples, with statistics."),
    ("dl-basics", "Deep Learning Basics", (0.5, 0.6, 0.7, 0.8), "Learning with neural networks of many layers."),
    ("nlp-guide", "Natural Language Processing Guide", (0.2, 0.3, 0.4, 0.5), "Texts, words and their meaning."),
    ("cv-overview", "Computer Vision Overview", (0.8, 0.7, 0.6, 0.5), "Images and what they show."),
    ("rl-intro", "Reinforcement Learning Introduction", (0.3, 0.4, 0.5, 0.6), "Learning by reward; learning by doing."),
]
_MISSES = ("ml-intro", "nlp-guide", "rl-intro")
DOCS = [
    *(
        node(
            "Doc", slug=slug, title=title, body=body, embedding=vector, rank=1 if slug in _MISSES else 4,
            status="miss" if slug in _MISSES else "hit",
        )
        for slug, title, vector, body in _DOCS
    ),
    edge("Cites", "ml-intro", "dl-basics", id="e2", note="b"),
    edge("Cites", "ml-intro", "rl-intro", id="e1", note="a"),
    edge("Cites", "nlp-guide", "ml-intro", id="e0", note="c"),
]  # fmt: skip
LANGUAGE_SCHEMA = """
interface Named { name: String? }
node Person implements Named {
    slug: String @key
    age: I32?
    retired: Bool?
    born: Date?
    tags: [String]?
    email: String?
}
node Org implements Named { slug: String @key }
node Doc { slug: String @key  title: String @index  size: I32?  n: I32?  vec: Vector(2) }
edge Knows: Person -> Person { since: I32? }
edge Likes: Person -> Person
edge WorksAt: Person -> Org
edge Owns: Person -> Doc
edge Cites: Doc -> Doc
"""
LANGUAGE = [
    node(
        "Person",
        slug="a",
        name="Ann",
        age=40,
        retired=False,
        born="1980-01-01",
        tags=["x", "y"],
        email="ann@example.org",
    ),
    node("Person", slug="b", name="Bob", age=20, retired=True, born="2000-01-01"),
    node("Person", slug="c", name="Cy"),
    node("Org", slug="o", name="Org"),
    node("Doc", slug="d0", title="graph zero", size=10, n=3, vec=[0, 0]),
    node("Doc", slug="d1", title="graph one", size=200, n=1, vec=[1, 0]),
    node("Doc", slug="d2", title="other", n=2, vec=[2, 0]),
    *(
        edge("Knows", source, target, id=f"{source}{target}{at}", since=since)
        for at, (source, target, since) in enumerate(
            (("a", "b", 2001), ("a", "b", 2005), ("a", "c", None), ("b", "c", None))
        )
    ),
    edge("Likes", "a", "c"),
    edge("WorksAt", "a", "o"),
    *(edge("Owns", *ends) for ends in (("a", "d1"), ("b", "d2"))),
    *(edge("Cites", *ends) for ends in (("d1", "d0"), ("d2", "d0"))),
]

GRAPHS: dict[str, tuple[str, list[Record]]] = {
    "people": (PEOPLE_SCHEMA, PEOPLE),
    "blank": (PEOPLE_SCHEMA, []),
    "metrics": (METRICS_SCHEMA, METRICS),
    "docs": (DOCS_SCHEMA, DOCS),
    "language": (LANGUAGE_SCHEMA, LANGUAGE),
}
