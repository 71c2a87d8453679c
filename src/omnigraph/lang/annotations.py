"""The rules of annotations: where each is allowed, and its meaning."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Protocol

from omnigraph.lang.catalog import NO_METADATA, Embed, Metadata
from omnigraph.lang.schema_parser import Annotation, PropertyDecl, Value
from omnigraph.lang.source import NOWHERE, Name, Span, TreeNode
from omnigraph.lang.types import Type

# The purpose of each annotation. A test compares the reference with this table.
KNOWN = {
    "key": "identifies a node",
    "unique": "no two entities share the value",
    "index": "speeds up filters on the property",
    "embed": "names the text property that a vector embeds",
    "description": "describes a type, property or query",
    "instruction": "instructs agents how to use a type or query",
    "rename_from": "gives the previous name of a type or property",
    "range": "bounds a numeric property",
    "check": "holds a String property to a pattern",
    "card": "bounds the number of edges per source",
}
_RULES = ("key", "unique", "index")
_PROPERTY_ONLY = frozenset({*_RULES, "embed"})


class Reject(Protocol):
    """Report a problem and continue checking."""

    def __call__(self, code: str, message: str, span: Span, hint: str | None = None) -> None: ...


class PropertyNotes(TreeNode):
    """The annotations of a property: its single-column rules, its embedding, its metadata."""

    rules: Mapping[str, Span] = field(default_factory=dict)
    embed: Embed | None = None
    embed_span: Span = field(default=NOWHERE, compare=False)
    metadata: Metadata = NO_METADATA

    def same_meaning(self, other: PropertyNotes) -> bool:
        # Spans differ between two declarations of the same property, so `==` would be too strict.
        mine, theirs = (self.rules.keys(), self.embed, self.metadata), (other.rules.keys(), other.embed, other.metadata)
        return mine == theirs


def read_header(annotations: Iterable[Annotation], kind: str, reject: Reject) -> Metadata:
    """Read the annotations of a `node` or `edge` header."""
    rest = []
    for note in annotations:
        if note.name in _PROPERTY_ONLY and kind == "node":
            hint = f"write it after a property, or `@{note.name}(...)` inside the braces"
            reject("P14", f"@{note.name} is only supported on node properties", note.name.span, hint)
        elif note.name in _PROPERTY_ONLY:
            reject("P15", f"@{note.name} is not supported on edges", note.name.span)
        else:
            rest.append(note)
    return _metadata(rest, reject)


def read_property(decl: PropertyDecl, kind: str, type_: Type | None, reject: Reject) -> PropertyNotes:
    """Read the annotations of a property of a `node`, `edge` or `interface`; its type is None if invalid."""
    rules: dict[str, Span] = {}
    embeds: list[Annotation] = []
    rest = []
    for note in decl.annotations:
        span = note.name.span
        if note.name in _PROPERTY_ONLY and not _fits(note.name, decl.name, kind, type_, reject):
            continue
        if note.name in _RULES:
            if note.name in rules:
                reject("P20", f"@{note.name} is given multiple times", span, "keep one")
            rules[note.name] = span
        elif note.name == "embed":
            embeds.append(note)
        elif note.name == "instruction":
            reject("P27", "@instruction is only supported on node and edge types", span, "use @description")
        else:
            rest.append(note)
    embed = _embed(embeds, reject)
    return PropertyNotes(rules, embed, embeds[0].name.span if embeds else NOWHERE, _metadata(rest, reject))


def _fits(name: Name, owner: Name, kind: str, type_: Type | None, reject: Reject) -> bool:
    """Return whether a property of this kind and type may have the annotation."""
    if kind == "edge" and name in ("key", "embed"):
        reject("P19", f"@{name} is not supported on edge properties", name.span)
        return False
    # An invalid type has been reported already; a second error about its annotations would only distract.
    return type_ is None or column_fits(name, type_, Name(owner, name.span), reject)


def column_fits(rule: str, type_: Type, at: Name, reject: Reject, form: str = "property") -> bool:
    """Return whether a column of this type may have the rule, in its property form or its body form."""
    # The two forms have different codes for the same mistake. Codes are public, so both stay.
    body_key = rule == "key" and form == "body"
    if type_.is_blob:
        reject("P18", f"@{rule} is not supported on blob property `{at}`", at.span)
    elif type_.is_list and not (rule == "index" and form == "body"):
        reject("P32" if body_key else "P16", f"@{rule} is not supported on list property `{at}`", at.span)
    elif type_.is_vector and rule in ("key", "unique"):
        reject("P32" if body_key else "P17", f"@{rule} is not supported on vector property `{at}`", at.span)
    elif not type_.is_vector and rule == "embed":
        reject("P21", f"@embed is only supported on vector properties, not on {type_}", at.span)
    else:
        return True
    return False


def _embed(notes: list[Annotation], reject: Reject) -> Embed | None:
    if not notes:
        return None
    if len(notes) > 1:
        reject("P20", "@embed is given multiple times", notes[1].name.span, "keep one")
    note = notes[0]
    source = _annotation_text(note)
    if source is None:
        reject("P22", "@embed requires a source property name", note.name.span, 'write `@embed("property")`')
        return None
    model = None
    for name, value in note.keywords:
        if name != "model" or not (isinstance(value.value, str) and value.value.strip()) or model is not None:
            message = f"@embed does not accept `{name}` here: only 'model' is supported, once, as a string"
            reject("P25", message, name.span)
        else:
            model = value.value
    return Embed(source, model)


def _metadata(notes: Iterable[Annotation], reject: Reject) -> Metadata:
    texts: dict[str, str] = {}
    opaque = []
    for note in notes:
        reader = _TEXT_READERS.get(note.name)
        if reader is None:
            if note.name in ("range", "check", "card"):
                _misplaced(note.name, reject)
            # Unknown annotations are kept, sorted and canonical, so that schemas of other tools survive a round trip.
            opaque.append(_canonical(note))
            continue
        text = reader(note, reject)
        if note.name in texts:
            code = "P28" if note.name == "rename_from" else "P26"
            reject(code, f"@{note.name} is given multiple times", note.name.span, "keep one")
        elif text is not None:
            texts[note.name] = text
    return Metadata(texts.get("description"), texts.get("instruction"), texts.get("rename_from"), tuple(sorted(opaque)))


def _misplaced(name: Name, reject: Reject) -> None:
    if name == "card":
        message = "invalid cardinality: write `@card(lo..hi)` directly after the target type of an edge"
        reject("P8", message, name.span)
    elif name == "range":
        reject("P10", "@range requires a property and bounds: `@range(property, lo..hi)`", name.span)
    else:
        reject("P11", '@check requires a property and a pattern: `@check(property, "pattern")`', name.span)


def _prose(note: Annotation, reject: Reject) -> str | None:
    text = _annotation_text(note) if isinstance(note.value, Value) and not note.keywords else None
    if text is None:
        reject("P26", f"@{note.name} requires a non-empty value: one string", note.name.span)
    return text


def _old_name(note: Annotation, reject: Reject) -> str | None:
    text = None if note.keywords else _annotation_text(note)
    if text is None:
        message = "@rename_from requires exactly one non-blank value: the old name"
        reject("P28", message, note.name.span, 'write `@rename_from("old_name")`')
    return text


_TEXT_READERS: Mapping[str, Callable[[Annotation, Reject], str | None]] = {
    "description": _prose,
    "instruction": _prose,
    "rename_from": _old_name,
}


def _annotation_text(note: Annotation) -> str | None:
    """Return the value of the annotation if it is a non-blank string or a name."""
    value = note.value.value if isinstance(note.value, Value) else note.value
    return str(value) if isinstance(value, str) and value.strip() else None


def _canonical(note: Annotation) -> str:
    """Spell equal annotations equally, so that evolution detects a changed one."""
    if note.value is None:
        return f"@{note.name}"
    keywords = sorted(note.keywords, key=lambda pair: pair[0])
    arguments = [_spelled_value(note.value), *(f"{name}={_spelled_value(value)}" for name, value in keywords)]
    return f"@{note.name}({', '.join(arguments)})"


def _spelled_value(value: Value | Name) -> str:
    return json.dumps(value.value, ensure_ascii=False) if isinstance(value, Value) else str(value)
