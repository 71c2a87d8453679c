"""Explaining a syntax error: what stands there, what could have stood there, and how to mend it."""

from __future__ import annotations

import re
from typing import Any, Protocol

from lark.exceptions import UnexpectedInput, UnexpectedToken

from omnigraph.lang.source import Rejection, Span, did_you_mean


class Language(Protocol):
    """What the explanation needs to know of a grammar."""

    @property
    def syntax_code(self) -> str: ...

    def declaration_named_at(self, text: str, name: int) -> int | None: ...


_TERMINALS = {
    "IDENT": "a name (lower case first)",
    "TYPE_ID": "a type name (upper case first)",
    "VAR": "a variable (`$name`)",
    "STRING": "a text in double quotes",
    "UINT": "a whole number",
    "FLOAT": "a decimal number",
    "NUMBER": "a number",
    "BOOL": "`true` or `false`",
    "SCALAR": "a type",
    "VECTOR": "`Vector(n)`",
    "_ENUM": "`enum(...)`",
    "ENUM_VALUE": "an enum value",
    "NULLABLE": "`?`",
    "RULE": "a rule (`@unique(...)`)",
    "ANNOTATION": "an annotation (`@name`)",
    "QUERY_ANNOTATION": "`@description` or `@instruction`",
    "CARD": "`@card(lo..hi)`",
    "COMPARE": "a comparison (`=`, `!=`, `<`, `<=`, `>`, `>=`)",
    "WORD_OP": "`contains` or `starts_with`",
    "_OPEN_EDGE": "an undirected edge (`<edge>`)",
    "_CLOSE_EDGE": "`>`",
    "DIRECTION": "`asc` or `desc`",
    "AGGREGATE": "an aggregate (`count(...)`)",
    "OPEN_LIST": "`[`",
    "$END": "the end of the file",
}
_CALLS = frozenset({"NOW", "NEAREST", "SEARCH", "FUZZY", "MATCH_TEXT", "BM25", "RRF", "DATE", "DATETIME"})
_WORDS = {
    "SCALAR": ("String", "Blob", "Bool", "I32", "I64", "U32", "U64", "F32", "F64", "DateTime", "Date"),
    "BOOL": ("true", "false"),
    "DIRECTION": ("asc", "desc"),
    "WORD_OP": ("contains", "starts_with"),
    "AGGREGATE": ("count", "sum", "avg", "min", "max"),
    "QUERY_ANNOTATION": ("@description", "@instruction"),
}

_AND = "clauses are AND-ed by writing them one after the other"
_OR = "there is no `or`; write two queries"
_CONNECTIVES = {
    "and": _AND,
    "or": _OR,
    "distinct": "there is no `distinct`; an unbound traversal yields each neighbour once",
}

# What people write by habit from other languages: how the text goes on at the error -> what to write here.
_HABITS = tuple(
    (re.compile(pattern), advice)
    for pattern, advice in (
        (r"==", "write `=` for equality"),
        (r"<>", "write `!=` for inequality"),
        (r"'", 'text goes in double quotes: `"..."`'),
        (r"#", "comments start with `//`"),
        (r";", "there are no semicolons; newlines and spaces separate"),
        (r"-\s*[0-9]", "a negative number cannot be written here; in a query, pass it as a parameter"),
        (r"null\b", "there is no null literal; leave the property out, or pass null through a nullable parameter"),
        (r",", "no comma belongs here"),
        (r"\*", "there is no `*`; name what you want (`count($x)`), leave an open end empty (`0..`)"),
        (r"and\b|&&", _AND),
        (r"or\b|\|\|", _OR),
        (r"in\b", "there is no `in`; write `list contains value`"),
        (r"\$[A-Z]", "variable names start with a lower-case letter"),
        (r"distinct\b", "there is no `distinct`; a traversal without an edge variable yields each neighbour once"),
        (r'"', "the text is never closed, or holds an unescaped quote"),
        (r"/\*", "the comment is never closed"),
        (r"(?<![0-9])\.[0-9]", "write a digit before the decimal point: `0.5`"),
    )
)
_WORD = re.compile(r"[@$]?\w+")
_LAST_WORD = re.compile(r"([a-z_]\w*)[ \t]*$")


def explain(error: UnexpectedInput, text: str, language: Language) -> Rejection:
    """Say what stands at the error, what could have stood there, and how to mend it."""
    accepted = _accepted(error)
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        at = len(text.rstrip())
        span, found = Span(at, at), "end of the text"
    else:
        start = error.pos_in_stream
        assert start is not None
        unclosed = language.declaration_named_at(text, start)
        if unclosed is not None and accepted not in ({"IDENT"}, {"TYPE_ID"}):
            word = _word(text, unclosed)
            span = Span(unclosed, unclosed + len(word))
            message = f"unexpected `{word}` inside the declaration before it"
            return Rejection(language.syntax_code, message, span, hint="a `}` is missing before it", expected=("`}`",))
        word = _word(text, start)
        span = Span(start, start + len(word))
        found = f"`{word}`" if word.isprintable() else f"U+{ord(word[0]):04X}"
    expected = _expected(accepted)
    hint = _hint(text, span, accepted)
    message = f"unexpected {found}; expected {_alternatives(expected)}"
    return Rejection(language.syntax_code, message, span, hint=hint, expected=expected)


def _accepted(error: UnexpectedInput) -> set[str]:
    """Collect the terminals that the grammar allows at the error."""
    parser: Any = error.interactive_parser
    return set(parser.accepts()) - {"WHITESPACE", "COMMENT"}


# Sets of terminals that one phrase names better than a list, the widest first.
_LITERAL = frozenset({"STRING", "UINT", "FLOAT", "BOOL", "OPEN_LIST", "DATE", "DATETIME"})
_FUNCTIONS = frozenset({"NEAREST", "SEARCH", "FUZZY", "MATCH_TEXT", "BM25", "RRF", "AGGREGATE"})
_PHRASES = (
    (_LITERAL | _FUNCTIONS | {"NOW", "VAR", "IDENT"}, "an expression"),
    (_LITERAL | {"NOW", "VAR"}, "a value"),
    (_LITERAL, "a literal"),
    (frozenset({"SCALAR", "LSQB", "VECTOR", "_ENUM"}), "a property type"),
    (frozenset({"SCALAR", "OPEN_LIST", "VECTOR"}), "a parameter type"),
)


def _expected(accepted: set[str]) -> tuple[str, ...]:
    rest, phrases = set(accepted), set()
    for terminals, phrase in _PHRASES:
        if terminals <= rest:
            rest -= terminals
            phrases.add(phrase)
    return tuple(sorted({*phrases, *map(_describe, rest)}))


def _describe(terminal: str) -> str:
    if terminal in _TERMINALS:
        return _TERMINALS[terminal]
    if terminal in _CALLS:
        return f"`{terminal.lower()}(...)`"
    return f"`{_PUNCTUATION.get(terminal, terminal.lstrip('_').lower())}`"


_PUNCTUATION = {
    "LBRACE": "{",
    "RBRACE": "}",
    "LPAR": "(",
    "RPAR": ")",
    "LSQB": "[",
    "RSQB": "]",
    "COLON": ":",
    "COMMA": ",",
    "DOT": ".",
    "EQUAL": "=",
    "__ANON_0": "->",
    "__ANON_1": "..",
}


def _alternatives(expected: tuple[str, ...]) -> str:
    if len(expected) == 1:
        return expected[0]
    return f"{', '.join(expected[:-1])} or {expected[-1]}"


def _word(text: str, start: int) -> str:
    match = _WORD.match(text, start)
    return match[0][:80] if match else text[start]


def _hint(text: str, span: Span, accepted: set[str]) -> str | None:
    word = text[span.start : span.end]
    before = _LAST_WORD.search(text, max(0, span.start - 80), span.start)
    if word == "(" and before:
        functions = [name.lower() for name in _CALLS] + list(_WORDS["AGGREGATE"])
        return did_you_mean(before[1], functions) or "only the built-in functions can be called"
    if before and before[1] in _CONNECTIVES:
        return _CONNECTIVES[before[1]]
    if word.startswith("$") and accepted & _LITERAL and "VAR" not in accepted:
        return "only a literal may stand here"
    if word[:1].isupper() and "IDENT" in accepted and "TYPE_ID" not in accepted:
        return "names of properties, variables and queries start with a lower-case letter"
    if word[:1].islower() and accepted == {"TYPE_ID"}:
        return "type names start with an upper-case letter"
    near = did_you_mean(word, [spelled for name in accepted for spelled in _spellings(name)])
    if near and len(word) > 1:
        return near
    return next((advice for pattern, advice in _HABITS if word and pattern.match(text, span.start)), None)


def _spellings(terminal: str) -> tuple[str, ...]:
    """The words a terminal can be; none for names, numbers and the like."""
    if terminal in _WORDS:
        return _WORDS[terminal]
    return () if terminal in _TERMINALS or terminal in _PUNCTUATION else (terminal.strip("_").lower(),)
