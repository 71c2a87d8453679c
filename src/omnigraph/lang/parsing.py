"""The only user of lark: build parsers, recover after errors, decode tokens, explain syntax errors."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache, cached_property
from pkgutil import get_data
from typing import Any, ClassVar

from lark import Lark, Token, Transformer
from lark import __version__ as lark_version
from lark.exceptions import UnexpectedInput, UnexpectedToken
from lark.utils import TextSlice

from omnigraph.lang.source import Name, Rejection, Source, Span, did_you_mean

_MAX_SYNTAX_ERRORS = 20
_MAX_NESTING = 100
_ESCAPES = {'"': '"', "\\": "\\", "n": "\n", "r": "\r", "t": "\t"}
_MAX_I64 = 2**63 - 1
_MAX_I64_DIGITS = 19
_OPTIONS: dict[str, Any] = {"parser": "lalr", "lexer": "contextual", "maybe_placeholders": True}


@dataclass(frozen=True)
class Grammar:
    """A language: its grammar file, its tree builder, and a pattern for the start of a declaration."""

    file: str
    builder: Callable[[], Transformer[Token, Any]]
    syntax_code: str
    declaration: str

    @cached_property
    def lark(self) -> Lark:
        """The parser. The tree is built while parsing, so no parse tree is kept in memory."""
        stamp, _, saved = _resource(self.saved_file).partition(b"\n")
        # Another lark may keep its tables in another form, and a developer may have just changed the grammar.
        if stamp == self._stamp():
            # lark unpickles it. It comes with the package, so it is as trusted as the module beside it.
            return Lark.load(io.BytesIO(saved))
        return self.build()

    @property
    def saved_file(self) -> str:
        return self.file.replace(".lark", ".parser")

    def build(self) -> Lark:
        """Build the parser from its grammar, which takes ten times as long as to load a saved one."""
        return self._make(transformer=self.builder())

    def save(self) -> bytes:
        """Return a parser to ship in the package. It refers to the tree builder by name, and holds no code."""
        tables = io.BytesIO()
        self.build().save(tables, exclude_options=("import_paths", "source_path"))
        return self._stamp() + b"\n" + tables.getvalue()

    def _stamp(self) -> bytes:
        """Identify what the parser is made from: lark, its options, and the text of the grammar."""
        made_from = (f"{lark_version} {_OPTIONS}".encode(), _resource("common.lark"), _resource(self.file))
        return hashlib.sha256(b"\0".join(made_from)).hexdigest().encode()

    @cached_property
    def tokens(self) -> Lark:
        """A parser that keeps every token, for the formatter."""
        return self._make(keep_all_tokens=True)

    def _make(self, **options: Any) -> Lark:
        return Lark.open_from_package(  # not a path: on the executors of a cluster the package is in an archive
            "omnigraph.lang",
            self.file,
            ("grammar",),
            **_OPTIONS,
            postlex=_NestingLimit(self.syntax_code),
            **options,
        )

    def parse_tokens(self, source: Source) -> Any:
        """Parse a sound text into a tree with every token."""
        return self._parse(TextSlice(source.text, 0, len(source.text)), self.tokens)

    def _parse(self, text: TextSlice[str], lark: Lark) -> Any:
        try:
            return lark.parse(text)
        except UnexpectedInput as error:
            raise _syntax_rejection(error, text.text, self) from None

    def parse_all(self, source: Source) -> tuple[list[Any], list[Rejection]]:
        """Parse past syntax errors; return the trees of the sound declarations, and the errors."""
        trees: list[Any] = []
        errors: list[Rejection] = []
        start, size = 0, len(source.text)
        while start < size or not (trees or errors):
            rest = TextSlice(source.text, start, size)
            try:
                trees.append(self._parse(rest, self.lark))
                break
            except Rejection as error:
                errors.append(error)
                if len(errors) == _MAX_SYNTAX_ERRORS:
                    break
                broken, start = self._resume(source.text, start, error.span.start)
                trees += self._sound(TextSlice(source.text, rest.start, broken))
        return trees, errors

    def declaration_named_at(self, text: str, error: int, accepted: AbstractSet[str]) -> int | None:
        """Find the declaration whose name is at an offset. If none is expected there, a brace is missing."""
        line = text.rfind("\n", 0, error) + 1
        match = _declarations(self.declaration).match(text, line)
        if not match or not match["at"]:
            return None
        name = match.end() - 1
        # Inside a query, `query q(` can be taken for a column and a function: the error is then behind it.
        is_behind = "STRING" in accepted or "COMPARE" in accepted
        behind = _HEAD.match(text, name) if is_behind else None
        return match.start("at") if name == error or (behind and behind.end() == error) else None

    def _sound(self, text: TextSlice[str]) -> list[Any]:
        try:
            return [self.lark.parse(text)]
        except (UnexpectedInput, Rejection):
            return []

    def _resume(self, text: str, start: int, error: int) -> tuple[int, int]:
        """Find the start of the declaration that is broken at `error`, and of the next one."""
        broken = start
        for match in _declarations(self.declaration).finditer(text, start):
            at = match.start("at") if match["at"] else -1
            # `at > broken` guarantees progress when the error is at the very start of a declaration.
            if at >= error and at > broken:
                return broken, at
            if at >= 0:
                broken = at
        return broken, len(text)


def _resource(file: str) -> bytes:
    return get_data("omnigraph.lang", f"grammar/{file}") or b""


@cache
def _declarations(keywords: str) -> re.Pattern[str]:
    """Match strings and comments, to skip them, or a declaration at the start of a line."""
    return re.compile(
        # An unclosed string ends with its line and an unclosed comment with the source; without these alternatives
        # the search would backtrack quadratically on broken text.
        rf'"[^"\\\n]*(?:\\.[^"\\\n]*)*(?:"|(?=\n)|\Z)|//[^\n]*|/\*(?:.*?\*/|.*\Z)|^[ \t]*(?P<at>{keywords})',
        re.MULTILINE | re.DOTALL,
    )


class _NestingLimit:
    """Rejects brackets nested so deep that walking the tree would exhaust the stack."""

    always_accept: ClassVar[tuple[str, ...]] = ()  # lark requires it of a postlex filter

    def __init__(self, code: str) -> None:
        self.code = code

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        depth = 0
        for token in stream:
            if token in _OPENING:
                depth += 1
                if depth > _MAX_NESTING:
                    message = f"brackets are nested more than {_MAX_NESTING} deep"
                    raise Rejection(self.code, message, span_of(token), hint="split it up")
            elif token in _CLOSING:
                depth -= 1
            yield token


_OPENING = frozenset("{[(")
_CLOSING = frozenset("}])")


def span_of(token: Token) -> Span:
    start, end = token.start_pos, token.end_pos
    assert start is not None and end is not None  # noqa: PT018
    return Span(start, end)


def name_of(token: Token, skip: int = 0) -> Name:
    """Make a Name from a token, without its first `skip` characters."""
    return Name(token[skip:], span_of(token))


def annotation_name(token: Token) -> Name:
    return Name(token[1:].lstrip(), span_of(token))


def text_of(token: Token, code: str) -> str:
    """Decode the escapes of a string literal."""
    body = token[1:-1]
    if "\\" not in body:
        return body

    def decode(match: re.Match[str]) -> str:
        char = match[1]
        if char not in _ESCAPES:
            at = span_of(token).start + 1 + match.start()
            hint = r"the escapes are \" \\ \n \r \t"
            raise Rejection(code, f"unsupported escape sequence `{match[0]}`", Span(at, at + 2), hint=hint)
        return _ESCAPES[char]

    return re.sub(r"\\(.)", decode, body, flags=re.DOTALL)


def integer_of(token: Token, code: str) -> int:
    """Decode an integer literal, which must fit a signed 64-bit integer."""
    # Length first: int() of a very long literal is slow, and refuses beyond 4,300 digits.
    digits = token.lstrip("0") or "0"
    if len(digits) > _MAX_I64_DIGITS or int(digits) > _MAX_I64:
        raise Rejection(code, "the number does not fit a 64-bit integer", span_of(token))
    return int(digits)


def float_of(token: Token, code: str) -> float:
    value = float(token)
    if value in (float("inf"), float("-inf")):
        raise Rejection(code, "the number does not fit a 64-bit float", span_of(token))
    return value


# Explaining a syntax error -------------------------------------------------------------------------

_TERMINALS = {
    "IDENT": "a name (lower case first)",
    "TYPE_ID": "a type name (upper case first)",
    "VAR": "a variable (`$name`)",
    "STRING": "a string in double quotes",
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
    "FUNCTION": "a function (`name(...)`)",
    "META": "`@id`, `@src`, `@dst` or `@type`",
    "IS_NULL": "`is null` or `is not null`",
    "NEGATE": "`not`",
    "NULLS": "`nulls first` or `nulls last`",
    "PLUS": "`+`",
    "MINUS": "`-`",
    "STAR": "`*`",
    "SLASH": "`/`",
    "EDGE_VAR": "an edge variable (`$name:`)",
    "NAMED_WORD": "an edge",
    "OPTIONAL": "`optional { ... }`",
    "_PROCEDURE": "`call name(...)`",
    "EXISTS": "`exists { ... }`",
    "COUNT": "`count { ... }`",
    "NAMED_PROPERTY": "a name (lower case first)",
    "$END": "the end of the file",
}
_CALLS = frozenset({"NOW", "NEAREST", "SEARCH", "FUZZY", "MATCH_TEXT", "BM25", "RRF", "DATE", "DATETIME", "OBJECT"})
_WORDS = {
    "SCALAR": ("String", "Blob", "Bool", "I32", "I64", "U32", "U64", "F32", "F64", "DateTime", "Date"),
    "BOOL": ("true", "false"),
    "DIRECTION": ("asc", "desc"),
    "WORD_OP": ("contains", "starts_with"),
    "AGGREGATE": ("count", "sum", "avg", "min", "max", "collect"),
    "QUERY_ANNOTATION": ("@description", "@instruction"),
}

_CONNECTIVES = {"distinct": "write `return distinct { ... }`, or `count(distinct $x)`"}

# Habits from other languages: the text at the error -> what to write instead.
_HABITS = tuple(
    (re.compile(pattern), advice)
    for pattern, advice in (
        (r"==", "write `=` for equality"),
        (r"<>", "write `!=` for inequality"),
        (r"'", 'strings go in double quotes: `"..."`'),
        (r"#", "comments start with `//`"),
        (r";", "remove the semicolon; white space separates clauses"),
        (r"-\s*[0-9]", "a negative number is not allowed here"),
        (
            r"null\b",
            "there is no null literal; test with `is null`, leave the property out, or pass a nullable parameter",
        ),
        (r",", "remove the comma"),
        (r"\*", "there is no `*`; name a variable (`count($x)`), or leave an open bound empty (`0..`)"),
        (r"&&", "write `and`"),
        (r"\|\|", "write `or`"),
        (
            r"\|\s*[a-z_]\w*\s*\)",
            "a traversal follows one edge type; join two `exists { ... }` with `or`, or run two queries",
        ),
        (r"\$[A-Z]", "variable names start with a lower-case letter"),
        (r"distinct\b", "write `return distinct { ... }`, or `count(distinct $x)`"),
        (r'"', "the string is never closed, or contains an unescaped quote"),
        (r"/\*", "the comment is never closed"),
        (r"(?<![0-9])\.[0-9]", "write a digit before the decimal point: `0.5`"),
    )
)
# Words that can start a text outside of any query: the body of one, or SQL and Cypher in any case.
_BODY = frozenset({"match", "return", "order", "limit", "insert", "upsert", "update", "delete", "not"})
_OTHER_LANGUAGES = frozenset(
    {"match", "return", "insert", "update", "delete", "detach", "create", "merge", "drop", "alter", "set", "remove"}
    | {"select", "from", "where", "with", "optional", "unwind", "call", "foreach", "explain", "show"}
)
_TYPE_KEYWORDS = frozenset({"node", "edge", "interface"})
_WORD = re.compile(r"[@$]?\w+")
_HEAD = re.compile(r"\w+\s*\(\s*(?:\$\w+\s*)?")
_LAST_WORD = re.compile(r"([a-z_]\w*)[ \t]*$")


def _syntax_rejection(error: UnexpectedInput, text: str, grammar: Grammar) -> Rejection:
    """Turn a lark error into a Rejection: the unexpected token, the expected ones, and a hint."""
    accepted = _accepted(error)
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        # Behind the last character, not at the end of trailing blank lines, where there is nothing to show.
        at = len(text.rstrip())
        span, found = Span(at, at), "end of the text"
    else:
        start = error.pos_in_stream
        assert start is not None
        unclosed = grammar.declaration_named_at(text, start, accepted)
        # If only a name is accepted, the keyword itself was fine and the name is wrong.
        if unclosed is not None and accepted not in ({"IDENT"}, {"TYPE_ID"}):
            word = _word(text, unclosed)
            span = Span(unclosed, unclosed + len(word))
            message = f"unexpected `{word}` inside the previous declaration"
            return Rejection(
                grammar.syntax_code, message, span, hint="add the missing `}` before it", expected=("`}`",)
            )
        word = _word(text, start)
        span = Span(start, start + len(word))
        found = f"`{word}`" if word.isprintable() else f"U+{ord(word[0]):04X}"
    expected = _expected(accepted)
    hint = _hint(text, span, accepted)
    message = f"unexpected {found}; expected {_alternatives(expected)}"
    return Rejection(grammar.syntax_code, message, span, hint=hint, expected=expected)


def _accepted(error: UnexpectedInput) -> set[str]:
    """Collect the terminals that the grammar allows at the error."""
    parser: Any = error.interactive_parser
    return set(parser.accepts()) - {"WHITESPACE", "COMMENT"}


# Sets of terminals with a common name. The widest comes first, because a match removes its terminals from the rest.
_LITERAL = frozenset({"STRING", "UINT", "FLOAT", "BOOL", "OPEN_LIST", "DATE", "DATETIME"})
_FUNCTIONS = frozenset({"NEAREST", "SEARCH", "FUZZY", "MATCH_TEXT", "BM25", "RRF", "AGGREGATE"})
_BLOCKS = frozenset({"EXISTS", "COUNT"})
_OPERANDS = frozenset({"NOW", "VAR", "IDENT", "FUNCTION", "META", "OBJECT", "LPAR"})
_OPERATORS = frozenset({"AND", "OR", "IN", "IS_NULL", "PLUS", "MINUS", "STAR", "SLASH", "COMPARE", "WORD_OP"})
_PHRASES = (
    (_LITERAL | _FUNCTIONS | _OPERANDS | _BLOCKS | {"NEGATE", "MINUS"}, "an expression"),
    (_LITERAL | _FUNCTIONS | _OPERANDS | _BLOCKS, "an operand"),
    (_OPERATORS, "an operator"),
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
    outside = _outside_hint(word, accepted)
    if outside:
        return outside
    before = _LAST_WORD.search(text, max(0, span.start - 80), span.start)
    if word == "(" and before:
        functions = [name.lower() for name in _CALLS] + list(_WORDS["AGGREGATE"])
        return did_you_mean(before[1], functions) or "only the built-in functions can be called"
    if before and before[1] in _CONNECTIVES:
        return _CONNECTIVES[before[1]]
    if word.startswith("$") and accepted & _LITERAL and "VAR" not in accepted:
        return "only a literal is allowed here"
    if word[:1].isupper() and "IDENT" in accepted and "TYPE_ID" not in accepted:
        return "names of properties, variables and queries start with a lower-case letter"
    if word[:1].islower() and accepted == {"TYPE_ID"}:
        return "type names start with an upper-case letter"
    # A single character is close to too many words, and has its own advice below.
    near = did_you_mean(word, [spelled for name in accepted for spelled in _spellings(name)])
    if near and len(word) > 1:
        return near
    return next((advice for pattern, advice in _HABITS if word and pattern.match(text, span.start)), None)


def _outside_hint(word: str, accepted: set[str]) -> str | None:
    """Advise on text outside of any declaration: a bare query body, or another language."""
    if "NODE" in accepted:
        return "queries belong in a `.gq` file" if word == "query" else None
    if "_QUERY" not in accepted:
        return None
    if word in _BODY:
        return "wrap it in a query: `query q() { ... }`"
    if word.lower() in _OTHER_LANGUAGES:
        return "this looks like SQL or Cypher; write `query q() { match { $x: Type } return { $x } }`"
    return "types are declared in a `.pg` schema" if word in _TYPE_KEYWORDS else None


def _spellings(terminal: str) -> tuple[str, ...]:
    """Return the words that a terminal matches; none for names, numbers and the like."""
    if terminal in _WORDS:
        return _WORDS[terminal]
    return () if terminal in _TERMINALS or terminal in _PUNCTUATION else (terminal.strip("_").lower(),)
