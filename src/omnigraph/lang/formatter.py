"""The one canonical layout of `.pg` and `.gq`. Comments stay, the tree stays, and formatting twice changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from lark import Token, Tree

from omnigraph.errors import CompileError, QueryError, SchemaError
from omnigraph.lang import query_parser, schema_parser
from omnigraph.lang.layout import Comments, Declaration, Group, Mark, Part, Tok, flat_width, write
from omnigraph.lang.parsing import Grammar
from omnigraph.lang.source import Source

_Child = Tree[Token] | Token


def format_schema(source: Source) -> str:
    """Format a `.pg` schema; raises SchemaError if it does not parse."""
    return _format(source, schema_parser.GRAMMAR, SchemaError)


def format_queries(source: Source) -> str:
    """Format a `.gq` file; raises QueryError if it does not parse."""
    return _format(source, query_parser.GRAMMAR, QueryError)


def _format(source: Source, grammar: Grammar, error: type[CompileError]) -> str:
    _, problems = grammar.parse_all(source)  # rules beyond the grammar, such as escapes, live in the tree builder
    if problems:
        raise error.of([source.diagnostic(problem) for problem in problems])
    return write(source.text, _file(grammar.parse_tokens(source)))


def _file(tree: Tree[Token]) -> list[Part]:
    declarations = [child for child in _children(tree) if isinstance(child, Tree)]
    parts: list[Part] = [Declaration(apart=False)]
    for at, declaration in enumerate(declarations):
        if at:
            parts.append(Declaration(apart=_is_tall(declarations[at - 1]) or _is_tall(declaration)))
        parts += _parts(declaration, "start")
    return parts


def _is_tall(declaration: Tree[Token]) -> bool:
    """Tell whether a declaration takes several lines: it has something between its braces."""
    return any(left == "{" and right != "}" for left, right in pairwise(_children(declaration)))


def _children(tree: Tree[Token]) -> list[_Child]:
    return [child for child in tree.children if child is not None]


def _parts(child: _Child, rule: str) -> list[Part]:
    if isinstance(child, Token):
        return [Tok(child, rule)]
    layout = _LAYOUTS.get(child.data, _in_a_row)
    return layout(_children(child), str(child.data))


def _in_a_row(children: Sequence[_Child], rule: str) -> list[Part]:
    return [part for child in children for part in _parts(child, rule)]


def _one_per_line(children: Sequence[_Child], rule: str) -> list[Part]:
    parts: list[Part] = []
    for child in children:
        parts += [Mark.HARD, *_parts(child, rule)]
    return parts[1:]


def _without_comma(children: Sequence[_Child], rule: str) -> list[Part]:
    """An item of a list whose commas the list writes itself."""
    return _in_a_row([child for child in children if child != ","], rule)


def _block(children: Sequence[_Child], rule: str) -> list[Part]:
    """`head { members } tail`, one member a line."""
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
        body += [Mark.HARD, *_parts(member, rule)]
    return [*_in_a_row(head, rule), *body, *_closed(close, rule, Mark.HARD), *_in_a_row(tail, rule)]


def _list(children: Sequence[_Child], rule: str, last: Sequence[Part] = (Mark.LAST_COMMA,)) -> list[Part]:
    """`head { items } tail`, on one line if it fits, else one item a line; commas between items."""
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
        parts += [*([Mark.COMMA] if at else []), Mark.LINE, *_parts(item, rule)]
    return [*parts, *last]


def _negation(children: Sequence[_Child], rule: str) -> list[Part]:
    """`not { clause }` on one line if it fits, else a block."""
    head, clauses, close, _ = _braced(children)
    if len(clauses) > 1:
        return _block(children, rule)
    clause = _parts(clauses[0], rule)
    return [
        *_in_a_row(head[:-1], rule),
        Group([Tok(_token(head[-1]), rule), Mark.INDENT, Mark.LINE, *clause, *_closed(close, rule, Mark.LINE)]),
    ]


def _query(children: Sequence[_Child], rule: str) -> list[Part]:
    """Break a header that is too long before its annotations, and its parameters if that is not enough."""
    head, body, close, _ = _braced(children)
    opening = _token(head[-1])
    notes = [child for child in head if isinstance(child, Tree) and child.data == "query_annotation"]
    signature = _in_a_row([child for child in head[:-1] if child not in notes], rule)
    header: list[Part] = [Group(signature, len(" {")), Tok(opening, rule)]
    if notes:
        lines = [part for note in notes for part in (Mark.LINE, *_parts(note, rule))]
        header = [Group([Group(signature), Mark.INDENT, *lines, Mark.DEDENT, Mark.LINE, Tok(opening, rule)])]
    return [*header, Mark.INDENT, Mark.HARD, *_in_a_row(body, rule), *_closed(close, rule, Mark.HARD)]


def _parameters(children: Sequence[_Child], rule: str) -> list[Part]:
    items = [child for child in children if child != ","]
    return [*_items(items, rule), Mark.DEDENT, Mark.LINE]


def _closed(close: Token, rule: str, mark: Mark) -> list[Part]:
    """Comments before a closing brace are written at the depth of what it closes."""
    return [Comments(close), Mark.DEDENT, mark, Tok(close, rule)]


def _braced(children: Sequence[_Child]) -> tuple[list[_Child], list[_Child], Token, list[_Child]]:
    """Split into what stands up to the opening brace, between, the closing brace, and behind."""
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
    "parameters": _parameters,
    "read": _one_per_line,
    "write": _one_per_line,
    "match": _block,
    "negation": _negation,
    "return_": _list,
    "order": _keys,
    "binding": _list,
    "insert": _list,
    "update": _list,
    "item": _without_comma,
    "assignment": _without_comma,
}
