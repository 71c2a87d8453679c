"""The settings files, `omnigraph.yaml` and the operator configuration: their keys as models, and one reader.

A part of a file is validated when it is used: a mistake in one profile must not stop a command that uses another.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from omnigraph.api.access import Role
from omnigraph.errors import ConfigError
from omnigraph.lang.source import did_you_mean

FILE = "omnigraph.yaml"
_UNITS = {"": "seconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DURATION = re.compile(r"(\d{1,9})([smhdw]?)")
_A = TypeVar("_A")

# Values and models ---------------------------------------------------------------------------------


def _as_text(value: Any) -> Any:
    # YAML reads `actor: 5` as a number and `version: 2026-01-01` as a date; people mean the text.
    if isinstance(value, bool | list | dict):
        raise PydanticCustomError("text", "must be a text")
    return None if value is None else str(value)


def _not_blank(value: str | None) -> str:
    if not value:
        raise PydanticCustomError("missing", "is missing")
    return value


def _as_word(value: Any) -> Any:
    # YAML reads a bare `off` as false.
    return "off" if value is False else value


def _off_is_none(value: Any) -> Any:
    return None if value is False or value == "off" else value


def duration_of(text: str) -> timedelta | None:
    """Read a duration such as 90s, 15m, 12h, 30d or 4w; None if it is none."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        return None
    try:
        return timedelta(**{_UNITS[found[2]]: int(found[1])})
    except OverflowError:  # more weeks than Python counts days: as long as can be
        return timedelta.max


def _as_duration(value: Any) -> Any:
    found = None if isinstance(value, bool) else duration_of(str(value))
    if not found:
        raise PydanticCustomError("duration", "must be a duration of more than 0, such as 12h, 7d or 4w")
    return found


Text = Annotated[str, BeforeValidator(_as_text)]
NeededText = Annotated[str | None, BeforeValidator(_as_text), AfterValidator(_not_blank)]
OutputFormat = Literal["table", "kv", "csv", "jsonl", "json"]
CellLayout = Literal["truncate", "wrap"]


class SettingsModel(BaseModel):
    """A mapping in a settings file. Values must have their YAML types: `"5"` is not a number."""

    # A validator takes milliseconds to build, and most commands find no settings to validate. So each is built when a
    # value first needs it: a default that is an instance must be a factory, or this import would build its validator.
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", defer_build=True, populate_by_name=True)

    @classmethod
    def has_defaults(cls) -> bool:
        """Whether every key may be left out."""
        return not any(field.is_required() for field in cls.model_fields.values())


class McpEntry(SettingsModel):
    expose: bool = True
    tool_name: Text | None = None


class StoredQueryEntry(SettingsModel):
    file: NeededText
    mcp: McpEntry = Field(default_factory=McpEntry)


class CleanupEntry(SettingsModel):
    """What an automatic cleanup keeps: so many commits of each branch, those that are younger, or both."""

    keep: Annotated[int, Field(ge=1)] | None = None
    older_than: Annotated[timedelta, BeforeValidator(_as_duration)] | None = None

    @model_validator(mode="after")
    def _says_what_to_keep(self) -> CleanupEntry:
        if self.keep is None and self.older_than is None:
            raise PydanticCustomError("empty", "has neither keep nor older_than: give one of them, or remove the key")
        return self


class UpkeepEntry(SettingsModel):
    """What is done to a graph without being asked for."""

    optimize: Annotated[Literal["auto", "off"] | None, BeforeValidator(_as_word)] = None
    cleanup: Annotated[CleanupEntry | None, BeforeValidator(_off_is_none)] = None


class GraphEntry(SettingsModel):
    """A graph of omnigraph.yaml. `queries` has three forms: a directory, a list of files, or files by query name."""

    uri: NeededText
    schema_file: Text | None = Field(None, alias="schema")
    queries: Any = None
    bearer_token_env: Text | None = None
    durability: Annotated[Literal["full", "files", "off"] | None, BeforeValidator(_as_word)] = None
    upkeep: UpkeepEntry = Field(default_factory=UpkeepEntry)
    policy: Any = None

    @model_validator(mode="after")
    def _upkeep_is_where_the_files_are(self) -> GraphEntry:
        if "upkeep" in self.model_fields_set and str(self.uri).startswith(("http://", "https://")):
            what = "contradicts uri, which is the address of a server: set upkeep in the settings of that server"
            raise PydanticCustomError("contradiction", f"upkeep {what}")
        return self


class TokenEntry(SettingsModel):
    actor: Text | None = None
    role: Annotated[Role, Strict(strict=False)] = Role.READ
    graphs: list[Text] | None = None
    token_sha256: Text | None = None
    token_env: Text | None = None


class AgentsEntry(SettingsModel):
    """The endpoint for agents, `/mcp`. Without `allow_merge` they propose, and merge nothing."""

    allow_merge: bool = False


class ServerSection(SettingsModel):
    """The server of a project. `limits` is validated by the class that the server uses."""

    bind: Text | None = None
    workers: Annotated[int, Field(ge=1)] | None = None
    graph: Text | None = None
    default_graph: Text | None = None
    require_all_graphs: bool = False
    tokens: list[TokenEntry] = []
    limits: dict[str, Any] = {}
    load_roots: list[Text] = []
    version: Text | None = None
    mcp: Annotated[AgentsEntry | None, BeforeValidator(_off_is_none)] = Field(default_factory=AgentsEntry)
    policy: Any = None


class CliSection(SettingsModel):
    graph: Text | None = None
    branch: Text | None = None
    actor: Text | None = None
    output_format: OutputFormat | None = None
    table_max_column_width: int | None = None
    table_cell_layout: CellLayout | None = None


class ProjectAlias(SettingsModel):
    """A short name for a query in a file of the project."""

    command: Literal["read", "query", "change", "mutate"]
    query: NeededText
    name: Text | None = None
    args: list[Text] = []
    graph: Text | None = None
    branch: Text | None = None
    format: Text | None = None


class ProjectSection(SettingsModel):
    name: Text | None = None


class QuerySection(SettingsModel):
    roots: list[Text] = []


class AuthSection(SettingsModel):
    env_file: Text | None = None


class ProjectKeys(SettingsModel):
    """All keys of omnigraph.yaml."""

    project: ProjectSection = Field(default_factory=ProjectSection)
    graphs: dict[str, GraphEntry] = {}
    server: ServerSection = Field(default_factory=ServerSection)
    cli: CliSection = Field(default_factory=CliSection)
    query: QuerySection = Field(default_factory=QuerySection)
    auth: AuthSection = Field(default_factory=AuthSection)
    aliases: dict[str, ProjectAlias] = {}
    policy: Any = None
    queries: Any = None


class OperatorSection(SettingsModel):
    actor: Text | None = None


class OperatorServer(SettingsModel):
    url: NeededText


class OperatorCluster(SettingsModel):
    root: Text | None = None


class OperatorDefaults(SettingsModel):
    output: OutputFormat | None = None
    table_max_column_width: int | None = None
    table_cell_layout: CellLayout | None = None
    server: Text | None = None
    store: Text | None = None
    default_graph: Text | None = None


class OperatorProfile(SettingsModel):
    server: Text | None = None
    store: Text | None = None
    cluster: Text | None = None
    default_graph: Text | None = None


class OperatorAlias(SettingsModel):
    """A short name for a stored query of a server."""

    server: NeededText
    graph: Text | None = None
    query: NeededText
    args: list[Text] = []
    params: dict[str, Any] = {}
    format: Text | None = None


class OperatorKeys(SettingsModel):
    """All keys of the operator configuration."""

    operator: OperatorSection = Field(default_factory=OperatorSection)
    servers: dict[str, OperatorServer] = {}
    clusters: dict[str, OperatorCluster] = {}
    defaults: OperatorDefaults = Field(default_factory=OperatorDefaults)
    profiles: dict[str, OperatorProfile] = {}
    aliases: dict[str, OperatorAlias] = {}


# Reading -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """The content of a settings file. A file that does not exist has no content."""

    path: str
    values: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        return Path(self.path).parent

    def part(self, model: type[_A], *keys: str) -> _A:
        """Validate the part below `keys` and return it."""
        value = self._at(keys)
        # Nothing to validate: a command without settings must not wait for a validator.
        if value is None and issubclass(model, SettingsModel) and model.has_defaults():
            return model.model_construct()
        try:
            return TypeAdapter(model).validate_python({} if value is None else value)
        except ValidationError as error:
            found = error.errors(include_url=False)[0]
            raise self.problem(_message(found), *keys, *map(str, found["loc"])) from None

    def names(self, *keys: str) -> list[str]:
        """The names in a mapping, without a look at what they name."""
        found = self._at(keys)
        if found is not None and not isinstance(found, dict):
            raise self.problem("must be a mapping", *keys)
        return list(found or {})

    def refuse_unknown(self, model: type, *keys: str) -> None:
        """Refuse a key that the model of a part does not have: it may be misspelt."""
        for place, key, known in _unknown_keys(model, self._at(keys), keys):
            raise self.problem("is not a setting", *place, key, hint=did_you_mean(key, known))

    def unknown_keys(self, model: type) -> list[str]:
        """The keys that the model does not have, each with its place."""
        return sorted(".".join((*place, key)) for place, key, _ in _unknown_keys(model, dict(self.values), ()))

    def problem(self, what: str, *keys: str, hint: str | None = None) -> ConfigError:
        return ConfigError(f"{self.path}: {'.'.join(keys)} {what}", path=self.path, hint=hint)

    def _at(self, keys: tuple[str, ...]) -> Any:
        value: Any = dict(self.values)
        for depth, key in enumerate(keys):
            if not isinstance(value, dict):
                raise self.problem("must be a mapping", *keys[:depth])
            # `key:` without a value is None in YAML, and counts as absent.
            value = value.get(key)
            if value is None:
                return None
        return value


def read_settings(path: Path) -> SettingsFile | None:
    """Read a settings file; None if it does not exist."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", path=str(path)) from None
    import yaml  # noqa: PLC0415 - most commands find no file, and need not wait for it

    try:
        # `safe_load`: a settings file must not be able to run code.
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date such as 2026-02-30
        raise ConfigError(f"{path} is not YAML: {error}", path=str(path), hint="fix the syntax") from None
    if not isinstance(found, dict | None):
        raise ConfigError(f"{path} must hold a mapping", path=str(path), hint="write `key: value`")
    return SettingsFile(str(path), _with_text_keys(found or {}))


def read_project(path: str | None) -> SettingsFile:
    """Read the given omnigraph.yaml, or that of the working directory, which need not exist."""
    found = read_settings(Path(path or FILE))
    if found is None and path is not None:
        raise ConfigError(f"{path} does not exist", path=path, hint=f"give the path of an {FILE}")
    return found or SettingsFile(FILE, {})


def _with_text_keys(value: Any) -> Any:
    # YAML reads the name in `graphs: {2026: ...}` as a number.
    if isinstance(value, dict):
        return {str(key): _with_text_keys(one) for key, one in value.items()}
    return [_with_text_keys(one) for one in value] if isinstance(value, list) else value


def _message(found: Any) -> str:
    context = found.get("ctx", {})
    match found["type"]:
        case "missing":
            return "is missing"
        case "int_type" | "int_from_float":
            return "must be a whole number"
        case "greater_than_equal":
            return f"must be a number, at least {context['ge']:g}"
        case "float_type":
            return "must be a number"
        case "bool_type":
            return "must be true or false"
        case "list_type":
            return "must be a list"
        case "dict_type" | "model_type":
            return "must be a mapping"
        case "literal_error" | "enum":
            expected = context["expected"].replace(" or ", ", ").replace("'", "")
            return f"is '{found['input']}', which is not one of {expected}"
    return str(found["msg"])


def _unknown_keys(kind: Any, value: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, list[str]]]:
    """Compare a value with the type it should have; yield each unknown key with its place and the known ones."""
    inner = get_args(kind)
    if isinstance(kind, type) and isinstance(value, dict) and (known := keys_of(kind)):
        for key, one in value.items():
            if key not in known:
                # Not an error by itself: the server refuses unknown keys, the command line warns.
                yield place, key, list(known)
            else:
                yield from _unknown_keys(known[key], one, (*place, key))
    elif get_origin(kind) is dict and isinstance(value, dict):
        for key, one in value.items():
            yield from _unknown_keys(inner[1], one, (*place, key))
    elif get_origin(kind) is list and isinstance(value, list):
        for at, one in enumerate(value):
            yield from _unknown_keys(inner[0], one, (*place, str(at)))
    else:
        for one in inner:  # the parts of a union or of an annotation
            yield from _unknown_keys(one, value, place)


def keys_of(model: type) -> dict[str, Any]:
    """The keys of a model or a dataclass with their types; none for every other type."""
    if issubclass(model, BaseModel):
        return {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    return {field.name: field.type for field in fields(model)} if is_dataclass(model) else {}


def set_variables(path: Path) -> None:
    """Set the variables of a file of `NAME=value` lines. Variables that are set already stay."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", path=str(path)) from None
    for line in map(str.strip, text.splitlines()):
        name, sign, value = line.removeprefix("export ").partition("=")
        if sign and not line.startswith("#"):
            os.environ.setdefault(name.strip(), value.strip().strip("\"'"))
