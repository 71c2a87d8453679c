"""Spark DataFrames as the input of a load: checked on the driver, read where they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from omnigraph.api.options import Engine
from omnigraph.errors import InputColumnsError, InputError, ParameterError
from omnigraph.formats.tables import table_batches
from omnigraph.ingest.distributed import FrameInput
from omnigraph.ingest.load import type_named
from omnigraph.lang.catalog import Catalog
from omnigraph.storage.columns import declared_of, table_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
    found = FrameInput(table_key(type_named(name, catalog)), f"<{name}>", frame)
    if frame.isStreaming:
        hint = "load each batch with foreachBatch"
        raise InputError(f"the DataFrame for {name} is a stream", path=found.source, hint=hint)
    _refuse_local_times(found.source, frame)
    # A batch without rows: wrong columns are reported once, and not by the first task that meets them.
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

    reader = pa.RecordBatchReader.from_batches(to_arrow_schema(frame.schema, timezone="UTC"), [])
    for _ in table_batches(reader, declared_of(catalog, found.type_key), {}, source=found.source):
        pass
    return found


def _refuse_local_times(source: str, frame: DataFrame) -> None:
    """Refuse columns of local times: which instant one means depends on a zone that is not in the data."""
    from pyspark.sql.types import TimestampNTZType  # noqa: PLC0415

    for field in frame.schema.fields:
        if isinstance(field.dataType, TimestampNTZType):
            message = f"{source}: column {field.name!r} is a timestamp_ntz, a local time without a time zone"
            hint = f"convert it: to_utc_timestamp({field.name}, 'Europe/Berlin')"
            raise InputColumnsError(message, path=source, columns=frame.columns, hint=hint)
