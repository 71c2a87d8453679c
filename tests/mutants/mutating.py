"""Mutants: small changes of the code that commits. cosmic-ray finds the places and makes the changes."""

from __future__ import annotations

import ast
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

TARGETS = ("commit", "manifest", "history", "write/validate.py")

# One change of each kind: cosmic-ray has all pairs of operators, and most of those of one place fail for one reason.
_OPERATORS = re.compile(
    r"core/(AddNot|ReplaceAndWithOr|ReplaceOrWithAnd|ReplaceTrueWithFalse|ReplaceFalseWithTrue|ExceptionReplacer"
    r"|NumberReplacer|ZeroIterationForLoop|ReplaceBreakWithContinue|ReplaceContinueWithBreak"
    r"|ReplaceUnaryOperator_Delete_\w+"
    r"|ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Is_IsNot|IsNot_Is)"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Add|Div_Mul|FloorDiv_Mul|Mod_Mul|Pow_Mul|LShift_RShift|RShift_LShift"
    r"|BitOr_BitAnd|BitAnd_BitOr))"
)
_DROP = "drop the call"


@dataclass(frozen=True, slots=True)
class Mutant:
    file: str
    line: int
    column: int
    operator: str
    occurrence: int = 0

    @property
    def target(self) -> str:
        return next(target for target in TARGETS if self.file.startswith(target))


def sample(package: Path, count: int, seed: int, part_of_name: str = "") -> Iterator[Mutant]:
    """Choose as many from each target, each at a place of its own: a comparison has no more weight than a loop."""
    for at, target in enumerate(TARGETS):
        chance = random.Random(f"{seed} {target}")  # noqa: S311 - a sample that can be repeated
        places: defaultdict[tuple[str, int, int], list[Mutant]] = defaultdict(list)
        for mutant in _mutants(package, target, part_of_name):
            places[mutant.file, mutant.line, mutant.column].append(mutant)
        wanted = (count + at) // len(TARGETS)
        for place in chance.sample(sorted(places), min(wanted, len(places))):
            yield chance.choice(places[place])


def _mutants(package: Path, target: str, part_of_name: str) -> Iterator[Mutant]:
    path = package / target
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        if part_of_name in (name := str(file.relative_to(package))):
            yield from _mutants_of(name, file.read_text())


def _mutants_of(name: str, source: str) -> Iterator[Mutant]:
    tree = ast.parse(source)
    inert = list(_inert(tree))
    yield from (Mutant(name, call.lineno, call.col_offset, _DROP) for call in _unused_calls(tree))
    nodes = list(ast_nodes(get_ast(source)))
    for operator in filter(_OPERATORS.fullmatch, operator_names()):
        change = get_operator(operator)()
        places = (start for node in nodes for start, _ in change.mutation_positions(node))
        for occurrence, (line, column) in enumerate(places):
            if not any(_holds(one, line, column) for one in inert):
                yield Mutant(name, line, column, operator, occurrence)


def _inert(tree: ast.Module) -> Iterator[ast.expr]:
    """Annotations have no effect here; without a decorator nothing works, so its mutants say nothing about tests."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation:
            yield node.annotation
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from node.decorator_list
        if isinstance(node, ast.FunctionDef) and node.returns:
            yield node.returns


def _holds(node: ast.expr, line: int, column: int) -> bool:
    return (node.lineno, node.col_offset) <= (line, column) < (node.end_lineno or 0, node.end_col_offset or 0)


def _unused_calls(tree: ast.Module) -> Iterator[ast.Expr]:
    """Calls for their effect: a check, a write. cosmic-ray has no operator that leaves one out."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))


def changed(mutant: Mutant, source: str) -> str:
    """Return the source of a file with the change."""
    if mutant.operator != _DROP:
        return str(mutate_code(source, get_operator(mutant.operator)(), mutant.occurrence))
    lines = source.splitlines(keepends=True)
    place = (mutant.line, mutant.column)
    (call,) = (one for one in _unused_calls(ast.parse(source)) if (one.lineno, one.col_offset) == place)
    lines[call.lineno - 1 : call.end_lineno] = [" " * mutant.column + "pass\n"]
    return "".join(lines)
