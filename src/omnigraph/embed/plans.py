"""What the `embed` command does to a file of records: from a specification, or from a manifest in YAML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnigraph.errors import EmbedderSettingError, FileAccessError
from omnigraph.lang.types import MAX_VECTOR_DIMENSION

_DEFAULT_OUTPUT = "./build/seed.embedded.jsonl"


@dataclass(frozen=True, slots=True)
class TypePlan:
    """The property that holds the vectors of a type, and those whose values make up the text."""

    target: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EmbedPlan:
    """How records are embedded. `model`, if it is named, must be the one of the embedder."""

    dimension: int
    types: Mapping[str, TypePlan]
    model: str | None = None


@dataclass(frozen=True, slots=True)
class FilePlan:
    input: Path
    output: Path
    plan: EmbedPlan


def plan_from_manifest(path: str) -> FilePlan:
    """Read a manifest. Paths in it start from where it is."""
    import yaml  # noqa: PLC0415 - only who has a manifest needs it

    try:
        found = yaml.safe_load(_read(path))
    except yaml.YAMLError as error:
        raise _wrong("--seed", f"{path} is no YAML: {' '.join(str(error).split())}") from None
    manifest = _object("--seed", f"the manifest {path}", found)
    data = _part(manifest, "sources", "raw_seed") or _part(manifest, "seed", "data")
    if not isinstance(data, str):
        raise _wrong("--seed", f"{path} does not name its data in `sources.raw_seed`")
    output = _part(manifest, "artifacts", "embedded_seed") or _DEFAULT_OUTPUT
    if not isinstance(output, str):
        raise _wrong("--seed", f"`artifacts.embedded_seed` of {path} is no path")
    folder = Path(path).parent
    return FilePlan(folder / data, folder / output, _plan("--seed", manifest.get("embeddings")))


def plan_from_text(text: str) -> EmbedPlan:
    """Read a specification: JSON, or the path of a file that holds it."""
    try:
        found = json.loads(text if text.lstrip().startswith("{") else _read(text))
    except (ValueError, RecursionError) as error:
        raise _wrong("--spec", f"the specification is no JSON: {error}") from None
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
        raise _wrong(option, f"`types.{name}.fields` is no list of properties")
    return TypePlan(target, tuple(fields))


def _part(manifest: Mapping[str, Any], section: str, key: str) -> Any:
    found = manifest.get(section)
    return found.get(key) if isinstance(found, dict) else None


def _object(option: str, what: str, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise _wrong(option, f"{what} is no object")
    return found


def _wrong(option: str, message: str) -> EmbedderSettingError:
    hint = "give `dimension`, and for each type `target` and `fields`"
    return EmbedderSettingError(message, variable=option, hint=hint)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise FileAccessError(f"cannot read {path}: {error}", path=path, hint="check the path") from None
