"""The documents of results: one table of names each, from which they are written, read, and described in OpenAPI."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from omnigraph.api import operations as op
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
    EntityVersion,
    SchemaDifference,
)
from omnigraph.api.codec import FORMS, Document, Form, Place, decode, encode
from omnigraph.api.operation import OPERATIONS, Description, Operation, description_of
from omnigraph.api.options import Resolution
from omnigraph.api.results import (
    Commit,
    Entry,
    LoadResult,
    LogEntry,
    MergeResult,
    MutationResult,
    NamedState,
    ResolveResult,
    SchemaResult,
    Snapshot,
    TableVersion,
    Tag,
)
from omnigraph.api.reviews import Approval, BranchRule, Review, ReviewCheck, RuleOfBranch
from omnigraph.api.rows import Explanation, PlanStep, Result
from omnigraph.core.refs import MAIN
from omnigraph.core.values import blob_content, blob_text
from omnigraph.errors import MergeConflict
from omnigraph.lang import evolution
from omnigraph.lang.schema_steps import SchemaPlan, Step
from omnigraph.version import INTERNAL_SCHEMA_VERSION

_T = TypeVar("_T")


def _named(*names: str) -> dict[str, Place]:
    """Members that have the names of their fields."""
    return {name: name.rstrip("?!") for name in names}


def _form(kind: type, name: str, places: Mapping[str, Place] | None = None, **more: Any) -> Form:
    """Declare the one form of a type."""
    FORMS[kind] = Form(kind, name, places, **more)
    return FORMS[kind]


_Json = dict[str, Any]  # whose members the OpenAPI document does not describe
_BRANCH_NAME = (lambda found: found.branch or MAIN, str)

# --- commits and states ------------------------------------------------------------------------------------------

_form(
    Commit,
    "CommitOutput",
    {
        # Several names for one field: the first are those of tables, the `graph_` ones those of the graph. Clients read
        # either.
        "graph_commit_id": "commit_id",
        "manifest_branch": "branch",
        "manifest_version": "manifest_version",
        "parent_commit_id": "parent_id",
        "merged_parent_commit_id": "merged_parent_id",
        **_named("actor_id", "created_at"),
        "graph_branch": "branch",
        "graph_manifest_version": "manifest_version",
        **_named("details?", "merged_branch?"),
    },
    docs={"created_at": "Microseconds since 1970."},
)
_form(LogEntry, "LogItem", {"*": "commit", **_named("branches", "tags")})
_form(NamedState, "StateOutput", {**_named("branch", "commit!"), "schema_source": "schema"})
_form(Tag, "TagOutput")
_TABLE = Form(
    Entry,
    "TableItem",
    {**{f"table_{name}": f"table.{name}" for name in ("key", "path", "version", "branch")}, "row_count": "row_count"},
    reads={"table": lambda one: TableVersion(*(one[f"table_{name}"] for name in ("key", "path", "version", "branch")))},
)
_DATASET = Form(
    Entry,
    "DatasetItem",
    {
        "entity_kind": (lambda entry: EntityKind(entry.key.partition(":")[0]), EntityKind),
        "type_name": (lambda entry: entry.key.partition(":")[2], str),
        "dataset_path": "table.path",
        "published_dataset_version": "table.version",
        "native_dataset_branch": "table.branch",
        "entity_count": "row_count",
    },
)
_form(
    Snapshot,
    "SnapshotOutput",
    {
        "branch": _BRANCH_NAME,
        "manifest_version": "manifest_version",
        "internal_schema_version": (lambda _: INTERNAL_SCHEMA_VERSION, int),
        "tables": (lambda found: found.entries.values(), [_TABLE]),
        "graph_branch": _BRANCH_NAME,
        "graph_manifest_version": "manifest_version",
        "datasets": (lambda found: found.entries.values(), [_DATASET]),
        # Only our own clients read it; see `unlisted`.
        "schema?": "schema",
    },
    reads={
        "branch": lambda found: None if found["branch"] == MAIN else found["branch"],
        "entries": lambda found: {one["table_key"]: _TABLE.read(one) for one in found["tables"]},
    },
    unlisted=("schema",),
)
FORMS[op.ListBranches] = Form(
    list,
    "BranchListOutput",
    {"branches": (sorted, list[str])},
    # HTTP lists the branches sorted, `Graph.branches` has main first.
    reads=lambda found: sorted(found["branches"], key=lambda name: (name != MAIN, name)),
)


# --- queries, mutations and loads --------------------------------------------------------------------------------


def read_head(result: Result, snapshot: str | None) -> Document:
    """Write what is known about rows: a read of a snapshot names the snapshot, any other its branch."""
    # A snapshot has no branch to report: the same commit can be on several.
    target = {"branch": result.branch if snapshot is None else None, "snapshot": snapshot}
    return {"query_name": result.query_name, "target": target, "row_count": len(result)}


def read_output(result: Result, snapshot: str | None) -> Document:
    columns = {"columns": result.columns} if result.columns else {}
    commit = {"graph_commit_id": result.commit.commit_id} if result.commit else {}
    return {**read_head(result, snapshot), **columns, "rows": result.rows, **commit}


_form(
    Explanation,
    "ExplainOutput",
    {
        "query_name": "query_name",
        "target": (lambda found: found.to_dict()["target"], _Json),
        "row_count": "rows",
        **_named("requests", "seconds"),
        "steps": (lambda found: encode(found.steps), list[_Json]),
        "commit": "commit",
    },
    reads={
        "branch": lambda found: found["target"]["branch"],
        "steps": lambda found: decode(list[PlanStep], found["steps"]),
    },
    unlisted=("commit",),
)
_form(
    MutationResult,
    "ChangeOutput",
    _named("branch", "query_name", "affected_nodes", "affected_edges", "actor_id", "commit"),
)

_form(
    ResolveResult,
    "ResolveOutput",
    _named("type_name", "branch", "candidates", "pairs", "groups", "edges_moved", "edges_dropped", "commit"),
)


def _loaded_tables(done: LoadResult) -> list[Document]:
    # Keys of tables, because a node type and an edge type may have one name.
    counts = {f"node:{name}": count for name, count in done.nodes.items()}
    counts |= {f"edge:{name}": count for name, count in done.edges.items()}
    return [{"table_key": key, "rows_loaded": count} for key, count in sorted(counts.items())]


def _loaded(counts: Mapping[str, int]) -> list[Document]:
    return [{"name": name, "entities_loaded": count, "rows_loaded": count} for name, count in sorted(counts.items())]


def _counts(loaded: list[Document]) -> dict[str, int]:
    return {one["name"]: one["entities_loaded"] for one in loaded}


# A load is described in both vocabularies: of tables and of entities.
_LOADED_TABLE = Form(dict, "LoadedTable", {}, added={"table_key": str, "rows_loaded": int})
_LOADED_TYPE = Form(dict, "LoadedType", {}, added={"name": str, "entities_loaded": int, "rows_loaded": int})
_form(
    LoadResult,
    "GraphBatchLoadOutput",
    {
        **_named("branch", "base_branch", "branch_created", "mode"),
        "tables": (_loaded_tables, [_LOADED_TABLE]),
        "nodes": (lambda done: _loaded(done.nodes), [_LOADED_TYPE]),
        "edges": (lambda done: _loaded(done.edges), [_LOADED_TYPE]),
        "total_entities": "total",
        "total_rows": "total",
        **_named("actor_id", "commit"),
    },
    reads={"nodes": lambda found: _counts(found["nodes"]), "edges": lambda found: _counts(found["edges"])},
)
INGEST = Form(LoadResult, "IngestOutput", {"uri": "@uri", "*": "."})


# --- merges and schemas ------------------------------------------------------------------------------------------


def _conflicts(found: Document) -> tuple[MergeConflict, ...]:
    return tuple(map(MergeConflict.of, found["conflicts"]))


_MERGED: dict[str, Place] = {
    "outcome": "outcome",
    "actor_id": "@actor",
    "changes": "changes",
    "conflicts": (lambda done: [conflict.to_dict() for conflict in done.conflicts], list[_Json]),
    **_named("compared", "commit"),
}
FORMS[op.MergeBranch] = MERGE = Form(
    MergeResult,
    "BranchMergeOutput",
    {**_named("source", "target", "source_commit?", "target_commit?"), **_MERGED},
    reads={"conflicts": _conflicts},
    added={"branch_deleted": bool | None, "branch_delete_error": str | None},
)
FORMS[op.RevertCommit] = REVERT = Form(
    MergeResult,
    "RevertOutput",
    {"reverted": "source", "branch": "target", **_MERGED},
    reads={"conflicts": _conflicts},
)
FORMS[op.PickCommit] = PICK = Form(
    MergeResult,
    "CherryPickOutput",
    {"picked": "source", "branch": "target", **_MERGED},
    reads={"conflicts": _conflicts},
)
FORMS[op.RestoreEntities] = RESTORED = Form(
    MergeResult,
    "RestoreEntitiesOutput",
    {"restored_from": "source", "branch": "target", **_MERGED},
    reads={"conflicts": _conflicts},
)


def resolution_of(given: Any) -> Resolution:
    """Who wins, in any of the forms that a caller may say it in, or in the one that a commit keeps."""
    match given:
        # Ambiguous with a mapping of types to sides, if a type were called `types`; but then the value would be a text.
        case {"types": dict()} | {"entities": list()} | {"default": str()} | {"heads": list()}:
            default = Resolution.of(given.get("default")).default
            types = Resolution.of(given.get("types", {})).types
            entities = Resolution.of(given.get("entities", [])).entities
            heads = given.get("heads")
            return Resolution(default, types, entities, (heads[0], heads[1]) if heads else None)
    return Resolution.of(given)


# Found by their class, so that a new step of a schema change is read without an entry here.
_STEPS = {
    kind.kind: kind
    for kind in vars(evolution).values()
    if isinstance(kind, type) and issubclass(kind, Step) and kind is not Step
}


def _step(document: Document) -> Step:
    # `from` cannot be the name of a field.
    members = {"from_" if name == "from" else name: value for name, value in document.items()}
    step: Step = decode(_STEPS[document["kind"]], members)
    return step


def _plan(found: Document) -> SchemaPlan:
    return SchemaPlan(tuple(map(_step, found["steps"])))


_PLANNED: dict[str, Place] = {
    "uri": "@uri",
    "supported": "plan.supported",
    "step_count": (lambda done: len(done.plan.steps), int),
    "steps": (lambda done: [step.to_dict() for step in done.plan.steps], list[_Json]),
    **_named("rows", "manifest_version"),
    "graph_manifest_version": "manifest_version",
}
FORMS[op.PlanSchema] = SCHEMA_PLAN = Form(
    SchemaResult, "SchemaPlanOutput", _PLANNED, reads={"plan": _plan, "applied": lambda _: False}
)
FORMS[op.ApplySchema] = SCHEMA_APPLIED = Form(
    SchemaResult,
    "SchemaApplyOutput",
    {
        **_PLANNED,
        **_named("applied", "commit!"),
        "given_up?": (lambda done: list(done.given_up) or None, list[str] | None),
    },
    reads={"plan": _plan, "given_up": lambda found: tuple(found.get("given_up", ()))},
)


_form(ReviewCheck, "ReviewCheckOutput", _named("check", "rows", "digest", "source_commit", "target_commit", "at"))
_form(Approval, "ApprovalOutput", _named("actor", "source_commit", "target_commit", "at"))
_form(
    Review,
    "ReviewOutput",
    {
        **_named("request_id", "source", "target", "author", "title", "message", "state", "created_at"),
        **_named("source_commit", "target_commit", "approvals", "lapsed", "checks"),
        "wanted": "wanted",
        **_named("commit_id?", "closed_by?"),
    },
)
_form(BranchRule, "BranchRuleOutput", _named("approvals", "self_approval", "lapse", "checks", "bypass"))
_form(RuleOfBranch, "RuleOutput", _named("branch", "rule"))
FORMS[op.MergeRequested] = REQUEST_MERGED = Form(
    MergeResult,
    "RequestMergeOutput",
    {**_named("source", "target", "source_commit?", "target_commit?"), **_MERGED},
    reads={"conflicts": _conflicts},
)


# --- changes of entities -----------------------------------------------------------------------------------------


def _before(change: Change) -> Document | None:
    # The ends from before an edge was moved are not known.
    moved = "src" in change.changed or "dst" in change.changed
    return _image(change.before, None if moved else change.endpoints)


def _image(properties: Mapping[str, Any] | None, ends: tuple[str, str] | None) -> Document | None:
    if properties is None:
        return None
    plain = {name: blob_text(value) if isinstance(value, bytes) else value for name, value in properties.items()}
    return {"properties": plain, **({} if ends is None else {"endpoints": {"from": ends[0], "to": ends[1]}})}


def _blobs(change: Change) -> list[str] | None:
    """Name the properties whose texts stand for bytes."""
    images = (change.before or {}, change.after or {})
    return sorted({name for image in images for name, value in image.items() if isinstance(value, bytes)}) or None


def _change(document: Mapping[str, Any]) -> Change:
    # Without this list a text that begins with `base64:` could not be distinguished from bytes.
    blobs = document.get("blobs", ())
    ends = (document.get("after") or document["before"]).get("endpoints")
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
    found: dict[str, Any] = image["properties"]
    return {**found, **{name: blob_content(found[name]) for name in blobs if found.get(name) is not None}}


_TYPE = Form(dict, "ChangedType", {}, added={"id": str, "name": str})
_IMAGE = Form(dict, "EntityImage", {}, added={"properties": _Json, "endpoints": dict[str, str] | None})
_form(
    Change,
    "EntityChangeOutput",
    {
        "kind": "kind",
        "type": (lambda one: {"id": f"{one.kind}:{one.type_name}", "name": one.type_name}, _TYPE),
        "id": "id",
        "op": "operation",
        "before?": (_before, _IMAGE),
        "after?": (lambda change: _image(change.after, change.endpoints), _IMAGE),
        "changed?": (lambda change: list(change.changed) or None, list[str]),
        "blobs?": (_blobs, list[str]),
    },
    reads=_change,
)
# The commit of some changes has the members of every commit, and those that only a feed has.
CAUSE = Form(Commit, "Cause", {"*": ".", "authored_branch": _BRANCH_NAME, "authored_at": "created_at"})
_form(EntityVersion, "EntityVersionOutput", {"commit": "commit", "change": "change", "merge?": "merge"})


def _changed_schema(block: ChangeBlock) -> dict[str, list[_Json]] | None:
    return {"steps": [step.to_dict() for step in block.schema.steps]} if block.schema else None


_form(
    ChangeBlock,
    "ChangeBlockOutput",
    {"cause": ("cause", CAUSE), "schema?": (_changed_schema, dict[str, list[_Json]] | None), "changes": "changes"},
    reads={"schema": lambda found: _plan(found["schema"]) if found.get("schema") else None},
)
_form(ChangePage, "ChangeFeedOutput", _named("blocks", "cursor?", "next_page_token?", "caught_up"))
FORMS[op.ReadCommitChanges] = COMMIT_CHANGES = Form(
    ChangePage,
    "CommitChangesOutput",
    {"*": (lambda page: page.blocks[0], ChangeBlock), **_named("cursor?", "next_page_token?", "caught_up")},
    reads={"blocks": lambda found: (decode(ChangeBlock, found),)},
    unlisted=("cursor", "caught_up"),
)
_form(
    Baseline,
    "ChangeBeginningOutput",
    {"snapshot_commit_id": "commit_id", "resume_cursor": "cursor", "tables": "tables"},
)


# --- differences -------------------------------------------------------------------------------------------------


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

    @classmethod
    def of(cls, found: Difference) -> DiffHead:
        return cls(found.before.commit, found.after.commit, found.schema)


_form(DiffHead, "", {"from": "before", "to": "after", "schema": "schema"})
_form(DiffStats, "", {"stats": "counts", "compared": "compared"})


def diff_lines(found: Difference, show: Show = Show.CHANGES) -> Iterator[str]:
    """A difference as lines of JSON: the head, the changes in parts, and last how many there were.

    A line before each part names the type of its changes, how many there are, and how they were found.
    """
    # At once, before any row is compared: a reader knows the commits and the types while the first part is computed.
    yield _line(DiffHead.of(found))
    if show is Show.HEAD:
        return
    tally = DiffTally()
    for rows in found.rows():
        tally.add(rows)
        if show is Show.CHANGES:
            # Before the changes, because a reader learns the type of what follows and can pass each part on when it is
            # complete.
            yield _line({"rows": {"table_key": rows.key, "counts": rows.counts, "compared": rows.compared}})
            yield from map(_line, rows.changes())
    yield _line(tally.stats)


def _line(value: Any) -> str:
    return json.dumps(encode(value), ensure_ascii=False, separators=(",", ":")) + "\n"


# --- answers of operations ---------------------------------------------------------------------------------------


# Last in this module: the forms of results must be declared before the routes that refer to them.
for _known in OPERATIONS.values():
    for _route in _known.routes:
        if _route.answer is not None:
            FORMS[_known.kind] = Form(_known.result, *_route.answer)


def to_document(result: Any) -> Any:
    """Write a result. This is `encode`, for modules that must have loaded the tables above."""
    return encode(result)


def from_document(kind: type[_T], document: Mapping[str, Any]) -> _T:
    """Read a result of a type that has a form."""
    found: _T = FORMS[kind].read(document)
    return found


def form_of(known: Description) -> Form:
    """Return the form of the answers to an operation."""
    return FORMS.get(known.kind) or FORMS[known.result]


def answer_document(operation: Operation[Any], result: Any, uri: str, actor: str | None) -> Document:
    """Write the answer to an operation as HTTP has it."""
    known = description_of(operation)
    # Blanks around a name mean nothing, so the answer has the name that was used.
    given = {name: str(getattr(operation, name)).strip() for name in known.sent}
    return form_of(known).write(result, {**given, "uri": uri, "actor": actor})


def answer_result(operation: Operation[Any], document: Mapping[str, Any]) -> Any:
    """Read the result of an operation from the answer to it."""
    return form_of(description_of(operation)).read(document)
