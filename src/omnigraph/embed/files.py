"""Embed a file of records into another file. No graph is involved."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from omnigraph.api.options import EmbedMode
from omnigraph.embed.embedder import Embedder, Purpose, embed_texts
from omnigraph.embed.providers import embedder_from_environment
from omnigraph.errors import EmbedderSettingError, EmbeddingModelError, FileAccessError, InputUnreadableError
from omnigraph.lang.types import MAX_VECTOR_DIMENSION

_AT_ONCE = 256
_DEFAULT_OUTPUT = "./build/seed.embedded.jsonl"


# Plans ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TypePlan:
    """The property for the vectors of a type, and the properties that make up its text."""

    target: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EmbedPlan:
    """How to embed records. `model`, if given, must be that of the embedder."""

    dimension: int
    types: Mapping[str, TypePlan]
    model: str | None = None


@dataclass(frozen=True, slots=True)
class FilePlan:
    input: Path
    output: Path
    plan: EmbedPlan


def plan_from_manifest(path: str) -> FilePlan:
    """Read a YAML manifest. Its paths are relative to it."""
    import yaml  # noqa: PLC0415 - only who has a manifest needs it

    try:
        found = yaml.safe_load(_read(path))
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date such as 2026-02-30
        raise _wrong("--seed", f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    manifest = _object("--seed", f"the manifest {path}", found)
    data = _part(manifest, "sources", "raw_seed") or _part(manifest, "seed", "data")
    if not isinstance(data, str):
        raise _wrong("--seed", f"{path} does not name its data in `sources.raw_seed`")
    output = _part(manifest, "artifacts", "embedded_seed") or _DEFAULT_OUTPUT
    if not isinstance(output, str):
        raise _wrong("--seed", f"`artifacts.embedded_seed` of {path} is not a path")
    folder = Path(path).parent
    return FilePlan(folder / data, folder / output, _plan("--seed", manifest.get("embeddings")))


def plan_from_text(text: str) -> EmbedPlan:
    """Read a specification: JSON, or the path of a JSON file."""
    try:
        found = json.loads(text if text.lstrip().startswith("{") else _read(text))
    except (ValueError, RecursionError) as error:
        raise _wrong("--spec", f"the specification is not valid JSON: {error}") from None
    return _plan("--spec", found)


def _plan(option: str, found: Any) -> EmbedPlan:
    document = _object(option, "the specification", found)
    dimension, model = document.get("dimension"), document.get("model")
    if type(dimension) is not int or not 0 < dimension <= MAX_VECTOR_DIMENSION:
        raise _wrong(option, "`dimension` is not the length of a vector")
    if model is not None and not isinstance(model, str):
        raise _wrong(option, "`model` is not the name of a model")
    types = _object(option, "`types`", document.get("types"))
    return EmbedPlan(dimension, {name: _type_plan(option, name, one) for name, one in types.items()}, model)


def _type_plan(option: str, name: str, found: Any) -> TypePlan:
    document = _object(option, f"`types.{name}`", found)
    target, fields = document.get("target"), document.get("fields")
    if not isinstance(target, str) or not target:
        raise _wrong(option, f"`types.{name}.target` is not the name of a property")
    if not isinstance(fields, list) or not fields or not all(isinstance(field, str) for field in fields):
        raise _wrong(option, f"`types.{name}.fields` is not a list of properties")
    return TypePlan(target, tuple(fields))


def _part(manifest: Mapping[str, Any], section: str, key: str) -> Any:
    found = manifest.get(section)
    return found.get(key) if isinstance(found, dict) else None


def _object(option: str, what: str, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise _wrong(option, f"{what} is not an object")
    return found


def _wrong(option: str, message: str) -> EmbedderSettingError:
    hint = "give `dimension`, and for each type `target` and `fields`"
    return EmbedderSettingError(message, variable=option, hint=hint)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise FileAccessError(f"cannot read {path}: {error}", path=path, hint="check the path") from None


# Files ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Selector:
    """Selects records, of one type or any, by the value of a property."""

    type_name: str | None
    field: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Selector | None:
        """Parse `[Type:]field=value`."""
        left, sign, value = text.partition("=")
        type_name, colon, name = left.rpartition(":")
        return cls(type_name or None, name, value) if sign and name and not (colon and not type_name) else None

    def picks(self, type_name: str, data: dict[str, Any]) -> bool:
        return self.type_name in (None, type_name) and self.field in data and _shown(data[self.field]) == self.value


@dataclass(frozen=True, slots=True)
class Selection:
    """The mode, and the records it applies to: of the given types, and matched by one of the selectors."""

    mode: EmbedMode
    types: Sequence[str] = ()
    selectors: Sequence[Selector] = ()

    def picks(self, type_name: str, data: dict[str, Any]) -> bool:
        if self.types and type_name not in self.types:
            return False
        return not self.selectors or any(selector.picks(type_name, data) for selector in self.selectors)


@dataclass(slots=True)
class EmbedFileResult:
    input: str
    output: str
    records: int = 0
    selected_records: int = 0
    embedded_records: int = 0
    cleaned_records: int = 0
    mode: EmbedMode = EmbedMode.FILL_MISSING
    dimension: int = 0
    model: str | None = None


def embed_file(files: FilePlan, selection: Selection, embedder: Embedder | None = None) -> EmbedFileResult:
    """Write the records with their vectors. The output appears when it is complete."""
    work = _FileEmbedding(files, selection, embedder)
    try:
        # Editors on Windows write a byte order mark; `utf-8-sig` drops it.
        with files.input.open(encoding="utf-8-sig") as source, _replacing(files.output) as target:
            lines = enumerate(source, 1)
            # Some lines at a time: a file may be larger than memory, and a service takes a batch for the price of a
            # text.
            while chunk := list(islice(lines, _AT_ONCE)):
                target.writelines(work.rewritten(chunk))
    except (OSError, UnicodeError) as error:
        message = f"cannot embed {files.input} into {files.output}: {error}"
        raise FileAccessError(message, path=str(files.input), hint="check both paths") from None
    return work.result


@contextmanager
def _replacing(path: Path) -> Iterator[TextIO]:
    """Open a draft that replaces the file when it is complete, or never."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same directory, so that the replacement is one atomic rename.
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with draft.open("x", encoding="utf-8") as file:
            yield file
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@dataclass(slots=True)
class _FileRecord:
    """A record to embed: its line, its content, its target property and its text."""

    at: int
    document: dict[str, Any]
    data: dict[str, Any]  # of the document
    target: str
    text: str


@dataclass(slots=True)
class _FileEmbedding:
    files: FilePlan
    selection: Selection
    given: Embedder | None
    result: EmbedFileResult = field(init=False)

    def __post_init__(self) -> None:
        paths = str(self.files.input), str(self.files.output)
        self.result = EmbedFileResult(*paths, mode=self.selection.mode, dimension=self.files.plan.dimension)

    def rewritten(self, lines: Sequence[tuple[int, str]]) -> Iterable[str]:
        """Return the lines with vectors added; unselected ones are unchanged."""
        texts = [text if text.endswith("\n") else text + "\n" for _, text in lines]
        chosen = [record for at, line in enumerate(lines) if (record := self._chosen(at, line))]
        for record in self._clean(chosen) if self.selection.mode is EmbedMode.CLEAN else self._embed(chosen):
            texts[record.at] = json.dumps(record.document, ensure_ascii=False) + "\n"
        return texts

    def _chosen(self, at: int, line: tuple[int, str]) -> _FileRecord | None:
        if not line[1].strip():
            return None
        document = _parsed(line, self.result.input)
        self.result.records += 1
        type_name, data = document.get("type"), document.get("data")
        plan = self.files.plan.types.get(type_name) if isinstance(type_name, str) else None
        if plan is None or not isinstance(data, dict) or not self.selection.picks(str(type_name), data):
            return None
        self.result.selected_records += 1
        return _FileRecord(at, document, data, plan.target, "\n".join(_lines(str(type_name), data, plan.fields)))

    def _clean(self, chosen: Sequence[_FileRecord]) -> list[_FileRecord]:
        """Remove the vectors; return the records that had one."""
        changed = [record for record in chosen if record.target in record.data]
        for record in changed:
            del record.data[record.target]
        self.result.cleaned_records += len(changed)
        return changed

    def _embed(self, chosen: Sequence[_FileRecord]) -> list[_FileRecord]:
        """Add vectors; return the records that got one."""
        only_missing = self.selection.mode is EmbedMode.FILL_MISSING
        changed = [one for one in chosen if not only_missing or one.data.get(one.target) in (None, [])]
        if changed:
            texts = [record.text for record in changed]
            vectors = embed_texts(self._embedder(), texts, self.files.plan.dimension, Purpose.DOCUMENT)
            for record, vector in zip(changed, vectors, strict=True):
                record.data[record.target] = vector.tolist()
        self.result.embedded_records += len(changed)
        return changed

    def _embedder(self) -> Embedder:
        # Only when there is something to embed: cleaning needs no configuration.
        self.given = self.given or embedder_from_environment()
        self.result.model = model = self.given.model
        recorded = self.files.plan.model
        if recorded not in (None, model):
            message = f"the specification names the model '{recorded}', but '{model}' is configured"
            hint = "set OMNIGRAPH_EMBED_MODEL to that model, or remove it from the specification"
            raise EmbeddingModelError(message, property="--spec", recorded=recorded, configured=model, hint=hint)
        return self.given


def _parsed(line: tuple[int, str], file: str) -> dict[str, Any]:
    number, text = line
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        message = f"{file}:{number} is not valid JSON: {error}"
        raise InputUnreadableError(message, path=file, hint="put one record on each line") from None
    if not isinstance(document, dict):
        message = f"{file}:{number} is not a JSON object"
        raise InputUnreadableError(message, path=file, hint="put one JSON object on each line")
    return document


def _lines(type_name: str, data: dict[str, Any], fields: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a record's text: its type, then every field that has a value."""
    yield f"type: {type_name}"
    for name in fields:
        shown = _shown(data.get(name))
        if shown.strip():
            yield f"{name}: {shown}"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
