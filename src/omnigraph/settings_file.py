"""Reading a YAML file of settings: every wrong value is told with its place in the file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnigraph.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping in a file of settings, and where it stands there."""

    path: str
    values: Mapping[str, Any]
    place: str = ""

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        if isinstance(value, bool | list | dict):
            raise self.problem(name, "must be a text")
        return None if value is None else str(value)

    def number(self, name: str) -> int | None:
        value = self.values.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise self.problem(name, "must be a whole number")
        return value

    def amount(self, name: str, *, least: float) -> float | None:
        """A number, whole or not."""
        value = self.values.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value >= least):
            raise self.problem(name, f"must be a number, at least {least:g}")
        return value

    def flag(self, name: str) -> bool:
        value = self.values.get(name)
        if not isinstance(value, bool | None):
            raise self.problem(name, "must be true or false")
        return bool(value)

    def one_of(self, name: str, allowed: Iterable[str]) -> str | None:
        value = self.text(name)
        if value is not None and value not in allowed:
            raise self.problem(name, f"is '{value}', which is not one of {', '.join(allowed)}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.values.get(name)
        if value is not None and not isinstance(value, list):
            raise self.problem(name, "must be a list")
        return tuple(map(str, value or ()))

    def section(self, name: str) -> Section:
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.problem(name, "must be a mapping")
        return Section(self.path, {str(key): one for key, one in (value or {}).items()}, self._place_of(name))

    def sections(self, name: str) -> dict[str, Section]:
        """The sections below one, by their names."""
        outer = self.section(name)
        return {key: outer.section(key) for key in outer.values}

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Refuse a key that means nothing: it may be one that is misspelt."""
        from omnigraph.lang.source import did_you_mean  # noqa: PLC0415 - loads the parser

        known = list(known)
        for name in self.values:
            if name not in known:
                raise self.problem(name, "is not a setting", hint=did_you_mean(name, known))

    def problem(self, name: str, what: str, *, hint: str | None = None) -> ConfigError:
        place = self._place_of(name)
        return ConfigError(f"{self.path}: {place} {what}", path=self.path, hint=hint)

    def _place_of(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place else name


def read_settings(path: Path) -> Section | None:
    """Read a file of settings; None if there is none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", path=str(path)) from None
    import yaml  # noqa: PLC0415 - only who has such a file needs it

    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path} is not YAML: {error}", path=str(path), hint="mend it") from None
    if not isinstance(found, dict | None):
        raise ConfigError(f"{path} must hold a mapping", path=str(path), hint="write `key: value`")
    return Section(str(path), {str(key): one for key, one in (found or {}).items()})


def set_variables(path: Path) -> None:
    """Set the variables of a file of `NAME=value` lines; what the environment has already stays."""
    for line in _lines(path):
        name, sign, value = line.removeprefix("export ").partition("=")
        if sign:
            os.environ.setdefault(name.strip(), value.strip().strip("\"'"))


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", path=str(path)) from None
    return [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
