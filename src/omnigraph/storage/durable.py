"""A seam before every durable write, so that a test can count them or die at the k-th."""

from __future__ import annotations

from collections.abc import Callable

Hook = Callable[[str, str], None]

on_durable_write: Hook | None = None


def set_hook(hook: Hook | None) -> Hook | None:
    """Have `hook(operation, path)` called before every durable write; return the hook that was there."""
    global on_durable_write
    previous, on_durable_write = on_durable_write, hook
    return previous


def durable_write(operation: str, path: str) -> None:
    """Say that the next step makes something durable. Call it before the step."""
    hook = on_durable_write
    if hook is not None:
        hook(operation, path)
