"""Keys by number: equal keys meet, others do not, and every share of an exchange sees its own."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.core.executor import Parcel, ParcelRoute
from omnigraph.ingest.keys import (
    MOST_SHARES,
    HashedKeys,
    KeyParcels,
    hash_columns,
    places,
    row_of,
    shares_of,
    task_of,
    unpacked,
    within_share,
)

TEXTS = st.lists(st.text(max_size=20) | st.sampled_from(["", "a", "aa", "a\0", "\0", "ü", "abcdefgh", "abcdefghi"]))


def numbered(values: list[str], task: int = 0, seed: int = 7) -> HashedKeys:
    return HashedKeys.of([pa.chunked_array([pa.array(values, pa.string())])], places(task, len(values)), seed)


@given(TEXTS)
def test_equal_texts_have_equal_numbers_and_no_others(values: list[str]) -> None:
    high, low = hash_columns([pa.array(values, pa.string())], 1)

    assert len(set(zip(high.tolist(), low.tolist(), strict=True))) == len(set(values))


@given(TEXTS, st.integers(0, 5), st.integers(0, 5))
def test_a_number_does_not_depend_on_where_in_a_column_its_value_stands(
    values: list[str], before: int, after: int
) -> None:
    array = pa.array(["x"] * before + values + ["yy"] * after, pa.string()).slice(before, len(values))

    assert hash_columns([array], 3)[0].tolist() == hash_columns([pa.array(values, pa.string())], 3)[0].tolist()


@given(st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), max_size=30))
def test_several_columns_are_numbered_as_tuples(rows: list[tuple[str, str]]) -> None:
    columns = [pa.array([row[at] for row in rows], pa.string()) for at in range(2)]
    high, low = hash_columns(columns, 1)

    assert len(set(zip(high.tolist(), low.tolist(), strict=True))) == len(set(rows))


@pytest.mark.parametrize(
    "values, kind",
    [
        ([1, 2, 1], pa.int64()),
        ([2**64 - 1, 2**63, 2**64 - 1], pa.uint64()),
        ([0.0, 1.5, -0.0], pa.float64()),
        ([True, False, True], pa.bool_()),
        ([0, 1, 0], pa.date32()),
        ([0, 86_400_001, 0], pa.date64()),
    ],
)
def test_values_of_every_type_are_told_apart(values: list[Any], kind: pa.DataType) -> None:
    raw = (
        pa.array(values, pa.int64()).view(kind)
        if pa.types.is_date64(kind)
        else pa.array(values, pa.int32()).view(kind)
        if pa.types.is_date32(kind)
        else pa.array(values, kind)
    )
    high, _ = hash_columns([raw], 1)

    assert high[0] == high[2] != high[1]


@given(TEXTS, TEXTS)
def test_keys_know_which_of_them_are_among_others(mine: list[str], others: list[str]) -> None:
    ours = numbered(mine)

    found = ours.at[ours.within(numbered(others).in_order())]

    assert sorted(row_of(found).tolist()) == [at for at, value in enumerate(mine) if value in set(others)]


@given(TEXTS)
def test_later_and_earlier_are_all_but_the_first_and_all_but_the_last(values: list[str]) -> None:
    found = numbered(values).in_order()
    first = {value: at for at, value in reversed(list(enumerate(values)))}
    last = {value: at for at, value in enumerate(values)}

    assert set(row_of(found.later).tolist()) == set(range(len(values))) - set(first.values())
    assert set(row_of(found.earlier).tolist()) == set(range(len(values))) - set(last.values())
    assert sorted(found.counts.tolist()) == sorted(Counter(values).values())


@given(st.lists(TEXTS, max_size=4), st.integers(1, 5))
def test_the_shares_of_an_exchange_hold_every_key_once(parts: list[list[str]], shares: int) -> None:
    parcels = []
    for task, values in enumerate(parts):
        keys = KeyParcels()
        keys.add(3, numbered(values, task))
        parcels += keys.packed(shares)  # so few keys are divided into the fewest shares
        assert sum(keys.counts().values()) == len(values)

    found = [unpacked(one for one in parcels if one.share == share).in_order() for share in range(shares)]

    assert {one.section for one in parcels} <= {3}
    everywhere = [(int(task_of(np.array([at]))[0]), int(row_of(np.array([at]))[0])) for s in found for at in s.at]
    assert sorted(everywhere) == [(task, row) for task, values in enumerate(parts) for row in range(len(values))]
    whole = HashedKeys.joined([numbered(values, task) for task, values in enumerate(parts)]).in_order()
    assert np.concatenate([share.high for share in found]).tolist() == whole.high.tolist()
    assert np.concatenate([share.at for share in found]).tolist() == whole.at.tolist()
    assert sum(len(share.starts) for share in found) == len(whole.starts)


HALVES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=20)


def halves(pairs: list[tuple[int, int]]) -> HashedKeys:
    high, low = (np.array([pair[at] for pair in pairs], np.uint64) for at in range(2))
    return HashedKeys(high, low, places(0, len(pairs)))


@given(HALVES, HALVES)
def test_keys_that_share_one_half_of_their_hashes_are_different_keys(
    mine: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    ours, theirs = halves(mine), halves(others).in_order()

    assert ours.within(theirs).tolist() == [pair in others for pair in mine]
    ordered = ours.in_order()
    assert sorted(row_of(ordered.later).tolist()) == [at for at, pair in enumerate(mine) if pair in mine[:at]]
    assert ordered.counts.tolist() == [count for _, count in sorted(Counter(mine).items())]


@given(HALVES)
def test_distinct_keys_are_found_where_they_are(mine: list[tuple[int, int]]) -> None:
    ours = halves(mine)
    distinct = ours.in_order().where(ours.in_order().starts)

    found = distinct.where(distinct.index_of(ours))

    assert list(zip(found.high.tolist(), found.low.tolist(), strict=True)) == mine


@given(HALVES)
def test_a_task_names_each_key_once(mine: list[tuple[int, int]]) -> None:
    found = halves(mine).distinct()

    assert sorted(zip(found.high.tolist(), found.low.tolist(), strict=True)) == sorted(set(mine))


@given(
    st.lists(st.tuples(TEXTS, st.sampled_from([1, 2, 4, 8])), max_size=4), st.sampled_from([1, 2, 4, 8]), st.booleans()
)
def test_each_receiver_gets_its_keys_however_the_senders_divided_them(
    parts: list[tuple[list[str], int]],
    width: int,
    named: bool,  # noqa: FBT001 - drawn
) -> None:
    route = ParcelRoute(3, spread=width > 1, width=width)
    received: dict[int, list[Parcel]] = {3 + share: [] for share in range(width)}
    for task, (values, fewest) in enumerate(parts):
        keys = KeyParcels()
        (keys.add_names if named else keys.add)(0, numbered(values, task))
        for parcel in keys.packed(fewest):
            receivers = route.receivers(parcel.share, parcel.of)
            assert len(receivers) == route.copies(parcel.of)
            for receiver in receivers:
                received[receiver].append(parcel)

    shares = [
        unpacked((within_share(one, at - 3, width, named=named) for one in some), named=named)
        for at, some in received.items()
    ]

    whole = HashedKeys.joined(numbered(values, task) for task, (values, _) in enumerate(parts))
    if named:
        assert {high for share in shares for high in share.high.tolist()} == set(whole.high.tolist())
    else:
        assert sorted(at for share in shares for at in share.at.tolist()) == whole.at.tolist()
    bounds = [share.high for share in shares if len(share)]
    assert all(one.max() < other.min() for one, other in pairwise(bounds)), "shares are ranges of hashes"


@pytest.mark.parametrize("keys, expected", [(0, 4), (100_000, 8), (3_000_000, 256), (10**9, MOST_SHARES)])
def test_the_more_keys_the_more_shares(keys: int, expected: int) -> None:
    assert shares_of(keys, 2**19, 4) == expected
