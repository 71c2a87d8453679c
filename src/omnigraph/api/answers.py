"""The answers of operations over HTTP: a result as a document, and a document as a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from omnigraph.api import change_documents, documents
from omnigraph.api import operations as op
from omnigraph.api.changes import Baseline, ChangePage
from omnigraph.api.operation import Operation, Route, description_of
from omnigraph.api.results import Commit, LogEntry, MutationResult, NamedState, Snapshot, Tag
from omnigraph.api.rows import Explanation


@dataclass(frozen=True, slots=True)
class About:
    """What an answer says beside the result: which graph, and who asked."""

    uri: str
    actor: str | None


@dataclass(frozen=True, slots=True)
class Form:
    """How a result is written as a document, and read again."""

    write: Callable[[Any, About], documents.Document]
    read: Callable[[Mapping[str, Any]], Any]


def _form(write: Callable[[Any], documents.Document], read: Callable[[Mapping[str, Any]], Any]) -> Form:
    return Form(lambda result, _: write(result), read)


FORMS: dict[Any, Form] = {
    Baseline: _form(change_documents.beginning_output, change_documents.beginning_of),
    ChangePage: _form(change_documents.feed_output, change_documents.feed_of),
    Commit: _form(documents.commit_output, documents.commit_of),
    Explanation: _form(documents.explain_output, documents.explanation_of),
    LogEntry: _form(documents.log_entry_output, documents.log_entry_of),
    MutationResult: _form(documents.change_output, documents.change_of),
    NamedState: _form(documents.state_output, documents.state_of),
    Snapshot: _form(documents.snapshot_output, documents.snapshot_of),
    Tag: _form(documents.tag_output, documents.tag_of),
    op.ListBranches: _form(documents.branches_output, documents.branches_of),
    op.MergeBranch: Form(lambda done, about: documents.merge_output(done, about.actor), documents.merge_of),
    op.RevertCommit: Form(lambda done, about: documents.revert_output(done, about.actor), documents.merge_of),
    op.PlanSchema: Form(lambda done, about: documents.schema_plan_output(about.uri, done), documents.schema_result_of),
    op.ApplySchema: Form(
        lambda done, about: documents.schema_apply_output(about.uri, done), documents.schema_result_of
    ),
    op.ReadCommitChanges: _form(change_documents.commit_changes_output, change_documents.commit_changes_of),
}
"""The forms of results, by their type; of some operations, by the operation."""


def answer_document(operation: Operation[Any], route: Route, result: Any, about: About) -> documents.Document:
    """Write the answer to an operation as HTTP has it."""
    if route.answer is None or type(operation) in FORMS:
        return _form_of(operation).write(result, about)
    known = {"@uri": about.uri, "@actor": about.actor}
    members = route.answer[1].items()
    return {
        name: known[place] if place in known else _member(operation, result, place, about) for name, place in members
    }


def _member(operation: Operation[Any], result: Any, place: str, about: About) -> Any:
    """The result itself, or a field of the operation, whose surrounding blanks mean nothing."""
    if place != ".":
        return getattr(operation, place.removeprefix("@")).strip()
    return [_written(one, about) for one in result] if isinstance(result, list) else _written(result, about)


def _written(value: Any, about: About) -> Any:
    form = FORMS.get(type(value))
    return value if form is None else form.write(value, about)


def answer_result(operation: Operation[Any], route: Route, document: Mapping[str, Any]) -> Any:
    """Read the result of an operation from the answer to it."""
    if route.answer is None or type(operation) in FORMS:
        return _form_of(operation).read(document)
    member = next((name for name, place in route.answer[1].items() if place == "."), None)
    if member is None:
        return None
    value, kinds = document[member], get_args(description_of(operation).result)
    form = next((FORMS[kind] for kind in kinds if kind in FORMS), None)
    if form is None or value is None:
        return value
    return [form.read(one) for one in value] if isinstance(value, list) else form.read(value)


def _form_of(operation: Operation[Any]) -> Form:
    return FORMS.get(type(operation)) or FORMS[description_of(operation).result]
