import json
from typing import Any

import pytest

from omnigraph.lang import LintReport, Source, compile_schema, lint_queries

_SCHEMA = """
node Person { name: String @key age: I32? bio: String? vector: Vector(3)? @embed(bio) photo: Blob? tags: [String]? }
node Company { name: String @key founded: Date? }
node Policy { slug: String @key name: String? effectiveTo: DateTime? }
node Island { name: String @key }
edge Knows: Person -> Person { since: Date? }
edge WorksAt: Person -> Company
"""
_CATALOG = compile_schema(Source(_SCHEMA))
_SCHEMA_SOURCE = {"kind": "file", "path": "schema.pg"}


def _lint(text: str) -> LintReport:
    return lint_queries(Source(text, "queries.gq"), _CATALOG, _SCHEMA_SOURCE)


def _json(text: str) -> Any:
    return json.loads(json.dumps(_lint(text).to_dict()))


def _operation(text: str) -> Any:
    (result,) = _json(text)["results"]
    assert result["status"] == "ok", result
    return result["operation"]


def _entities(*names: str) -> list[dict[str, str]]:
    return [{"kind": "edge" if name in _CATALOG.edges else "node", "type_name": name} for name in names]


_GOOD_READ = "query ada($n: String) { match { $p: Person { name: $n } } return { $p.age } }\n"
_BAD_UPDATE = "query older($n: String) { update Person set { agee: 3 } where name = $n }\n"
_GOOD_UPDATE = "query rename($s: String, $n: String) { update Policy set { name: $n } where slug = $s }\n"


def test_a_report_has_the_documented_keys_and_no_others() -> None:
    document = _json(_GOOD_READ)

    assert document == {
        "status": "ok",
        "schema_source": {"kind": "file", "path": "schema.pg"},
        "query_path": "queries.gq",
        "queries_processed": 1,
        "errors": 0,
        "warnings": 0,
        "infos": 0,
        "results": [
            {
                "name": "ada",
                "kind": "read",
                "status": "ok",
                "operation": {
                    "result": [{"name": "p.age", "kind": "int", "nullable": True}],
                    "reads": [{"kind": "node", "type_name": "Person"}],
                    "writes": [],
                },
            }
        ],
        "findings": [],
    }


@pytest.mark.parametrize("arm", ["{}", 'rrf(bm25($p.bio, "a"), {})'])
@pytest.mark.parametrize("match", ["$p: Person", "$q: Person  $q knows $p"])
def test_an_approximate_search_without_an_index_has_no_effect(arm: str, match: str) -> None:
    call = arm.format("nearest($p.vector, [1, 2, 3], approximate: true)")
    text = f"query q() {{ match {{ {match} }} return {{ $p.name }} order {{ {call} }} limit 3 }}"
    indexed = compile_schema(Source(_SCHEMA.replace("@embed(bio)", "@embed(bio) @index")))

    assert [one.warnings for one in _lint(text).results] == [
        ("`approximate` has no effect: `Person.vector` has no @index",)
    ]
    assert [one.warnings for one in lint_queries(Source(text), indexed, _SCHEMA_SOURCE).results] == [()]
    assert [one.warnings for one in _lint(text.replace("true", "false")).results] == [()]


@pytest.mark.parametrize("text", ["", "// nothing but a comment\n"])
def test_a_file_without_queries_is_fine(text: str) -> None:
    document = _json(text)

    assert (document["status"], document["queries_processed"], document["results"]) == ("ok", 0, [])


def test_one_bad_query_does_not_hide_the_good_one() -> None:
    document = _json(_GOOD_READ + _BAD_UPDATE)

    good, bad = document["results"]
    assert (good["name"], good["kind"], good["status"]) == ("ada", "read", "ok")
    assert (bad["name"], bad["kind"], bad["status"]) == ("older", "mutation", "error")
    assert "T11" in bad["error"]
    assert "agee" in bad["error"]
    assert "operation" in good
    assert "operation" not in bad
    assert "error" not in good
    assert (document["status"], document["queries_processed"], document["errors"]) == ("error", 2, 1)


def test_the_error_of_a_query_says_where_and_what_instead() -> None:
    (bad,) = _json("// a comment\n" + _BAD_UPDATE)["results"]

    diagnostic = bad["diagnostic"]
    assert (diagnostic["code"], diagnostic["file"], diagnostic["line"]) == ("T11", "queries.gq", 2)
    assert (diagnostic["column"], diagnostic["length"]) == (_BAD_UPDATE.index("agee") + 1, 4)
    assert "`age`" in diagnostic["hint"]


@pytest.mark.parametrize("broken", ["query", "query q() { }", 'query q() { match { $p: Person } return { "x', "}"])
def test_a_file_that_does_not_parse_is_one_finding_and_no_results(broken: str) -> None:
    document = _json(_GOOD_READ + broken)

    assert (document["status"], document["queries_processed"], document["results"]) == ("error", 0, [])
    assert document["errors"] == len(document["findings"]) == 1
    (finding,) = document["findings"]
    assert (finding["severity"], finding["code"], finding["query_names"]) == ("error", "Q000", [])
    assert "line 2" in finding["message"]
    assert finding["diagnostic"]["line"] == 2


# Advice


def test_a_nullable_property_that_no_update_sets_is_pointed_out() -> None:
    document = _json(_GOOD_UPDATE)

    (finding,) = document["findings"]
    assert "Policy.effectiveTo" in finding.pop("message")
    assert finding == {
        "severity": "warning",
        "code": "L201",
        "type_name": "Policy",
        "property": "effectiveTo",
        "query_names": ["rename"],
    }
    assert (document["status"], document["errors"], document["warnings"]) == ("ok", 0, 1)


def test_keys_and_embedded_vectors_need_no_update() -> None:
    report = _lint("query older($n: String) { update Person set { age: 3 } where name = $n }")

    assert [finding.property for finding in report.findings] == ["bio", "photo", "tags"]


def test_several_updates_count_together_and_are_named_in_order() -> None:
    ends = "query ends($s: String, $at: DateTime) { update Policy set { effectiveTo: $at } where slug = $s }\n"
    again = _GOOD_UPDATE.replace("rename", "again")

    assert _lint(_GOOD_UPDATE + ends).findings == ()
    (finding,) = _lint(_GOOD_UPDATE + again).findings
    assert finding.query_names == ("rename", "again")


def test_types_that_are_only_inserted_or_deleted_get_no_advice() -> None:
    text = """
    query add($s: String) { insert Policy { slug: $s } }
    query remove($s: String) { delete Policy where slug = $s }
    """
    assert _lint(text).findings == ()


def test_an_update_that_is_wrong_gives_no_advice() -> None:
    assert _lint(_BAD_UPDATE).findings == ()


def test_findings_are_sorted_by_type_and_property() -> None:
    older = "query older($n: String) { update Person set { bio: $n } where name = $n }"

    assert [(finding.type_name, finding.property) for finding in _lint(_GOOD_UPDATE + older).findings] == [
        ("Person", "age"),
        ("Person", "photo"),
        ("Person", "tags"),
        ("Policy", "effectiveTo"),
    ]


def test_a_mutation_without_parameters_is_a_warning() -> None:
    document = _json('query add() { insert Company { name: "Acme" } }')

    (result,) = document["results"]
    assert (result["status"], document["status"], document["warnings"]) == ("ok", "ok", 1)
    assert ["hardcoded" in warning for warning in result["warnings"]] == [True]


def test_a_read_without_parameters_and_a_mutation_with_one_are_no_warning() -> None:
    text = """
    query all() { match { $p: Person } return { $p.name } }
    query add($n: String) { insert Company { name: $n } }
    """
    assert [result.warnings for result in _lint(text).results] == [(), ()]


def test_the_second_query_of_a_name_is_a_warning() -> None:
    report = _lint(_GOOD_READ + _GOOD_READ)

    assert [len(result.warnings) for result in report.results] == [0, 1]
    assert "`ada`" in report.results[1].warnings[0]


def test_columns_that_share_a_name_are_a_warning() -> None:
    (result,) = _lint("query q() { match { $p: Person } return { $p.name as n, $p.age as n } }").results

    assert ["`n`" in warning for warning in result.warnings] == [True]


def test_counts_add_up_over_queries_and_findings() -> None:
    fixed = 'query fixed() { update Policy set { name: "x" } where slug = "y" }\n'
    report = _lint(_GOOD_READ + _BAD_UPDATE + _BAD_UPDATE + _GOOD_UPDATE + fixed)

    assert (report.errors, report.warnings, report.infos, report.ok) == (2, 2, 0, False)
    assert report.to_dict()["queries_processed"] == 5


def test_warnings_alone_leave_the_report_ok() -> None:
    assert _lint('query add() { insert Company { name: "Acme" } }').ok


# What a query returns and touches


@pytest.mark.parametrize(
    "match, returned, columns",
    [
        ("$p: Person", "$p.name", [("p.name", "string", False)]),
        ("$p: Person", "$p.name as who, $p.age", [("who", "string", False), ("p.age", "int", True)]),
        ("$p: Person", "$p", [("p", "string", False)]),
        ("$p: Person", "$limit", [("limit", "bigint", True)]),
        ("$p: Person", '"x"', [("literal", "string", False)]),
        ("$p: Person", "1.5", [("literal", "float", False)]),
        ("$p: Person", "count($p)", [("p", "bigint", False)]),
        ("$p: Person", "count($p) as n", [("n", "bigint", False)]),
        ("$p: Person", "sum($p.age), avg($p.age) as mean", [("p.age", "float", True), ("mean", "float", True)]),
        ("$p: Person", "max($p.age)", [("p.age", "int", True)]),
        ("$p: Person", "min($p.name)", [("p.name", "string", True)]),
        ("$p: Person $p $k:knows $f", "$k.since, $f", [("k.since", "date", True), ("f", "string", False)]),
        ("$x: Policy", "$x.effectiveTo", [("x.effectiveTo", "datetime", True)]),
    ],
)
def test_columns_are_described_by_the_names_that_rows_carry(
    match: str, returned: str, columns: list[tuple[str, str, bool]]
) -> None:
    operation = _operation(f"query q($limit: U64?) {{ match {{ {match} }} return {{ {returned} }} }}")

    expected = [{"name": name, "kind": kind, "nullable": nullable} for name, kind, nullable in columns]
    assert operation["result"] == expected


def test_lists_and_vectors_say_what_they_hold() -> None:
    operation = _operation("query q() { match { $p: Person } return { $p.tags $p.vector } }")

    assert operation["result"] == [
        {"name": "p.tags", "kind": "list", "item_kind": "string", "nullable": True},
        {"name": "p.vector", "kind": "vector", "vector_dim": 3, "nullable": True},
    ]


@pytest.mark.parametrize(
    "match, reads",
    [
        ("$p: Person", ["Person"]),
        ("$p: Person $i: Island", ["Island", "Person"]),
        ("$p: Person $p worksAt $c", ["Company", "Person", "WorksAt"]),
        ("$c: Company $c worksAt $p $p knows{1,3} $f", ["Company", "Person", "Knows", "WorksAt"]),
        ("$p: Person $p worksAt $_", ["Company", "Person", "WorksAt"]),
        ("$i: Island $p: Person not { $p worksAt $c }", ["Company", "Island", "Person", "WorksAt"]),
        (
            "$p: Person not { $p knows $f not { $f worksAt $c } }",
            ["Company", "Person", "Knows", "WorksAt"],
        ),
    ],
)
def test_a_read_lists_bound_types_traversed_edges_and_their_ends(match: str, reads: list[str]) -> None:
    operation = _operation(f"query q() {{ match {{ {match} }} return {{ 1 }} }}")

    assert operation["reads"] == _entities(*reads)
    assert operation["writes"] == []


@pytest.mark.parametrize(
    "statements, reads, writes",
    [
        ("insert Island { name: $n }", ["Island"], ["Island"]),
        ("update Person set { age: 3 } where name = $n", ["Person"], ["Person"]),
        ("insert WorksAt { from: $n, to: $n }", ["Company", "Person", "WorksAt"], ["WorksAt"]),
        ("insert Island { name: $n } insert Island { name: $n }", ["Island"], ["Island"]),
        ("insert Person { name: $n } insert Knows { from: $n, to: $n }", ["Person", "Knows"], ["Person", "Knows"]),
        ("delete Island where name = $n", ["Island"], ["Island"]),
        ("delete Knows where from = $n", ["Knows"], ["Knows"]),
        ("delete Person where name = $n", ["Person", "Knows", "WorksAt"], ["Person", "Knows", "WorksAt"]),
        ("delete Company where name = $n", ["Company", "WorksAt"], ["Company", "WorksAt"]),
    ],
)
def test_a_mutation_lists_what_it_reads_and_writes(statements: str, reads: list[str], writes: list[str]) -> None:
    operation = _operation(f"query q($n: String) {{ {statements} }}")

    assert operation == {"result": [], "reads": _entities(*reads), "writes": _entities(*writes)}
