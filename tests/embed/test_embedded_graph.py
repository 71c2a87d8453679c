"""A graph whose vectors are made of texts: in queries, in inserts, in batches over all of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omnigraph
from omnigraph.embed.embedder import Purpose, Vectors, embed_texts
from omnigraph.embed.local import MockEmbedder
from omnigraph.errors import (
    EmbedderMissingError,
    EmbedderSettingError,
    EmbedderUnavailableError,
    EmbeddingModelError,
    EmbeddingTypeError,
    LoadRejectedError,
    OmnigraphError,
    ReadOnlyError,
    ValueRejectedError,
)
from omnigraph.graph import Graph
from omnigraph.write import embed
from tests.embed.service import KEY, Service, answer

SCHEMA = """
node Doc {
    slug: String @key
    title: String?
    meaning: Vector(8) @embed(title)
    about: Vector(4)? @embed(title)
    cover: Blob?
    seen: DateTime?
}
node Note { text: String  gist: Vector(4)? @embed(text, model="m-1") }
node Plain { name: String @key }
"""
NEAREST = "query q($t: String) { match { $d: Doc } return { $d.slug } order { nearest($d.meaning, $t) } limit 1 }"


class Counting:
    """A mock that remembers what it was asked, and may fail."""

    model = "m-1"

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], Purpose]] = []
        self.before: Callable[[Sequence[str]], None] = lambda _: None

    def embed(self, texts: Sequence[str], dimension: int, purpose: Purpose) -> Vectors:
        self.before(texts)
        self.asked.append((list(texts), purpose))
        return MockEmbedder().embed(texts, dimension, purpose)


def vector(text: str, dimension: int) -> list[float]:
    found: list[float] = embed_texts(MockEmbedder(), [text], dimension, Purpose.DOCUMENT)[0].tolist()
    return found


@pytest.fixture
def embedder() -> Counting:
    return Counting()


@pytest.fixture
def graph(tmp_path: Path, embedder: Counting) -> Graph:
    omnigraph.init(tmp_path / "g", SCHEMA)
    return omnigraph.open(tmp_path / "g", embedder=embedder)


def insert(graph: Graph, *pairs: tuple[str, str], **options: Any) -> None:
    statements = [f'insert Doc {{ slug: "{slug}", title: "{title}" }}' for slug, title in pairs]
    graph.mutate(f"query add() {{ {' '.join(statements)} }}", **options)


def docs(graph: Graph) -> dict[str, dict[str, Any]]:
    rows = graph.query("query q() { match { $d: Doc } return { $d.slug, $d.title, $d.meaning, $d.about } }").rows
    return {row["d.slug"]: {name: row[f"d.{name}"] for name in ("title", "meaning", "about")} for row in rows}


# Queries


def test_a_text_searches_as_its_vector_does(graph: Graph, embedder: Counting) -> None:
    insert(graph, ("a", "apples"), ("b", "bridges"))

    assert graph.query(NEAREST, {"t": "bridges"}).rows == [{"d.slug": "b"}]
    assert embedder.asked[-1] == (["bridges"], Purpose.QUERY)


def test_the_same_search_again_asks_nobody(graph: Graph, embedder: Counting) -> None:
    insert(graph, ("a", "apples"))

    for _ in range(3):
        graph.query(NEAREST, {"t": "pears"})
    graph.query(NEAREST, {"t": "plums"})

    assert [texts for texts, purpose in embedder.asked if purpose is Purpose.QUERY] == [["pears"], ["plums"]]


def test_a_search_by_a_text_can_be_explained(graph: Graph) -> None:
    insert(graph, ("a", "apples"))

    told = str(graph.explain(NEAREST, {"t": "pears"}))

    assert "nearest" in told
    assert len(told) < 2000


def test_a_query_without_a_text_needs_no_embedder(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "g", SCHEMA)
    by_vector = NEAREST.replace("$t: String", "$t: Vector(8)")

    assert graph.query(by_vector, {"t": [1, 0, 0, 0, 0, 0, 0, 0]}).rows == []
    with pytest.raises(EmbedderMissingError):
        graph.query(NEAREST, {"t": "pears"})


def test_a_service_that_is_down_fails_the_query_and_nothing_else(
    tmp_path: Path, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNIGRAPH_EMBED_BASE_URL", service.url)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OMNIGRAPH_EMBED_RETRY_ATTEMPTS", "1")
    graph = omnigraph.init(tmp_path / "g", SCHEMA)
    insert(graph, ("a", "apples"))
    service.script = [answer(503, {})]

    with pytest.raises(EmbedderUnavailableError):
        graph.query(NEAREST, {"t": "pears"})

    assert graph.query(NEAREST, {"t": "pears"}).rows == [{"d.slug": "a"}]
    assert docs(graph)["a"]["meaning"] == pytest.approx(vector("apples", 8), abs=1e-6)


# Inserts


def test_an_insert_makes_the_required_vector_and_no_other(graph: Graph, embedder: Counting) -> None:
    insert(graph, ("a", "apples"), ("b", "bridges"), ("c", "apples"))

    assert embedder.asked == [(["apples", "bridges"], Purpose.DOCUMENT)]
    assert docs(graph) == {
        slug: {"title": title, "meaning": vector(title, 8), "about": None}
        for slug, title in (("a", "apples"), ("b", "bridges"), ("c", "apples"))
    }


def test_a_vector_that_is_given_is_kept(graph: Graph, embedder: Counting) -> None:
    given = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    graph.mutate('query add($v: Vector(8)) { insert Doc { slug: "a", title: "apples", meaning: $v } }', {"v": given})

    assert docs(graph)["a"]["meaning"] == given
    assert embedder.asked == []


def test_a_later_statement_sees_the_vector_and_an_update_leaves_it_alone(graph: Graph) -> None:
    graph.mutate(
        'query q() { insert Doc { slug: "a", title: "apples" } update Doc set { title: "pears" } where slug = "a" }'
    )

    assert docs(graph)["a"] == {"title": "pears", "meaning": vector("apples", 8), "about": None}


def test_an_insert_that_replaces_a_node_makes_its_vector_anew(graph: Graph) -> None:
    insert(graph, ("a", "apples"))
    insert(graph, ("a", "pears"))

    assert docs(graph)["a"]["meaning"] == vector("pears", 8)


@pytest.mark.parametrize("title", [None, "", "  "])
def test_an_insert_without_a_text_is_refused_at_its_place(graph: Graph, title: str | None) -> None:
    with pytest.raises(ValueRejectedError, match=r"<query>:1:33: value of Doc.meaning.*`title`.* is empty") as caught:
        graph.mutate('query add($t: String?) { insert Doc { slug: "a", title: $t } }', {"t": title})

    assert caught.value.property == "meaning"
    assert docs(graph) == {}


def test_without_an_embedder_an_insert_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "g", SCHEMA)

    with pytest.raises(EmbedderMissingError, match="OPENROUTER_API_KEY"):
        insert(graph, ("a", "apples"))

    assert docs(graph) == {}
    assert len(graph.commits()) == 1


def test_an_insert_that_loses_a_race_does_not_ask_again(graph: Graph, embedder: Counting) -> None:
    rival = omnigraph.open(graph.uri, embedder=MockEmbedder())
    embedder.before = lambda _: insert(rival, ("a", "bridges"))

    insert(graph, ("a", "apples"), ("b", "bridges"))

    assert {slug: row["title"] for slug, row in docs(graph).items()} == {"a": "apples", "b": "bridges"}
    assert len(graph.commits()) == 3
    assert embedder.asked == [(["apples", "bridges"], Purpose.DOCUMENT)]


def test_the_model_of_the_schema_must_be_the_one_that_is_used(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "g", 'node Doc { t: String v: Vector(4) @embed(t, model="m-1") }')
    other, same = (omnigraph.open(graph.uri, embedder=MockEmbedder(name)) for name in ("m-2", "m-1"))
    add = 'query q() { insert Doc { t: "x" } }'

    with pytest.raises(EmbeddingModelError, match=r"Doc\.v .* 'm-1'.* 'm-2'"):
        other.mutate(add)

    assert same.mutate(add).affected_nodes == 1


def test_a_load_makes_no_vectors_and_says_who_does(graph: Graph, embedder: Counting) -> None:
    with pytest.raises(LoadRejectedError, match=r"Doc\.meaning is required.*\n.*omnigraph embed"):
        graph.load([{"type": "Doc", "data": {"slug": "a", "title": "apples"}}], mode="append")

    assert embedder.asked == []


# Filling a graph


def load(graph: Graph, titles: dict[str, str | None]) -> None:
    more = {"meaning": [1] + [0] * 7, "cover": "base64:aGk=", "seen": "2024-02-29T10:00:00.25Z"}
    graph.load(
        [{"type": "Doc", "data": {"slug": slug, "title": title, **more}} for slug, title in titles.items()],
        mode="append",
    )


def test_filling_makes_what_is_missing_and_leaves_the_rest(graph: Graph, embedder: Counting) -> None:
    load(graph, {"a": "apples", "b": None, "c": " ", "d": "dogs"})
    whole = "query q() { match { $d: Doc } return { $d.slug, $d.title, $d.meaning, $d.seen } order { $d.slug } }"
    before = graph.query(whole).rows
    blobs = [line for line in graph.export() if '"cover"' in line]

    done = graph.embed(actor="night")

    assert done.embedded == {"Doc.meaning": 0, "Doc.about": 2, "Note.gist": 0}
    assert (done.total, done.model, done.mode, done.branch) == (2, "m-1", "fill_missing", "main")
    [commit] = done.commits
    assert graph.commits(actor="night") == [commit]
    assert {slug: row["about"] for slug, row in docs(graph).items()} == {
        "a": vector("apples", 4), "b": None, "c": None, "d": vector("dogs", 4),
    }  # fmt: skip
    assert graph.query(whole).rows == before
    assert len([line for line in graph.export() if '"cover"' in line]) == len(blobs) == 4
    assert embedder.asked == [(["apples", "dogs"], Purpose.DOCUMENT)]
    assert graph.embed().commits == ()


def test_making_all_anew_replaces_what_is_there(graph: Graph) -> None:
    load(graph, {"a": "apples"})

    done = graph.embed(["Doc"], mode="reembed_all")

    assert done.embedded == {"Doc.meaning": 1, "Doc.about": 1}
    assert docs(graph)["a"] == {"title": "apples", "meaning": vector("apples", 8), "about": vector("apples", 4)}


def test_each_batch_is_a_commit_and_a_failure_leaves_the_rest_to_the_next_run(
    graph: Graph, embedder: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed, "ROWS_PER_COMMIT", 2)
    load(graph, {f"d{number}": f"text {number}" for number in range(5)})

    def fail(texts: Sequence[str]) -> None:
        if "text 4" in texts:
            raise EmbedderUnavailableError("down", address="there", attempts=1)

    embedder.before = fail
    with pytest.raises(EmbedderUnavailableError):
        graph.embed(actor="night")

    assert sorted(slug for slug, row in docs(graph).items() if row["about"]) == ["d0", "d1", "d2", "d3"]
    assert len(graph.commits(actor="night")) == 2
    embedder.before = lambda _: None
    embedder.asked.clear()

    assert graph.embed().total == 1
    assert embedder.asked == [(["text 4"], Purpose.DOCUMENT)]


def test_a_text_that_changes_meanwhile_does_not_get_the_vector_of_the_old_one(graph: Graph, embedder: Counting) -> None:
    load(graph, {"a": "apples", "b": "bridges", "c": "cats"})
    rival = omnigraph.open(graph.uri)

    def change(_: Sequence[str]) -> None:
        embedder.before = lambda _: None
        rival.mutate('query q() { update Doc set { title: "pears" } where slug = "a" }')
        rival.mutate('query q() { delete Doc where slug = "b" }')

    embedder.before = change
    assert graph.embed().total == 1
    assert {slug: row["about"] for slug, row in docs(graph).items()} == {"a": None, "c": vector("cats", 4)}

    assert graph.embed().total == 1
    assert docs(graph)["a"]["about"] == vector("pears", 4)


def test_a_branch_is_filled_and_main_stays_as_it_is(graph: Graph) -> None:
    load(graph, {"a": "apples"})
    graph.create_branch("side")

    assert graph.embed(branch="side").embedded["Doc.about"] == 1

    about = "query q() { match { $d: Doc } return { $d.about } }"
    assert [row["d.about"] for row in graph.query(about, branch="side")] == [vector("apples", 4)]
    assert docs(graph)["a"]["about"] is None


def test_two_that_fill_at_once_do_no_harm(graph: Graph) -> None:
    load(graph, {f"d{number}": f"text {number}" for number in range(20)})
    together = threading.Barrier(2, timeout=120)
    failed: list[OmnigraphError] = []

    def run() -> None:
        embedder = Counting()
        embedder.before = lambda _: [together.wait()].clear()
        try:
            omnigraph.open(graph.uri, embedder=embedder).embed()
        except OmnigraphError as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failed == []
    assert {slug: row["about"] for slug, row in docs(graph).items()} == {
        f"d{number}": vector(f"text {number}", 4) for number in range(20)
    }


def test_a_node_without_a_key_is_filled_in_place(graph: Graph) -> None:
    graph.load([{"type": "Note", "data": {"text": "x"}}, {"type": "Note", "data": {"text": "x"}}], mode="append")
    count = "query q() { match { $n: Note } return { $n, $n.gist } }"
    before = {row["n"] for row in graph.query(count)}

    assert graph.embed(["Note"]).total == 2

    assert {row["n"] for row in graph.query(count)} == before
    assert np.allclose([row["n.gist"] for row in graph.query(count)], [vector("x", 4)] * 2)


@pytest.mark.parametrize(
    "type_name, hint", [("Dok", "did you mean `Doc`"), ("Plain", "@embed"), ("Zzz", "name a node type")]
)
def test_a_type_that_cannot_be_filled_is_named(graph: Graph, type_name: str, hint: str) -> None:
    with pytest.raises(EmbeddingTypeError, match=hint) as caught:
        graph.embed(["Doc", type_name])

    assert caught.value.type_name == type_name
    assert len(graph.commits()) == 1


def test_the_wrong_mode_the_wrong_model_and_a_read_only_graph_are_refused(graph: Graph) -> None:
    graph.load([{"type": "Note", "data": {"text": "x"}}], mode="append")

    with pytest.raises(EmbedderSettingError, match="fill_missing or reembed_all"):
        graph.embed(mode="clean")
    with pytest.raises(EmbeddingModelError):
        omnigraph.open(graph.uri, embedder=MockEmbedder("m-2")).embed()
    with pytest.raises(ReadOnlyError):
        omnigraph.open(graph.uri, read_only=True, embedder=Counting()).embed()
    assert len(graph.commits()) == 2
