"""`omnigraph optimize`, `cleanup`, `repair` and `doctor`: options, exit codes, and what they print."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from omnigraph.cli import app
from omnigraph.commit.store import Store
from omnigraph.graph import Graph
from tests.maintenance.scene import KNOWS, PERSON, PLACE, add, table_of
from tests.support.faults import dataset, foreign_commit


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "NO_COLOR": "1"})


def document(*arguments: str, code: int = 0) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def rows(found: Any) -> dict[str, Any]:
    """The tables of a document by their keys; whoever knows other words for all this finds the same."""
    assert found["datasets"] == found["tables"]
    for row in found["tables"]:
        assert row["type_key"] == row["table_key"]
        assert row.get("published_dataset_version") == row.get("manifest_version")
    return {row["table_key"]: row for row in found["tables"]}


def test_optimize_prints_a_line_for_each_table_and_names_the_graph_on_stderr(graph: Graph) -> None:
    done = run("optimize", graph.uri)
    assert done.exit_code == 0
    assert done.stderr == f"omnigraph optimize → {graph.uri} (direct, local)\n"
    lines = done.stdout.splitlines()
    assert lines[0] == f"optimize {graph.uri} — 3 tables"
    assert "  node:Person  frags 6 → 1, 6 indexes ✓" in lines
    assert "               ↳ index pending on near: no row has a vector yet" in lines
    assert "  node:Place   no-op" in lines
    assert run("optimize", "--store", graph.uri, "--quiet").stderr == ""


def test_the_document_of_optimize_has_all_of_it(graph: Graph, store: Store) -> None:
    head = foreign_commit(store, KNOWS)
    found = document("optimize", graph.uri)
    assert found["uri"] == graph.uri
    person, knows = rows(found)[PERSON], rows(found)[KNOWS]
    assert (person["fragments_removed"], person["fragments_added"], person["committed"]) == (6, 1, True)
    pending = {"column": "near", "property": "near", "reason": "no row has a vector yet"}
    assert person["pending_indexes"] == [pending]
    assert person["manifest_version"] == table_of(graph, PERSON).version
    assert (knows["skipped"], knows["manifest_version"], knows["lance_head_version"]) == (
        "drift_needs_repair",
        head - 1,
        head,
    )


def test_cleanup_tells_what_it_would_do_and_does_it_when_confirmed(graph: Graph) -> None:
    before = sorted(Path(graph.uri).rglob("*.manifest"))
    told = run("cleanup", graph.uri, "--keep", "2")
    assert told.exit_code == 0
    assert "nothing was removed" in told.stderr
    assert "(preview)" in told.stdout
    assert sorted(Path(graph.uri).rglob("*.manifest")) == before
    found = document("cleanup", graph.uri, "--keep", "2", "--older-than", "0", "--confirm")
    assert (found["keep_versions"], found["older_than_secs"], found["confirmed"]) == (2, 0, True)
    person = rows(found)[PERSON]
    assert person["old_versions_removed"] > 0
    assert person["bytes_removed"] > 0
    assert person["error"] is None
    assert set(rows(found)) == {PERSON, KNOWS, PLACE, "__manifest"}


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--keep", "-1"),
        ("--keep", "x"),
        ("--older-than", "soon"),
        ("--older-than", "3y"),
        ("--keep", "1", "--orphans-older-than", "-1d"),
    ],
    ids=" ".join,
)
def test_cleanup_refuses_what_it_cannot_understand(graph: Graph, arguments: tuple[str, ...]) -> None:
    assert run("cleanup", graph.uri, *arguments).exit_code == 2


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("90", 90),
        ("90s", 90),
        ("15m", 900),
        ("2h", 7200),
        ("1d", 86400),
        ("2w", 1209600),
        ("999999999w", int(dt.timedelta.max.total_seconds())),
    ],
)
def test_durations_have_units(graph: Graph, text: str, seconds: int) -> None:
    assert document("cleanup", graph.uri, "--older-than", text)["older_than_secs"] == seconds


def test_nothing_is_removed_from_a_shared_place_without_a_word_more() -> None:
    done = run("cleanup", "s3://bucket/graph", "--keep", "1", "--confirm", "--json")
    assert done.exit_code == 1
    assert "--yes" in str(done.exception)


def test_repair_looks_heals_and_refuses(graph: Graph, store: Store) -> None:
    dataset(store, table_of(graph, PERSON).path).optimize.compact_files()
    dataset(store, table_of(graph, KNOWS).path).delete("true")
    looked = document("repair", graph.uri)
    assert {key: (row["classification"], row["action"]) for key, row in rows(looked).items()} == {
        PERSON: ("verified_maintenance", "preview"),
        KNOWS: ("suspicious", "preview"),
        PLACE: ("no_drift", "no_op"),
    }
    assert (looked["confirm"], looked["force"], looked["manifest_version"]) == (False, False, None)
    healed = document("repair", graph.uri, "--confirm", code=1)
    assert {key: row["action"] for key, row in rows(healed).items()} == {
        PERSON: "healed",
        KNOWS: "refused",
        PLACE: "no_op",
    }
    assert healed["manifest_version"] == healed["graph_manifest_version"] == graph.snapshot().manifest_version
    assert healed["commits"] == [graph.commits()[0].commit_id]
    assert {row["branch"] for row in healed["tables"]} == {"main"}
    assert rows(healed)[KNOWS]["operations"] == ["Delete"]
    forced = run("repair", graph.uri, "--confirm", "--force")
    assert forced.exit_code == 0
    assert "suspicious" in forced.stdout
    assert "forced" in forced.stdout


def test_a_graph_without_drift_needs_no_repair(graph: Graph) -> None:
    before = graph.commits()
    found = document("repair", graph.uri, "--confirm")

    assert {row["action"] for row in found["tables"]} == {"no_op"}
    assert graph.commits() == before


def test_a_repair_is_forced_only_with_both_words(graph: Graph) -> None:
    assert run("repair", graph.uri, "--force").exit_code == 2


def test_doctor_ends_with_the_health_of_the_graph(graph: Graph, store: Store) -> None:
    well = run("doctor", graph.uri)
    assert (well.exit_code, well.stdout.splitlines()[-1]) == (0, "healthy: there is nothing to do")
    for at in range(100, 103):
        add(graph, at)
    advised = run("doctor", graph.uri)
    assert advised.exit_code == 0
    assert "  → omnigraph optimize" in advised.stdout.splitlines()
    foreign_commit(store, PERSON)
    found = document("doctor", graph.uri, code=1)
    assert found["healthy"] is False
    assert found["findings"][0]["severity"] == "problem"
    assert found["findings"][0]["run"] == "omnigraph repair"
    assert {row["table_key"] for row in found["tables"]} == {PERSON, KNOWS, PLACE}


def test_repair_tells_on_which_branch_a_table_is(graph: Graph, store: Store) -> None:
    graph.create_branch("feature")
    add(graph, 60, branch="feature")
    table = table_of(graph, PERSON, "feature")
    dataset(store, f"{table.path}/tree/{table.branch}").optimize.compact_files()
    lines = run("repair", graph.uri, "--confirm").stdout.splitlines()
    assert lines[0] == f"repair {graph.uri} — 4 tables"
    [line] = [line for line in lines if "healed" in line]
    assert line.startswith("  node:Person on feature  verified_maintenance: v")


@pytest.mark.slow
def test_backups_are_made_verified_and_restored_with_exit_codes_for_scripts(graph: Graph, tmp_path: Path) -> None:
    backups, other = str(tmp_path / "backups"), str(tmp_path / "other")
    made = document("backup", "create", backups, "--store", graph.uri)
    assert [one["backup_id"] for one in document("backup", "list", backups)["backups"]] == [made["backup_id"]]
    assert document("backup", "verify", backups)["intact"]
    assert document("verify", graph.uri, "--against", backups)["not_compared"] == 0
    assert document("restore", backups, other)["backup_id"] == made["backup_id"]
    assert document("doctor", graph.uri, "--deep", "--backup", backups)["healthy"]
    for wrong in (("restore", backups, other), ("backup", "create", other, "--store", graph.uri)):
        assert run(*wrong).exit_code == 1

    for root in (graph.uri, backups):
        changed = min(path for path in Path(root).rglob("data/*.lance") if "__manifest" not in path.parts)
        data = bytearray(changed.read_bytes())
        data[4] ^= 1
        changed.write_bytes(data)
    assert not document("backup", "verify", backups, code=1)["intact"]
    [problem] = document("verify", graph.uri, "--against", backups, code=1)["problems"]
    assert problem["problem"] == "has other content"
    found = document("doctor", graph.uri, "--backup", backups, code=1)
    assert problem["path"] in [one["subject"] for one in found["findings"] if one["severity"] == "problem"]
