"""A fast-forward leads to the very state of the source, and is never refused."""

from __future__ import annotations

from pathlib import Path

import omnigraph

SCHEMA = """
node Person { name: String @key }
node Note { text: String @key }
edge Wrote: Person -> Note @card(1..2)
"""


def test_what_was_written_on_a_branch_can_be_merged_into_an_unchanged_target(tmp_path: Path) -> None:
    graph = omnigraph.init(tmp_path / "graph", SCHEMA)
    note = 'insert Note { text: "n" }'
    graph.mutate(f'query q() {{ insert Person {{ name: "ann" }} {note} insert Wrote {{ from: "ann", to: "n" }} }}')
    graph.create_branch("other")
    # Ann goes with her edge, and comes back without one: beside each other the two would break the rule.
    graph.mutate('query q() { delete Person where name = "ann" }', branch="other")
    graph.mutate('query q() { insert Person { name: "ann" } }', branch="other")
    merged = graph.merge("other")
    assert (merged.outcome, merged.conflicts) == ("fast_forward", ())
    assert sorted(graph.export()) == sorted(graph.export(branch="other"))
