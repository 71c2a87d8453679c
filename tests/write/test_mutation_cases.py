"""Every mutation of the case files: it changes exactly the rows that it lists, or fails as it says and changes none."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from omnigraph.errors import OmnigraphError
from omnigraph.graph import Graph
from tests.write.mutation_cases import MutationCase, load_mutation_cases
from tests.write.scene import check_done, difference, look, nothing_changes

CASES = [case for path in sorted((Path(__file__).parent / "cases").glob("*.gq")) for case in load_mutation_cases(path)]
CHANGES = [case for case in CASES if case.counts]
REFUSED = [case for case in CASES if not case.counts]
TESTED_ELSEWHERE = {29, 30}  # limits and conditional writes: test_mutations.py


def prepared(case: MutationCase, graph: Graph) -> str:
    """Run all queries of a case but the last; returns that one."""
    *before, last = case.queries
    for name in before:
        graph.mutate(case.source, case.parameters, name=name)
    return last


@pytest.mark.parametrize("case", CHANGES, ids=str)
def test_a_mutation_changes_exactly_what_its_case_lists(case: MutationCase, copy_of: Callable[[str], Graph]) -> None:
    graph = copy_of(Path(case.file).stem)
    query, before = prepared(case, graph), look(graph)

    done = graph.mutate(case.source, case.parameters, name=query)

    after = look(graph)
    assert (done.affected_nodes, done.affected_edges) == case.counts
    today = dt.datetime.now(dt.UTC).date().isoformat()
    assert difference(before, after) == sorted(line.replace("TODAY", today) for line in case.expected[1:])
    assert (done.commit is None) == (len(case.expected) == 1)
    check_done(before, after, done)


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_a_refused_mutation_names_its_reason_and_changes_nothing(
    case: MutationCase, copy_of: Callable[[str], Graph]
) -> None:
    graph = copy_of(Path(case.file).stem)
    query = prepared(case, graph)

    with nothing_changes(graph), pytest.raises(OmnigraphError) as caught:
        graph.mutate(case.source, case.parameters, name=query)

    case.check(caught.value)


def test_every_numbered_behaviour_of_the_language_has_a_case() -> None:
    found = {int(number) for case in CASES for number in re.findall(r"\bM(\d+)\b", case.name)}
    assert found | TESTED_ELSEWHERE == set(range(1, 31))
