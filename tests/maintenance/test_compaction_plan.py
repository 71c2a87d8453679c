"""Which fragments are rewritten together, and which indices are built over which of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.api.results import TableVersion
from omnigraph.core.location import Location
from omnigraph.lang import Source, compile_schema
from omnigraph.lang.catalog import EdgeType, NodeType
from omnigraph.maintenance.tasks import build_parts, compaction_groups, plan_builds, wanted_indices
from omnigraph.storage.layout import FragmentSize, IndexBuild, IndexSpec, Segment, TableLayout
from omnigraph.storage.read import TableReader
from omnigraph.storage.stage import MAX_ROWS_PER_FILE

FULL = MAX_ROWS_PER_FILE
ID = IndexSpec("id", "BTREE")
NOWHERE = TableReader(Location.parse("nowhere")), TableVersion("node:Person", "nodes/1", 1)


def table(rows: Iterable[int | tuple[int, int]], covers: Mapping[str, Iterable[int]] | None = None) -> TableLayout:
    """A table of fragments 0, 1, 2, ... with so many rows, or rows and deleted rows; and segments that cover them."""
    parts = [
        FragmentSize(at, *one) if isinstance(one, tuple) else FragmentSize(at, one, 0) for at, one in enumerate(rows)
    ]
    segments = tuple(Segment(name, frozenset(numbers)) for name, numbers in (covers or {}).items())
    return TableLayout(tuple(parts), {ID.name: segments} if segments else {})


@pytest.mark.parametrize(
    "rows, expected",
    [
        ([], []),
        ([10], []),
        ([10, 10], [(0, 1)]),
        ([FULL, 10, FULL], []),
        ([FULL, 10, 10, FULL, 1, 1], [(1, 2), (4, 5)]),
        ([(FULL, 5)], []),
        ([(FULL - 9000, 9000)], [(0,)]),
        ([(FULL, 9000)], [(0,)]),
        ([FULL - 1, FULL - 1, 5], [(0, 1, 2)]),
        ([FULL - 1, 1, FULL - 1, 1, 3], [(0, 1), (2, 3, 4)]),
    ],
)
def test_neighbours_that_are_small_or_have_lost_many_rows_are_rewritten_together(
    rows: list[int | tuple[int, int]], expected: list[tuple[int, ...]]
) -> None:
    assert compaction_groups(table(rows)) == expected


def test_fragments_are_merged_across_what_an_index_covers_only_if_something_true_can_be_said_of_the_result() -> None:
    assert compaction_groups(table([1, 1, 1, 1], {"a": [0, 1]})) == [(0, 1, 2, 3)], "it is covered by nothing"
    assert compaction_groups(table([1, 1, 1], {"a": [0], "b": [1]})) == [(0, 1, 2)]
    assert compaction_groups(table([1, 1, 1, 1], {"a": [0, 1], "b": [2, 3]})) == [(0, 1), (2, 3)]
    assert compaction_groups(table([1, 1], {"a": [0], "b": [1]})) == []


@given(st.lists(st.integers(1, FULL * 2), max_size=12), st.integers(0, 12))
def test_what_comes_of_a_rewrite_has_nothing_more_to_rewrite(rows: list[int], covered: int) -> None:
    before = table(rows, {"a": range(covered)} if covered else None)
    gone = {number for group in compaction_groups(before) for number in group}
    after = list[FragmentSize]()
    for group in [*compaction_groups(before), *((part.number,) for part in before.parts if part.number not in gone)]:
        left = sum(part.rows for part in before.parts if part.number in group)
        while left:
            size = min(left, FULL) if group[0] in gone else left
            after.append(FragmentSize(group[0] * 1000 + len(after), size, 0))
            left -= size
    after.sort(key=lambda part: part.number // 1000)
    assert compaction_groups(TableLayout(tuple(after), {})) == []


def builds(made: TableLayout) -> list[IndexBuild]:
    found, pending = plan_builds(*NOWHERE, made, [ID])
    assert pending == []
    return found


def test_an_index_is_built_over_everything_if_it_is_missing_or_mostly_so() -> None:
    assert builds(table([5, 5])) == [IndexBuild(ID, (0, 1))]
    assert builds(table([5, 5], {"a": [0]})) == [IndexBuild(ID, (0, 1), ("a",))]
    assert builds(table([5, 5], {"a": [0, 1]})) == []
    assert builds(table([])) == []


def test_a_few_more_rows_get_a_segment_of_their_own_until_there_are_many() -> None:
    assert builds(table([90, 9], {"a": [0], "gone": [7]})) == [IndexBuild(ID, (1,), ("gone",))]
    many = {str(at): [at] for at in range(8)}
    assert builds(table([90] * 8 + [1], many)) == [IndexBuild(ID, tuple(range(9)), tuple(many))]


def test_a_large_index_is_built_in_parts_and_one_on_texts_whole() -> None:
    made = table([FULL] * 130)
    everything = tuple(range(130))
    assert list(map(len, build_parts(made, IndexBuild(ID, everything)))) == [64, 64, 2]
    assert list(map(len, build_parts(made, IndexBuild(IndexSpec("bio", "INVERTED"), everything)))) == [64, 64, 2]


def test_the_schema_says_which_indices_there_are() -> None:
    catalog = compile_schema(
        Source(
            """
            node A {
                slug: String @key
                size: I64 @index
                day: Date? @index
                text: String? @index
                kind: enum(x, y) @index
                near: Vector(3)? @index
                plain: String?
                @index(day, size)
            }
            node B { a: I32  b: String  @key(a, b) }
            edge E: A -> B { w: F64?  @index(w) }
            """,
            "s.pg",
        )
    )
    names: dict[str, NodeType | EdgeType] = {"A": catalog.nodes["A"], "B": catalog.nodes["B"], "E": catalog.edges["E"]}
    assert {name: sorted(spec.name for spec in wanted_indices(declared)) for name, declared in names.items()} == {
        "A": [
            "day_btree",
            "id_btree",
            "kind_btree",
            "near_ivf_flat",
            "size_btree",
            "slug_btree",
            "text_btree",
            "text_inverted",
        ],
        "B": ["id_btree"],
        "E": ["dst_btree", "id_btree", "src_btree"],
    }
