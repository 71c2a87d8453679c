"""Running the commands of the program: in this process, or as the real program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from typer.testing import CliRunner

from omnigraph.cli import app
from omnigraph.errors import OmnigraphError
from tests.support.forks import forked_program

PROGRAM = Path(sys.executable).parent / "omnigraph"


@dataclass(frozen=True, slots=True)
class Run:
    """How a command has ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


def command(*arguments: str) -> Run:
    """Run a command in this process; errors leave it as they leave `main`."""
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "NO_COLOR": "1"})
    if isinstance(result.exception, OmnigraphError):
        return Run(1, result.stdout, f"{result.stderr}{result.exception}")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Run(result.exit_code, result.stdout, result.stderr)


def error_on_stdout(run: Run) -> bool:
    """Tell whether a failed command printed its error as a document; without `--json` it prints nothing."""
    if not run.out:
        return False
    document = run.document
    # People read the same message on stderr.
    assert document["error"] in run.err.replace("Error: ", "")
    return True


def real_program(*arguments: str | Path, stdin: str = "", environment: dict[str, str] | None = None) -> Run:
    """Run the real program; whatever happens, it must not end with a traceback."""
    run = subprocess.run([PROGRAM, *arguments], input=stdin.encode(), capture_output=True, env=environment, check=False)
    assert b"Traceback" not in run.stderr, run.stderr
    return Run(run.returncode, run.stdout.decode(), run.stderr.decode())


def quick_program(*arguments: str | Path, stdin: str = "", environment: dict[str, str] | None = None) -> Run:
    """Run the real program as `real_program` does, in a process that needs not start Python first."""
    with TemporaryDirectory() as folder:
        streams = given, out, err = [Path(folder) / name for name in ("in", "out", "err")]
        given.write_text(stdin, encoding="utf-8", newline="")
        words = ["omnigraph", *map(str, arguments)]
        code = forked_program(words, streams, Path.cwd(), environment or os.environ)
        run = Run(code, out.read_bytes().decode(), err.read_bytes().decode())
    assert "Traceback" not in run.err, run.err
    return run
