"""Rows of one state of a table in the columns of another: renamed, widened, filled, or null."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Projection:
    """How to read the columns of `schema`.

    `stored` has the name that a column has in the table; the others are not there, and have the value of `fills`, or
    null.
    """

    schema: pa.Schema
    stored: Mapping[str, str]
    fills: Mapping[str, pa.Scalar] = field(default_factory=dict)

    def names(self, wanted: Iterable[str]) -> list[str]:
        """Return the columns to read, for some columns to get."""
        return [self.stored[name] for name in wanted if name in self.stored]

    def of(self, rows: pa.Table, wanted: Iterable[str] | None = None) -> pa.Table:
        """Return rows that were read by `names` in the columns of the schema, or some of them."""
        fields = [self.schema.field(name) for name in (wanted if wanted is not None else self.schema.names)]
        return pa.table([self._column(rows, one) for one in fields], schema=pa.schema(fields))

    def _column(self, rows: pa.Table, wanted: pa.Field) -> Any:
        if wanted.name in self.stored:
            found = rows[self.stored[wanted.name]]
            return found if found.type == wanted.type else found.cast(wanted.type)
        fill = self.fills.get(wanted.name)
        return pa.nulls(rows.num_rows, wanted.type) if fill is None else pa.repeat(fill, rows.num_rows)
