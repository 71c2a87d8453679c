"""The canonical layout of `.pg` and `.gq`. It keeps every comment and the syntax tree, and is idempotent.

The tree becomes a sequence of tokens and marks, which the writer turns into lines. Tokens keep their source order, so
the comments between two of them are known by their offsets: no layout can lose one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import pairwise

from lark import Token, Tree

from omnigraph.errors import CompileError, QueryError, SchemaError
from omnigraph.lang import query_parser, schema_parser
from omnigraph.lang.parsing import Grammar, span_of
from omnigraph.lang.source import Source, Span, TreeNode

WIDTH = 100
_INDENT = "    "
_COMMENT = re.compile(r"//[^\n]*|/\*[^*]*\*+(?:[^/*][^*]*\*+)*/")
_TIGHT_BEFORE = frozenset({",", ")", "]", "?", ":", ".", "..", "("})
_TIGHT_AFTER = frozenset({"(", "[", ".", ".."})
_Child = Tree[Token] | Token


class Mark(Enum):
    """A mark between two tokens."""

    INDENT = "indent"
    DEDENT = "dedent"
    HARD = "a line break"
    LINE = "a line break, if the enclosing group does not fit on one line"
    COMMA = "a comma"
    LAST_COMMA = "a comma, if the enclosing group does not fit on one line"


class Tok(TreeNode):
    """A token and the grammar rule it belongs to."""

    token: Token
    rule: str


class Group(TreeNode):
    """Parts that go on one line if they fit, with `tail` more columns for the text after them."""

    parts: Sequence[Part]
    tail: int = 0


class Comments(TreeNode):
    """Write the comments before this token now, at the current indentation."""

    before: Token


class Declaration(TreeNode):
    """The start of a top-level declaration, after a blank line if `apart` or if the source has one."""

    apart: bool


Part = Tok | Group | Comments | Declaration | Mark


def format_schema(source: Source) -> str:
    """Format a `.pg` schema; raises SchemaError if it does not parse."""
    return _format(source, schema_parser.GRAMMAR, SchemaError)


def format_queries(source: Source) -> str:
    """Format a `.gq` file; raises QueryError if it does not parse."""
    return _format(source, query_parser.GRAMMAR, QueryError)


def _format(source: Source, grammar: Grammar, error: type[CompileError]) -> str:
    # The token parser does not know the rules of the tree builder, such as escapes: check with the real one first.
    _, problems = grammar.parse_all(source)
    if problems:
        raise error.of([source.diagnostic(problem) for problem in problems])
    return write(source.text, _file_layout(grammar.parse_tokens(source)))


def _file_layout(tree: Tree[Token]) -> list[Part]:
    declarations = [child for child in _children(tree) if isinstance(child, Tree)]
    parts: list[Part] = [Declaration(apart=False)]
    for at, declaration in enumerate(declarations):
        if at:
            parts.append(Declaration(apart=_is_tall(declarations[at - 1]) or _is_tall(declaration)))
        parts += _layout(declaration, "start")
    return parts


def _is_tall(declaration: Tree[Token]) -> bool:
    """Return whether a declaration takes several lines: it has members."""
    return any(left == "{" and right != "}" for left, right in pairwise(_children(declaration)))


def _children(tree: Tree[Token]) -> list[_Child]:
    return [child for child in tree.children if child is not None]


def _layout(child: _Child, rule: str) -> list[Part]:
    if isinstance(child, Token):
        return [Tok(child, rule)]
    layout = _LAYOUTS.get(child.data, _in_a_row)
    return layout(_children(child), str(child.data))


def _in_a_row(children: Sequence[_Child], rule: str) -> list[Part]:
    return [part for child in children for part in _layout(child, rule)]


def _one_per_line(children: Sequence[_Child], rule: str) -> list[Part]:
    parts: list[Part] = []
    for child in children:
        parts += [Mark.HARD, *_layout(child, rule)]
    return parts[1:]


def _without_comma(children: Sequence[_Child], rule: str) -> list[Part]:
    """Lay out an item of a list; the list writes the commas."""
    return _in_a_row([child for child in children if child != ","], rule)


def _block(children: Sequence[_Child], rule: str) -> list[Part]:
    """Lay out `head { members } tail`, one member per line."""
    if "{" not in children:
        return _in_a_row(children, rule)
    head, members, close, tail = _braced(children)
    if not members:
        return [
            *_in_a_row(head, rule),
            Mark.INDENT,
            Comments(close),
            Mark.DEDENT,
            Tok(close, rule),
            *_in_a_row(tail, rule),
        ]
    body: list[Part] = [Mark.INDENT]
    for member in members:
        body += [Mark.HARD, *_layout(member, rule)]
    return [*_in_a_row(head, rule), *body, *_closed(close, rule, Mark.HARD), *_in_a_row(tail, rule)]


def _list(children: Sequence[_Child], rule: str, last: Sequence[Part] = (Mark.LAST_COMMA,)) -> list[Part]:
    """Lay out `head { items } tail` on one line if it fits, else one item per line; commas between items."""
    if "{" not in children:
        return _in_a_row(children, rule)
    head, items, close, tail = _braced(children)
    behind = _in_a_row(tail, rule)
    parts = [Tok(_token(head[-1]), rule), *_items(items, rule, last), *_closed(close, rule, Mark.LINE)]
    return [*_in_a_row(head[:-1], rule), Group(parts, flat_width(behind)), *behind]


def _keys(children: Sequence[_Child], rule: str) -> list[Part]:
    return _list(children, rule, last=())


def _items(items: Sequence[_Child], rule: str, last: Sequence[Part] = ()) -> list[Part]:
    parts: list[Part] = [Mark.INDENT]
    for at, item in enumerate(items):
        parts += [*([Mark.COMMA] if at else []), Mark.LINE, *_layout(item, rule)]
    return [*parts, *last]


def _negation(children: Sequence[_Child], rule: str) -> list[Part]:
    """Lay out `not { clause }` on one line if it fits, else as a block."""
    head, clauses, close, _ = _braced(children)
    if len(clauses) > 1:
        return _block(children, rule)
    clause = _layout(clauses[0], rule)
    return [
        *_in_a_row(head[:-1], rule),
        Group([Tok(_token(head[-1]), rule), Mark.INDENT, Mark.LINE, *clause, *_closed(close, rule, Mark.LINE)]),
    ]


def _chain(children: Sequence[_Child], rule: str) -> list[Part]:
    """Lay out operands and operators; what does not fit is broken before `and` and `or`."""
    parts: list[Part] = []
    behind_operator = True
    for at, child in enumerate(children):
        # Behind the first one, which is where the line begins.
        parts += [Mark.INDENT] if at == 1 else []
        if isinstance(child, Token):
            parts += [Mark.LINE] if child.type in ("AND", "OR") else []
            parts.append(Tok(child, "sign" if behind_operator and child.type == "MINUS" else rule))
            behind_operator = child.type != "IS_NULL"
        else:
            parts += _layout(child, rule)
            behind_operator = False
    return [Group([*parts, Mark.DEDENT])]


def _query(children: Sequence[_Child], rule: str) -> list[Part]:
    """Lay out a query; break a long header before its annotations, then its parameters if needed."""
    head, body, close, _ = _braced(children)
    opening = _token(head[-1])
    notes = [child for child in head if isinstance(child, Tree) and child.data == "query_annotation"]
    signature = _in_a_row([child for child in head[:-1] if child not in notes], rule)
    header: list[Part] = [Group(signature, len(" {")), Tok(opening, rule)]
    if notes:
        lines = [part for note in notes for part in (Mark.LINE, *_layout(note, rule))]
        header = [Group([Group(signature), Mark.INDENT, *lines, Mark.DEDENT, Mark.LINE, Tok(opening, rule)])]
    return [*header, Mark.INDENT, Mark.HARD, *_in_a_row(body, rule), *_closed(close, rule, Mark.HARD)]


def _parameter_list(children: Sequence[_Child], rule: str) -> list[Part]:
    items = [child for child in children if child != ","]
    return [*_items(items, rule), Mark.DEDENT, Mark.LINE]


def _closed(close: Token, rule: str, mark: Mark) -> list[Part]:
    """Write comments before a closing brace at the depth of its members."""
    return [Comments(close), Mark.DEDENT, mark, Tok(close, rule)]


def _braced(children: Sequence[_Child]) -> tuple[list[_Child], list[_Child], Token, list[_Child]]:
    """Split into head with the opening brace, members, closing brace, and tail."""
    start = children.index("{")
    end = max(at for at, child in enumerate(children) if child == "}")
    inner = [child for child in children[start + 1 : end] if child != ","]
    return list(children[: start + 1]), inner, _token(children[end]), list(children[end + 1 :])


def _token(child: _Child) -> Token:
    assert isinstance(child, Token)
    return child


_LAYOUTS: Mapping[str, Callable[[Sequence[_Child], str], list[Part]]] = {
    "interface": _block,
    "node": _block,
    "edge": _block,
    "query": _query,
    "parameters": _parameter_list,
    "read": _one_per_line,
    "write": _one_per_line,
    "match": _block,
    "negation": _negation,
    "optional": _negation,
    "block": _negation,
    "having": _negation,
    "chain": _chain,
    "word_filter": _chain,
    "return_": _list,
    "order": _keys,
    "binding": _list,
    "insert": _list,
    "upsert": _list,
    "update": _list,
    "item": _without_comma,
    "assignment": _without_comma,
}


# Writing tokens -----------------------------------------------------------------------------------


def write(source: str, parts: Sequence[Part]) -> str:
    writer = _Writer(source, _comments(source, _tokens(parts)))
    writer.parts(parts, broken=True)
    return writer.finish()


class _Writer:
    def __init__(self, source: str, comments: list[Span]) -> None:
        self.source = source
        self.comments = comments
        self.next_comment = 0
        self.lines: list[str] = []
        self.line = ""
        self.depth = 0
        self.at = 0  # the source offset up to which everything is written
        self.last: Tok | None = None
        self.newline = False
        self.blank = False

    def parts(self, parts: Sequence[Part], *, broken: bool) -> None:  # noqa: C901 - one case a part
        for part in parts:
            match part:
                case Tok():
                    self._token(part)
                case Group():
                    self.parts(part.parts, broken=not self._fits(part))
                case Comments():
                    self._comments_until(span_of(part.before).start)
                case Declaration():
                    self.newline = bool(self.lines or self.line)
                    self.blank = part.apart
                case Mark.INDENT:
                    self.depth += 1
                case Mark.DEDENT:
                    self.depth -= 1
                case Mark.HARD:
                    self.newline = True
                case Mark.LINE:
                    self.newline = self.newline or broken
                case Mark.COMMA:
                    self.line += ","
                case Mark.LAST_COMMA:
                    self.line += "," if broken else ""

    def finish(self) -> str:
        self._comments_until(len(self.source))
        self._end_line()
        text = "\n".join(self.lines).strip("\n")
        return text + "\n" if text else ""

    def _token(self, part: Tok) -> None:
        self._comments_until(span_of(part.token).start)
        closing = part.token in "}])"
        if self.newline:
            self._break(blank=self._blank_in_source(span_of(part.token).start) and not closing)
        elif self.line.strip() and _spaced(self.last, part):
            self.line += " "
        self.line += _spelled(part.token)
        self.at = span_of(part.token).end
        self.last = part

    def _comments_until(self, end: int) -> None:
        while self.next_comment < len(self.comments) and self.comments[self.next_comment].start < end:
            comment = self.comments[self.next_comment]
            self.next_comment += 1
            text = self.source[comment.start : comment.end].rstrip().replace("\r\n", "\n")
            if "\n" in self.source[self.at : comment.start] or not (self.lines or self.line):
                self._break(blank=self._blank_in_source(comment.start))
                self.line += text
                self.newline = True
            else:
                self.line += f"  {text}" if text.startswith("//") else f" {text}"
                # A token after a line comment would become part of it.
                self.newline = self.newline or text.startswith("//")
            self.at = comment.end

    def _blank_in_source(self, end: int) -> bool:
        return self.source.count("\n", self.at, end) > 1

    def _break(self, *, blank: bool) -> None:
        # No blank line directly after an opening brace, even if the source has one.
        opened = self.last is not None and self.last.token == "{" and self.line.rstrip().endswith("{")
        self._end_line()
        if (blank or self.blank) and self.lines and not opened:
            self.lines.append("")
        self.blank = self.newline = False
        self.line = _INDENT * self.depth

    def _end_line(self) -> None:
        if self.line.strip():
            self.lines.append(self.line.rstrip())
        self.line = ""

    def _fits(self, group: Group) -> bool:
        flat = _flat(group.parts)
        if flat is None:
            return False
        # A comment inside the group forces it open: on one line it could swallow the tokens after it.
        width, first, last = flat
        start = len(_INDENT) * self.depth if self.newline else len(self.line) + _spaced(self.last, Tok(first, ""))
        return not self._has_comment(first, last) and start + width + group.tail <= WIDTH

    def _has_comment(self, first: Token, last: Token) -> bool:
        after = bisect_left(self.comments, span_of(first))
        return after < len(self.comments) and self.comments[after].start < span_of(last).start


def _comments(source: str, tokens: Sequence[Tok]) -> list[Span]:
    """Find the comments. Only gaps between tokens are searched, because a string may look like a comment."""
    ends = [0, *(span_of(tok.token).end for tok in tokens)]
    starts = [*(span_of(tok.token).start for tok in tokens), len(source)]
    gaps = zip(ends, starts, strict=True)
    return [Span(*match.span()) for start, end in gaps for match in _COMMENT.finditer(source, start, end)]


def _tokens(parts: Sequence[Part]) -> list[Tok]:
    return [
        tok
        for part in parts
        for tok in ([part] if isinstance(part, Tok) else _tokens(part.parts) if isinstance(part, Group) else [])
    ]


def _flat(parts: Sequence[Part]) -> tuple[int, Token, Token] | None:
    """Measure the parts on one line; None if they cannot be on one."""
    tokens = _tokens(parts)
    if not tokens or _has_hard(parts) or any("\n" in _spelled(tok.token) for tok in tokens):
        return None
    spaces = sum(_spaced(left, right) for left, right in pairwise(tokens))
    width = sum(len(_spelled(tok.token)) for tok in tokens) + spaces
    return width + _commas(parts), tokens[0].token, tokens[-1].token


def flat_width(parts: Sequence[Part]) -> int:
    """Count the columns that the parts take on one line, with the space before them."""
    flat = _flat(parts)
    return flat[0] + 1 if flat else 0


def _has_hard(parts: Sequence[Part]) -> bool:
    return any(part is Mark.HARD or (isinstance(part, Group) and _has_hard(part.parts)) for part in parts)


def _commas(parts: Sequence[Part]) -> int:
    return sum(_commas(part.parts) if isinstance(part, Group) else part is Mark.COMMA for part in parts)


def _spaced(left: Tok | None, right: Tok) -> bool:
    """Return whether two tokens on one line are separated by a space."""
    if left is not None and left.token == "," and right.token == "..":
        return True
    if left is None or left.token in _TIGHT_AFTER or left.rule == "sign":
        return False
    if right.token == "(" and right.rule == "group":
        return True
    if right.token in _TIGHT_BEFORE:
        return False
    if "EQUAL" in (left.token.type, right.token.type) or right.rule == "hops":
        return False
    # `<` and `>` compare in every other rule, and are spaced there.
    if left.rule == right.rule == "undirected":
        return False
    if left.token == ":" and left.rule == "bound_traversal":
        return False
    return not (left.token == "{" and right.token == "}")


def _spelled(token: Token) -> str:
    # The grammar allows white space after the `@`; the canonical layout does not.
    if token.type in ("ANNOTATION", "RULE", "CARD", "QUERY_ANNOTATION", "META"):
        return re.sub(r"[ \t\r\n]+", "", token)
    if token.type in ("IS_NULL", "NULLS") and "/" not in token:
        return " ".join(token.split())
    return str(token)
