"""Tasks as bytes for the way to an executor: what all of them share is packed once."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Packed:
    """Tasks, and the parts that each of them has in common with all others."""

    tasks: list[bytes]
    common: tuple[Any, ...]


def pack(tasks: Sequence[Any]) -> Packed:
    """Pack tasks. A field that is the same object in each of them, such as a catalog, becomes common."""
    common = tuple(_common(tasks))
    return Packed([_pack_one(task, common) for task in tasks], common)


def unpack(task: bytes, common: Sequence[Any]) -> Any:
    return _Unpickler(io.BytesIO(task), common).load()


def _common(tasks: Sequence[Any]) -> list[Any]:
    first = tasks[0]
    if len(tasks) == 1 or not is_dataclass(first) or any(type(task) is not type(first) for task in tasks):
        return []
    values = [(field.name, getattr(first, field.name)) for field in fields(first)]
    return [value for name, value in values if all(getattr(task, name) is value for task in tasks)]


def _pack_one(task: Any, common: Sequence[Any]) -> bytes:
    file = io.BytesIO()
    _Pickler(file, common).dump(task)
    return file.getvalue()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, common: Sequence[Any]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._at = {id(value): at for at, value in enumerate(common)}

    def persistent_id(self, value: Any) -> int | None:
        return self._at.get(id(value))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, common: Sequence[Any]) -> None:
        super().__init__(file)
        self._common = common

    def persistent_load(self, at: int) -> Any:
        return self._common[at]
