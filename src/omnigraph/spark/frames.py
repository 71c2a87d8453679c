"""Spark DataFrames as the input of a load: checked on the driver, read where they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from omnigraph.api.options import Engine
from omnigraph.errors import InputColumnsError, InputError, ParameterError
from omnigraph.formats.tables import Columns, table_batches
from omnigraph.ingest.distributed import FrameInput
from omnigraph.ingest.load import type_named
from omnigraph.lang.catalog import Catalog
from omnigraph.storage.columns import declared_of, table_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def frame_inputs(
    frames: Mapping[str, DataFrame], catalog: Catalog, engine: Engine
) -> tuple[list[FrameInput], SparkSession]:
    """Check DataFrames by type before any of them is read; return them and their session."""
    if engine is Engine.LOCAL:
        message = "a Spark DataFrame cannot be loaded with engine 'local': its rows are on Spark"
        raise ParameterError(message, parameter="engine", hint='leave out engine, or pass "spark"')
    sessions = [frame.sparkSession for frame in frames.values()]
    if any(session is not sessions[0] for session in sessions):
        message = "the DataFrames belong to different Spark sessions"
        raise InputError(message, path="<data>", hint="make all of them with one session")
    return [_checked(name, frame, catalog) for name, frame in frames.items()], sessions[0]


def _checked(name: str, frame: DataFrame, catalog: Catalog) -> FrameInput:
    if frame.isStreaming:
        hint = "load each batch with foreachBatch"
        raise InputError(f"the DataFrame for {name} is a stream", path=f"<{name}>", hint=hint)
    return rows_input(name, frame.schema, catalog, {}, frame)


def rows_input(
    name: str, schema: StructType, catalog: Catalog, columns: Columns, rows: DataFrame | None = None
) -> FrameInput:
    """Describe the rows of one type, and check their columns before any of them is read."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

    declared = type_named(name, catalog)
    source = f"<{declared.name}>"
    _refuse_local_times(source, schema)
    found = FrameInput(
        table_key(declared), source, rows, to_arrow_schema(schema, timezone="UTC"), tuple(columns.items())
    )
    # A batch without rows: wrong columns are reported once, and not by the first task that meets them.
    reader = pa.RecordBatchReader.from_batches(found.schema, [])
    for _ in table_batches(reader, declared_of(catalog, found.type_key), columns, source=source):
        pass
    return found


def _refuse_local_times(source: str, schema: StructType) -> None:
    """Refuse columns of local times: which instant one means depends on a zone that is not in the data."""
    from pyspark.sql.types import TimestampNTZType  # noqa: PLC0415

    for field in schema.fields:
        if isinstance(field.dataType, TimestampNTZType):
            message = f"{source}: column {field.name!r} is a timestamp_ntz, a local time without a time zone"
            hint = f"convert it: to_utc_timestamp({field.name}, 'Europe/Berlin')"
            raise InputColumnsError(message, path=source, columns=schema.names, hint=hint)
