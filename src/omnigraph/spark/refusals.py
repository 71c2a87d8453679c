"""Our errors in the words of Spark, which passes on the text that a worker prints and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from omnigraph.errors import OmnigraphError

_HIDE = "SPARK_HIDE_TRACEBACK"  # pyspark reads it when it prints the error that a worker ends with


@contextmanager
def shown_plainly() -> Iterator[None]:
    """Have Spark show an error of ours as its text and its code, without the stack of the worker."""
    try:
        yield
    except OmnigraphError as error:
        os.environ[_HIDE] = "1"  # in this process, which ends with the error
        error.add_note(f"code: {error.code}")
        raise
