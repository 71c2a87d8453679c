"""What commits changed, as documents and lines of JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from omnigraph.api.changes import (
    Baseline,
    Change,
    ChangeBlock,
    ChangeOperation,
    ChangePage,
    Difference,
    DiffStats,
    DiffTally,
    EntityKind,
    SchemaDifference,
)
from omnigraph.api.codec import decode, encode
from omnigraph.api.documents import Document, commit_of, commit_output
from omnigraph.api.results import Commit
from omnigraph.core.refs import MAIN
from omnigraph.core.values import blob_content, blob_text

_ENDS = ("src", "dst")


def cause_output(commit: Commit) -> Document:
    """Write the commit of some changes: with the members of every commit, and those that only a feed has."""
    return {
        **commit_output(commit),
        "authored_branch": commit.branch or MAIN,
        "authored_at": commit.created_at,
    }


def entity_change_output(change: Change) -> Document:
    """One changed entity. `blobs` names the properties whose texts stand for bytes."""
    document: Document = {
        "kind": change.kind,
        "type": {"id": f"{change.kind}:{change.type_name}", "name": change.type_name},
        "id": change.id,
        "op": change.operation,
    }
    for side, properties in (("before", change.before), ("after", change.after)):
        if properties is not None:
            plain = {name: _plain(value) for name, value in properties.items()}
            document[side] = {"properties": plain, **_ends(change, side)}
    blobs = {name for image in (change.before, change.after) for name in _blobs(image)}
    more = {"changed": list(change.changed), "blobs": sorted(blobs)}
    return {**document, **{name: names for name, names in more.items() if names}}


def _ends(change: Change, side: str) -> Document:
    """The ends of an edge. Those from before it was moved are not known."""
    moved = side == "before" and any(end in change.changed for end in _ENDS)
    if change.endpoints is None or moved:
        return {}
    return {"endpoints": dict(zip(("from", "to"), change.endpoints, strict=True))}


def _blobs(image: Mapping[str, Any] | None) -> list[str]:
    return [name for name, value in (image or {}).items() if isinstance(value, bytes)]


def _plain(value: Any) -> Any:
    return blob_text(value) if isinstance(value, bytes) else value


def entity_change_of(document: Mapping[str, Any]) -> Change:
    blobs = document.get("blobs", ())
    image = document.get("after") or document["before"]
    ends = image.get("endpoints")
    return Change(
        ChangeOperation(document["op"]),
        EntityKind(document["kind"]),
        document["type"]["name"],
        document["id"],
        None if ends is None else (ends["from"], ends["to"]),
        _properties(document.get("before"), blobs),
        _properties(document.get("after"), blobs),
        tuple(document.get("changed", ())),
    )


def _properties(image: Mapping[str, Any] | None, blobs: list[str]) -> dict[str, Any] | None:
    if image is None:
        return None
    return {name: _bytes(value) if name in blobs else value for name, value in image["properties"].items()}


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else blob_content(value)


def block_output(block: ChangeBlock) -> Document:
    return {"cause": cause_output(block.cause), "changes": [entity_change_output(one) for one in block.changes]}


def block_of(document: Mapping[str, Any]) -> ChangeBlock:
    return ChangeBlock(commit_of(document["cause"]), tuple(map(entity_change_of, document["changes"])))


def feed_output(page: ChangePage) -> Document:
    return {"blocks": [block_output(block) for block in page.blocks], **_continued(page), "caught_up": page.caught_up}


def feed_of(document: Mapping[str, Any]) -> ChangePage:
    blocks = tuple(map(block_of, document["blocks"]))
    return ChangePage(blocks, document.get("cursor"), document.get("next_page_token"), document["caught_up"])


def commit_changes_output(page: ChangePage) -> Document:
    (block,) = page.blocks
    return {**block_output(block), **_continued(page), "caught_up": page.caught_up}


def commit_changes_of(document: Mapping[str, Any]) -> ChangePage:
    return feed_of({**document, "blocks": [document]})


def _continued(page: ChangePage) -> Document:
    found = {"cursor": page.cursor, "next_page_token": page.next_page_token}
    return {name: value for name, value in found.items() if value is not None}


def baseline_output(begins: Baseline) -> Document:
    """The last line of a baseline, behind the entities."""
    return {"baseline": {"snapshot_commit_id": begins.commit_id, "resume_cursor": begins.cursor}}


def beginning_output(begins: Baseline) -> Document:
    """A baseline without its entities: what to export, and the cursor to go on with."""
    return {
        "snapshot_commit_id": begins.commit_id,
        "resume_cursor": begins.cursor,
        "tables": list(begins.tables),
    }


def beginning_of(document: Mapping[str, Any]) -> Baseline:
    return Baseline(document["snapshot_commit_id"], document["resume_cursor"], tuple(document["tables"]))


class Show(StrEnum):
    """How much of a difference is sent."""

    HEAD = "head"  # between which commits it is, and how the types differ
    STATS = "stats"  # and how many entities of each type
    CHANGES = "changes"  # and each of them


@dataclass(frozen=True, slots=True)
class DiffHead:
    """What a difference is, without its changes."""

    before: Commit
    after: Commit
    schema: SchemaDifference


def diff_head_output(found: Difference) -> Document:
    return {
        "from": commit_output(found.before.commit),
        "to": commit_output(found.after.commit),
        "schema": encode(found.schema),
    }


def diff_head_of(document: Mapping[str, Any]) -> DiffHead:
    schema: SchemaDifference = decode(SchemaDifference, document["schema"])
    return DiffHead(commit_of(document["from"]), commit_of(document["to"]), schema)


def diff_stats_output(stats: DiffStats) -> Document:
    return {"stats": encode(stats.counts), "compared": list(stats.compared)}


def diff_stats_of(document: Mapping[str, Any]) -> DiffStats:
    counts = {key: operation_counts(one) for key, one in document["stats"].items()}
    return DiffStats(counts, tuple(document["compared"]))


def operation_counts(document: Mapping[str, int]) -> dict[ChangeOperation, int]:
    return {ChangeOperation(name): count for name, count in document.items()}


def diff_lines(found: Difference, show: Show = Show.CHANGES) -> Iterator[str]:
    """A difference as lines of JSON: the head, the changes in parts, and last how many there were.

    A line before each part names the type of its changes, how many there are, and how they were found.
    """
    yield _line(diff_head_output(found))
    if show is Show.HEAD:
        return
    tally = DiffTally()
    for rows in found.rows():
        tally.add(rows)
        if show is Show.CHANGES:
            yield _line({"rows": {"table_key": rows.key, "counts": encode(rows.counts), "compared": rows.compared}})
            yield from (_line(entity_change_output(change)) for change in rows.changes())
    yield _line(diff_stats_output(tally.stats))


def _line(document: Document) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"
