"""Read a table in bounded memory, in any order or by id: sorted run by run, the runs merged from files.

Blobs are fetched last, for as many rows at a time as fit memory. Until then the column holds their locations.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.blob import BlobType

from omnigraph.api.results import TableVersion
from omnigraph.formats.files import grouped
from omnigraph.storage.lance_errors import lance_call
from omnigraph.storage.predicates import Predicate, lance_filter
from omnigraph.storage.read import ADDRESS, DST, ID, SRC
from omnigraph.storage.stage import TableStorage

Fragments = tuple[int, ...]

_ROWS_PER_RUN, _BYTES_PER_RUN = 2**18, 2**27
_ROWS, _BYTES = 2**14, 2**22  # of a batch, at most; a single row may be larger
_ROWS_TO_MERGE = 2**17  # of all runs together


def groups(tables: TableStorage, table: TableVersion) -> list[Fragments]:
    """Divide the fragments of a table into groups that one task can sort in memory; an empty table has none."""
    dataset = tables.open(table)
    with lance_call(dataset.uri, "read"):
        sizes = {fragment.fragment_id: _size(fragment) for fragment in dataset.get_fragments()}
    return [tuple(group) for group in grouped(sizes, sizes.__getitem__, (_ROWS_PER_RUN, _BYTES_PER_RUN))]


def _size(fragment: lance.LanceFragment) -> tuple[int, int]:
    stored = sum(file.file_size_bytes or 0 for file in fragment.metadata.files)
    return fragment.metadata.physical_rows, stored


def column_names(tables: TableStorage, table: TableVersion) -> list[str]:
    """Return the columns of a table: system columns first, then the properties by name."""
    names = set(tables.open(table).schema.names)
    system = [name for name in (ID, SRC, DST) if name in names and (name == ID or table.key.startswith("edge:"))]
    return [*system, *sorted(names.difference(system))]


def in_order(
    tables: TableStorage, table: TableVersion, columns: Sequence[str], chosen: Sequence[Fragments]
) -> Iterator[pa.Table]:
    """Read groups of fragments in the order of ids, batch by batch; a Blob is read as its bytes."""
    dataset = tables.open(table)
    # One after the other: Lance sorts a run in memory as soon as it is opened.
    runs = (_reader(dataset, columns, group, order_by=[ID]) for group in chosen)
    some = (
        _merged(dataset, runs, len(chosen))
        if len(chosen) > 1
        else chain.from_iterable(_batches(dataset, run) for run in runs)
    )
    yield from _with_blobs(dataset, columns, some)


def in_any_order(
    tables: TableStorage, table: TableVersion, columns: Sequence[str], group: Fragments, predicate: Predicate | None
) -> Iterator[pa.Table]:
    """Read the rows of a group that satisfy a predicate, batch by batch; a Blob is read as its bytes."""
    dataset = tables.open(table)
    found = _reader(dataset, columns, group, filter=lance_filter(predicate) if predicate else None)
    yield from _with_blobs(dataset, columns, _batches(dataset, found))


def _reader(dataset: lance.LanceDataset, columns: Sequence[str], group: Fragments, **how: Any) -> pa.RecordBatchReader:
    """Read some fragments; with `order_by`, Lance sorts them in memory."""
    with lance_call(dataset.uri, "read"):
        return dataset.scanner(
            columns=list(columns),
            fragments=[fragment for fragment in dataset.get_fragments() if fragment.fragment_id in group],
            with_row_address=True,
            blob_handling="blobs_descriptions",
            batch_size=_ROWS,
            **how,
        ).to_reader()


def _batches(dataset: lance.LanceDataset, reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    while True:
        with lance_call(dataset.uri, "read"):
            batch = next(reader, None)
        if batch is None:
            return
        yield pa.Table.from_batches([batch])


# Merging -------------------------------------------------------------------------------------------


def _merged(dataset: lance.LanceDataset, runs: Iterable[pa.RecordBatchReader], count: int) -> Iterator[pa.Table]:
    """Write each run to a file, then read all files in parallel."""
    # The budget is shared by all runs: one batch of each is in memory at a time.
    rows = max(_ROWS_TO_MERGE // count, 1)
    with tempfile.TemporaryDirectory(prefix="omnigraph-export-") as directory, ExitStack() as opened:
        files: list[Path] = []
        for run in runs:
            files.append(Path(directory) / str(len(files)))
            with pa.ipc.new_stream(str(files[-1]), run.schema) as writer:
                for batch in _batches(dataset, run):
                    writer.write_table(batch, max_chunksize=rows)
        readers = [pa.ipc.open_stream(opened.enter_context(pa.memory_map(str(file)))) for file in files]
        yield from merge([(pa.Table.from_batches([batch]) for batch in reader) for reader in readers])


def merge(runs: Sequence[Iterator[pa.Table]]) -> Iterator[pa.Table]:
    """Merge sorted runs into one; one batch of each run is in memory."""
    held = [(run, batch) for run in runs if (batch := _next(run)) is not None]
    while held:
        # The next batches of a run come after its last row in memory, so rows up to the smallest of those are complete.
        bound = min(batch[ID][-1].as_py() for _, batch in held)
        counts = [pc.sum(pc.less_equal(batch[ID], bound)).as_py() for _, batch in held]
        ready = pa.concat_tables(batch.slice(0, count) for (_, batch), count in zip(held, counts, strict=True))
        yield ready.take(pc.sort_indices(ready, [(ID, "ascending")]))
        left = [(run, batch.slice(count)) for (run, batch), count in zip(held, counts, strict=True)]
        refilled = [(run, batch if batch.num_rows else _next(run)) for run, batch in left]
        held = [(run, batch) for run, batch in refilled if batch is not None]


def _next(run: Iterator[pa.Table]) -> pa.Table | None:
    return next((batch for batch in run if batch.num_rows), None)


# Parts, and their Blobs ----------------------------------------------------------------------------


def _parts(batch: pa.Table, blobs: Sequence[str]) -> Iterator[pa.Table]:
    """Divide a batch into parts that fit memory with their Blobs."""
    sizes = np.full(batch.num_rows, batch.nbytes // max(batch.num_rows, 1), np.int64)
    for name in blobs:
        sizes += pc.fill_null(pc.struct_field(batch[name], "size"), 0).to_numpy().astype(np.int64)
    ends = np.cumsum(sizes)
    start = 0
    while start < batch.num_rows:
        before = ends[start - 1] if start else 0
        end = min(max(int(np.searchsorted(ends, before + _BYTES, "right")), start + 1), start + _ROWS)
        yield batch.slice(start, end - start)
        start = end


def _with_blobs(dataset: lance.LanceDataset, columns: Sequence[str], batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Fetch the Blobs of batches, part by part."""
    blobs = [name for name in columns if isinstance(dataset.schema.field(name).type, BlobType)]
    for rows in (part for batch in batches for part in _parts(batch, blobs)):
        whole = rows.select(columns)
        for name in blobs:
            with lance_call(dataset.uri, "read"):
                found = dataset.read_blobs(name, addresses=rows[ADDRESS].combine_chunks(), preserve_order=True)
            contents = pa.array([content for _, content in found], pa.large_binary())
            whole = whole.set_column(whole.schema.get_field_index(name), name, contents)
        yield whole
