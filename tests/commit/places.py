"""Graphs that are made once and copied for every test, on a local disk and on an object store alike."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from omnigraph.core.location import Location
from tests.support.s3 import S3Server

Made = TypeVar("Made")


def copied(uri: str) -> str:
    """Copy a graph to an address of its own, on storage of the same kind."""
    location = Location.parse(uri)
    if location.is_local:
        return str(shutil.copytree(uri, f"{uri}-{uuid.uuid4().hex}"))
    return f"s3://{S3Server.of_environment().copy_bucket(location.bucket)}/{location.key}"


def once(make: Callable[[str], Made]) -> Callable[[str], Made]:
    """Make something at the first address of each kind of storage, and give it for all others."""
    made: dict[bool, Made] = {}

    def given(uri: str) -> Made:
        kind = Location.parse(uri).is_local
        if kind not in made:
            made[kind] = make(uri)
        return made[kind]

    return given


def mostly_local(names: str, cases: Sequence[Any], on_s3: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize a test by `root_uri` and more: all cases on a local disk, some on an object store as well."""
    values = [("local", case) for case in cases] + [("s3", case) for case in on_s3]
    flat = [(storage, *case) if isinstance(case, tuple) else (storage, case) for storage, case in values]
    return pytest.mark.parametrize(f"root_uri, {names}", flat, indirect=["root_uri"])
