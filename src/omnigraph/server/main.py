"""The `omnigraph-server` command: read the configuration, listen, announce the address, serve."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from omnigraph.core.extras import require
from omnigraph.errors import OmnigraphError, ServerStartError
from omnigraph.server import logs
from omnigraph.server.config import Options, ServerPlan, is_configured, plan_of
from omnigraph.server.settings import METRICS_FOLDER
from omnigraph.settings import FILE
from omnigraph.version import __version__

LISTENING = "OMNIGRAPH_LISTEN_ADDR"
NOTHING_TO_SERVE = 64
_BACKLOG = 2048

app = typer.Typer(
    name="omnigraph-server",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - the signature of a typer callback
    if wanted:
        sys.stdout.write(f"omnigraph-server {__version__}\n")
        raise typer.Exit


@app.command()
def serve(
    uri: Annotated[str | None, typer.Argument(help="The graph: a path or an s3:// address.")] = None,
    *,
    config: Annotated[
        str | None, typer.Option(help=f"The configuration file. Default: {FILE}, if it exists.", metavar="FILE")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Serve this graph of the configuration.", metavar="NAME")] = None,
    bind: Annotated[str | None, typer.Option(help="The listen address; 127.0.0.1:8080.", metavar="HOST:PORT")] = None,
    workers: Annotated[int | None, typer.Option(help="The number of server processes; 1.", min=1, max=256)] = None,
    unauthenticated: Annotated[bool, typer.Option("--unauthenticated", help="Serve without tokens.")] = False,
    require_all_graphs: Annotated[
        bool, typer.Option("--require-all-graphs", help="Do not start if any graph cannot be served.")
    ] = False,
    _version: Annotated[
        bool, typer.Option("--version", "-v", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Serve graphs over HTTP."""
    options = Options(uri, config, target, bind, workers, unauthenticated, require_all_graphs)
    if not is_configured(options, os.environ):
        hint = f"pass the address of a graph, or --config FILE, or write {FILE} in this directory"
        _print_error(ServerStartError("no graph configured", hint=hint))
        raise typer.Exit(NOTHING_TO_SERVE)
    # After the arguments were understood: `--help` and a wrong option need none of them.
    for library in ("fastapi", "uvicorn", "prometheus_client"):
        require(library, "omnigraph[server]")
    logs.set_up()
    plan = plan_of(options, os.environ)
    with _listening(plan) as listening:
        _serve(plan, listening)


def _serve(plan: ServerPlan, listening: socket.socket) -> None:
    ready = partial(_announce, listening)
    with tempfile.TemporaryDirectory(prefix="omnigraph-server-") as folder:
        serving = replace(plan.serving, folder=folder)
        if plan.workers == 1:
            from omnigraph.server.worker import serve  # noqa: PLC0415 - loads the engine, which a supervisor does not need

            serve(serving, listening, ready)
            return
        from omnigraph.server.supervisor import supervise  # noqa: PLC0415

        metrics = Path(folder) / "metrics"
        metrics.mkdir()
        # In the environment, because prometheus_client reads it when it is imported, in the processes that are spawned
        # later.
        os.environ[METRICS_FOLDER] = str(metrics)
        supervise(serving, listening, plan.workers, ready)


@contextmanager
def _listening(plan: ServerPlan) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in plan.host else socket.AF_INET
    try:
        listening = socket.create_server((plan.host, plan.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        message = f"cannot listen at {plan.host}:{plan.port}: {error.strerror or error}"
        raise ServerStartError(message, hint="choose another address with --bind") from None
    with listening:
        yield listening


def _announce(listening: socket.socket) -> None:
    """Print the address, for a program that waits until the server is ready."""
    # Asked of the socket: with port 0 the kernel has chosen one.
    host, port = listening.getsockname()[:2]
    sys.stdout.write(f"{LISTENING}={f'[{host}]' if ':' in host else host}:{port}\n")
    sys.stdout.flush()


def _print_error(error: OmnigraphError) -> None:
    sys.stderr.write(f"Error: {error}\n")


def main() -> None:
    """Run the server. Exit codes: 0 after a signal, 1 if it cannot start, 2 for wrong arguments, 64 without a graph."""
    try:
        app()
    except OmnigraphError as error:
        _print_error(error)
        raise SystemExit(1) from None
