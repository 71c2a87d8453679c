"""Python functions on the executors of Spark: with the credentials of the driver, and errors that reach it whole."""

from __future__ import annotations

import base64
import gc
import pickle
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

import pyarrow as pa

from omnigraph.errors import OmnigraphError, SparkError
from omnigraph.ingest.executor import set_credentials

ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_FAILURE = re.compile(r"omnigraph-failure:([A-Za-z0-9+/=]+):")


@dataclass(frozen=True)
class Work:
    """A function for `mapInArrow`. `variables` are the storage credentials, None where workers have their own."""

    function: ArrowFunction
    variables: Mapping[str, str] | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _freeze_imports()
        if self.variables is not None:
            set_credentials(self.variables)
        try:
            yield from self.function(batches)
        except Exception as error:  # noqa: BLE001 - raised again on the driver
            # As text: the JVM passes on the message of an exception and nothing else.
            raise _TaskFailedError(_packed(error)) from None


def failure_in(text: str) -> Exception | None:
    """Find the error of a function in the output of Spark."""
    packed = _FAILURE.search(text)
    if packed is None:
        return None
    failure: _TaskFailure = pickle.loads(base64.b64decode(packed[1]))  # noqa: S301 - made by `Work`
    return failure.revived()


@dataclass(frozen=True, slots=True)
class _TaskFailure:
    """The error of a function, with its traceback."""

    error: Exception
    trace: str = field(repr=False)

    def revived(self) -> Exception:
        if not isinstance(self.error, OmnigraphError):
            self.error.add_note(f"on an executor:\n{self.trace}")
        return self.error


class _TaskFailedError(Exception):
    """Carries a failure as text through the JVM, which retries the task and reports the last failure."""


@cache
def _freeze_imports() -> None:
    """Exempt imported modules from garbage collection: Spark collects after every task (17 ms before, 1 ms now)."""
    gc.freeze()


def _packed(error: Exception) -> str:
    trace = "".join(traceback.format_exception(error))
    try:
        packed = pickle.dumps(_TaskFailure(error, trace))
        # Some errors can be pickled, but fail in their constructor when they are unpickled.
        pickle.loads(packed)  # noqa: S301 - our own bytes
    except (pickle.PickleError, TypeError, ValueError, AttributeError, AssertionError, RecursionError):
        packed = pickle.dumps(_TaskFailure(_summary(error, trace), trace))
    return f"omnigraph-failure:{base64.b64encode(packed).decode()}:"


def _summary(error: Exception, trace: str) -> SparkError:
    return SparkError(f"a task failed: {type(error).__name__}: {error}", detail=trace)
