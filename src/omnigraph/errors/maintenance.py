"""Requests for upkeep that cannot be carried out as they are made."""

from __future__ import annotations

from omnigraph.errors.base import OmnigraphError


class RetentionError(OmnigraphError):
    """A cleanup that was not told what to keep."""

    code = "retention_missing"
    http_status = 400


class RepairError(OmnigraphError):
    """A repair that is asked for in a way that has no meaning."""

    code = "repair_invalid"
    http_status = 400
