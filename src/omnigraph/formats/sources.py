"""Find the files to load, determine their format and type, and divide them into splits.

A JSONL file holds records of all types. A CSV or Parquet file holds rows of one type: the one that the file, or the
nearest directory above it, is named after: `Person.csv`, `Person/part-1.parquet`, `knows/year=2024/a.csv.gz`. Names of
nodes are exact and come first, those of edges match in any case. Or a mapping names the type, a JSON document:

    {"files": {"people/*.csv": {"type": "Person", "columns": {"full_name": "name", "remark": null}}}}

A key of `files` is a pattern that the end of the path must match (`*` and `?` within a name, `**` across directories);
the first that does is used. `type` is the name of a type, or `node:Name` or `edge:Name` where one name is both.
`columns` maps a column to a property, `id`, `from` or `to`; null skips the column; others keep their names. Rows
without a value in the column `when` are left out; with `distinct`, one of several rows with the same identity counts.
`csv` holds the options of `CsvDialect`, for all files, or in an entry of `files` for its own. A list of entries means
several types. docs/reference/mapping.schema.json describes all of it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from csv import Error, reader
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from omnigraph.errors import InputError, InputFormatError, InputMappingError, InputTypeError, InputUnreadableError
from omnigraph.formats.batch import ConvertedBatch, joined
from omnigraph.formats.csv import csv_batches
from omnigraph.formats.cuts import Scan, divide
from omnigraph.formats.dialect import CsvDialect
from omnigraph.formats.files import (
    BOM,
    File,
    Split,
    decompressed,
    find_files,
    grouped,
    parquet,
    pattern_of,
    read_range,
    record_start,
)
from omnigraph.formats.jsonl import jsonl_batches
from omnigraph.formats.packs import pack, packed_batches
from omnigraph.formats.tables import table_batches
from omnigraph.lang.catalog import Catalog, EdgeType, NodeType
from omnigraph.storage.columns import table_key

SPLIT = 16 * 2**20
_FORMATS = {"jsonl": "jsonl", "ndjson": "jsonl", "csv": "csv", "parquet": "parquet", "pq": "parquet"}
_COMPRESSIONS = {"gz": "gzip", "zst": "zstd", "bz2": "bz2"}
_MOST_HEADER = 2**20
_MEMBERS = {"type", "columns", "when", "distinct", "csv"}

Address = str | os.PathLike[str]


def convert_split(split: Split, catalog: Catalog) -> ConvertedBatch:
    """Read a split and convert its records."""
    return joined(split_batches(split, catalog))


def split_batches(split: Split, catalog: Catalog) -> Iterator[ConvertedBatch]:
    """Read and convert a split batch by batch: a compressed file may be larger than memory."""
    if split.parts:
        yield from packed_batches(split, catalog)
    elif split.format == "jsonl":
        yield from jsonl_batches(split, catalog)
    elif split.format == "csv":
        yield from csv_batches(split, catalog)
    else:
        with parquet(split) as file:
            batches = file.iter_batches(row_groups=list(split.row_groups))
            rows = pa.RecordBatchReader.from_batches(file.schema_arrow, batches)
            columns = dict(split.columns)
            yield from table_batches(rows, split.declared(catalog), columns, source=split.file, when=split.when)


def discover(
    data: Address | Sequence[Address],
    catalog: Catalog,
    *,
    format: str | None = None,  # noqa: A002 - the name of the option on the command line
    mapping: Address | Mapping[str, Any] | None = None,
    csv: Mapping[str, Any] | None = None,
) -> list[Split]:
    """Find the files of paths, directories, patterns and `s3://` addresses, and divide them into splits.

    `csv` holds options of `CsvDialect`; those of the mapping are for the files that they name.
    """
    rules = _rules(mapping, catalog, csv)
    addresses = [data] if isinstance(data, str | os.PathLike) or not isinstance(data, Iterable) else list(data)
    splits: dict[str, list[Split]] = {}
    for address in addresses:
        if not isinstance(address, str | os.PathLike):
            message = f"cannot load from a Python {type(address).__name__}"
            raise InputError(message, path=None, hint="pass paths, records as dicts, or tables by type")
        files, root = find_files(address)
        for file in files:
            if file.uri not in splits:  # two patterns may match one file
                splits[file.uri] = list(_splits(_described(file, format), root, catalog, rules))
    return [split for found in splits.values() for split in found]


def line_splits(address: Address) -> list[Split]:
    """Find files of JSON lines, whatever they are called, and divide them."""
    files, _ = find_files(address)
    return [part for file in files for part in _cut_evenly(_described(file, "jsonl"))]


def packed(splits: Sequence[Split]) -> list[Split]:
    """Pack neighbours that are small files into one split, so that a task reads about 16 MiB of them."""
    return pack(splits, SPLIT)


def divided(splits: Sequence[Split], scan: Scan) -> list[Split]:
    """Divide large CSV files, so that a task reads about 16 MiB of them; `scan` runs the tasks."""
    return divide(splits, SPLIT, scan)


def _described(file: File, format_: str | None) -> Split:
    """Determine format and compression of a file by its name."""
    name = file.uri.rpartition("/")[2]
    words = name.lower().split(".")
    # By the name and never by content: what a load reads must not depend on the first bytes of a file.
    compression = _COMPRESSIONS.get(words[-1])
    if format_ is not None and format_ not in set(_FORMATS.values()):
        raise InputFormatError(f"unknown format {format_!r}", path=file.uri, hint="use jsonl, csv or parquet")
    found = format_ or _FORMATS.get(words[-2 if compression and len(words) > 1 else -1])
    if found is None or (found == "parquet" and compression):
        hint = "name it .jsonl, .csv (also .gz, .zst, .bz2) or .parquet, or pass the format"
        raise InputFormatError(f"cannot tell the format of {file.uri}", path=file.uri, hint=hint)
    end = 0 if compression else file.size
    return Split(file.uri, file.size, file.version, found, compression, end=end, size=file.size)


def _splits(whole: Split, root: str, catalog: Catalog, rules: _Rules) -> Iterator[Split]:
    if whole.format == "jsonl":
        return _cut_evenly(whole)
    found = rules.of(whole.file)
    if not found:
        declared = _type_by_name(whole.file, root, catalog)
        if declared is None:
            hint = "name the file or its directory after a type, or pass a mapping"
            raise InputTypeError(f"cannot tell which type {whole.file} holds", path=whole.file, hint=hint)
        return _typed_splits(replace(whole, type_key=table_key(declared), dialect=rules.dialect))
    # A file may hold several types: each of them is read from it, with its own columns.
    typed = (
        replace(
            whole,
            type_key=table_key(one.declared),
            columns=one.columns,
            when=one.when,
            distinct=one.distinct,
            dialect=one.dialect,
        )
        for one in found
    )
    return (split for one in typed for split in _typed_splits(one))


def _typed_splits(typed: Split) -> Iterator[Split]:
    return iter([_csv_split(typed)]) if typed.format == "csv" else _parquet_splits(typed)


def _type_by_name(uri: str, root: str, catalog: Catalog) -> NodeType | EdgeType | None:
    inside = uri.removeprefix(root.rstrip("/") + "/").split("/")
    *directories, name = [root.rpartition("/")[2], *inside]
    # The nearest name wins: `Person/Knows.csv` holds edges.
    for word in (name.partition(".")[0], *reversed(directories)):
        found = catalog.nodes.get(word) or catalog.edge_by_word(word)
        if found is not None:
            return found
    return None


# Splitting -----------------------------------------------------------------------------------------


def _part(whole: Split, start: int, end: int) -> Split:
    return replace(whole, start=start, end=end, size=end - start)


def _cut_evenly(whole: Split) -> Iterator[Split]:
    """Divide a file of lines at any byte: the reader of a split looks for the first line that starts in it."""
    if whole.compression or whole.end <= SPLIT:
        return iter([whole])
    count = -(-whole.end // SPLIT)
    places = [whole.end * at // count for at in range(count + 1)]
    return (_part(whole, start, end) for start, end in itertools.pairwise(places))


def _csv_split(whole: Split) -> Split:
    """Read the header of a CSV file, which stays one split: `divided` has tasks divide it."""
    header, head = _header(whole)
    return replace(whole, header=header, start=len(head), lines_before=head.count(b"\n"))


def _header(split: Split) -> tuple[tuple[str, ...], bytes]:
    """Read the first record of a CSV file; return its values, or the names that are given, and its bytes."""
    dialect = split.dialect
    if not dialect.header:
        start = len(BOM) if _head(split, len(BOM)) == BOM else 0
        return dialect.names, BOM[:start]
    head = _head(split, _MOST_HEADER)
    head = head[: record_start(head, 0, dialect.quote_byte) or len(head)]
    names = dialect.names or _names(split, head)
    if not any(names):
        hint = "the first line of a CSV file names its columns"
        raise InputUnreadableError(f"{split.file} has no header", path=split.file, hint=hint)
    return names, head


def _head(split: Split, size: int) -> bytes:
    if split.compression:
        return next(decompressed(split.found, split.compression, size), b"")
    return read_range(split.found, 0, size)


def _names(split: Split, head: bytes) -> tuple[str, ...]:
    dialect = split.dialect
    try:
        text = head.removeprefix(BOM).decode()
        names = next(reader([text], strict=True, delimiter=dialect.delimiter, quotechar=dialect.quote), [])
    except (UnicodeDecodeError, Error) as error:
        raise InputUnreadableError(f"the header of {split.file} cannot be read: {error}", path=split.file) from None
    return tuple(name.strip(" \t") for name in names) if dialect.trim else tuple(names)


def _parquet_splits(whole: Split) -> Iterator[Split]:
    with parquet(whole) as file:
        groups = [file.metadata.row_group(at) for at in range(file.metadata.num_row_groups)]
        sizes, rows = [group.total_byte_size for group in groups], [group.num_rows for group in groups]
    # A file without rows has one split all the same, so that its columns are checked.
    for group in grouped(range(len(sizes)), lambda at: (sizes[at],), (SPLIT,)) if sizes else [[]]:
        counts = {"size": sum(sizes[at] for at in group), "rows": sum(rows[at] for at in group)}
        yield replace(whole, row_groups=tuple(group), **counts)


# The mapping ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MappedType:
    """A type of the rows of a file: its columns, the column that a row must have a value in, whether it may repeat."""

    declared: NodeType | EdgeType
    columns: tuple[tuple[str, str | None], ...] = ()
    when: str = ""
    distinct: bool = False


@dataclass(frozen=True, slots=True)
class _Rule(MappedType):
    """What the mapping says of files whose path ends like the pattern."""

    pattern: re.Pattern[str] = field(kw_only=True)
    dialect: CsvDialect = field(kw_only=True)

    def matches(self, uri: str) -> bool:
        parts = uri.split("/")
        return any(self.pattern.fullmatch("/".join(parts[at:])) for at in range(len(parts)))


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules of a mapping, in its order, and the dialect of files that none of them matches."""

    files: list[_Rule]
    dialect: CsvDialect

    def of(self, uri: str) -> list[_Rule]:
        """Return the rules of the first pattern that matches: one, or one for each type of the file."""
        first = next((rule for rule in self.files if rule.matches(uri)), None)
        return [rule for rule in self.files if rule.pattern == first.pattern] if first else []


def _rules(mapping: Address | Mapping[str, Any] | None, catalog: Catalog, csv: Mapping[str, Any] | None) -> _Rules:
    dialect = CsvDialect.of(csv)
    if mapping is None:
        return _Rules([], dialect)
    path = None if isinstance(mapping, Mapping) else os.fspath(mapping)
    document = mapping if isinstance(mapping, Mapping) else read_mapping(Path(mapping))
    known = isinstance(document, Mapping) and {"files"} <= set(document) <= {"files", "csv", "$schema"}
    files = document["files"] if known else None
    if not isinstance(files, Mapping):
        raise _wrong(path, "expected the member 'files', an object, and at most 'csv' beside it")
    options = {**_options(document), **(csv or {})}
    entries = [(pattern, one) for pattern, found in files.items() for one in _entries(path, pattern, found)]
    rules = [_rule(path, pattern, entry, catalog, options) for pattern, entry in entries]
    return _Rules(rules, CsvDialect.of(options))


def _entries(path: str | None, pattern: str, found: Any) -> list[Any]:
    """Return the entries of a pattern; several if a file holds several types."""
    if found == []:
        raise _wrong(path, f"{pattern!r} has an empty list of types")
    return found if isinstance(found, list) else [found]


def _options(document: Mapping[str, Any]) -> Mapping[str, Any]:
    CsvDialect.of(document.get("csv"))  # raises what is wrong with it
    return document.get("csv") or {}


def read_mapping(path: Path) -> Any:
    """Read a document that maps files to types, without checking it."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _wrong(str(path), getattr(error, "strerror", None) or str(error)) from None


def mapped(name: str, mapping: Address | Mapping[str, Any] | None, catalog: Catalog) -> list[MappedType]:
    """Return the types that a mapping assigns to data of a name, as to a file; none without a rule."""
    return list(_rules(mapping, catalog, None).of(name))


def _rule(path: str | None, pattern: str, entry: Any, catalog: Catalog, options: Mapping[str, Any]) -> _Rule:
    if not isinstance(entry, Mapping) or not {"type"} <= set(entry) <= _MEMBERS:
        raise _wrong(path, f"{pattern!r} must have 'type', and may have 'columns', 'when', 'distinct' and 'csv'")
    columns = entry.get("columns", {})
    if not isinstance(columns, Mapping) or not all(isinstance(name, str | None) for name in columns.values()):
        raise _wrong(path, f"the columns of {pattern!r} must be an object of names")
    when, distinct = entry.get("when", ""), entry.get("distinct", False)
    if not isinstance(when, str) or not isinstance(distinct, bool):
        raise _wrong(path, f"of {pattern!r}, 'when' must be the name of a column, and 'distinct' true or false")
    declared = declared_named(entry["type"], catalog)
    if declared is None:
        raise _wrong(path, f"unknown type {entry['type']!r}")
    dialect = CsvDialect.of({**options, **_options(entry)})
    try:
        return _Rule(declared, tuple(columns.items()), when, distinct, pattern=pattern_of(pattern), dialect=dialect)
    except re.error as error:
        raise _wrong(path, f"{pattern!r} is not a pattern: {error}") from None


def declared_named(name: object, catalog: Catalog) -> NodeType | EdgeType | None:
    """Find a type by name, or as `node:Name` or `edge:Name`."""
    kind, _, bare = str(name).rpartition(":")
    node = catalog.nodes.get(bare) if kind in ("", "node") else None
    return node or (catalog.edge_by_word(bare) if kind in ("", "edge") else None)


def _wrong(path: str | None, why: str) -> InputMappingError:
    named = f"the mapping {path}" if path else "the mapping"
    hint = '{"files": {"people/*.csv": {"type": "Person", "columns": {"full_name": "name"}}}}'
    return InputMappingError(f"{named} cannot be used: {why}", path=path, hint=f"write {hint}")
