"""Optional libraries: import one, or say how to install it."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from omnigraph.errors import LibraryMissingError


def require(name: str, requirement: str | None = None) -> None:
    """Raise if a library is not installed. Nothing is imported, so a process that only starts others stays small."""
    if find_spec(name) is None:
        # A shell reads brackets as a pattern, hence the quotes.
        command = f"pip install '{requirement}'" if requirement else f"pip install {name}"
        raise LibraryMissingError(f"{name} is not installed", library=name, hint=f"install it with: {command}")


def library(name: str, requirement: str | None = None) -> Any:
    """Import a library that only some features need."""
    require(name, requirement)
    return import_module(name)
