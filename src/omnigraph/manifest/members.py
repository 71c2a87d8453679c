"""Refs to one of several commits that made a manifest version: Lance's own refs name the version only."""

from __future__ import annotations

import json
from typing import Literal
from urllib.parse import quote

from omnigraph.core.location import Location
from omnigraph.errors import CorruptGraphError
from omnigraph.manifest.state import ManifestState
from omnigraph.storage.durability import sync_file
from omnigraph.storage.objects import ObjectStore

DIRECTORY = "__refs"
Kind = Literal["branches", "tags"]


class NamedMembers:
    """Which commit a branch or a tag was created at, noted where its version alone does not say."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._objects = ObjectStore(location)

    def note(self, kind: Kind, name: str, state: ManifestState) -> None:
        """Note the commit before the ref is created, so that the ref is complete when it appears.

        The last of several is noted too: an earlier ref of the same name may have left a note.
        """
        if state.is_shared and state.head:
            document = {"manifest_version": state.head.manifest_version, "commit_id": state.head.commit_id}
            self._objects.write(_name(kind, name), json.dumps(document).encode())
            sync_file(self._location, _name(kind, name))

    def chosen(self, kind: Kind, name: str, state: ManifestState) -> ManifestState:
        """Return the state of the commit that a ref to this version was created at."""
        head = state.head
        if head is None or not state.is_shared:
            return state
        path = _name(kind, name)
        try:
            noted = json.loads(self._objects.read_if_exists(path) or b"{}")
            commit_id = noted["commit_id"] if noted.get("manifest_version") == head.manifest_version else None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            message = f"{path} is damaged: it names the commit of a ref"
            raise CorruptGraphError(message, path=path, hint="restore it from a backup") from error
        commit = state.commit(commit_id) if commit_id else None
        return (state.at(commit) if commit else None) or state


def _name(kind: Kind, name: str) -> str:
    return f"{DIRECTORY}/{kind}/{quote(name, safe='')}.json"
