"""What queries mean: the plans that they are lowered to."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from omnigraph.core.values import Scalar
from omnigraph.lang import ir
from omnigraph.lang.compiler import compile_query
from omnigraph.lang.ir import AntiJoin, Comparison, Constant, Direction, Expand, Filter, Operator, Scan, TextMatch
from omnigraph.lang.schema_check import compile_schema
from omnigraph.lang.source import Source
from omnigraph.lang.types import BOOL, DATE, DATETIME, F64, I64, STRING, Type

CATALOG = compile_schema(Source.read(Path(__file__).parent / "cases" / "queries.schema"))
OUT, IN, BOTH = Direction


def _where(column: str, type_: Type, operator: Operator, value: ir.Value) -> ir.Expr:
    return Comparison(ir.PropertyRef(ir.ROW, column, type_), operator, value)


# Where a match starts ------------------------------------------------------------------------------


def test_each_component_is_scanned_at_its_first_binding() -> None:
    assert _match("$a: Person  $b: Company  $d: Doc  $a worksAt $b  $e: Doc  $d cites $e") == (
        Scan("a", "Person"),
        Expand("a", "WorksAt", OUT, "b", "Company"),
        Scan("d", "Doc"),
        Expand("d", "Cites", OUT, "e", "Doc"),
    )


def test_a_binding_behind_its_traversal_is_still_where_the_scan_starts() -> None:
    assert _match("$p worksAt $c  $c: Company") == (
        Scan("c", "Company"),
        Expand("c", "WorksAt", IN, "p", "Person"),
    )


def test_components_without_a_binding_are_scanned_behind_those_with_one() -> None:
    assert _match("$a knows $b  $c: Company  $x worksAt $y") == (
        Scan("c", "Company"),
        Scan("a", "Person"),
        Expand("a", "Knows", OUT, "b", "Person"),
        Scan("x", "Person"),
        Expand("x", "WorksAt", OUT, "y", "Company"),
    )


def test_a_later_binding_constrains_a_traversed_variable() -> None:
    assert _match('$p: Person  $p worksAt $c  $c: Company { name: "Acme" }') == (
        Scan("p", "Person"),
        Expand("p", "WorksAt", OUT, "c", "Company"),
        Filter(_equal(_of("c", "Company", "name"), Constant("Acme", STRING))),
    )


# Which way an edge is walked -----------------------------------------------------------------------

WALKS = {
    "$p: Person | $p worksAt $x": Expand("p", "WorksAt", OUT, "x", "Company"),
    "$c: Company | $c worksAt $x": Expand("c", "WorksAt", IN, "x", "Person"),
    "$c: Company | $x worksAt $c": Expand("c", "WorksAt", IN, "x", "Person"),
    "$p: Person | $x worksAt $p": Expand("p", "WorksAt", OUT, "x", "Company"),
    "$p: Person | $p knows{2,4} $x": Expand("p", "Knows", OUT, "x", "Person", 2, 4),
    "$p: Person | $x knows{2,4} $p": Expand("p", "Knows", IN, "x", "Person", 2, 4, backwards=True),
    "$p: Person | $p <knows> $x": Expand("p", "Knows", BOTH, "x", "Person"),
    "$p: Person | $x <knows>{1,2} $p": Expand("p", "Knows", BOTH, "x", "Person", 1, 2, backwards=True),
}


@pytest.mark.parametrize("clauses", WALKS)
def test_an_edge_is_walked_from_its_bound_end(clauses: str) -> None:
    assert _match(clauses.replace("|", ""))[1:] == (WALKS[clauses],)


@pytest.mark.parametrize("clauses", WALKS)
def test_an_edge_in_a_negation_is_walked_as_outside(clauses: str) -> None:
    binding, traversal = clauses.split("|")
    (walk,) = _anti_join(_match(f"{binding} not {{ {traversal} }}")[1])
    assert isinstance(walk, Expand)
    assert replace(walk, target="x") == WALKS[clauses]


def test_a_bound_edge_is_named_by_its_step() -> None:
    assert _match("$p: Person  $x $w:knows $p  $p $_:knows $y")[1:] == (
        Expand("p", "Knows", IN, "x", "Person", edge_variable="w"),
        Expand("p", "Knows", OUT, "y", "Person"),
    )


def test_an_edge_between_bound_ends_closes_a_cycle() -> None:
    assert _match("$a: Person  $a knows $b  $b $w:knows $a  $a <knows>{1,3} $b")[2:] == (
        Expand("b", "Knows", OUT, "a", "Person", edge_variable="w", closes=True),
        Expand("a", "Knows", BOTH, "b", "Person", 1, 3, closes=True),
    )


@pytest.mark.parametrize("clauses", ["$a: Person $a knows $a", "$a knows $a", "$a knows $a $a: Person"])
def test_an_edge_from_a_node_to_itself_closes_a_cycle(clauses: str) -> None:
    assert _match(clauses) == (Scan("a", "Person"), Expand("a", "Knows", OUT, "a", "Person", closes=True))


def test_an_edge_between_outer_variables_closes_a_cycle_in_a_negation() -> None:
    assert _match("$a: Person  $b: Person  not { $a knows $b }") == (
        Scan("a", "Person"),
        Scan("b", "Person"),
        AntiJoin((Expand("a", "Knows", OUT, "b", "Person", closes=True),)),
    )


def test_every_anonymous_variable_is_another_one() -> None:
    steps = _match("$p: Person  $p knows $_  $p knows $_  $_ knows $_  $_: Person")
    names = [step.target if isinstance(step, Expand) else step.variable for step in _bindings(steps)]
    assert names[0] == "p"
    assert len(names) == len(set(names)) == 6


# When a predicate holds ----------------------------------------------------------------------------


def test_what_concerns_only_the_scanned_variable_is_tested_by_the_scan() -> None:
    (scan,) = _match(
        '$p: Person { age: 3, tags: "x" }  5.5 > $p.height  search($p.name, "y")  $p: Person { active: true }'
    )
    assert scan == Scan(
        "p",
        "Person",
        (
            _equal(_of("p", "Person", "age"), Constant(3, I64)),
            Comparison(_of("p", "Person", "tags"), Operator.CONTAINS, Constant("x", STRING)),
            Comparison(Constant(5.5, F64), Operator.GT, _of("p", "Person", "height")),
            TextMatch("search", _of("p", "Person", "name"), Constant("y", STRING)),
            _equal(_of("p", "Person", "active"), Constant(value=True, type=BOOL)),
        ),
    )


def test_a_filter_runs_as_soon_as_its_variables_are_bound() -> None:
    steps = _match(
        "$p: Person  $p $w:worksAt $c  $c owns $d  $d.size > $c.size  $p.age < $c.size  $w.role != $p.name  1 < 2"
    )
    assert [type(step) for step in steps] == [Filter, Scan, Expand, Filter, Filter, Expand, Filter]
    filters = [step.predicate for step in steps if isinstance(step, Filter)]
    assert [sorted(predicate.variables) for predicate in filters] == [[], ["c", "p"], ["p", "w"], ["c", "d"]]


def test_a_negation_runs_as_soon_as_what_it_mentions_is_bound() -> None:
    steps = _match("$p: Person  $p worksAt $c  $c owns $d  not { $d.size > $p.age }  not { $p knows $_ }")
    assert [type(step) for step in steps] == [Scan, AntiJoin, Expand, Expand, AntiJoin]


def test_a_filter_in_a_negation_tests_the_outer_variable() -> None:
    older = Comparison(_of("p", "Person", "age"), Operator.GT, Constant(30, I64))
    named = _equal(_of("p", "Person", "name"), Constant("a", STRING))
    assert _match('$p: Person  not { $p.age > 30 }  not { $p: Person { name: "a" } }') == (
        Scan("p", "Person"),
        AntiJoin((Filter(older),)),
        AntiJoin((Filter(named),)),
    )


def test_a_negation_scans_what_nothing_connects_to_the_outside() -> None:
    (scan, test) = _anti_join(_match("$p: Person  not { $d: Doc { pages: 3 } $d.title = $p.name }")[1])
    assert isinstance(scan, Scan)
    assert scan == Scan(scan.variable, "Doc", (_equal(_of(scan.variable, "Doc", "pages"), Constant(3, I64)),))
    assert test == Filter(_equal(_of(scan.variable, "Doc", "title"), _of("p", "Person", "name")))


def test_negations_nest() -> None:
    outer = _anti_join(_match("$p: Person  not { $p knows $f  not { $f worksAt $c  $p worksAt $c } }")[1])
    assert outer[0] == Expand("p", "Knows", OUT, friend := _target(outer[0]), "Person")
    first, closing = _anti_join(outer[1])
    assert first == Expand(friend, "WorksAt", OUT, company := _target(first), "Company")
    assert closing == Expand("p", "WorksAt", OUT, company, "Company", closes=True)


def test_a_name_bound_in_a_negation_is_another_variable_elsewhere() -> None:
    steps = _match("$p: Person  not { $p knows $f }  not { $p wrote $f }  $f: Company  $p worksAt $f")
    inner = [_target(_anti_join(step)[0]) for step in steps if isinstance(step, AntiJoin)]
    assert steps[-1] == Expand("p", "WorksAt", OUT, "f", "Company")
    assert len({"p", "f", *inner}) == 4


@pytest.mark.parametrize("call", ['search($d.title, "x")', 'match_text($d.title, "x")', 'fuzzy($d.title, "x", 1)'])
def test_a_text_search_compared_with_true_is_the_search(call: str) -> None:
    for clauses in ("$d: Doc {}", "$p: Person $p wrote $d {}", "$d: Doc not {{ {} }}"):
        assert _match(clauses.format(f"{call} = true")) == _match(clauses.format(call))


def test_several_text_searches_all_hold() -> None:
    (scan,) = _match('$d: Doc  search($d.title, "x")  match_text($d.title, "y")  fuzzy($d.body, "z", 1)')
    assert isinstance(scan, Scan)
    assert scan.predicates == (
        TextMatch("search", _of("d", "Doc", "title"), Constant("x", STRING)),
        TextMatch("match_text", _of("d", "Doc", "title"), Constant("y", STRING)),
        TextMatch("fuzzy", _of("d", "Doc", "body"), Constant("z", STRING), Constant(1, I64)),
    )


def test_a_text_search_of_a_traversed_variable_is_a_filter() -> None:
    steps = _match('$p: Person  $p wrote $d  search($d.title, "x")')
    assert steps[-1] == Filter(TextMatch("search", _of("d", "Doc", "title"), Constant("x", STRING)))


# What is returned ----------------------------------------------------------------------------------


def test_columns_without_an_alias_are_named_after_what_they_hold() -> None:
    items = '$p.name, $p, $limit, 1, [2], date("2024-01-01"), now(), $w.since, $p.age as years'
    names = [column.name for column in _read("$p: Person $p $w:knows $f", items, params="$limit: I32").columns]
    assert names == ["p.name", "p", "limit", "literal", "literal", "literal", "now", "w.since", "years"]


def test_aggregates_without_an_alias_are_named_after_their_argument() -> None:
    items = "count($f), sum($f.age), avg($n), max(1), min($f.name) as least"
    names = [column.name for column in _read("$p: Person $p knows $f", items, params="$n: I32").columns]
    assert names == ["f", "f.age", "n", "literal", "least"]


def test_a_parameter_shadows_a_variable_that_stands_alone() -> None:
    columns = _read("$p: Person", "$p, $p.age", params="$p: String").columns
    assert [column.expression for column in columns if isinstance(column, ir.Column)] == [
        ir.ParameterRef("p", STRING),
        _of("p", "Person", "age"),
    ]


def test_a_read_projects_behind_its_order_and_limit() -> None:
    plan = _read("$p: Person", "$p.name as n, $p", "order { n desc, $p.age, p } limit 3")
    assert plan.steps[1:] == (
        ir.Order(
            (
                ir.SortKey(_of("p", "Person", "name"), descending=True),
                ir.SortKey(_of("p", "Person", "age")),
                ir.SortKey(ir.EntityRef("p", "Person")),
            ),
            ("p",),
        ),
        ir.Limit(3),
        ir.Project((ir.Column("n", _of("p", "Person", "name")), ir.Column("p", ir.EntityRef("p", "Person")))),
    )


def test_a_read_without_order_and_limit_has_no_such_step() -> None:
    assert [type(step) for step in _read("$p: Person", "$p").steps] == [Scan, ir.Project]


def test_ties_are_broken_by_every_named_variable_in_order_of_name() -> None:
    plan = _read("$z: Person  $z $w:knows $a  $a knows $_  not { $z knows $local }", "$z", "order { $z.age }")
    (order,) = [step for step in plan.steps if isinstance(step, ir.Order)]
    assert order.tie_break == ("a", "w", "z")


def test_of_several_columns_with_one_name_the_last_is_ordered_by() -> None:
    plan = _read("$p: Person", "$p.name as n, $p.age as n", "order { n }")
    (order,) = [step for step in plan.steps if isinstance(step, ir.Order)]
    assert order.keys == (ir.SortKey(_of("p", "Person", "age")),)


def test_an_aggregate_query_orders_and_limits_its_result() -> None:
    items = "$p.mood, $p as who, count($f) as n, sum($p.age), min($p.mood) as first, max($p) as last, max($p.age) as m"
    plan = _read("$p: Person $p knows $f", items, "order { n desc, $p.mood, who } limit 2")
    person, text = ir.EntityRef("p", "Person"), Type(Scalar.STRING, nullable=True)
    assert plan.steps[2:] == (
        ir.Aggregate(
            (
                ir.Column("p.mood", _of("p", "Person", "mood")),
                ir.Column("who", person),
                ir.AggregateColumn("n", "count", ir.EntityRef("f", "Person"), I64),
                ir.AggregateColumn("p.age", "sum", _of("p", "Person", "age"), Type(Scalar.F64, nullable=True)),
                ir.AggregateColumn("first", "min", _of("p", "Person", "mood"), text),
                ir.AggregateColumn("last", "max", person, text),
                ir.AggregateColumn("m", "max", _of("p", "Person", "age"), Type(Scalar.I32, nullable=True)),
            )
        ),
        ir.Order(
            (
                ir.SortKey(ir.ResultColumn(2), descending=True),
                ir.SortKey(ir.ResultColumn(0)),
                ir.SortKey(ir.ResultColumn(1)),
            )
        ),
        ir.Limit(2),
    )


# Ranking -------------------------------------------------------------------------------------------

NEAREST, BM25 = 'nearest($d.meaning, "x")', 'bm25($d.title, "x")'
SCANNED = "$d: Doc { pages: 3 }  $d cites $e  $e.pages > 5"
TRAVERSED = "$p: Person  $p wrote $d  $d cites $e"


@pytest.mark.parametrize("ranking", [NEAREST, BM25, f"rrf({NEAREST}, {BM25})"])
@pytest.mark.parametrize("clauses", [SCANNED, TRAVERSED, "$p: Person  $p.age > 3  $d: Doc  $d cites $e"])
def test_a_ranking_ranks_what_the_whole_match_leaves(clauses: str, ranking: str) -> None:
    steps = _read(clauses, "$d", f"order {{ {ranking} }} limit 7").steps
    assert [type(step) for step in steps[-4:]] == [ir.Rank, ir.Order, ir.Limit, ir.Project]
    assert [step.limit for step in steps if isinstance(step, ir.Rank)] == [7]


def test_further_keys_and_then_ids_break_the_ties_of_a_ranking() -> None:
    plan = _read("$d: Doc  $d cites $c", "$d", f"order {{ {NEAREST}, $d.pages desc }} limit 7")
    assert plan.steps[3] == ir.Order((ir.SortKey(_of("d", "Doc", "pages"), descending=True),), ("c", "d"))
    assert _read("$d: Doc", "$d", f"order {{ {BM25} }}").steps[2] == ir.Order((), ("d",))


def test_a_ranking_may_be_named_by_the_column_that_returns_its_score() -> None:
    named = _read("$d: Doc", f"$d, {NEAREST} as s", "order { s } limit 3")
    assert named == _read("$d: Doc", f"$d, {NEAREST} as s", f"order {{ {NEAREST} }} limit 3")
    assert named.columns[1] == ir.Column("s", ir.Score(F64))


def test_a_vector_query_is_made_of_floats() -> None:
    rank = _read("$d: Doc", "$d", "order { nearest($d.meaning, [1, 2.5, 3]) } limit 3").steps[1]
    assert isinstance(rank, ir.Rank)
    assert isinstance(rank.ranking, ir.NearestRank)
    query = rank.ranking.query
    assert query == Constant((1.0, 2.5, 3.0), Type(Scalar.VECTOR, dimension=3))
    assert isinstance(query, Constant)
    assert _kinds(query.value) == [float, float, float]


@pytest.mark.parametrize(
    "k, value",
    [("", Constant(60, I64)), (", 5", Constant(5, I64)), (", $k", ir.ParameterRef("k", Type(Scalar.I32)))],
)
def test_rrf_fuses_two_rankings_with_a_k_of_sixty_unless_told(k: str, value: ir.Value) -> None:
    text = Constant("x", STRING)
    plan = _read("$d: Doc", "$d", f"order {{ rrf({NEAREST}, {BM25}{k}) }} limit 3", "$k: I32")
    first, second = ir.NearestRank(_of("d", "Doc", "meaning"), text), ir.Bm25Rank(_of("d", "Doc", "title"), text)
    assert plan.steps[1] == ir.Rank(ir.FusedRank(first, second, value), 3)


# Values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "assignment, value",
    [
        ("f64: 4", 4.0),
        ("f32: 3", 3.0),
        ("f32: 0.5", 0.5),
        ("i32: 7", 7),
        ("u64: 9223372036854775807", 2**63 - 1),
        ("ratios: [1, 2.5]", (1.0, 2.5)),
        ("ratios: []", ()),
    ],
)
def test_an_assigned_number_is_converted_to_the_type_of_its_property(assignment: str, value: ir.PlainValue) -> None:
    (insert,) = _write(f'insert Figure {{ label: "a", {assignment} }}')
    name = assignment.partition(":")[0]
    assert isinstance(insert, ir.InsertNode)
    constant = dict(insert.values)[name]
    assert constant == Constant(value, CATALOG.nodes["Figure"].properties[name].type)
    assert isinstance(constant, Constant)
    assert _kinds(constant.value) == _kinds(value)


@pytest.mark.parametrize(
    "assignment, value",
    [
        ('born: date("2024-2-9")', dt.date(2024, 2, 9)),
        ('born: date("2024-02-29T23:30:00-02:00")', dt.date(2024, 3, 1)),
        ('seen: datetime("2024-02-29T10:20:30.1234+02:00")', dt.datetime(2024, 2, 29, 8, 20, 30, 123000, dt.UTC)),
        ('seen: datetime("2024-02-29")', dt.datetime(2024, 2, 29, tzinfo=dt.UTC)),
        ('days: [date("20240229")]', (dt.date(2024, 2, 29),)),
        ("face: [1, 2, 3]", (1.0, 2.0, 3.0)),
        ("active: true", True),
        (r'mood: "sad"', "sad"),
        (r'tags: ["\"\\\n\r\t", "漢"]', ('"\\\n\r\t', "漢")),
    ],
)
def test_an_assigned_literal_is_decoded(assignment: str, value: ir.PlainValue) -> None:
    (insert,) = _write(f'insert Person {{ name: "a", {assignment} }}')
    name = assignment.partition(":")[0]
    assert isinstance(insert, ir.InsertNode)
    assert insert.values[1] == (name, Constant(value, CATALOG.nodes["Person"].properties[name].type))


def test_dates_are_decoded_wherever_they_stand() -> None:
    (scan,) = _match('$p: Person { born: date("2024-01-02") }  $p.seen < datetime("2024-01-02T03:04:05Z")')
    assert isinstance(scan, Scan)
    right = [predicate.right for predicate in scan.predicates if isinstance(predicate, Comparison)]
    assert right == [
        Constant(dt.date(2024, 1, 2), DATE),
        Constant(dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC), DATETIME),
    ]
    (delete,) = _write('delete Person where born >= date("2024-01-02")')
    assert isinstance(delete, ir.DeleteNodes)
    assert isinstance(delete.where, Comparison)
    assert delete.where.right == Constant(dt.date(2024, 1, 2), DATE)


def test_now_is_the_time_of_the_request_wherever_it_stands() -> None:
    now = ir.RequestTime(DATETIME)
    plan = _read("$p: Person { seen: now() }", "now()")
    assert plan.steps == (
        Scan("p", "Person", (_equal(_of("p", "Person", "seen"), now),)),
        ir.Project((ir.Column("now", now),)),
    )
    (update,) = _write("update Person set { seen: now() } where seen < now()")
    assert isinstance(update, ir.UpdateNodes)
    assert isinstance(update.where, Comparison)
    assert (update.values, update.where.right) == ((("seen", now),), now)


# Mutations -----------------------------------------------------------------------------------------


def test_statements_keep_their_order_and_assignments_theirs() -> None:
    statements = _write(
        'insert Company { size: 3, name: $n } insert WorksAt { role: "cook", to: $n, from: "a" }', "$n: String"
    )
    name = ir.ParameterRef("n", STRING)
    assert statements == (
        ir.InsertNode("Company", (("size", Constant(3, Type(Scalar.U32, nullable=True))), ("name", name))),
        ir.InsertEdge("WorksAt", Constant("a", STRING), name, (("role", Constant("cook", STRING)),)),
    )


@pytest.mark.parametrize(
    "written, where",
    [
        ("Knows where from = $n", _where("src", STRING, Operator.EQ, ir.ParameterRef("n", STRING))),
        ('Knows where to != "b"', _where("dst", STRING, Operator.NE, Constant("b", STRING))),
        (
            'Knows where since <= date("2024-01-02")',
            _where("since", Type(Scalar.DATE, nullable=True), Operator.LE, Constant(dt.date(2024, 1, 2), DATE)),
        ),
    ],
)
def test_edges_are_deleted_by_their_stored_columns(written: str, where: ir.Expr) -> None:
    assert _write(f"delete {written}", "$n: String") == (ir.DeleteEdges("Knows", where),)


def test_a_node_property_called_from_is_not_an_endpoint() -> None:
    (delete,) = _write('delete Word where from = "x"')
    text = Type(Scalar.STRING, nullable=True)
    assert delete == ir.DeleteNodes("Word", _where("from", text, Operator.EQ, Constant("x", STRING)))


# Plans themselves ----------------------------------------------------------------------------------

_P, _Q = ir.PropertyRef("p", "name", STRING), ir.PropertyRef("q", "name", STRING)
_WHERE = _where("name", STRING, Operator.EQ, Constant("a", STRING))
_PROJECT = ir.Project((ir.Column("p.name", _P),))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Comparison(_P, Operator.EQ, Constant(1, I64)),
        lambda: Comparison(Constant(1, I64), Operator.CONTAINS, Constant(1, I64)),
        lambda: Comparison(_P, Operator.STARTS_WITH, Constant(1, I64)),
        lambda: Scan("p", "Person", (_equal(_Q, _P),)),
        lambda: Expand("p", "Knows", OUT, "q", "Person", 2, 1),
        lambda: Expand("p", "Knows", OUT, "q", "Person", 0, 1),
        lambda: Expand("p", "Knows", OUT, "q", "Person", 1, 2, "w"),
        lambda: ir.FusedRank(
            ir.Bm25Rank(_P, Constant("", STRING)), ir.Bm25Rank(_Q, Constant("", STRING)), Constant(60, I64)
        ),
        lambda: ir.Aggregate((ir.Column("p.name", _P),)),
        lambda: ir.ReadPlan((Scan("p", "Person"),)),
        lambda: ir.ReadPlan((_PROJECT, _PROJECT)),
        lambda: ir.MutationPlan((ir.InsertNode("Person", ()), ir.DeleteNodes("Person", _WHERE))),
    ],
)
def test_a_wrong_plan_cannot_be_made(make: Callable[[], object]) -> None:
    with pytest.raises(AssertionError):
        make()


def test_a_plan_cannot_be_changed() -> None:
    plan = _read("$p: Person", "$p")
    with pytest.raises(FrozenInstanceError):
        plan.steps = ()  # type: ignore[misc]
    assert hash(plan) == hash(_read("$p: Person", "$p  "))


# Support -------------------------------------------------------------------------------------------


def _read(clauses: str, items: str, rest: str = "", params: str = "") -> ir.ReadPlan:
    text = f"query q({params}) {{ match {{ {clauses} }} return {{ {items} }} {rest} }}"
    plan = compile_query(Source(text), CATALOG).plan
    assert isinstance(plan, ir.ReadPlan)
    return plan


def _match(clauses: str) -> tuple[ir.Step, ...]:
    """Lower a match; the one step behind it, which returns a literal, is left out."""
    return _read(clauses, "1").steps[:-1]


def _write(statements: str, params: str = "") -> tuple[ir.Statement, ...]:
    plan = compile_query(Source(f"query q({params}) {{ {statements} }}"), CATALOG).plan
    assert isinstance(plan, ir.MutationPlan)
    return plan.statements


def _of(variable: str, type_name: str, name: str) -> ir.PropertyRef:
    return ir.PropertyRef(variable, name, CATALOG.nodes[type_name].properties[name].type)


def _equal(left: ir.Operand, right: ir.Operand) -> Comparison:
    return Comparison(left, Operator.EQ, right)


def _anti_join(step: ir.Step) -> tuple[ir.MatchStep, ...]:
    assert isinstance(step, AntiJoin)
    return step.steps


def _target(step: ir.Step) -> str:
    assert isinstance(step, Expand)
    return step.target


def _bindings(steps: tuple[ir.Step, ...]) -> list[Scan | Expand]:
    return [step for step in steps if isinstance(step, Scan | Expand)]


def _kinds(value: ir.PlainValue) -> list[type]:
    return [type(item) for item in value] if isinstance(value, tuple) else [type(value)]
