"""Python functions on the executors of Spark: with the credentials of the driver, and errors that reach it whole."""

from __future__ import annotations

import atexit
import base64
import gc
import json
import os
import pickle
import re
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path

import pyarrow as pa

from omnigraph.errors import OmnigraphError, SparkError
from omnigraph.ingest.executor import Credentials, set_credentials
from omnigraph.spark.package import check_package

ArrowFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_FAILURE = re.compile(r"omnigraph-failure:([A-Za-z0-9+/=]+):")
_HIDE = "SPARK_HIDE_TRACEBACK"  # pyspark reads it when it prints the error that a worker ends with


@dataclass(frozen=True)
class Work:
    """A function for `mapInArrow`. `credentials` is the file that has them, None where workers have their own.

    `package` is the digest of the package that was sent along, None where workers import the same files.
    """

    function: ArrowFunction
    credentials: str | None
    package: str | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _freeze_imports()
        if self.credentials is not None:
            take_credentials(Path(self.credentials))
        try:
            if self.package is not None:
                check_package(self.package)
            yield from self.function(batches)
        except Exception as error:  # noqa: BLE001 - raised again on the driver
            # As text: the JVM passes on the message of an exception and nothing else.
            raise _TaskFailedError(_packed(error)) from None


@lru_cache(maxsize=16)
def credentials_file(credentials: Credentials) -> str:
    """Write the storage credentials to a file that only this user can read, and return its name.

    A function goes through Spark as bytes, which keeps them in files of its own and on servers: no place for a secret.
    """
    path = Path(_private_directory(), os.urandom(8).hex())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(dict(credentials), file)
    return str(path)


@cache
def _private_directory() -> str:
    directory = tempfile.mkdtemp(prefix="omnigraph-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def take_credentials(path: Path) -> None:
    """Reach storage as the driver does; a worker that cannot read the file, in a container, say, has its own ways."""
    try:
        set_credentials(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, PermissionError):
        return


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


@contextmanager
def shown_plainly() -> Iterator[None]:
    """Have Spark show an error of ours as its text and its code, without the stack of the worker.

    For functions that Spark itself reports on: it passes on the text that a worker prints, and nothing else.
    """
    try:
        yield
    except OmnigraphError as error:
        os.environ[_HIDE] = "1"  # in this process, which ends with the error
        error.add_note(f"code: {error.code}")
        raise
