"""Search and ranking against an oracle that looks at everything, with every kind of index and without."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

import omnigraph
from omnigraph.commit.plan import OpClass, PublishPlan, TableAction, WriterKind
from omnigraph.commit.publish import begin, publish
from omnigraph.errors import ParameterError
from omnigraph.graph import Graph
from omnigraph.query.words import term
from omnigraph.storage.layout import IndexSpec
from tests.query import search_oracle
from tests.query.scene import edge, node
from tests.query.search_oracle import Ranked, best_first, bm25, distances, fused
from tests.support.mutations import store_of

SCHEMA = """
node Doc { slug: String @key  title: String? @index  body: String? @index  place: Vector(3)?  rank: I32? }
edge Cites: Doc -> Doc
"""
WORDS = [
    "learning", "learned", "Learns", "network", "networks", "deep", "deeper", "vision", "visions", "machine", "Café",
    "cafe", "the", "of", "and", "generously", "running", "run", "über", "graph", "graphs", "x86", "data-base",
]  # fmt: skip
QUERIES = ["learning", "deep networks", "cafe", "the of", "run graph", "vision data machine", "uber", "nowhere"]
Documents = dict[str, dict[str, Any]]


def text(random: Random) -> str | None:
    if random.random() < 0.1:
        return None
    signs = random.choices((" ", ", ", "-", "\n", "_"), weights=(8, 2, 1, 1, 1), k=12)
    words = ["graph", *random.choices(WORDS, k=random.randint(0, 11))]
    return "".join(word + sign for word, sign in zip(words, signs, strict=False))


def documents(random: Random, numbers: range) -> Documents:
    return {
        f"d{at}": {
            "title": text(random),
            "body": text(random),
            "place": None if random.random() < 0.1 else [random.randint(0, 8) / 4 for _ in range(3)],
            "rank": random.randint(0, 3),
        }
        for at in numbers
    }


class Library:
    """A graph of documents, and the same as plain values."""

    def __init__(self, path: Path, indexed: str) -> None:
        random = Random(7)  # noqa: S311
        self.graph = omnigraph.init(path, SCHEMA)
        early, late = documents(random, range(30)), documents(random, range(30, 45))
        self._load(early)
        if indexed == "in part":
            self._index()
        self._load(late)
        names = [*early, *late]
        self.cites = sorted({(random.choice(names), random.choice(names)) for _ in range(60)})
        self.graph.load([edge("Cites", *pair) for pair in self.cites], mode="append")
        self.graph.mutate('query q() { delete Doc where slug = "d3" }')
        if indexed == "in full":
            self._index()
        self.documents = {slug: data for slug, data in {**early, **late}.items() if slug != "d3"}
        self.cites = [pair for pair in self.cites if "d3" not in pair]

    def _load(self, found: Documents) -> None:
        self.graph.load([node("Doc", slug=slug, **data) for slug, data in found.items()], mode="append")

    def _index(self) -> None:
        store = store_of(self.graph.uri)
        txn = begin(store)
        kinds = {"slug": "BTREE", "rank": "BTREE", "title": "INVERTED", "body": "INVERTED", "place": "IVF_FLAT"}
        specs = [IndexSpec(column, kind) for column, kind in kinds.items()]
        staged = store.tables.stage_create_indices(txn.entries["node:Doc"].table, specs)
        action = TableAction(staged, OpClass.MAINTENANCE)
        publish(store, PublishPlan(txn, WriterKind.ENSURE_INDICES, (action,)))

    def column(self, name: str) -> dict[str, Any]:
        return {slug: data[name] for slug, data in self.documents.items()}

    def rows(self, match: str, returned: str = "$d.slug", rest: str = "", **parameters: Any) -> list[list[Any]]:
        declared = ", ".join(f"${name}: {_KINDS[type(value)]}" for name, value in parameters.items())
        source = f"query q({declared}) {{ match {{ {match} }} return {{ {returned} }} {rest} }}"
        return [list(row.values()) for row in self.graph.query(source, parameters).rows]


_KINDS = {str: "String", list: "Vector(3)", int: "I64"}


@pytest.fixture(scope="module", params=["not at all", "in part", "in full"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(tmp_path_factory.mktemp("library") / "g", request.param)


pytestmark = pytest.mark.usefixtures("reading")


# Filters


@pytest.mark.parametrize(
    "call, most",
    [("search($d.{}, $q)", 0), ("match_text($d.{}, $q)", 0), ("fuzzy($d.{}, $q)", 2), ("fuzzy($d.{}, $q, 1)", 1)],
)
def test_a_search_finds_every_text_that_holds_one_of_the_words(library: Library, call: str, most: int) -> None:
    for name, query in product(("title", "body"), QUERIES):
        expected = {key for key, value in library.column(name).items() if search_oracle.found(value, query, most)}

        found = library.rows(f"$d: Doc  {call.format(name)}", q=query)

        assert sorted(slug for (slug,) in found) == sorted(expected)


def test_several_searches_and_filters_are_all_meant(library: Library) -> None:
    for query in QUERIES:
        expected = [
            slug
            for slug, data in library.documents.items()
            if search_oracle.found(data["title"], query)
            and search_oracle.found(data["body"], "learn graph")
            and search_oracle.found(data["body"], "deep vision")
            and data["rank"] > 0
        ]

        clauses = (
            'search($d.title, $q)  search($d.body, "learn graph")  match_text($d.body, "deep vision")  $d.rank > 0'
        )
        found = library.rows(f"$d: Doc  {clauses}", q=query)

        assert sorted(slug for (slug,) in found) == sorted(expected)


def test_what_is_reached_is_searched_as_well(library: Library) -> None:
    for query in QUERIES:
        matching = {key for key, value in library.column("title").items() if search_oracle.found(value, query)}

        found = library.rows("$d: Doc  $d cites $e  search($e.title, $q)", "$d.slug, $e.slug", q=query)
        without = library.rows("$d: Doc  not { $d cites $e  search($e.title, $q) }", q=query)

        assert sorted(map(tuple, found)) == [pair for pair in library.cites if pair[1] in matching]
        citing = {source for source, target in library.cites if target in matching}
        assert sorted(slug for (slug,) in without) == sorted(library.documents.keys() - citing)


# Rankings


def check(found: list[list[Any]], expected: Ranked) -> None:
    """Compare ids and their scores, both in order."""
    assert [row[0] for row in found] == expected.ids
    assert [row[-1] for row in found] == pytest.approx([expected.scores[row[0]] for row in found])


@pytest.mark.parametrize("limit", [None, 0, 1, 7])
def test_bm25_puts_the_best_first_and_leaves_out_what_does_not_match(library: Library, limit: int | None) -> None:
    rest = "order { bm25($d.body, $q) }" + ("" if limit is None else f" limit {limit}")
    for query in QUERIES:
        ranked = best_first(bm25(library.column("body"), query), descending=True)

        found = library.rows("$d: Doc", "$d.slug, bm25($d.body, $q) as s", rest, q=query)

        check(found, ranked.among(ranked.ids, limit))


def labels(graph: Graph, query: str, **texts: str) -> list[list[Any]]:
    """Rank texts that are the only ones in a graph."""
    graph.mutate('query q() { delete Metric where name != "" }')
    graph.load([node("Metric", name=name, label=label) for name, label in texts.items()], mode="append")
    call = "bm25($m.label, $q)"
    source = f"query q($q: String) {{ match {{ $m: Metric }} return {{ $m, {call} as s }} order {{ {call} }} }}"
    return [list(row.values()) for row in graph.query(source, {"q": query}).rows]


def test_a_word_that_is_asked_for_twice_counts_twice(copy_of: Callable[[str], Graph]) -> None:
    texts = {"a": "cat cat dog", "b": "cat", "c": "dog dog", "d": "bird", "e": "cat dog bird"}

    found = labels(copy_of("metrics"), "cat cats dog", **texts)

    assert [row[0] for row in found] == ["a", "b", "e", "c"]
    check(found, best_first(bm25(texts, "cat cats dog"), descending=True))


def test_texts_without_a_word_are_not_in_the_statistics(copy_of: Callable[[str], Graph]) -> None:
    texts = {"a": "cat cat dog", "b": "cat", "c": "", "d": "the", "e": "bird song deep tree"}

    check(labels(copy_of("metrics"), "cat", **texts), best_first(bm25(texts, "cat"), descending=True))


@pytest.mark.parametrize("limit", [0, 1, 5, 100])
@pytest.mark.parametrize("place", [[0.0, 0.0, 0.0], [1.0, 0.25, 2.0]])
def test_nearest_puts_the_closest_first_and_leaves_out_what_has_no_place(
    library: Library, place: list[float], limit: int
) -> None:
    ranked = best_first(distances(library.column("place"), place), descending=False)
    rest = f"order {{ nearest($d.place, $q) }} limit {limit}"

    check(library.rows("$d: Doc", "$d.slug, nearest($d.place, $q)", rest, q=place), ranked.among(ranked.ids, limit))


def test_filters_come_before_the_best(library: Library) -> None:
    chosen = [
        slug
        for slug, data in library.documents.items()
        if data["rank"] == 2 and search_oracle.found(data["title"], "learn")
    ]
    nearest = best_first(distances(library.column("place"), [1.0, 1.0, 1.0]), descending=False)
    matching = best_first(bm25(library.column("body"), "graph"), descending=True)
    for match in ("$d: Doc { rank: 2 }", "$d: Doc  $d.rank = 2", "$d: Doc  $d.rank >= 2  3 > $d.rank"):
        clauses = f'{match}  search($d.title, "learn")'
        close = library.rows(
            clauses, "$d.slug, nearest($d.place, $q)", "order { nearest($d.place, $q) } limit 3", q=[1.0, 1.0, 1.0]
        )
        good = library.rows(clauses, "$d.slug, bm25($d.body, $q)", "order { bm25($d.body, $q) } limit 3", q="graph")

        check(close, nearest.among(chosen, 3))
        check(good, matching.among(chosen, 3))


CALLS = {"nearest": ("nearest($d.place, $q)", [1.0, 1.0, 1.0]), "bm25": ("bm25($d.body, $q)", "graph deep")}
ORDERS = ["$d: Doc  $d cites $e", "$e: Doc  $d: Doc  $d cites $e", "$e: Doc  $d cites $e", "$d cites $e  $d: Doc"]


@pytest.mark.parametrize("call", ["nearest", "bm25"])
@pytest.mark.parametrize("limit", [1, 4, 9, 200])
def test_a_ranking_ranks_what_the_match_leaves_in_any_order_of_clauses(library: Library, call: str, limit: int) -> None:
    spelled, query = CALLS[call]
    scores = distances(library.column("place"), query) if call == "nearest" else bm25(library.column("body"), query)  # type: ignore[arg-type]
    sign = 1 if call == "nearest" else -1
    rows = [pair for pair in library.cites if pair[0] in scores]
    by_rank = sorted(
        rows, key=lambda pair: (round(sign * scores[pair[0]], 9), library.documents[pair[1]]["rank"], pair)
    )
    by_id = sorted(rows, key=lambda pair: (round(sign * scores[pair[0]], 9), pair))
    for match in ORDERS:
        for keys, expected in ((spelled, by_id), (f"{spelled}, $e.rank", by_rank)):
            found = library.rows(match, "$d.slug, $e.slug", f"order {{ {keys} }} limit {limit}", q=query)

            assert [*map(tuple, found)] == expected[:limit]


@pytest.mark.parametrize("limit", [1, 4, 30])
def test_the_arms_of_a_fused_ranking_rank_what_the_match_leaves(library: Library, limit: int) -> None:
    left = {source for source, _ in library.cites}
    close = best_first(distances(library.column("place"), [1.0, 1.0, 1.0]), descending=False).among(left, limit)
    good = best_first(bm25(library.column("body"), "deep"), descending=True).among(left)
    ranked = fused(close, good, 60)
    expected = [pair for slug in ranked.ids for pair in library.cites if pair[0] == slug][:limit]
    rest = f'order {{ rrf(nearest($d.place, [1.0, 1.0, 1.0]), bm25($d.body, "deep")) }} limit {limit}'
    for match in ORDERS:
        assert [*map(tuple, library.rows(match, "$d.slug, $e.slug", rest))] == expected


@pytest.mark.parametrize("limit", [1, 5, 50])
def test_what_is_reached_is_ranked_among_what_is_reached(library: Library, limit: int) -> None:
    reached = {target for source, target in library.cites if library.documents[source]["rank"] == 1}
    pairs = [pair for pair in library.cites if library.documents[pair[0]]["rank"] == 1]
    close = best_first(distances(library.column("place"), [2.0, 0.0, 1.0]), descending=False).among(reached)
    good = best_first(bm25(library.column("title"), "deep graph"), descending=True).among(reached)
    for ranked, call, query in (
        (close, "nearest($e.place, $q)", [2.0, 0.0, 1.0]),
        (good, "bm25($e.title, $q)", "deep graph"),
    ):
        expected = [target for target in ranked.ids for pair in pairs if pair[1] == target][:limit]

        rest = f"order {{ {call}, $e.slug }} limit {limit}"
        found = library.rows("$d: Doc { rank: 1 }  $d cites $e", "$e.slug, $d.slug", rest, q=query)

        assert [row[0] for row in found] == expected
        assert len({*map(tuple, found)}) == len(found)


@pytest.mark.parametrize("k", [None, 1, 60])
@pytest.mark.parametrize("limit", [1, 4, 30])
def test_rankings_are_fused(library: Library, k: int | None, limit: int) -> None:
    body = best_first(bm25(library.column("body"), "learn graph"), descending=True)
    title = best_first(bm25(library.column("title"), "vision"), descending=True)
    place = best_first(distances(library.column("place"), [1.0, 0.5, 0.25]), descending=False)
    close = place.among(place.ids, limit)
    arms = {
        'bm25($d.body, "learn graph")': body,
        'bm25($d.title, "vision")': title,
        "nearest($d.place, [1.0, 0.5, 0.25])": close,
    }
    for first, one in arms.items():
        for second, other in arms.items():
            ranked = fused(one, other, k or 60)
            call = f"rrf({first}, {second}{'' if k is None else f', {k}'})"

            found = library.rows("$d: Doc", f"$d.slug, {call} as s", f"order {{ {call} }} limit {limit}")

            check(found, ranked.among(ranked.ids, limit))


def test_a_fused_ranking_of_what_is_reached(library: Library) -> None:
    reached = {target for source, target in library.cites if library.documents[source]["rank"] == 1}
    good = best_first(bm25(library.column("title"), "deep graph"), descending=True).among(reached)
    close = best_first(distances(library.column("place"), [1.0, 1.0, 1.0]), descending=False).among(reached, 6)
    ranked = fused(good, close, 60)

    rest = 'order { rrf(bm25($e.title, "deep graph"), nearest($e.place, [1.0, 1.0, 1.0])) } limit 6'
    found = library.rows("$d: Doc { rank: 1 }  $d cites $e", "$e.slug, $d.slug", rest)

    pairs = [pair for pair in library.cites if library.documents[pair[0]]["rank"] == 1]
    expected = [target for target in ranked.ids[:6] for pair in pairs if pair[1] == target][:6]
    assert [row[0] for row in found] == expected


def test_the_k_of_a_fusion_may_be_a_parameter_but_must_be_positive(library: Library) -> None:
    call = 'rrf(bm25($d.body, "graph"), bm25($d.title, "graph"), $k)'
    ask = partial(library.rows, "$d: Doc", f"$d.slug, {call} as s", f"order {{ {call} }} limit 3")

    assert ask(k=60) == ask(k=60)
    assert ask(k=1)[0][1] > ask(k=60)[0][1]
    for k in (0, -1):
        with pytest.raises(ParameterError, match="positive"):
            ask(k=k)


# Words


HELD = {
    "accent": "café", "stem": "résumé", "sigma": "ΟΔΟΣ", "dotted": "İstanbul", "sharp": "Straße", "under": "snake_case",
    "stop": "it's", "number": "v1.2", "signs": "日本語", "short": "мой", "long": "x" * 40, "fits": "y" * 39,
    "adverb": "generously", "nothing": "", "mixed": "graph日本の紙", "hangul": "한국어로",
}  # fmt: skip


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    graph = omnigraph.init(tmp_path_factory.mktemp("words") / "g", "node Word { name: String @key  text: String }")
    graph.load([node("Word", name=name, text=held) for name, held in HELD.items()], mode="append")
    return graph


@pytest.mark.parametrize(
    "wanted, expected",
    [
        ("cafe", ["accent"]),
        ("CAFÉ", ["accent"]),
        ("resume", []),
        ("ΟΔΟΣ", ["sigma"]),
        ("οδοσ", ["sigma"]),
        ("İstanbul", ["dotted"]),
        ("straße", ["sharp"]),
        ("case", ["under"]),
        ("it", []),
        ("2", ["number"]),
        ("日本語", ["signs"]),
        ("日本", ["signs", "mixed"]),
        ("本日", []),
        ("日語", []),
        ("語", ["signs"]),
        ("日", ["signs", "mixed"]),
        ("graph", ["mixed"]),
        ("한국", ["hangul"]),
        ("мои", []),
        ("x" * 40, []),
        ("y" * 39, ["fits"]),
        ("generous", ["adverb"]),
        ("", []),
    ],
)
def test_words_are_compared_as_they_are_analysed(words: Graph, wanted: str, expected: list[str]) -> None:
    found = words.query("query q($q: String) { match { $w: Word  search($w.text, $q) } return { $w } }", {"q": wanted})

    assert [row["w"] for row in found.rows] == expected


def test_words_without_spaces_are_ranked_and_are_only_near_themselves(words: Graph) -> None:
    ranked = 'query q() { match { $w: Word } return { $w } order { bm25($w.text, "日本語") } }'
    near = 'query q() { match { $w: Word  fuzzy($w.text, "日木") } return { $w } }'

    # A ranking asks for all of a word as a search does: "mixed" holds one of its two pairs.
    assert [row["w"] for row in words.query(ranked).rows] == ["signs"]
    assert words.query(near).rows == []


@pytest.mark.parametrize("parameters", [{"q": None, "e": 2}, {"q": "alps", "e": None}])
def test_a_search_for_null_finds_nothing(shared: Callable[[str], Graph], parameters: dict[str, Any]) -> None:
    source = "query q($q: String?, $e: I32?) { match { $m: Metric  fuzzy($m.label, $q, $e) } return { $m } }"

    assert shared("metrics").query(source, parameters).rows == []
    assert shared("metrics").query(source, {"q": "alps", "e": 0}).rows == [{"m": "m2"}]


def test_edits_below_zero_are_refused_or_find_nothing(shared: Callable[[str], Graph]) -> None:
    source = 'query q($e: I32) { match { $m: Metric  fuzzy($m.label, "alps", $e) } return { $m } }'

    assert shared("metrics").query(source, {"e": -1}).rows == []


def test_stems_are_the_same_whoever_else_is_stemming() -> None:
    words = [f"{start}{end}" for start in ("condit", "operat", "relat", "nation", "gener") for end in ENDINGS]
    term.cache_clear()
    alone = {word: term.__wrapped__(word) for word in words}

    def all_of_them(turn: int) -> list[str]:
        shuffled = words[turn:] + words[:turn]
        return [word for word in shuffled * 20 if term.__wrapped__(word) != alone[word]]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(all_of_them, range(4))) == [[]] * 4


ENDINGS = ("ion", "ions", "ional", "ionally", "ive", "ives", "ively", "ization", "izings", "ability", "ousness")
