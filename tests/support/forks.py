"""Processes that start at once: forked from one in which everything is imported, and Lance was not used."""

from __future__ import annotations

import atexit
import importlib
import multiprocessing
import os
import pkgutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pyarrow.acero
import pytest
import ulid
from typer.testing import CliRunner

import omnigraph
from omnigraph.cli import app, main
from omnigraph.lang import Source, format_queries, format_schema

_PRELOADED = (pyarrow.acero, pytest, ulid)  # to be imported only once
for module in pkgutil.walk_packages(omnigraph.__path__, "omnigraph."):
    if not module.name.startswith(("omnigraph.server", "omnigraph.spark")) and "__main__" not in module.name:
        importlib.import_module(module.name)
# Parsers are made only once, and the libraries of the command line load what they need only when a command runs.
assert format_schema(Source("node A {\n    a: String\n}\n"))
assert format_queries(Source("query a() {\n    match { $a: A }\n    return { $a.a }\n}\n"))
assert CliRunner().invoke(app, ["fmt", "--check", os.devnull]).exit_code == 1

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])
warnings.filterwarnings("ignore", message="lance is not fork-safe")  # it is as long as it was not used before
_PATIENCE = 300.0
_ROOT = Path(__file__).parents[2]


def forked(target: Callable[..., object], args: Sequence[Any] = (), *, daemon: bool = False) -> BaseProcess:
    """A process that is to be started. Its environment is that of now: the process it is forked from is older."""
    with chdir(_ROOT):  # where that process finds this module
        forkserver.ensure_running()
    return FORKS.Process(target=_run, args=(target, args, dict(os.environ)), daemon=daemon)


def forked_program(
    words: Sequence[str], streams: Sequence[str | Path], directory: Path, environment: Mapping[str, str]
) -> int:
    """Run `omnigraph` in a process of its own, with three files for what it reads and prints: how it ended."""
    process = forked(_become, (words, streams, directory, dict(environment)))
    process.start()
    process.join(_PATIENCE)
    process.kill()
    assert process.exitcode is not None, f"{words} came to no end"
    return process.exitcode


def _run(target: Callable[..., object], args: Sequence[Any], environment: Mapping[str, str]) -> None:
    os.environ.update(environment)
    target(*args)


def _become(
    words: Sequence[str], streams: Sequence[str | Path], directory: Path, environment: Mapping[str, str]
) -> None:
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    for number, stream in enumerate(streams):
        os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT | os.O_APPEND if number else os.O_RDONLY), number)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", 1)
    sys.argv = [*words]
    try:
        main()
    finally:
        atexit._run_exitfuncs()  # which a process of multiprocessing leaves out
