"""One contestant answers the questions of the query benchmark, in a process of its own, and writes answers and times.

Run as `python contestants.py NAME FOLDER KIND QUESTIONS ANSWERS`, by an interpreter that has the library in question.
"""

# ruff: noqa: PLC0415, ARG002 - each contestant imports its own library, and only some care for the kind of data

from __future__ import annotations

import itertools
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol

WARM_UPS, LEAST_SECONDS, MOST_TURNS = 3, 1.5, 200
BEST = 10  # how many documents a hybrid question keeps
Question = dict[str, Any]
Answerer = Callable[[Question], Any]


class Contestant(Protocol):
    """Loads a folder when it is made, then answers questions: on a plain graph, or on documents."""

    def graph_questions(self) -> dict[str, Answerer]: ...

    def document_questions(self) -> dict[str, Answerer]: ...


class Omnigraph:
    _GRAPH = "node Node { name: String @key  number: I64  score: I64 }\nedge Link: Node -> Node { weight: I64 }"
    _DOCUMENTS = """
    node Node { name: String @key  number: I64  text: String @index  place: Vector(64) @index }
    edge Link: Node -> Node
    """
    _QUESTIONS: ClassVar = {
        "lookup": "match { $a: Node { name: $name } } return { $a.number as answer }",
        "one hop": "match { $a: Node { name: $name }  $a link $b } return { $b.name as answer }",
        "two hops": "match { $a: Node { name: $name }  $a $e:link $m  $m $f:link $b } return { count($b) as answer }",
        "ends": "match { $a: Node { name: $name }  $a link{1,2} $b  $b.name != $name } return { count($b) as answer }",
    }
    _WHOLE: ClassVar = {
        "edge filter": "match { $a $e:link $b  $e.weight < 10 } return { count($b) as answer }",
        "top ten": "match { $a: Node } return { $a.name as answer } order { $a.score desc } limit 10",
    }
    _TYPED = """
    node A { name: String @key }
    node B { name: String @key }
    node C { name: String @key }
    edge Ab: A -> B
    edge Bc: B -> C
    edge Ac: A -> C
    """
    WALKS = "query q() { match { $a: Node  $a $e:link $m  $m $f:link $b } return { count($b) as answer } }"
    _HYBRID = """
    query q($text: String, $place: Vector(64)) {
        match { $a: Node }
        return { $a.name as answer }
        order { rrf(nearest($a.place, $place), bm25($a.text, $text)) } limit 10
    }
    query hop($text: String, $place: Vector(64)) {
        match { $a: Node  $a link $b }
        return { $a.name as a, $b.name as b }
        order { rrf(nearest($a.place, $place), bm25($a.text, $text)) } limit 10
    }
    """

    def __init__(self, folder: Path, home: Path, kind: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        import omnigraph

        schema = {"graph": self._GRAPH, "documents": self._DOCUMENTS, "typed": self._TYPED}[kind]
        self.graph = omnigraph.init(home / "graph", schema)
        if kind == "typed":
            self._load_typed(folder)
            return
        columns = ["from", "to", *(["weight"] if kind == "graph" else [])]
        links = pq.read_table(folder / "links.parquet", columns=columns)
        nodes: pa.Table = pq.read_table(folder / "nodes.parquet")
        self.graph.load({"Node": nodes, "Link": links}, mode="append", engine="local")

    def _load_typed(self, folder: Path) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        found: dict[str, Any] = {}
        for pair in ("ab", "bc", "ac"):
            ends = pq.read_table(folder / f"{pair}.parquet")
            texts = [pc.cast(ends[side], pa.string()) for side in ("source", "target")]
            found[pair.title()] = pa.table(texts, ["from", "to"])
            for kind, names in zip(pair.upper(), texts, strict=True):
                found[kind] = [*found.get(kind, []), *names.chunks]
        nodes = {kind: pa.table({"name": pc.unique(pa.chunked_array(found[kind]))}) for kind in "ABC"}
        self.graph.load({**found, **nodes}, mode="append", engine="local")

    def typed_questions(self) -> dict[str, Answerer]:
        """A triangle, in every order of its three clauses, which all mean the same."""
        orders = itertools.permutations(("$a ab $b", "$b bc $c", "$a ac $c"))
        texts = [f"query q() {{ match {{ {'  '.join(one)} }} return {{ count($a) as answer }} }}" for one in orders]
        return {f"triangle {at}": self._asking(text) for at, text in enumerate(texts, 1)}

    def _asking(self, text: str) -> Answerer:
        def ask(question: Question) -> Any:
            answers = self.graph.query(text, question).to_arrow()["answer"].to_pylist()
            return answers if len(answers) != 1 else answers[0]

        return ask

    def graph_questions(self) -> dict[str, Answerer]:
        named = {name: self._asking(f"query q($name: String) {{ {text} }}") for name, text in self._QUESTIONS.items()}
        whole = {name: self._asking(f"query q() {{ {text} }}") for name, text in self._WHOLE.items()}
        return {**named, **whole, "all walks": self._asking(self.WALKS)}

    def document_questions(self) -> dict[str, Answerer]:
        def hop(question: Question) -> Any:
            found = self.graph.query(self._HYBRID, question, name="hop").to_arrow()
            return [list(pair) for pair in zip(found["a"].to_pylist(), found["b"].to_pylist(), strict=True)]

        def best(question: Question) -> Any:
            return self.graph.query(self._HYBRID, question, name="q").to_arrow()["answer"].to_pylist()

        return {"hybrid": best, "hybrid and hop": hop}


class Cypher:
    """Kuzu and what descends from it."""

    _QUESTIONS: ClassVar = {
        "lookup": "MATCH (a:Node {name: $name}) RETURN a.number",
        "one hop": "MATCH (a:Node {name: $name})-[:Link]->(b) RETURN DISTINCT b.name",
        "two hops": "MATCH (a:Node {name: $name})-[:Link]->(m)-[:Link]->(b) RETURN count(*)",
        "ends": "MATCH (a:Node {name: $name})-[:Link* SHORTEST 1..2]->(b) WHERE b.name <> $name RETURN count(*)",
        "all walks": "MATCH (a:Node)-[:Link]->(m)-[:Link]->(b) RETURN count(*)",
        "edge filter": "MATCH (a:Node)-[e:Link]->(b) WHERE e.weight < 10 RETURN count(*)",
        "top ten": "MATCH (a:Node) RETURN a.name ORDER BY a.score DESC LIMIT 10",
    }

    def __init__(self, folder: Path, home: Path, kind: str, *, library: str) -> None:
        import importlib

        module = importlib.import_module(library)
        self.connection = module.Connection(module.Database(str(home / "base")))
        self.connection.execute("CREATE NODE TABLE Node(name STRING, number INT64, score INT64, PRIMARY KEY(name))")
        self.connection.execute("CREATE REL TABLE Link(FROM Node TO Node, weight INT64)")
        self.connection.execute(f"COPY Node FROM '{folder}/nodes.parquet'")
        links = f"LOAD FROM '{folder}/links.parquet' RETURN `from`, `to`, weight"
        self.connection.execute(f"COPY Link FROM ({links})")

    def graph_questions(self) -> dict[str, Answerer]:
        return {name: self._asking(text) for name, text in self._QUESTIONS.items()}

    def document_questions(self) -> dict[str, Answerer]:
        return {}

    def _asking(self, text: str) -> Answerer:
        def ask(question: Question) -> Any:
            rows = self.connection.execute(text, question).get_all()
            return [row[0] for row in rows] if len(rows) != 1 else rows[0][0]

        return ask


class Duckdb:
    _QUESTIONS: ClassVar = {
        "lookup": "select number from node where name = $name",
        "one hop": "select distinct b.name from node a join link on source = a.number join node b on b.number = target "
        "where a.name = $name",
        "two hops": "select count(*) from node a join link l on l.source = a.number join link k on k.source = l.target "
        "where a.name = $name",
        "ends": "with one as (select distinct target as n from link join node on source = number where name = $name), "
        "two as (select n from one union select target from link join one on source = n) "
        "select count(*) from two where n <> (select number from node where name = $name)",
        "all walks": "select count(*) from link l join link k on k.source = l.target",
        "edge filter": "select count(*) from link where weight < 10",
        "top ten": "select name from node order by score desc limit 10",
    }
    _TRIANGLE = (
        "select count(*) from ab join bc on ab.target = bc.source "
        "join ac on ac.source = ab.source and ac.target = bc.target"
    )

    def __init__(self, folder: Path, home: Path, kind: str) -> None:
        import duckdb

        self.base = duckdb.connect(home / "base.duckdb")
        if kind == "typed":
            for pair in ("ab", "bc", "ac"):
                self.base.execute(f"create table {pair} as from '{folder}/{pair}.parquet'")
            return
        self.base.execute(f"create table node as from '{folder}/nodes.parquet'")
        self.base.execute(
            f"create table link as select source, target, weight from '{folder}/links.parquet' order by source"
        )
        self.base.execute("create index names on node(name)")

    def graph_questions(self) -> dict[str, Answerer]:
        return {name: self._asking(text) for name, text in self._QUESTIONS.items()}

    def typed_questions(self) -> dict[str, Answerer]:
        return {f"triangle {at}": self._asking(self._TRIANGLE) for at in range(1, 7)}

    def document_questions(self) -> dict[str, Answerer]:
        return {}

    def _asking(self, text: str) -> Answerer:
        def ask(question: Question) -> Any:
            rows = self.base.execute(text, question).fetchall()
            return [row[0] for row in rows] if len(rows) != 1 else rows[0][0]

        return ask


class Lancedb:
    def __init__(self, folder: Path, home: Path, kind: str) -> None:
        import importlib

        import pyarrow.parquet as pq

        base = importlib.import_module("lancedb").connect(str(home / "base"))
        self.nodes = base.create_table("node", pq.read_table(folder / "nodes.parquet"))
        self.links = base.create_table("link", pq.read_table(folder / "links.parquet"))
        self.nodes.create_scalar_index("name")
        self.links.create_scalar_index("from")
        if kind == "documents":
            self.nodes.create_fts_index("text", use_tantivy=False)

    def graph_questions(self) -> dict[str, Answerer]:
        return {"lookup": self._lookup, "one hop": self._one_hop, "two hops": self._two_hops}

    def document_questions(self) -> dict[str, Answerer]:
        return {"hybrid": self._hybrid}

    def _lookup(self, question: Question) -> Any:
        found = self.nodes.search().where(f"name = '{question['name']}'").select(["number"]).limit(1).to_arrow()
        return found["number"][0].as_py()

    def _ends(self, names: list[str]) -> list[str]:
        chosen = ", ".join(f"'{name}'" for name in names)
        rows = self.links.search().where(f"`from` IN ({chosen})").select(["to"]).limit(10_000_000).to_arrow()
        ends: list[str] = rows["to"].to_pylist()
        return ends

    def _one_hop(self, question: Question) -> Any:
        return sorted(set(self._ends([question["name"]])))

    def _two_hops(self, question: Question) -> Any:
        from collections import Counter

        middle = Counter(self._ends([question["name"]]))
        chosen = ", ".join(f"'{name}'" for name in middle)
        rows = self.links.search().where(f"`from` IN ({chosen})").select(["from"]).limit(10_000_000).to_arrow()
        return sum(middle[name] for name in rows["from"].to_pylist())

    def _hybrid(self, question: Question) -> Any:
        import importlib

        fusion = importlib.import_module("lancedb.rerankers").RRFReranker()
        search = self.nodes.search(query_type="hybrid", vector_column_name="place", fts_columns="text")
        found = search.vector(question["place"]).text(question["text"]).rerank(fusion).limit(BEST)
        return found.select(["name"]).to_arrow()["name"].to_pylist()


class Pylance:
    """The parts of a hybrid question by hand: two searches with their indices, the fusion, and one hop."""

    def __init__(self, folder: Path, home: Path, kind: str) -> None:
        import lance
        import pyarrow.parquet as pq

        self.nodes = lance.write_dataset(pq.read_table(folder / "nodes.parquet"), home / "node")
        self.links = lance.write_dataset(pq.read_table(folder / "links.parquet"), home / "link")
        self.links.create_scalar_index("from", "BTREE")
        self.nodes.create_scalar_index("text", "INVERTED")

    def graph_questions(self) -> dict[str, Answerer]:
        return {}

    def document_questions(self) -> dict[str, Answerer]:
        return {"near": self._near, "matching": self._matching, "hop": self._hop, "hybrid and hop": self._all}

    def _near(self, question: Question) -> list[str]:
        nearest = {"column": "place", "q": question["place"], "k": BEST}
        names: list[str] = self.nodes.to_table(columns=["name"], nearest=nearest)["name"].to_pylist()
        return names

    def _matching(self, question: Question) -> list[str]:
        query = {"query": question["text"], "columns": ["text"]}
        found = self.nodes.to_table(columns=["name"], full_text_query=query).sort_by([("_score", "descending")])
        names: list[str] = found["name"].to_pylist()
        return names

    def _hop(self, question: Question) -> list[list[str]]:
        chosen = ", ".join(f"'{name}'" for name in question["names"])
        found = self.links.to_table(columns=["from", "to"], filter=f"`from` IN ({chosen})")
        return [list(pair) for pair in zip(found["from"].to_pylist(), found["to"].to_pylist(), strict=True)]

    def _all(self, question: Question) -> list[list[str]]:
        scores: dict[str, float] = {}
        for arm in (self._near(question), self._matching(question)):
            for place, name in enumerate(arm):
                scores[name] = scores.get(name, 0) + 1 / (61 + place)
        best = sorted(scores, key=lambda name: -scores[name])[:BEST]
        return self._hop({"names": best})


def contestant(name: str, folder: Path, home: Path, kind: str) -> Contestant:
    if name in ("kuzu", "ladybug"):
        return Cypher(folder, home, kind, library=name)
    kinds: dict[str, Any] = {"omnigraph": Omnigraph, "duckdb": Duckdb, "lancedb": Lancedb, "pylance": Pylance}
    made: Contestant = kinds[name](folder, home, kind)
    return made


def timed(ask: Answerer, question: Question) -> dict[str, Any]:
    """The answer, and the median time once it is warm."""
    begun = time.perf_counter()
    answer = ask(question)
    first = time.perf_counter() - begun
    for _ in range(WARM_UPS if first < 1 else 0):
        ask(question)
    times: list[float] = []
    while not times or (sum(times) < LEAST_SECONDS and len(times) < MOST_TURNS):
        begun = time.perf_counter()
        ask(question)
        times.append(time.perf_counter() - begun)
    return {"answer": answer, "cold": first, "seconds": statistics.median(times)}


def main() -> None:
    name, folder, kind, questions, answers = sys.argv[1:]
    with tempfile.TemporaryDirectory() as home:
        made = contestant(name, Path(folder), Path(home), kind)
        known = getattr(made, {"graph": "graph", "documents": "document", "typed": "typed"}[kind] + "_questions")()
        asked = json.loads(Path(questions).read_text())
        found = {one: timed(known[one], question) for one, question in asked.items() if one in known}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    Path(answers).write_text(json.dumps({**found, "@peak": peak}))


if __name__ == "__main__":
    main()
