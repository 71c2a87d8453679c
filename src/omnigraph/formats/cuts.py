"""Divide large CSV files between tasks, which look for the starts of records themselves.

An end of line inside of quotes does not end a record, so where a record starts depends on all quotes before it. A task
counts those of its range, and finds the first record that starts there, in case the range begins inside of quotes and
in case it does not. The counts of the ranges before it then decide.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from omnigraph.formats.files import MAX_RECORD, Split, read_range, record_start, unclosed

Scan = Callable[[Sequence[Split]], Sequence["QuoteScan"]]
"""Runs `scan_quotes` over ranges of files, in any process."""


@dataclass(frozen=True, slots=True)
class QuoteScan:
    """The quotes of a range: whether their number is odd, and the first record that starts in it.

    `starts` is where that is, if the range begins outside of quotes and if inside; None if none starts in it.
    """

    parity: int
    starts: tuple[int | None, int | None]


def scan_quotes(part: Split) -> QuoteScan:
    """Read a range of a CSV file once."""
    data, quote = read_range(part.found, part.start, part.end), part.dialect.quote_byte
    found = (record_start(data, parity, quote) for parity in (0, 1))
    outside, inside = (part.start + at if at else None for at in found)
    return QuoteScan(data.count(quote) & 1, (outside, inside))


def divide(splits: Sequence[Split], size: int, scan: Scan) -> list[Split]:
    """Divide large CSV files into parts of whole records, of about `size` bytes; other splits stay as they are."""
    ranges = [list(_ranges(split, size)) for split in splits]
    found = iter(scan([one for some in ranges for one in some]))
    return [
        part for split, some in zip(splits, ranges, strict=True) for part in _parts(split, some, [*_next(found, some)])
    ]


def _next(scans: Iterator[QuoteScan], ranges: Sequence[Split]) -> Iterator[QuoteScan]:
    return itertools.islice(scans, len(ranges))


def _ranges(split: Split, size: int) -> Iterator[Split]:
    """Cut a file at any byte."""
    if split.format != "csv" or split.compression or split.parts or split.end - split.start <= size:
        return
    for start in range(split.start, split.end, size):
        yield replace(split, start=start, end=min(split.end, start + size))


def _parts(split: Split, ranges: Sequence[Split], scans: Sequence[QuoteScan]) -> Iterator[Split]:
    starts, parity = [split.start], 0
    for part, scan in zip(ranges, scans, strict=True):
        start = scan.starts[parity]
        parity ^= scan.parity
        if part is ranges[0]:
            continue  # the first record starts with the file
        if start is not None and start < split.end:
            starts.append(start)
        elif part.end - starts[-1] > MAX_RECORD:
            raise unclosed(split)
    for start, end in itertools.pairwise([*starts, split.end]):
        yield replace(split, start=start, end=end, size=end - start) if ranges else split
