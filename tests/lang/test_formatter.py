"""The canonical layout, case by case: what goes in, and exactly what comes out."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

from omnigraph.errors import QueryError, SchemaError
from omnigraph.lang import Source, format_queries, format_schema
from omnigraph.lang.formatter import WIDTH

_BODY = "match { $p: P } return { $p }"
_LAID_OUT_BODY = """
    match {
        $p: P
    }
    return { $p }
"""


def _assert_schema(given: str, expected: str) -> None:
    _assert_layout(format_schema, dedent(given), dedent(expected).removeprefix("\n"))


def _assert_queries(given: str, expected: str) -> None:
    _assert_layout(format_queries, dedent(given), dedent(expected).removeprefix("\n"))


def _assert_layout(layout: Callable[[Source], str], given: str, expected: str) -> None:
    assert layout(Source(given)) == expected
    assert layout(Source(expected)) == expected


# Schemas -------------------------------------------------------------------------------------------


def test_every_property_and_rule_of_a_type_stands_on_a_line_of_its_own() -> None:
    _assert_schema(
        """
        node A{ a :enum( x,y-z )?b:[String]? v: Vector( 3 )@embed( t ,model = "m" )
          @range( a , -1.5 .. )@range(a,..2) @check(a,"x  y")  @unique(a ,b) }
        """,
        """
        node A {
            a: enum(x, y-z)?
            b: [String]?
            v: Vector(3) @embed(t, model="m")
            @range(a, -1.5..)
            @range(a, ..2)
            @check(a, "x  y")
            @unique(a, b)
        }
        """,
    )


def test_a_declaration_without_members_takes_one_line_and_needs_no_blank_line_around_it() -> None:
    _assert_schema(
        "interface I{\n}node A{}edge E:A->A{ }edge F:A->A@card( 0 .. 1 )@note",
        """
        interface I {}
        node A {}
        edge E: A -> A {}
        edge F: A -> A @card(0..1) @note
        """,
    )


def test_blank_lines_stand_around_declarations_with_members_and_are_kept_elsewhere_one_at_most() -> None:
    _assert_schema(
        """


        node A { a: String



        b: String }
        node B {}


        node C {}
        edge E: B -> C {

        c: Date

        }
        """,
        """
        node A {
            a: String

            b: String
        }

        node B {}

        node C {}

        edge E: B -> C {
            c: Date
        }
        """,
    )


def test_a_header_of_a_type_stays_on_one_line() -> None:
    _assert_schema(
        """
        node Person @description("somebody we know, from home or from work, or have at least heard about")
          @instruction("ask first")
          implements Named ,Aged { }
        """,
        """
        node Person @description("somebody we know, from home or from work, or have at least heard about") \
@instruction("ask first") implements Named, Aged {}
        """,
    )


def test_comments_stay_on_their_line_or_behind_what_they_stood_behind() -> None:
    _assert_schema(
        """
        // about the file

        // about A
        node A { // behind a brace
        a: String // behind a property
          // on its own
        b: I32 /* inside */ @index
        // after the last
        } // behind the end
        /* a block */ edge E: A -> A
        edge F: A -> A// at the very end
        """,
        """
        // about the file

        // about A
        node A {  // behind a brace
            a: String  // behind a property
            // on its own
            b: I32 /* inside */ @index
            // after the last
        }  // behind the end

        /* a block */
        edge E: A -> A
        edge F: A -> A  // at the very end
        """,
    )


@pytest.mark.parametrize("header", ["node A", "interface A", "edge E: A -> A"])
def test_comments_in_an_empty_body_are_indented_as_its_members_would_be(header: str) -> None:
    _assert_schema(f"{header} {{\n// to do\n/* later */\n}}", f"{header} {{\n    // to do\n    /* later */\n}}\n")


def test_the_lines_of_a_block_comment_are_left_as_they_are() -> None:
    _assert_schema(
        "node A {\n  /* first\n       second\n */\n  a: String\n}\n",
        "node A {\n    /* first\n       second\n */\n    a: String\n}\n",
    )


def test_comments_in_odd_places_keep_their_order_and_the_text_still_parses() -> None:
    _assert_schema(
        """
        edge /* 1 */ E // 2
         : A /* 3 */ -> // 4
         A @card /* 5 */ ( 0 /* 6 */ .. // 7
         ) { x // 8
         : I32 // 9
         ? }
        """,
        """
        edge /* 1 */ E  // 2
        : A /* 3 */ ->  // 4
        A @card /* 5 */(0 /* 6 */..  // 7
        ) {
            x  // 8
            : I32  // 9
            ?
        }
        """,
    )


def test_what_looks_like_a_comment_or_a_brace_in_a_text_is_left_alone() -> None:
    text = 'node A @note("// no { comment /* here */ }") {}\n'
    _assert_schema(text, text)


def test_a_text_over_several_lines_keeps_every_character() -> None:
    _assert_schema('node A @note("one\n   two  \n") { }', 'node A @note("one\n   two  \n") {}\n')


# Queries -------------------------------------------------------------------------------------------


def test_every_clause_of_a_match_stands_on_a_line_of_its_own() -> None:
    _assert_queries(
        """
        query q ( ) { match{$p:Person{name:"a",age:3,}$p $w : knows $f $p < knows > {1,3} $f
        $p knows { 2 , } $f $p.age>=1.5 search( $p.bio,"x" )$p.tags contains "y"}
        return{$p.name as n $f,count( $p ),}order{n desc,$p.age}limit 5 }
        """,
        """
        query q() {
            match {
                $p: Person { name: "a", age: 3 }
                $p $w:knows $f
                $p <knows>{1,3} $f
                $p knows{2,} $f
                $p.age >= 1.5
                search($p.bio, "x")
                $p.tags contains "y"
            }
            return { $p.name as n, $f, count($p) }
            order { n desc, $p.age }
            limit 5
        }
        """,
    )


def test_a_negation_of_one_clause_stands_on_one_line_and_a_longer_one_is_a_block() -> None:
    _assert_queries(
        """
        query q() { match { $p: P not{$p knows $f}not{$p knows $f $f knows $p} not{not{ $p knows $f }}
        not { $p knows $f // why
        }
        not { $p.a_property_with_a_long_name = "a text so long that both together are too much for a line" } }
        return { $p } }
        """,
        """
        query q() {
            match {
                $p: P
                not { $p knows $f }
                not {
                    $p knows $f
                    $f knows $p
                }
                not { not { $p knows $f } }
                not {
                    $p knows $f  // why
                }
                not {
                    $p.a_property_with_a_long_name = "a text so long that both together are too much for a line"
                }
            }
            return { $p }
        }
        """,
    )


def test_lists_that_do_not_fit_a_line_are_broken_one_item_a_line() -> None:
    _assert_queries(
        """
        query q() {
            match { $p: P { a_long_property: "a long text to match", another_property: "another text to be matched" } }
            return { $p.first_property_of_many as one $p.second_property_of_many as two $p.third_property as three }
            order { $p.first_property_of_many desc, $p.second_property_of_many, $p.third_property_of_many, one asc }
        }
        """,
        """
        query q() {
            match {
                $p: P {
                    a_long_property: "a long text to match",
                    another_property: "another text to be matched",
                }
            }
            return {
                $p.first_property_of_many as one,
                $p.second_property_of_many as two,
                $p.third_property as three,
            }
            order {
                $p.first_property_of_many desc,
                $p.second_property_of_many,
                $p.third_property_of_many,
                one asc
            }
        }
        """,
    )


def test_mutations_are_laid_out_like_reads() -> None:
    _assert_queries(
        """
        query q($a:String){insert P{a:$a b:now() c:[1,2.5,"x",[ ]]}
        update P set{a:date( "2020-01-31" ),}where a!=3 delete P where x>=$a
        insert P { a_rather_long_property: "a rather long value" another_property: "another value", third: 3 } }
        """,
        """
        query q($a: String) {
            insert P { a: $a, b: now(), c: [1, 2.5, "x", []] }
            update P set { a: date("2020-01-31") } where a != 3
            delete P where x >= $a
            insert P {
                a_rather_long_property: "a rather long value",
                another_property: "another value",
                third: 3,
            }
        }
        """,
    )


def test_parameters_that_do_not_fit_a_line_are_broken_one_a_line() -> None:
    _assert_queries(
        "query a_long_name($first:String,$second:[I32]?,$third:Vector( 3 ),$fourth:DateTime ?,$fifth_of_all:Bool){"
        f"{_BODY}}}",
        f"""
query a_long_name(
    $first: String,
    $second: [I32]?,
    $third: Vector(3),
    $fourth: DateTime?,
    $fifth_of_all: Bool
) {{{_LAID_OUT_BODY}}}
""",
    )


@pytest.mark.parametrize(
    "given, expected",
    [
        ('@ description( "short" )@instruction("too")', ' @description("short") @instruction("too") {'),
        (
            f'@description("{"long " * 12}") @instruction("too long for one line")',
            f'\n    @description("{"long " * 12}")\n    @instruction("too long for one line")\n{{',
        ),
    ],
    ids=["short", "long"],
)
def test_annotations_of_a_query_stand_in_its_header_or_below_it_if_that_is_too_long(given: str, expected: str) -> None:
    _assert_queries(f"query q($x: I32) {given} {{ {_BODY} }}", f"query q($x: I32){expected}{_LAID_OUT_BODY}}}\n")


def test_a_line_break_inside_an_annotation_or_an_undirected_edge_breaks_nothing_else() -> None:
    _assert_queries(
        'query q() @\ndescription("d") { match { $p: P not { $p <\nknows\n> $f } } return { $p } }',
        """
        query q() @description("d") {
            match {
                $p: P
                not { $p <knows> $f }
            }
            return { $p }
        }
        """,
    )


def test_a_blank_line_stands_between_queries() -> None:
    _assert_queries(
        "query a() { delete P where x = 1 } // a\nquery b() { delete P where x = 1 }",
        """
        query a() {
            delete P where x = 1
        }  // a

        query b() {
            delete P where x = 1
        }
        """,
    )


def test_comments_break_a_list_that_would_fit_and_stand_behind_its_commas() -> None:
    _assert_queries(
        """
        query q( // 1
        $a: String // 2
        , $b: I32 /* 3 */ ) { // 4
        match { $p: P { a: 1 // 5
        } }
        // 6
        return { $p, // 7

        // 8
        $p.a /* 9 */, $p.b // 10
        } } // 11
        """,
        """
        query q(  // 1
            $a: String,  // 2
            $b: I32 /* 3 */
        ) {  // 4
            match {
                $p: P {
                    a: 1,  // 5
                }
            }
            // 6
            return {
                $p,  // 7

                // 8
                $p.a, /* 9 */
                $p.b,  // 10
            }
        }  // 11
        """,
    )


@pytest.mark.parametrize(
    "text",
    [
        "query q() {{ match {{ $p: P }} return {{ $p.{name} as n, $p }} }}",
        "query q() {{ match {{ $p: P }} return {{ $p }} order {{ $p.{name}, $p.a }} }}",
        "query q() {{ match {{ $p: P {{ {name}: 1, a: 2 }} }} return {{ $p }} }}",
        "query q() {{ match {{ $p: P not {{ $p.{name} = 1 }} }} return {{ $p }} }}",
        "query q(${name}: String, $a: I32) {{ delete P where x = 1 }}",
        "query q() {{ insert P {{ {name}: 1, a: 2 }} }}",
        "query q() {{ update P set {{ {name}: 1, a: 2 }} where x = 1 }}",
    ],
    ids=["return", "order", "binding", "negation", "parameters", "insert", "update"],
)
def test_what_can_be_broken_is_broken_when_its_line_would_be_too_long_and_not_before(text: str) -> None:
    def longest(size: int) -> tuple[int, int]:
        lines = format_queries(Source(text.format(name="n" * size))).splitlines()
        return max(map(len, lines)), len(lines)

    widths = [longest(size) for size in range(40, 80)]  # what is short enough to stand on a line of its own when broken
    whole = [width for width, height in widths if height == widths[0][1]]
    assert max(whole) == WIDTH
    assert max(width for width, _ in widths) == WIDTH


# Both ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [format_schema, format_queries])
@pytest.mark.parametrize(
    "given, expected",
    [
        ("", ""),
        (" \n\t\r\n", ""),
        ("// only", "// only\n"),
        ("\n\n  // one\n\n\n\n/* two */ // three  \n\n", "// one\n\n/* two */  // three\n"),
    ],
    ids=["empty", "blank", "a comment", "comments"],
)
def test_a_file_without_declarations_keeps_only_its_comments(
    layout: Callable[[Source], str], given: str, expected: str
) -> None:
    _assert_layout(layout, given, expected)


@pytest.mark.parametrize(
    "layout, text",
    [
        (format_schema, "// a\nnode A { // b\n\n\n  a: String @key // c\n\n  /* d\n  e */\n  b: I32\n}\n"),
        (
            format_queries,
            "query q() { // a\n  match { $p: P\n\n\n  /* d\n e */\n  $p knows $f }\n return { $p, // b\n $f } }\n",
        ),
    ],
    ids=["schema", "queries"],
)
def test_lines_may_end_in_carriage_returns_which_the_layout_drops(layout: Callable[[Source], str], text: str) -> None:
    formatted = layout(Source(text.replace("\n", "\r\n")))
    assert formatted == layout(Source(text))
    assert "\r" not in formatted


@pytest.mark.parametrize(
    "layout, error, text, codes",
    [
        (format_schema, SchemaError, "node A { a String }\nnode B {}\nnode C { b: Str }\n", ["P1", "P1"]),
        (format_schema, SchemaError, 'node A @note("\\q") {}', ["P36"]),
        (format_queries, QueryError, "query q() {\nquery r() { match { } return { $p } }\n", ["Q000", "Q000"]),
        (format_queries, QueryError, "query q() { match { $p not $f } return { $p } }", ["Q000"]),
    ],
    ids=["schema syntax", "schema escape", "query syntax", "query edge word"],
)
def test_what_does_not_parse_is_not_formatted_but_explained(
    layout: Callable[[Source], str], error: type[SchemaError | QueryError], text: str, codes: list[str]
) -> None:
    with pytest.raises(error) as raised:
        layout(Source(text))
    assert [diagnostic.code for diagnostic in raised.value.diagnostics] == codes


def test_what_parses_is_formatted_even_if_it_breaks_every_other_rule() -> None:
    _assert_schema("edge A : B -> C @card( 3 .. 1 )", "edge A: B -> C @card(3..1)\n")
    _assert_queries(f"query q($x: I32, $x: I32) {{ {_BODY} }}", f"query q($x: I32, $x: I32) {{{_LAID_OUT_BODY}}}\n")
