"""Which vectors are made."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    FILL_MISSING = "fill_missing"  # those that are not there
    REEMBED_SELECTED = "reembed_selected"  # those of the records that were picked, there or not
    REEMBED_ALL = "reembed_all"  # all, there or not
    CLEAN = "clean"  # none: they are taken away
