"""The calls of upkeep, which no server does for its clients: each says what to do instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Never

from omnigraph.client.asking import not_served
from omnigraph.client.steps import Steps
from omnigraph.embed.modes import Mode as EmbedMode
from omnigraph.manifest.rows import MAIN
from omnigraph.pipeline.progress import SILENT, Progress
from omnigraph.storage.reclaim import ORPHAN_AGE

# ruff: noqa: ARG002 - the parameters are those of a graph in storage


class UpkeepCalls:
    """What needs the storage itself."""

    def embed(
        self,
        types: Sequence[str] | None = None,
        *,
        mode: str = EmbedMode.FILL_MISSING,
        branch: str = MAIN,
        actor: str | None = None,
        progress: Progress = SILENT,
    ) -> Steps[Never]:
        """Not served: run it where the storage is."""
        raise not_served("embed")

    def ensure_indices(
        self,
        branch: str = MAIN,
        *,
        actor: str | None = None,
        engine: str = "auto",
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        progress: Progress = SILENT,
    ) -> Steps[Never]:
        """Not served: run it where the storage is."""
        raise not_served("ensure_indices")

    def optimize(
        self,
        branch: str = MAIN,
        *,
        actor: str | None = None,
        engine: str = "auto",
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        progress: Progress = SILENT,
    ) -> Steps[Never]:
        """Not served: run it where the storage is."""
        raise not_served("optimize")

    def cleanup(
        self,
        keep: int | None = None,
        older_than: timedelta | None = None,
        *,
        confirm: bool = False,
        orphan_age: timedelta = ORPHAN_AGE,
        progress: Progress = SILENT,
    ) -> Steps[Never]:
        """Not served: run it where the storage is."""
        raise not_served("cleanup")

    def repair(self, *, confirm: bool = False, force: bool = False) -> Steps[Never]:
        """Not served: run it where the storage is."""
        raise not_served("repair")

    def doctor(self) -> Steps[Never]:
        """Not served: run it where the storage is."""
        raise not_served("doctor")
