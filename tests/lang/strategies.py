"""Texts in the two languages, made by following their grammars, and ways to damage them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

Tokens = tuple[str, ...]
Part = str | SearchStrategy[Tokens]

KEYWORDS = (
    *("node", "edge", "interface", "implements", "enum", "query", "match", "return", "order", "limit"),
    *("insert", "update", "set", "where", "delete", "not", "as", "asc", "desc", "contains", "starts_with"),
    *("true", "false", "now", "nearest", "search", "fuzzy", "match_text", "bm25", "rrf", "count", "sum", "avg"),
    *("min", "max", "date", "datetime", "key", "unique", "index", "range", "check", "card", "description"),
    *("instruction", "null", "and", "or", "in", "is", "having", "offset", "distinct", "nulls", "collect", "object"),
)
SCALARS = ("String", "Blob", "Bool", "I32", "I64", "U32", "U64", "F32", "F64", "DateTime", "Date")
PUNCTUATION = (
    *("+", "*", "/", "@id"),
    *("{", "}", "(", ")", "[", "]", ":", ",", "->", "..", "?", "$", "@", "=", "!=", "<", "<=", ">", ">=", ".", "-"),
    *('"', "\\", "//", "/*", "*/", "\n", "\r\n", "\t", " "),
)
# Commented out or quoted, none of these may be taken for what it looks like.
_LURES = (
    *PUNCTUATION,
    *("***", "////", "@key(a)", "a: (b)", "node A {", "query q() {", "= 1", "é", "漢", "\N{GRINNING FACE}", "\r"),
)


# Building blocks -----------------------------------------------------------------------------------


def seq(*parts: Part) -> SearchStrategy[Tokens]:
    """Put the parts one behind the other; a `str` is a token."""
    strategies = [st.just((part,)) if isinstance(part, str) else part for part in parts]
    return st.tuples(*strategies).map(lambda groups: tuple(chain.from_iterable(groups)))


def either(*parts: Part) -> SearchStrategy[Tokens]:
    return st.one_of([seq(part) for part in parts])


def maybe(*parts: Part) -> SearchStrategy[Tokens]:
    return st.just(()) | seq(*parts)


def many(part: Part, least: int = 0, most: int = 3) -> SearchStrategy[Tokens]:
    groups = st.lists(seq(part), min_size=least, max_size=most)
    return groups.map(lambda found: tuple(chain.from_iterable(found)))


def separated(part: Part, least: int = 1, most: int = 3) -> SearchStrategy[Tokens]:
    """Between `least` and `most` parts with commas between them."""
    groups = st.lists(seq(part), min_size=least, max_size=most)
    return groups.map(lambda found: tuple(token for group in found for token in (",", *group))[1:])


def token(texts: SearchStrategy[str] | Sequence[str]) -> SearchStrategy[Tokens]:
    strategy = texts if isinstance(texts, SearchStrategy) else st.sampled_from(texts)
    return strategy.map(lambda text: (text,))


def nested(
    base: SearchStrategy[Tokens], wrap: Callable[[SearchStrategy[Tokens]], SearchStrategy[Tokens]]
) -> SearchStrategy[Tokens]:
    """The base, or the base wrapped once or twice."""
    return base | wrap(base | wrap(base))


def glued(*parts: Part) -> SearchStrategy[Tokens]:
    """Join parts to one token, with nothing but spaces inside: no comment may stand there."""
    blank = st.sampled_from(("", "", " ", "\n", "\r\n\t"))
    return st.tuples(seq(*parts), blank).map(lambda drawn: (drawn[1].join(drawn[0]),))


# Words and literals --------------------------------------------------------------------------------

_plain = st.from_regex(r"[a-z_][A-Za-z0-9_]{0,6}", fullmatch=True)
_long = "a_name_so_long_that_two_of_them_fill_a_line_of_text"
_properties = st.sampled_from((_long, "name", "age", "bio", "since", "from", "to", "slug"))
NAME = token(st.sampled_from(KEYWORDS) | _plain | _properties)
# A bare word among expressions can be taken for a keyword that may stand there too.
ALIAS = token(
    st.sampled_from(("count", "date", "query", "search", "match", "order"))
    | st.just("x")
    | _plain.filter(lambda word: word not in KEYWORDS)
)
TYPE = token(
    st.sampled_from(("Person", "Company", "Knows", *SCALARS, "Vector"))
    | st.from_regex(r"[A-Z][A-Za-z0-9_]{0,4}", fullmatch=True)
)
VARIABLE = token(st.sampled_from(("$p", "$f", "$_", "$not")) | _plain.map(lambda word: f"${word}"))
UINT = token(st.sampled_from(("0", "1", "3", "007", "9223372036854775807")) | st.integers(0, 99).map(str))
FLOAT = token(st.from_regex(r"[0-9]{1,3}\.[0-9]{1,3}", fullmatch=True))
BOOL = token(("true", "false"))
_characters = st.characters(exclude_characters='"\\\0', exclude_categories=["Cs"])
_quotable = st.sampled_from([lure for lure in _LURES if '"' not in lure and "\\" not in lure])
_escapes = st.sampled_from(('\\"', "\\\\", "\\n", "\\r", "\\t"))
STRING = token(st.lists(_characters | _quotable | _escapes, max_size=6).map(lambda parts: f'"{"".join(parts)}"'))
SCALAR = token(SCALARS)

# Schemas, after the grammar of .pg -----------------------------------------------------------------

_literal = either(STRING, FLOAT, UINT, BOOL)
_rule_name = ("key", "unique", "index", "range", "check")
_number = token(st.from_regex(r"-?[0-9]{1,3}(\.[0-9]{1,2})?", fullmatch=True))
_bounds = either(seq(_number, "..", maybe(_number)), seq("..", _number))
_rule = seq(
    glued("@", token(_rule_name)),
    "(",
    separated(either(NAME.filter(lambda word: word[0] not in ("true", "false")), STRING, BOOL, _number, _bounds)),
    ")",
)
_called = ("description", "instruction", "rename_from", "embed", "note", "true", "node")
_annotation = either(
    glued("@", NAME),
    seq(
        glued("@", token(_called)),
        "(",
        either(_literal, NAME.filter(lambda word: word[0] not in ("true", "false"))),
        many(seq(",", NAME, "=", _literal), most=2),
        ")",
    ),
)
_enum_value = token(st.from_regex(r"[A-Za-z0-9_-]{1,5}", fullmatch=True))
_property_type = seq(
    either(
        SCALAR,
        seq("[", SCALAR, "]"),
        seq("enum", "(", separated(_enum_value), ")"),
        seq("Vector", "(", UINT, ")"),
    ),
    maybe("?"),
)
_property = seq(NAME, ":", _property_type, many(_annotation, most=2))
_body = seq("{", many(either(_property, _rule)), "}")
_interface = seq("interface", TYPE, "{", many(_property), "}")
_node = seq("node", TYPE, many(_annotation, most=2), maybe("implements", separated(TYPE)), _body)
_card = seq(glued("@", "card"), "(", UINT, "..", maybe(UINT), ")")
_edge = seq("edge", TYPE, ":", TYPE, "->", TYPE, maybe(_card), many(_annotation, most=2), maybe(_body))
_schema = many(either(_interface, _node, _edge))

# Queries, after the grammar of .gq -----------------------------------------------------------------

_parameter_type = seq(
    either(seq("[", token(SCALARS[2:]), "]"), SCALAR, seq("Vector", "(", token(("1", "3")), ")")), maybe("?")
)
_parameters = separated(seq(VARIABLE, ":", _parameter_type), least=0)
_note = {kind: maybe(glued("@", kind), "(", STRING, ")") for kind in ("description", "instruction")}
_notes = either(seq(_note["description"], _note["instruction"]), seq(_note["instruction"], _note["description"]))

_list_or_literal = nested(
    either(seq("datetime", "(", STRING, ")"), seq("date", "(", STRING, ")"), STRING, FLOAT, UINT, BOOL),
    lambda inner: seq("[", separated(inner, least=0), "]"),
)
_now = seq("now", "(", ")")
_value = either(_list_or_literal, VARIABLE, _now)
_property_access = seq(VARIABLE, ".", NAME)


def _nearest(inner: SearchStrategy[Tokens]) -> SearchStrategy[Tokens]:
    option = seq(",", "approximate", ":", token(("true", "false")))
    return seq("nearest", "(", _property_access, ",", inner, maybe(option), ")")


def _text_call(inner: SearchStrategy[Tokens]) -> SearchStrategy[Tokens]:
    return either(
        seq(token(("search", "match_text")), "(", inner, ",", inner, ")"),
        seq("fuzzy", "(", inner, ",", inner, maybe(",", inner), ")"),
    )


def _other_call(inner: SearchStrategy[Tokens]) -> SearchStrategy[Tokens]:
    bm25 = seq("bm25", "(", inner, ",", inner, ")")
    rank = either(_nearest(inner), bm25)
    return either(
        bm25,
        seq("rrf", "(", rank, ",", rank, maybe(",", inner), ")"),
        seq(token(("count", "sum", "avg", "min", "max")), "(", inner, ")"),
        _text_call(inner),
    )


_leaf = either(_property_access, _list_or_literal, _now, ALIAS)
_atom = either(_leaf, VARIABLE)
_expression = nested(_atom, lambda inner: either(_nearest(inner), _other_call(inner)))
_term = either(_leaf, _nearest(_atom), _other_call(_atom))

# Operators: what may stand between two operands, and before one.
_operand = either(
    _expression,
    seq(VARIABLE, ".", token(("@id", "@src", "@type"))),
    seq(token(("lower", "coalesce", "foo")), "(", separated(_atom), ")"),
    seq("object", "(", VARIABLE, ")"),
    seq("count", "(", "distinct", _property_access, ")"),
)
_comparison = token((">=", "<=", "!=", ">", "<", "="))
_inner = either(_operand, seq("(", _operand, either(_comparison, "and", "*"), _operand, ")"))
_sum = seq(_operand, many(seq(token("+-*/"), maybe("-"), _inner), most=2))
_test = either(
    _sum,
    seq(_sum, either(_comparison, token(("in", "contains", "starts_with"))), _sum),
    seq(_sum, "is", maybe("not"), "null"),
)
_logic = seq(_test, many(seq(token(("and", "or")), maybe("not"), either(_test, _inner)), most=2))

_entries = seq("{", separated(seq(NAME, ":", _value)), maybe(","), "}")
_edge_word = NAME.filter(lambda word: not word[0].startswith("not"))
_edge_reference = either(_edge_word, seq("<", _edge_word, ">"))
_hops = maybe("{", UINT, ",", maybe(UINT), "}")
_clause = nested(
    either(
        seq(VARIABLE, ":", TYPE, maybe(_entries)),
        seq(VARIABLE, maybe(VARIABLE, ":"), _edge_reference, _hops, VARIABLE),
        seq(_term, either(_comparison, token(("contains", "starts_with"))), _expression),
        seq(VARIABLE, _comparison, _expression),
        seq(VARIABLE, token(("contains", "starts_with", "and", "in")), either(_term, VARIABLE), maybe("or", _test)),
        seq(either(_property_access, _other_call(_atom)), "in", _sum, many(seq("or", maybe("not"), _test), most=2)),
        _text_call(_atom),
    ),
    lambda inner: seq("not", "{", many(inner, least=1), "}"),
)
_clause_of_result = seq(_property_access, _comparison, _sum)
_item = either(seq(_expression, maybe("as", NAME), maybe(",")), seq(_logic, maybe("as", NAME), ","))
_directed = seq(maybe(token(("asc", "desc"))), maybe("nulls", token(("first", "last"))))
_key = either(_nearest(_expression), seq(either(_atom, _other_call(_expression), _logic), _directed))
_rows = either(UINT, VARIABLE)
_read = seq(
    *("match", "{", many(_clause, least=1), "}"),
    *("return", maybe("distinct"), "{", many(_item, least=1), "}"),
    maybe("having", "{", many(_clause_of_result, least=1, most=2), "}"),
    maybe("order", "{", separated(_key), "}"),
    maybe("offset", _rows),
    maybe("limit", _rows),
)
_assignments = seq("{", many(seq(NAME, ":", _value, maybe(",")), least=1), "}")
_predicate = seq("where", NAME, _comparison, either(_value, _sum), maybe(token(("and", "or")), _test))
_write = many(
    either(
        seq("insert", TYPE, _assignments),
        seq("update", TYPE, "set", _assignments, _predicate),
        seq("delete", TYPE, _predicate),
    ),
    least=1,
)
_queries = many(seq("query", NAME, "(", _parameters, ")", _notes, "{", either(_read, _write), "}"), most=2)

# Queries that type-check against the catalog of the oracle -----------------------------------------

_typed_value = either("$text", STRING)
_typed_clause = either(
    seq("$p", "knows", maybe("{", token(("1", "2")), ",", token(("2", "3")), "}"), "$f"),
    seq("$p", "<", "knows", ">", "$f"),
    seq("$c", "worksAt", "$p"),
    seq("$p", "$_", ":", "worksAt", "$_"),
    seq("$p", ".", "age", _comparison, either(UINT, FLOAT, "$number")),
    seq("$p", ".", "name", token(("contains", "starts_with", "=")), _typed_value),
    seq("$p", ".", "tags", "contains", _typed_value),
    seq("$p", ".", "born", "<", "date", "(", token(('"2020-01-31"', '"20200131"')), ")"),
    seq("$p", ":", "Person", maybe("{", "order", ":", _typed_value, maybe(","), "}")),
    seq(token(("search", "match_text", "fuzzy")), "(", "$p", ".", "bio", ",", _typed_value, ")"),
    seq("not", "{", "$p", "worksAt", "$_", maybe("not", "{", "$p", "knows", "$x", "}"), "}"),
)
_typed_item = seq(
    either("$p", seq("$p", ".", token(("name", "age", "order"))), "$text", _now, STRING, UINT),
    maybe("as", NAME),
    maybe(","),
)
_typed_read = seq(
    *("match", "{", "$p", ":", "Person", many(_typed_clause), "}", "return", "{", many(_typed_item, least=1), "}"),
    either(
        maybe("order", "{", separated(seq("$p", ".", token(("age", "name")), maybe(token(("asc", "desc"))))), "}"),
        seq("order", "{", "nearest", "(", "$p", ".", "face", ",", "$vector", ")", "}", "limit", "3"),
    ),
)
_typed_statement = either(
    seq(
        "insert",
        "Person",
        "{",
        "name",
        ":",
        _typed_value,
        maybe(","),
        "age",
        ":",
        either("$number", "3"),
        maybe(","),
        "}",
    ),
    seq("insert", "Knows", "{", "from", ":", "$text", maybe(","), "to", ":", STRING, "}"),
    seq(
        "update",
        "Person",
        "set",
        "{",
        "born",
        ":",
        "date",
        "(",
        '"2020-01-31"',
        ")",
        "}",
        "where",
        "age",
        _comparison,
        "3",
    ),
)
_typed_delete = seq("delete", token(("Person", "Company")), "where", "name", _comparison, _typed_value)
_typed_query = seq(
    *("query", NAME, "(", "$text", ":", "String", ",", "$number", ":", "I32", "?", ",", "$vector", ":"),
    *("Vector", "(", "2", ")", ")", _notes, "{"),
    either(_typed_read, many(_typed_statement, least=1), many(_typed_delete, least=1)),
    "}",
)

# From tokens to text -------------------------------------------------------------------------------

_BLANKS = (" ", "", "\n", "  ", "\t", "\r\n", "\n\n", "\n\n\n")
_LINE_COMMENTS = tuple(f"//{lure}\n" for lure in _LURES if "\n" not in lure)
_BLOCK_COMMENTS = tuple(f"/*{lure}*/" for lure in _LURES if "*/" not in lure)
_SEVERAL = (" // a\n // b\n", "\n\n/* a */ // b\n\n", "/* a *//* b */", "\n/*\n * a\n */\n", "// a\n\n\n// b\n\n\n")
_gap = st.sampled_from((*_BLANKS * 60, *_LINE_COMMENTS, *_BLOCK_COMMENTS, *_SEVERAL * 5))
_WORD_END, _WORD_START = re.compile(r"[A-Za-z0-9_-]$"), re.compile(r"[A-Za-z0-9_-]")


@st.composite
def _text(draw: DrawFn, grammar: SearchStrategy[Tokens]) -> str:
    """Write tokens with spaces, line breaks and comments between them, or nothing where nothing is needed."""
    text = draw(_gap)
    for word in draw(grammar):
        if _WORD_END.search(text) and _WORD_START.match(word):
            text += " "
        text += word + draw(_gap)
    return text


schemas = _text(_schema)
queries = _text(_queries)
typed_queries = _text(_typed_query)


# Damage --------------------------------------------------------------------------------------------

_PIECES = re.compile(r"\w+|\s+|.", re.DOTALL)


@st.composite
def damaged(draw: DrawFn, texts: SearchStrategy[str]) -> str:
    """A valid text with a few tokens deleted, doubled, swapped or put in, perhaps cut off."""
    pieces = _PIECES.findall(draw(texts)) or [""]
    for _ in range(draw(st.integers(1, 3))):
        at, other = (draw(st.integers(0, len(pieces) - 1)) for _ in range(2))
        match draw(st.sampled_from(("delete", "double", "swap", "insert", "cut"))):
            case "delete":
                pieces[at] = ""
            case "double":
                pieces.insert(at, pieces[at])
            case "swap":
                pieces[at], pieces[other] = pieces[other], pieces[at]
            case "insert":
                pieces.insert(at, draw(st.sampled_from((*PUNCTUATION, *KEYWORDS)) | st.characters()))
            case "cut":
                del pieces[at + 1 :]
    return "".join(pieces)
