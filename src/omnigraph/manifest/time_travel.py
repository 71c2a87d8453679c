"""Time travel: the manifest as a commit left it, unless a cleanup has removed that state."""

from __future__ import annotations

from omnigraph.api.results import Commit
from omnigraph.errors import HistoryReclaimedError, StorageError
from omnigraph.manifest.migrations import WHOLE, read_stamp
from omnigraph.manifest.publisher import Manifest
from omnigraph.manifest.state import ManifestState
from omnigraph.storage.lance_errors import Failure, classify


def state_at(manifest: Manifest, commit: Commit) -> ManifestState:
    """Load the state that a commit made."""
    try:
        state = manifest.load(commit.branch, commit.manifest_version)
    except StorageError as error:
        # Only an absent file means a cleanup. A disk that fails must not look like one.
        if classify(error) is not Failure.NOT_FOUND:
            raise
        raise reclaimed(commit) from error
    if read_stamp(state.dataset) < WHOLE:
        return state
    made = state.at(commit)
    # A swap that landed behind the head may have taken the number of a version that was cleaned up.
    if made is None:
        raise reclaimed(commit)
    return made


def reclaimed(commit: Commit) -> HistoryReclaimedError:
    message = f"the state of commit {commit.commit_id} was cleaned up"
    hint = "read a later commit; a change feed starts again from a baseline"
    return HistoryReclaimedError(message, commit_id=commit.commit_id, hint=hint)
