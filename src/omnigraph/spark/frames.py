"""Spark DataFrames as the input of a load: checked on the driver, read where they are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from omnigraph.api.options import Engine
from omnigraph.errors import InputColumnsError, InputError, ParameterError, SparkError
from omnigraph.formats.sources import MappedType, mapped
from omnigraph.formats.tables import table_batches
from omnigraph.ingest.distributed import FrameInput
from omnigraph.ingest.load import type_named
from omnigraph.lang.catalog import Catalog
from omnigraph.spark.jobs import SparkJobs
from omnigraph.storage.columns import declared_of, table_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def frame_inputs(
    frames: Mapping[str, DataFrame],
    catalog: Catalog,
    engine: Engine,
    mapping: str | os.PathLike[str] | Mapping[str, Any] | None = None,
) -> tuple[list[FrameInput], SparkSession]:
    """Check DataFrames by type before any of them is read; return them and their session.

    The mapping is one of files: a DataFrame counts as a file of its name.
    """
    if engine is Engine.LOCAL:
        message = "a Spark DataFrame cannot be loaded with engine 'local': its rows are on Spark"
        raise ParameterError(message, parameter="engine", hint='leave out engine, or pass "spark"')
    sessions = [frame.sparkSession for frame in frames.values()]
    if any(session is not sessions[0] for session in sessions):
        message = "the DataFrames belong to different Spark sessions"
        raise InputError(message, path="<data>", hint="make all of them with one session")
    if getattr(sessions[0], "is_stopped", False):  # of a client of Connect, which would raise a ValueError of gRPC
        message = "the Spark session of the DataFrames has ended"
        raise SparkError(message, hint="make them again with a new session", detail="")
    jobs = SparkJobs(sessions[0])
    inputs = []
    for name, frame in frames.items():
        types = mapped(name, mapping, catalog) or [MappedType(type_named(name, catalog))]
        # By `call`: a session that has died is then an error of ours.
        _refuse_stream(name, is_stream=jobs.call("columns", partial(getattr, frame, "isStreaming")))
        schema = jobs.call("columns", partial(getattr, frame, "schema"))
        inputs += [rows_input(one, schema, catalog, frame) for one in types]
    return inputs, sessions[0]


def _refuse_stream(name: str, *, is_stream: bool) -> None:
    if is_stream:
        hint = "load each batch with foreachBatch"
        raise InputError(f"the DataFrame for {name} is a stream", path=f"<{name}>", hint=hint)


def rows_input(
    mapped_type: MappedType, schema: StructType, catalog: Catalog, rows: DataFrame | None = None
) -> FrameInput:
    """Describe the rows of one type, and check their columns before any of them is read."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

    declared, columns = mapped_type.declared, dict(mapped_type.columns)
    source = f"<{declared.name}>"
    _refuse_local_times(source, schema)
    arrow = to_arrow_schema(schema, timezone="UTC")
    when, distinct = mapped_type.when, mapped_type.distinct
    found = FrameInput(table_key(declared), source, rows, arrow, mapped_type.columns, when, distinct)
    # A batch without rows: wrong columns are reported once, and not by the first task that meets them.
    reader = pa.RecordBatchReader.from_batches(found.schema, [])
    for _ in table_batches(reader, declared_of(catalog, found.type_key), columns, source=source, when=when):
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
