"""The one place that talks to lark: building parsers, recovering after an error, decoding tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedInput
from lark.utils import TextSlice

from omnigraph.lang.source import Name, Rejection, Source, Span
from omnigraph.lang.syntax_errors import explain

_MAX_SYNTAX_ERRORS = 20
_MAX_NESTING = 100
_ESCAPES = {'"': '"', "\\": "\\", "n": "\n", "r": "\r", "t": "\t"}
_MAX_I64 = 2**63 - 1
_MAX_I64_DIGITS = 19


@dataclass(frozen=True)
class Grammar:
    """A language: its grammar file, the builder of its tree, and where its declarations start."""

    file: str
    builder: Callable[[], Transformer[Token, Any]]
    syntax_code: str
    declaration: str

    @cached_property
    def lark(self) -> Lark:
        """The parser. Trees are built while parsing, so no parse tree is ever held in memory."""
        return self._make(transformer=self.builder())

    @cached_property
    def tokens(self) -> Lark:
        """A parser that keeps every token, for the formatter."""
        return self._make(keep_all_tokens=True)

    def _make(self, **options: Any) -> Lark:
        return Lark.open_from_package(  # the package may be in an archive, as on the executors of a cluster
            "omnigraph.lang",
            self.file,
            ("grammar",),
            parser="lalr",
            lexer="contextual",
            maybe_placeholders=True,
            postlex=_NestingLimit(self.syntax_code),
            **options,
        )

    def parse_tokens(self, source: Source) -> Any:
        """Parse a sound text to a tree that holds every token."""
        return self._parse(TextSlice(source.text, 0, len(source.text)), self.tokens)

    def _parse(self, text: TextSlice[str], lark: Lark) -> Any:
        try:
            return lark.parse(text)
        except UnexpectedInput as error:
            raise explain(error, text.text, self) from None

    def parse_all(self, source: Source) -> tuple[list[Any], list[Rejection]]:
        """Parse declaration by declaration past syntax errors: the trees of what is sound, and every error."""
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

    def declaration_named_at(self, text: str, name: int) -> int | None:
        """Find the declaration whose name stands at an offset: where one is not expected, a brace is missing."""
        line = text.rfind("\n", 0, name) + 1
        match = _declarations(self.declaration).match(text, line)
        return match.start("at") if match and match["at"] and match.end() == name + 1 else None

    def _sound(self, text: TextSlice[str]) -> list[Any]:
        try:
            return [self.lark.parse(text)]
        except (UnexpectedInput, Rejection):
            return []

    def _resume(self, text: str, start: int, error: int) -> tuple[int, int]:
        """Find where the declaration broken at `error` starts, and where the next one does."""
        broken = start
        for match in _declarations(self.declaration).finditer(text, start):
            at = match.start("at") if match["at"] else -1
            if at >= error and at > broken:
                return broken, at
            if at >= 0:
                broken = at
        return broken, len(text)


@cache
def _declarations(keywords: str) -> re.Pattern[str]:
    """Match text and comments (to step over them) or a declaration at the start of a line."""
    return re.compile(
        # A text or comment that is never closed reaches to the end of its line or of the source, and is tried once.
        rf'"[^"\\\n]*(?:\\.[^"\\\n]*)*(?:"|(?=\n)|\Z)|//[^\n]*|/\*(?:.*?\*/|.*\Z)|^[ \t]*(?P<at>{keywords})',
        re.MULTILINE | re.DOTALL,
    )


class _NestingLimit:
    """Refuse brackets nested so deep that walking the tree would exhaust the stack."""

    always_accept: ClassVar[tuple[str, ...]] = ()

    def __init__(self, code: str) -> None:
        self.code = code

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        depth = 0
        for token in stream:
            if token in _OPENING:
                depth += 1
                if depth > _MAX_NESTING:
                    message = f"brackets are nested more than {_MAX_NESTING} deep"
                    raise Rejection(self.code, message, span_of(token), hint="split it into several queries")
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
    """Make a Name of a token, without its first `skip` characters."""
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
    digits = token.lstrip("0") or "0"
    if len(digits) > _MAX_I64_DIGITS or int(digits) > _MAX_I64:
        raise Rejection(code, "the number does not fit a 64-bit integer", span_of(token))
    return int(digits)


def float_of(token: Token, code: str) -> float:
    value = float(token)
    if value in (float("inf"), float("-inf")):
        raise Rejection(code, "the number does not fit a 64-bit float", span_of(token))
    return value
