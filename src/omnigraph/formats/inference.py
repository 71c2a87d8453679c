"""From data to a schema: types, keys, enums, dates and foreign keys of files and tables, each with its reason."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from omnigraph.core.values import Scalar
from omnigraph.errors import InputFormatError, InputUnreadableError
from omnigraph.formats.csv import from_text
from omnigraph.formats.dialect import CsvDialect
from omnigraph.formats.files import find_files
from omnigraph.formats.plain import plain_format, read_plain
from omnigraph.lang.types import Type

_MOST_ENUM, _ROWS_PER_VALUE = 16, 4
_SPELT = {b"omnigraph:spelt": b"1"}
_DATES = ("Date", "DateTime")
_IDENTIFIER = r"^[A-Za-z][A-Za-z0-9_]*$"
_NAMES_OF_KEYS = ("id", "key", "code", "slug", "number", "no", "name", "email", "sku", "isbn", "url")
_FROM, _TO = ("from", "source", "src"), ("to", "target", "dst")
# In this order: the first that all values match. A number with leading zeros is a code, and a code is a text.
_TEXTS = (
    ("Bool", r"^(?i:true|false)$"),
    ("I64", r"^[+-]?(0|[1-9][0-9]{0,17})$"),
    ("F64", r"^[+-]?([0-9]+\.[0-9]*|\.[0-9]+|(0|[1-9][0-9]*))([eE][+-]?[0-9]+)?$"),
    ("Date", r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"),
    (
        "DateTime",
        r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,3})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?$",
    ),
)
_INTEGERS = {pa.int8(): "I32", pa.int16(): "I32", pa.int32(): "I32", pa.uint8(): "U32", pa.uint16(): "U32"}
_ARROW = {
    **_INTEGERS,
    pa.int64(): "I64",
    pa.uint32(): "U32",
    pa.uint64(): "U64",
    pa.float32(): "F32",
    pa.bool_(): "Bool",
}
_KEY_KINDS = ("String", "I32", "I64", "U32", "U64")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the data, and what its values are."""

    name: str
    kind: str
    values: pa.ChunkedArray = field(repr=False, compare=False)
    reason: str
    members: tuple[str, ...] = ()

    @property
    def nulls(self) -> int:
        return int(self.values.null_count)

    @property
    def is_unique(self) -> bool:
        """Whether each value occurs once; a column without rows is not."""
        if self.nulls or self.kind.startswith("["):
            return False
        return bool(len(self.values) == pc.count_distinct(self.values).as_py() > 0)

    @property
    def can_identify(self) -> bool:
        return bool(self.members) or self.kind in _KEY_KINDS

    @property
    def texts(self) -> pa.ChunkedArray:
        """The values as ids are written."""
        return self.values if pa.types.is_string(self.values.type) else self.values.cast(pa.string())


@dataclass(frozen=True, slots=True)
class Reference:
    """A column whose values are the keys of a type."""

    column: str
    target: str
    reason: str


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of one or several files, and the type that is inferred for them."""

    name: str
    patterns: Sequence[str]
    columns: tuple[Column, ...]
    key: str | None = None
    references: tuple[Reference, ...] = ()
    is_edge: bool = False
    files: tuple[str, ...] = ()

    def column(self, name: str) -> Column:
        return next(one for one in self.columns if one.name == name)


@dataclass(frozen=True, slots=True)
class InferredSchema:
    """A schema for some data, the mapping that loads the data into it, and why it is so."""

    schema: str
    mapping: Mapping[str, Any]
    report: tuple[str, ...]
    tables: tuple[Table, ...] = ()

    def pipeline(self, name: str, graph: str, folder: str) -> str:
        """Return the file of a pipeline that loads the data, for a file in `folder`."""
        sources = {_source_name(one): _source(one, folder) for one in self.tables}
        loads = [entry for one in self.tables for entry in _loads(one)]
        document = {"pipeline": name, "target": {"graph": graph}, "sources": sources, "load": loads}
        return _ABOUT + str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120))


def infer(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> InferredSchema:
    """Infer a schema from CSV and Parquet files, directories and patterns. All rows are read."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files = [file.uri for path in given for file in find_files(path)[0]]
    groups = _groups(files)
    found = infer_tables({name: read_tables(group) for name, group in groups.items()})
    return replace(found, tables=tuple(replace(one, files=tuple(groups[one.name])) for one in found.tables))


def infer_tables(tables: Mapping[str, tuple[Sequence[str], pa.Table]]) -> InferredSchema:
    """Infer a schema from tables by name, each with the patterns of its files."""
    found = [_described(name, patterns, rows) for name, (patterns, rows) in tables.items()]
    first = [replace(one, key=_key(one, ())) for one in found]
    keyed = [replace(one, key=_key(one, [other for other in first if other.name != one.name])) for one in first]
    related = [replace(one, references=tuple(_references(one, keyed))) for one in keyed]
    typed = [replace(one, is_edge=_is_edge(one)) for one in related]
    # A reference to a file that became an edge type has no node to point to.
    nodes = {one.name for one in typed if not one.is_edge}
    typed = [replace(one, references=tuple(ref for ref in one.references if ref.target in nodes)) for one in typed]
    mapping = {"files": {pattern: _entries(one) for one in typed for pattern in one.patterns}}
    return InferredSchema("\n\n".join(_declared(typed)) + "\n", mapping, tuple(_reasons(typed)), tuple(typed))


# Files ---------------------------------------------------------------------------------------------


def _groups(files: Sequence[str]) -> dict[str, list[str]]:
    """Group files by the type that they are named after: `people-1.csv` and `people-2.csv` are of one."""
    found: dict[str, list[str]] = {}
    for uri in files:
        directory, _, name = uri.rpartition("/")
        stem = _stem(name)
        word = directory.rpartition("/")[2] if stem in ("", "part") else stem
        found.setdefault(type_name(word), []).append(uri)
    return found


def read_tables(files: Sequence[str]) -> tuple[list[str], pa.Table]:
    """Read files of one type; return the patterns that match them, and their rows."""
    rows = pa.concat_tables([_read(uri) for uri in files], promote_options="permissive")
    return list(dict.fromkeys(map(_pattern, files))), rows


def _pattern(uri: str) -> str:
    """Return how a mapping names a file: by its name, or with its directory if that says the type."""
    *_, directory, name = uri.split("/")
    return f"{directory}/*" if _stem(name) in ("", "part") else name


def _stem(name: str) -> str:
    return re.sub(r"[-_. ]?[0-9]+$", "", name.partition(".")[0])


def _read(uri: str) -> pa.Table:
    if plain_format(uri) is None:
        hint = "infer reads .csv, .jsonl (also .gz, .zst, .bz2) and .parquet"
        raise InputFormatError(f"cannot infer a schema from {uri}", path=uri, hint=hint)
    found = read_plain(find_files(uri)[0][0])
    if found.bad:
        first = found.bad[0]
        message = f"{uri}, line {first.line}: {first.message}"
        raise InputUnreadableError(message, path=uri, hint="correct the file, or leave the line out")
    if set(found.rows.column_names) & {"edge", "data"} or not found.rows.column_names:
        hint = "records with `type` and `data` name their types already: `omnigraph load` takes them"
        raise InputFormatError(f"cannot infer a schema from {uri}", path=uri, hint=hint)
    return _flat(found.rows) if plain_format(uri) != "csv" else _marked(found.rows)


def _flat(rows: pa.Table) -> pa.Table:
    """Return members of objects as columns: `address.city`."""
    while any(pa.types.is_struct(field.type) for field in rows.schema):
        rows = rows.flatten()
    return rows


def _marked(rows: pa.Table) -> pa.Table:
    """Mark the columns of a CSV file: their texts may spell numbers. Those of other files are texts on purpose."""
    return rows.cast(pa.schema([pa.field(field.name, field.type, metadata=_SPELT) for field in rows.schema]))


# Columns -------------------------------------------------------------------------------------------


def _described(name: str, patterns: Sequence[str], rows: pa.Table) -> Table:
    return Table(name, patterns, tuple(_column(field, rows[field.name]) for field in rows.schema))


def _column(field: pa.Field, values: pa.ChunkedArray) -> Column:
    name, kind = field.name, field.type
    if kind in _ARROW:
        return Column(name, _ARROW[kind], values, f"its type is {kind}")
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return Column(name, "F64", values, f"its type is {kind}")
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return Column(name, "Date" if pa.types.is_date(kind) else "DateTime", values, f"its type is {kind}")
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind):
        return _text_column(name, values.cast(pa.string()), is_spelt=field.metadata == _SPELT)
    if pa.types.is_list(kind) and kind.value_type in (*_ARROW, pa.float64(), pa.string()):
        inner = "String" if pa.types.is_string(kind.value_type) else _ARROW.get(kind.value_type, "F64")
        return Column(name, f"[{inner}]", values, f"its type is {kind}")
    raise InputFormatError(
        f"the column '{name}' has the type {kind}, for which no property is inferred",
        path=name,
        hint="leave it out, or declare it in the schema yourself",
    )


def _text_column(name: str, values: pa.ChunkedArray, *, is_spelt: bool) -> Column:
    there = values.drop_null()
    if not len(there):
        return Column(name, "String", values, "it has no values")
    for kind, pattern in _TEXTS:
        if (is_spelt or kind in _DATES) and _are(there, kind, pattern):
            return Column(name, kind, values, f"all {len(there):,} values are written like that")
    distinct = sorted(pc.unique(there).to_pylist())
    named = all(re.match(_IDENTIFIER, one) for one in distinct)
    if named and 1 < len(distinct) <= _MOST_ENUM and len(there) >= _ROWS_PER_VALUE * len(distinct):
        reason = f"{len(there):,} rows have {len(distinct)} values"
        return Column(name, f"enum({', '.join(distinct)})", values, reason, tuple(distinct))
    return Column(name, "String", values, f"{len(distinct):,} different texts")


def _are(texts: pa.ChunkedArray, kind: str, pattern: str) -> bool:
    """Return whether all texts are written like values of a kind, and are such: there is no 30th of February."""
    if not pc.all(pc.match_substring_regex(texts, pattern)).as_py():
        return False
    return from_text(texts.combine_chunks(), Type(Scalar(kind)), CsvDialect()).wrong is None


# Keys and references -------------------------------------------------------------------------------


def _key(table: Table, others: Sequence[Table]) -> str | None:
    """Return the column that identifies a row: unique, without nulls, and best named like one.

    A column that refers to another type does not, also if each of its values occurs once.
    """
    own = table.name.lower()
    ranks = {name: at for at, name in enumerate(("id", f"{own}_id", f"{own}id", *_NAMES_OF_KEYS))}

    def rank(column: Column) -> int:
        word = column.name.lower()
        last = word.rpartition("_")[2]
        return ranks.get(word, len(ranks) + ranks.get(last, len(ranks)) if last in ranks else 3 * len(ranks))

    unique = [one for one in table.columns if one.kind in _KEY_KINDS and one.is_unique]
    candidates = [one for one in unique if not _is_end(one) and not _targets(one, table, others)]
    named = [one for one in candidates if rank(one) < 3 * len(ranks)]
    # A column of texts that happen to differ identifies a row as well as nothing else does; one of numbers may not.
    unnamed = [one for one in candidates[:1] if one.kind == "String" and one is table.columns[0]]
    return min(named or unnamed, key=rank).name if named or unnamed else None


def _references(table: Table, tables: Sequence[Table]) -> Iterator[Reference]:
    for column in table.columns:
        if column.name == table.key or not column.can_identify or column.nulls == len(column.values):
            continue
        inside = _targets(column, table, tables)
        if inside and not column.nulls:
            target = max(inside, key=lambda one: len(one.name))
            yield Reference(column.name, target.name, f"all of its values are values of {target.name}.{target.key}")


def _is_end(column: Column) -> bool:
    return column.name.lower() in (*_FROM, *_TO)


def _targets(column: Column, table: Table, tables: Sequence[Table]) -> list[Table]:
    """Return the types that a column is named after, and whose keys include all of its values."""
    named = [one for one in tables if one.key and _is_named_after(column.name, one, table)]
    return [one for one in named if _is_inside(column, one.column(str(one.key)))]


def _is_named_after(column: str, target: Table, table: Table) -> bool:
    word = re.sub(rf"_(id|key|code|no|number|ref|{re.escape(str(target.key).lower())})$", "", column.lower())
    if column.lower() in (*_FROM, *_TO):
        return True
    if target is table or target.name == table.name:
        # A row that refers to another of its type does so by any name that ends like a reference.
        return bool(re.search(r"_(id|ref)$", column.lower())) and column != table.key
    names = (target.name.lower(), _snake(target.name), str(target.key).lower())
    return word in names or any(word.endswith(f"_{one}") for one in names[:2])


def _is_inside(column: Column, key: Column) -> bool:
    values = pc.unique(column.texts.drop_null())
    return bool(pc.all(pc.is_in(values, value_set=key.texts.combine_chunks())).as_py())


def _is_edge(table: Table) -> bool:
    """Return whether rows are relations: they have no key of their own, and refer to two types."""
    return table.key is None and len(table.references) == 2  # noqa: PLR2004 - a from and a to


# Output --------------------------------------------------------------------------------------------


def _declared(tables: Sequence[Table]) -> Iterator[str]:
    for table in (one for one in tables if not one.is_edge):
        refer = {ref.column for ref in table.references}
        lines = [_property(table, one) for one in table.columns if one.name not in refer]
        yield _block(f"node {table.name}", lines)
    for table in (one for one in tables if one.is_edge):
        source, target = table.references
        ends = {source.column, target.column}
        lines = [_property(table, one) for one in table.columns if one.name not in ends]
        yield _block(f"edge {table.name}: {source.target} -> {target.target}", lines)
    for table in (one for one in tables if not one.is_edge):
        for ref in table.references:
            yield _block(f"edge {_edge_name(table, ref)}: {table.name} -> {ref.target}", [])


def _block(head: str, lines: Sequence[str]) -> str:
    return "\n".join([f"{head} {{", *(f"    {line}" for line in lines), "}"]) if lines else head


def _property(table: Table, column: Column) -> str:
    optional = "?" if column.nulls or not len(column.values) else ""
    mark = " @key" if column.name == table.key else " @unique" if _is_code(table, column) else ""
    return f"{property_name(table, column.name)}: {column.kind}{optional}{mark}"


def _is_code(table: Table, column: Column) -> bool:
    named = column.name.lower().rpartition("_")[2] in _NAMES_OF_KEYS and column.name.lower() != "name"
    return named and not table.is_edge and column.kind in _KEY_KINDS and column.is_unique


def _entries(table: Table) -> Any:
    """Return the entry of a mapping; a list if the file holds edges besides its nodes."""
    kind = "edge" if table.is_edge else "node"
    ends = dict(zip((ref.column for ref in table.references), ("from", "to"), strict=False)) if table.is_edge else {}
    refer = {ref.column for ref in table.references}
    columns: dict[str, str | None] = {}
    for column in table.columns:
        name = ends.get(column.name) if column.name in refer else property_name(table, column.name)
        if name != column.name:
            columns[column.name] = name
    own = {"type": f"{kind}:{table.name}", **({"columns": columns} if columns else {})}
    if table.is_edge or not table.references:
        return own
    return [own, *(_edge_entry(table, ref) for ref in table.references)]


def _edge_entry(table: Table, ref: Reference) -> dict[str, Any]:
    columns: dict[str, str | None] = dict.fromkeys((one.name for one in table.columns), None)
    return {"type": f"edge:{_edge_name(table, ref)}", "columns": {**columns, str(table.key): "from", ref.column: "to"}}


_ABOUT = """\
# Look at the schema first, then: omnigraph init GRAPH --schema SCHEMA; omnigraph pipeline run THIS
"""


def _source_name(table: Table) -> str:
    return _snake(table.name)


def _source(table: Table, folder: str) -> dict[str, Any]:
    paths = list(dict.fromkeys(_numbered(uri, folder) for uri in table.files))
    return {"path": paths[0] if len(paths) == 1 else paths, "incremental": "files"}


def _numbered(uri: str, folder: str) -> str:
    """Return the path of a file from a folder; `people-1.csv` stands for all files that differ in the number."""
    directory, _, name = uri.rpartition("/")
    stem, dot, ending = name.partition(".")
    name = re.sub(r"(?<=[-_. ])[0-9]+$", "*", stem) + dot + ending
    return f"{directory}/{name}" if "://" in uri else os.path.relpath(f"{directory}/{name}", folder)


def _loads(table: Table) -> Iterator[dict[str, Any]]:
    """Yield the entries of a pipeline for the rows of a table. Edges have ids, so that none is stored twice."""
    source = _source_name(table)
    if table.is_edge:
        (first, second), ends = [ref.column for ref in table.references], ("from", "to")
        columns: dict[str, Any] = dict(zip(ends, (first, second), strict=True))
        if _are_unique(table, first, second):
            columns = {"id": {"text": f"{{{first}}}-{{{second}}}"}, **columns}
        own = [one.name for one in table.columns if one.name not in (first, second)]
    else:
        refer = {ref.column for ref in table.references}
        columns, own = {}, [one.name for one in table.columns if one.name not in refer]
    columns |= {property_name(table, name): name for name in own}
    yield {"type": f"{'edge' if table.is_edge else 'node'}:{table.name}", "from": source, "columns": columns}
    for ref in () if table.is_edge else table.references:
        made = {"id": {"text": f"{{{table.key}}}"}, "from": table.key, "to": ref.column} if table.key else None
        if made:
            yield {"type": f"edge:{_edge_name(table, ref)}", "from": source, "columns": made}


def _are_unique(table: Table, first: str, second: str) -> bool:
    pairs = pa.table({"a": table.column(first).values, "b": table.column(second).values})
    return bool(pairs.group_by(["a", "b"]).aggregate([]).num_rows == pairs.num_rows)


def _edge_name(table: Table, ref: Reference) -> str:
    # `author_slug` is an author, as `customer_id` is a customer.
    suffix = rf"_({'|'.join(_NAMES_OF_KEYS)}|ref)$"
    return table.name + type_name(re.sub(suffix, "", ref.column, flags=re.IGNORECASE))


def _reasons(tables: Iterable[Table]) -> Iterator[str]:
    for table in tables:
        what = "edge type, because it has no key of its own and refers to two types" if table.is_edge else "node type"
        yield f"{table.name}: {what}"
        if not table.is_edge:
            unique = f"{table.key} is the key: it is unique and never empty"
            yield f"  {unique if table.key else 'no column is unique and never empty: nodes get new ids'}"
        for column in table.columns:
            empty = f", {column.nulls:,} are empty" if column.nulls else ""
            yield f"  {column.name}: {column.kind}, {column.reason}{empty}"
        for ref in table.references:
            yield f"  {ref.column} refers to {ref.target}: {ref.reason}"


def type_name(word: str) -> str:
    """Return the name of a type for the name of a file or column: `order_items` is `OrderItem`."""
    words = [one for one in re.split(r"[^A-Za-z0-9]+", word) if one]
    name = "".join(one[0].upper() + one[1:] for one in [*words[:-1], _singular(words[-1])]) if words else "Row"
    return name if name[0].isalpha() else f"T{name}"


def _singular(word: str) -> str:
    lower = word.lower()
    if lower == "people":
        return "person"
    if lower.endswith("ies") and len(word) > 4:  # noqa: PLR2004 - not "ties"
        return word[:-3] + "y"
    if lower.endswith(("sses", "xes", "ches", "shes")):
        return word[:-2]
    return word[:-1] if lower.endswith("s") and not lower.endswith(("ss", "us", "is")) else word


def property_name(table: Table, column: str) -> str:
    """Return the name of a property for a column; `id` is reserved for the id of the entity."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", column).strip("_") or "value"
    name = name[0].lower() + name[1:] if name[0].isalpha() else f"p_{name}"
    return f"{_snake(table.name)}_{name}" if name in _RESERVED else name


_RESERVED = ("id", "from", "to", "src", "dst", "type")


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
