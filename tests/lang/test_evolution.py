import json
import os
import subprocess
import sys

import pytest

from omnigraph.lang import DropMode, SchemaPlan, Source, compile_schema, plan_schema
from omnigraph.lang.schema_steps import CODES, UnsupportedChange


def _plan(accepted: str, desired: str, drops: DropMode = DropMode.SOFT) -> SchemaPlan:
    return plan_schema(compile_schema(Source(accepted)), compile_schema(Source(desired)), drops)


def _lines(plan: SchemaPlan) -> list[str]:
    return [str(step) for step in plan.steps]


def _refusals(plan: SchemaPlan) -> list[tuple[str, str | None]]:
    return [(step.entity, step.code) for step in plan.steps if isinstance(step, UnsupportedChange)]


@pytest.mark.parametrize(
    "accepted, desired, lines",
    [
        ("", "node A { a: String }", ["add node type 'A'"]),
        ("node A {}", "node A {} edge E: A -> A { x: I32 }", ["add edge type 'E'"]),
        ("", "interface I { a: String }", ["add interface type 'I'"]),
        ("node A {}", 'node B @rename_from("A") {}', ["rename node type 'A' -> 'B'"]),
        (
            "node A {} edge E: A -> A",
            'node A {} edge F: A -> A @rename_from("E")',
            ["rename edge type 'E' -> 'F'"],
        ),
        (
            "node A { a: String }",
            'node A { b: String @rename_from("a") }',
            ["rename property 'A.a' -> 'A.b' on node 'A'"],
        ),
        ("node A {}", "node A { a: String? }", ["add property 'A.a' (String?) on node 'A'"]),
        (
            "node A {} edge E: A -> A",
            "node A {} edge E: A -> A { since: Date? }",
            ["add property 'E.since' (Date?) on edge 'E'"],
        ),
        ("node A { a: String }", "node A { a: String @index }", ["add constraint @index(a) on node 'A'"]),
        (
            "node A {} edge E: A -> A",
            "node A {} edge E: A -> A { @index(src, dst) }",
            ["add constraint @index(dst, src) on edge 'E'"],
        ),
        (
            "node A {}",
            "node A { a: String? @index }",
            ["add property 'A.a' (String?) on node 'A'", "add constraint @index(a) on node 'A'"],
        ),
        ("node A { a: enum(x) }", "node A { a: enum(z, x, y) }", ["extend enum 'A.a' with y, z"]),
        (
            "node A {}",
            'node A @description("d") @instruction("i") {}',
            ["update description, instruction of node 'A'"],
        ),
        ('node A @description("d") {}', 'node A @description("e") {}', ["update description of node 'A'"]),
        (
            'node A { a: String @description("d") }',
            "node A { a: String }",
            ["update description of property 'A.a'"],
        ),
        ("node A {}", "", ["drop node type 'A' (soft mode)"]),
        (
            "node A {} edge E: A -> A",
            "",
            ["drop edge type 'E' (soft mode)", "drop node type 'A' (soft mode)"],
        ),
        ("node A { a: String }", "node A {}", ["drop property 'A.a' of node 'A' (soft mode)"]),
        (
            "node A {} edge E: A -> A",
            "node A {} edge E: A -> A @card(0..1)",
            ["change cardinality of edge 'E' from @card(0..) to @card(0..1)"],
        ),
        ("node A { a: String }", "node A { a: String @unique }", ["add constraint @unique(a) on node 'A'"]),
        (
            "node A {} edge E: A -> A { @index(src) }",
            "node A {} edge E: A -> A { @unique(src, dst) }",
            ["drop constraint @index(src) on edge 'E'", "add constraint @unique(dst, src) on edge 'E'"],
        ),
        ("node A { a: String @unique }", "node A { a: String }", ["drop constraint @unique(a) on node 'A'"]),
        (
            "node A { a: I32 @range(a, 0..) }",
            "node A { a: I32 @range(a, 1..) }",
            ["drop constraint @range(a, 0..) on node 'A'", "add constraint @range(a, 1..) on node 'A'"],
        ),
        (
            'node A { a: String @check(a, "x") }',
            "node A { a: String }",
            ["drop constraint @check(a, \"x\") on node 'A'"],
        ),
        (
            "node A { a: String b: String @index(a, b) }",
            "node A { a: String }",
            ["drop constraint @index(a, b) on node 'A'", "drop property 'A.b' of node 'A' (soft mode)"],
        ),
        ("node A { a: enum(x, y) }", "node A { a: enum(x) }", ["reduce enum 'A.a' by y"]),
        (
            "node A { a: enum(x, y) }",
            "node A { a: enum(x, z)? }",
            [
                "extend enum 'A.a' with z",
                "reduce enum 'A.a' by y",
                "make property 'A.a' nullable",
            ],
        ),
        ("node A { a: String? }", "node A { a: String }", ["make property 'A.a' required"]),
        (
            "node A { a: I32 }",
            "node A { a: F64? }",
            [
                "widen property 'A.a' from I32 to F64?",
                "make property 'A.a' nullable",
            ],
        ),
        *(
            (f"node A {{ a: {old} }}", f"node A {{ a: {new} }}", [f"widen property 'A.a' from {old} to {new}"])
            for old, new in (("I32", "I64"), ("U32", "U64"), ("U32", "I64"), ("F32", "F64"), ("I32", "F64"))
        ),
    ],
)
def test_a_supported_change_is_told_step_by_step(accepted: str, desired: str, lines: list[str]) -> None:
    plan = _plan(accepted, desired)

    assert _lines(plan) == lines
    assert plan.supported


@pytest.mark.parametrize(
    "accepted, desired",
    [
        ("interface I {}", ""),
        ("interface I {}", "interface J {}"),
        ("interface I {} node A {}", "interface I {} node A implements I {}"),
        ("interface I {} node A implements I {}", "interface I {} node A {}"),
        (
            "interface I { a: String } node A implements I {}",
            "interface I { a: String } node A implements I { a: String }",
        ),
        (
            "interface I { a: String } node A implements I { a: String }",
            "interface I { a: String } node A implements I {}",
        ),
        ("node A {} node B {} edge E: A -> A", "node A {} node B {} edge E: A -> B"),
        ("node A {} node B {} edge E: A -> A", "node A {} node B {} edge E: B -> A"),
        ("node A { a: String }", "node A { a: String @key }"),
        ("node A { a: String @key }", "node A { a: String }"),
        ("node A { a: String b: String @key(a) }", "node A { a: String b: String @key(b) }"),
        ("node A { a: String @key b: String }", "node A { b: String }"),
        (
            "node A { a: String b: String v: Vector(3)? @embed(a) }",
            "node A { a: String b: String v: Vector(3)? @embed(b) }",
        ),
        (
            'node A { a: String v: Vector(3)? @embed("a", model="m") }',
            'node A { a: String v: Vector(3)? @embed("a", model="n") }',
        ),
        ("node A { a: String v: Vector(3)? @embed(a) }", "node A { a: String v: Vector(3)? }"),
        ("node A {}", "node A @colour(red) {}"),
        ("node A @colour(red) {}", "node A @colour(blue) {}"),
        ("node A { a: String }", "node A { a: String @default(1) }"),
    ],
)
def test_a_change_that_cannot_be_done_makes_the_plan_unsupported(accepted: str, desired: str) -> None:
    plan = _plan(accepted, desired)

    assert not plan.supported
    assert all(
        step.reason.strip(": ") and step.code is None for step in plan.steps if isinstance(step, UnsupportedChange)
    )


def test_a_required_property_cannot_be_added() -> None:
    plan = _plan("node A {}", "node A { a: String }")

    assert _refusals(plan) == [("property 'A.a'", "OG-MF-103")]
    assert _lines(plan)[0].startswith("unsupported change on property 'A.a' [OG-MF-103, validated]: ")
    assert not plan.supported


@pytest.mark.parametrize(
    "before, after",
    [
        ("I64", "I32"),
        ("I32", "U64"),
        ("I64", "F64"),
        ("I32", "String"),
        ("F64", "F32"),
        ("[I32]", "[I64]"),
        ("String", "[String]"),
        ("Date", "DateTime"),
        ("Vector(3)", "Vector(4)"),
        ("I32?", "String"),
        ("enum(x)", "String"),
        ("String", "enum(x)"),
    ],
)
def test_the_type_of_a_property_cannot_change(before: str, after: str) -> None:
    plan = _plan(f"node A {{ a: {before} }}", f"node A {{ a: {after} }}")

    (line,) = _lines(plan)
    assert line.startswith("unsupported change on property 'A.a' [OG-MF-106, destructive]: ")
    assert line.endswith(f"from {before} to {after}")


def test_only_catalogued_codes_are_emitted() -> None:
    plan = _plan("node A { a: I32 }", "node A { a: String b: String @key }")

    codes = {code for _, code in _refusals(plan)}
    assert codes == {"OG-MF-103", "OG-MF-106", None}
    assert codes < {*CODES, None}  # the others are for entities that do not allow a change


@pytest.mark.parametrize("before, after", [("I32", "F64"), ("F32", "F64")])
def test_a_key_only_becomes_another_integer(before: str, after: str) -> None:
    """Ids are made of its text."""
    plan = _plan(f"node A {{ a: {before} @key }}", f"node A {{ a: {after} @key }}")

    assert _refusals(plan) == [("property 'A.a'", "OG-MF-106")]
    assert _plan("node A { a: U32 @key }", "node A { a: I64 @key }").supported


def test_a_type_without_entities_can_get_a_required_property() -> None:
    accepted, desired = (
        compile_schema(Source(text)) for text in ("node A {} node B {}", "node A { a: I32 } node B {}")
    )

    assert plan_schema(accepted, desired, empty={"node:A"}).supported
    assert not plan_schema(accepted, desired, empty={"node:B"}).supported


# What is no change


@pytest.mark.parametrize(
    "accepted, desired",
    [
        ("node A { a: enum(x, y) }", "node A { a: enum(y, x) }"),
        ("node A { a: String b: I32 }", "node A { b: I32 a: String }"),
        ("node A {} node B {}", "node B {} node A {}"),
        ("node A { a: String @index }", "node A { a: String @index(a) }"),
        ("node A { a: String b: String @unique(a, b) }", "node A { a: String b: String @unique(b, a) }"),
        ("node A {} edge E: A -> A", "node A {} edge E: A -> A @card(0..) {}"),
        (
            "interface I {} interface J {} node A implements I, J {}",
            "interface I {} interface J {} node A implements J, I {}",
        ),
        ("node A @x @y(1) {}", "node A @y(1) @x {}"),
        ("node A { a: I32 @range(a, 0..10) }", "node A { a: I32 @range(a, 0.0..10.0) }"),
        ("node A {}", "// a comment\nnode A\n{ }"),
        ('node B @rename_from("A") { b: String @rename_from("a") }', "node B { b: String }"),
        ("node B { b: String }", 'node B @rename_from("A") { b: String @rename_from("a") }'),
        ("node A {} node B {}", 'node A @rename_from("B") {} node B @rename_from("A") {}'),
    ],
)
def test_another_spelling_of_the_same_schema_is_no_change(accepted: str, desired: str) -> None:
    assert _plan(accepted, desired).to_dict() == {"supported": True, "step_count": 0, "steps": []}


_RICH = """
interface Named { name: String @index @description("what people call it") }
interface Dated { made: DateTime? }
node Person @description("d") @colour("red") implements Named, Dated {
    email: String? @unique
    age: I32?
    mood: enum(good, bad)?
    bio: String?
    vector: Vector(4)? @embed("bio", model="m") @index
    @key(name)
    @range(age, 0..150)
    @check(email, "@")
}
node Slot @rename_from("Place") { tenant: String number: U32 @rename_from("no") tags: [String]? @key(tenant, number) }
edge Knows: Person -> Person @card(0..5) @instruction("i") { since: Date? @unique(src, dst) @index(since) }
edge Knows2: Person -> Slot @rename_from("Old")
"""


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "node A {}",
        "interface I { a: String @key b: Blob? c: String? @rename_from(d) } node A implements I {}",
        'node Shared { a: String @x("1", b=2.5) @y } edge Shared: Shared -> Shared @card(1..1) { a: String }',
        _RICH,
    ],
)
@pytest.mark.parametrize("drops", DropMode)
def test_the_plan_from_a_schema_to_itself_is_empty(schema: str, drops: DropMode) -> None:
    plan = _plan(schema, schema, drops)

    assert plan.steps == ()
    assert plan.supported


# Renames


@pytest.mark.parametrize(
    "accepted, desired, entity, fragment",
    [
        ("", 'node A @rename_from("Gone") {}', "node 'A'", "no accepted node type"),
        ("node A {}", 'node A { a: String? @rename_from("gone") }', "property 'A.a'", "no accepted property"),
        ("node A {} edge E: A -> A", 'node A {} node B @rename_from("E") {}', "node 'B'", "another kind"),
        ("node A {}", 'node A {} edge E: A -> A @rename_from("A")', "edge 'E'", "another kind"),
        ("interface I {}", 'interface I {} node A @rename_from("I") {}', "node 'A'", "another kind"),
        ("node A {}", 'node B @rename_from("A") {} node C @rename_from("A") {}', "node 'C'", "another declaration"),
        ("node A {}", 'node A {} node B @rename_from("A") {}', "node 'B'", "another declaration"),
        (
            "node A { a: String? }",
            'node A { b: String? @rename_from("a") c: String? @rename_from("a") }',
            "property 'A.c'",
            "another declaration",
        ),
        (
            "node A { a: String? }",
            'node A { a: String? b: String? @rename_from("a") }',
            "property 'A.b'",
            "another declaration",
        ),
        ("node A { a: String? }", 'node A {} node B { b: String? @rename_from("a") }', "property 'B.b'", "new type"),
        (
            "node A { a: String? } node B {}",
            'node A {} node B { b: String? @rename_from("a") }',
            "property 'B.b'",
            "from 'A'",
        ),
    ],
)
def test_a_rename_that_does_not_resolve_is_refused(accepted: str, desired: str, entity: str, fragment: str) -> None:
    plan = _plan(accepted, desired)

    (refusal,) = [step for step in plan.steps if isinstance(step, UnsupportedChange)]
    assert refusal.entity == entity
    assert fragment in refusal.reason
    assert not plan.supported


def test_a_refused_rename_is_neither_done_nor_replaced_by_an_addition() -> None:
    plan = _plan("node A { a: String? }", 'node A { a: String? } node B @rename_from("A") {}')

    assert [step.kind for step in plan.steps] == ["unsupported_change"]


@pytest.mark.parametrize(
    "accepted, desired",
    [
        (
            "node A {} node C {} edge E: A -> C edge F: C -> A",
            'node B @rename_from("A") {} node C {} edge E: B -> C edge F: C -> B',
        ),
        (
            "node A { a: String b: String @key(a) @unique(a, b) @index(a, b) }",
            'node A { z: String @rename_from("a") b: String @key(z) @unique(z, b) @index(z, b) }',
        ),
        (
            'node A { a: I32 s: String @range(a, 0..1) @check(s, "x") }',
            'node A { z: I32 @rename_from("a") y: String @rename_from("s") @range(z, 0..1) @check(y, "x") }',
        ),
        (
            "node A {} edge E: A -> A { a: String @index @unique(src, a) }",
            'node A {} edge E: A -> A { z: String @rename_from("a") @index @unique(src, z) }',
        ),
        (
            "node A { a: String v: Vector(3)? @embed(a) }",
            'node A { z: String @rename_from("a") v: Vector(3)? @embed(z) }',
        ),
        (
            "node A { a: String v: Vector(3)? @embed(a) }",
            'node A { a: String w: Vector(3)? @rename_from("v") @embed(a) }',
        ),
        (
            "interface I { a: String @unique } node A implements I {}",
            'interface I { z: String @rename_from("a") @unique } node A implements I {}',
        ),
    ],
)
def test_a_rename_is_followed_wherever_the_name_stood(accepted: str, desired: str) -> None:
    plan = _plan(accepted, desired)

    assert {step.kind for step in plan.steps} <= {"rename_type", "rename_property"}
    assert plan.steps


def test_type_and_property_can_be_renamed_and_widened_at_once() -> None:
    plan = _plan("node A { a: enum(x) }", 'node B @rename_from("A") { b: enum(x, y) @rename_from("a") }')

    assert _lines(plan) == [
        "rename node type 'A' -> 'B'",
        "rename property 'B.a' -> 'B.b' on node 'B'",
        "extend enum 'B.b' with y",
    ]


# Interfaces


def test_what_an_interface_gains_every_node_of_it_gains() -> None:
    plan = _plan(
        "interface I {} node A implements I {} node B {}",
        "interface I { a: String? @index } node A implements I {} node B {}",
    )

    assert _lines(plan) == [
        "add property 'I.a' (String?) on interface 'I'",
        "add property 'A.a' (String?) on node 'A'",
        "add constraint @index(a) on node 'A'",
    ]


# Drops


@pytest.mark.parametrize("drops, word", [(DropMode.SOFT, "soft"), (DropMode.HARD, "hard")])
def test_every_drop_of_a_plan_has_the_mode_that_was_asked_for(drops: DropMode, word: str) -> None:
    plan = _plan("node A { a: String } node B {} edge E: B -> B", "node A {}", drops)

    assert [step.to_dict()["mode"] for step in plan.steps] == [word] * 3
    assert all(line.endswith(f"({word} mode)") for line in _lines(plan))
    assert plan.supported


def test_hard_drops_leave_everything_else_as_it_was() -> None:
    changed = 'node A { b: String? @rename_from("a") c: I32? }'

    assert _plan("node A { a: String? }", changed, DropMode.HARD) == _plan("node A { a: String? }", changed)


@pytest.mark.parametrize(
    "property_, rule",
    [
        ("b: String", "@index(b)"),
        ("b: String", "@unique(b)"),
        ("b: I32", "@range(b, 0..1)"),
        ("b: String", '@check(b, "x")'),
    ],
)
def test_a_property_takes_the_rules_that_are_its_own_along(property_: str, rule: str) -> None:
    plan = _plan(f"node A {{ a: String {property_} {rule} }}", "node A { a: String }")

    assert _lines(plan) == ["drop property 'A.b' of node 'A' (soft mode)"]


# JSON


@pytest.mark.parametrize(
    "accepted, desired, step",
    [
        ("", "node A {}", {"kind": "add_type", "type_kind": "node", "name": "A"}),
        ("", "interface I {}", {"kind": "add_type", "type_kind": "interface", "name": "I"}),
        (
            "node A {}",
            'node B @rename_from("A") {}',
            {"kind": "rename_type", "type_kind": "node", "from": "A", "to": "B"},
        ),
        (
            "node A {}",
            "node A { a: [String]? }",
            {
                "kind": "add_property",
                "type_kind": "node",
                "type_name": "A",
                "property_name": "a",
                "property_type": "[String]?",
            },
        ),
        (
            "node A { a: String }",
            'node A { b: String @rename_from("a") }',
            {"kind": "rename_property", "type_kind": "node", "type_name": "A", "from": "a", "to": "b"},
        ),
        (
            "node A { a: String }",
            "node A { a: String @index }",
            {"kind": "add_constraint", "type_kind": "node", "type_name": "A", "constraint": "@index(a)"},
        ),
        (
            "node A {} edge E: A -> A { a: enum(x) }",
            "node A {} edge E: A -> A { a: enum(z, y, x) }",
            {
                "kind": "extend_enum",
                "type_kind": "edge",
                "type_name": "E",
                "property_name": "a",
                "added_values": ["y", "z"],
            },
        ),
        (
            "node A {}",
            'node A @instruction("i") {}',
            {"kind": "update_type_metadata", "type_kind": "node", "type_name": "A", "annotations": ["instruction"]},
        ),
        (
            "node A { a: String }",
            'node A { a: String @description("d") }',
            {
                "kind": "update_property_metadata",
                "type_kind": "node",
                "type_name": "A",
                "property_name": "a",
                "annotations": ["description"],
            },
        ),
        ("node A {}", "", {"kind": "drop_type", "type_kind": "node", "name": "A", "mode": "soft"}),
        (
            "node A { a: String }",
            "node A {}",
            {
                "kind": "drop_property",
                "type_kind": "node",
                "type_name": "A",
                "property_name": "a",
                "mode": "soft",
            },
        ),
    ],
)
def test_a_step_has_one_json_shape_for_each_kind(accepted: str, desired: str, step: dict[str, object]) -> None:
    document = json.loads(json.dumps(_plan(accepted, desired).to_dict()))

    assert document == {"supported": True, "step_count": 1, "steps": [step]}


@pytest.mark.parametrize(
    "accepted, desired, keys",
    [
        ("node A {}", "node A { a: String }", {"kind", "entity", "reason", "code"}),
        ("interface I {}", "", {"kind", "entity", "reason"}),
    ],
)
def test_an_unsupported_change_has_a_code_only_where_there_is_one(accepted: str, desired: str, keys: set[str]) -> None:
    document = _plan(accepted, desired).to_dict()

    assert document["supported"] is False
    assert [set(step) for step in document["steps"]] == [keys]


# Order


def test_renames_and_additions_come_first_and_drops_last() -> None:
    plan = _plan(
        "node A { a: String c: I32 } node D {} edge E: D -> D",
        'node B @rename_from("A") { b: String @rename_from("a") @index d: String? } node N {}',
    )

    assert [step.kind for step in plan.steps] == [
        "rename_type",
        "add_type",
        "rename_property",
        "add_property",
        "add_constraint",
        "drop_property",
        "drop_type",
        "drop_type",
    ]


_PRINT_PLAN = """
import json, sys
from omnigraph.lang import Source, compile_schema, plan_schema
print(json.dumps(plan_schema(*(compile_schema(Source(text)) for text in sys.argv[1:])).to_dict()))
"""


def test_a_plan_does_not_depend_on_hash_order() -> None:
    accepted = "node A { a: String b: I32 @unique(a) @unique(b) @index(a, b) @range(b, 0..1) } node B { e: enum(x) }"
    desired = (
        "node A @r @q @p { a: String b: I32 c: I32? @index(a) @index(b) @index(c) } node B { e: enum(x, y, z, w) }"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", _PRINT_PLAN, accepted, desired],
            check=True,
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2", "3")
    }

    (output,) = outputs
    assert json.loads(output) == _plan(accepted, desired).to_dict()
