"""The layouts of rows, to the letter."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from rich.cells import cell_len

import omnigraph
from omnigraph.api.documents import read_head
from omnigraph.api.rows import Result
from omnigraph.cli import tables
from omnigraph.cli.output import Line
from tests.support.cli import Run, command

SCHEMA = "node Note { slug: String @key  text: String?  marks: [I32]?  weight: F64? }"
NOTES = [
    {"slug": "a", "text": 'x,"y"\nz', "marks": [1, 2], "weight": 0.5},
    {"slug": "b", "text": "漢字", "weight": None},
    {"slug": "c", "text": "tab\there \x1b[31m"},
]
ALL = "query all() { match { $n: Note } return { $n.slug, $n.text, $n.marks as m } order { $n.slug asc } }"
LONG = "query long() { match { $n: Note } return { $n.slug, $n.text } }"
NONE = 'query none() { match { $n: Note { slug: "z" } } return { $n.slug, $n.text } }'


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("formats")
    graph = omnigraph.init(place / "g", SCHEMA)
    graph.load([{"type": "Note", "data": data} for data in NOTES], mode="append")
    omnigraph.init(place / "long", SCHEMA).load(
        [{"type": "Note", "data": {"slug": "a", "text": "é" * 90}}], mode="append"
    )
    return str(place / "g")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OMNIGRAPH_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def query(store: str, source: str, *more: str) -> Run:
    return command("query", "--store", store, "-e", source, *more)


def test_a_table_has_a_headline_bars_and_padded_cells(store: str) -> None:
    run = query(store, ALL)

    assert run.err == ""
    assert run.out.splitlines() == [
        "3 rows from branch main via all",
        "n.slug | n.text             | m    ",
        "-------+--------------------+------",
        'a      | x,"y"\\nz           | [1,2]',
        "b      | 漢字               | null ",
        "c      | tab\\there \\x1b[31m | null ",
    ]


def test_a_table_of_a_snapshot_says_so(store: str) -> None:
    commit = omnigraph.open(store, read_only=True).commits()[0].commit_id

    assert query(store, ALL, "--snapshot", commit).out.startswith(f"3 rows from snapshot {commit} via all\n")


def test_pairs_have_a_headline_and_a_blank_line_between_rows(store: str) -> None:
    run = query(store, ALL, "--format", "kv")

    head, *rest = run.out.splitlines()
    assert head == "3 rows from branch main via all"
    assert rest[:8] == [
        "row 1",
        "n.slug: a",
        'n.text: x,"y"\\nz',
        "m: [1,2]",
        "",
        "row 2",
        "n.slug: b",
        "n.text: 漢字",
    ]
    assert query(store, NONE, "--format", "kv").out == "0 rows from branch main via none\n(no rows)\n"


def test_a_field_of_csv_is_quoted_only_if_it_must_be(store: str) -> None:
    run = query(store, ALL, "--format", "csv")

    assert run.out == ('n.slug,n.text,m\na,"x,""y""\nz","[1,2]"\nb,漢字,null\nc,tab\there \x1b[31m,null\n')


def test_lines_of_json_begin_with_a_line_about_them(store: str) -> None:
    head, first, *_ = map(json.loads, query(store, ALL, "--format", "jsonl").out.splitlines())

    assert (head["kind"], head["query_name"], head["row_count"]) == ("metadata", "all", 3)
    assert head["target"]["branch"] == "main"
    assert first == {"n.slug": "a", "n.text": 'x,"y"\nz', "m": [1, 2]}


@pytest.mark.parametrize(
    "settings, lines",
    [
        ("", [f"a      | {'é' * 79}…"]),
        ("{table_max_column_width: 10}", [f"a      | {'é' * 9}…"]),
        ("{table_max_column_width: 2}", [f"a      | {'é' * 7}…"]),
        (
            "{table_max_column_width: 50, table_cell_layout: wrap}",
            [f"a      | {'é' * 50}", f"       | {'é' * 40}{' ' * 10}"],
        ),
    ],
)
def test_a_cell_that_is_too_wide_is_cut_or_broken(home: Path, store: str, settings: str, lines: list[str]) -> None:
    (home / "config.yaml").write_text(f"defaults: {settings}\n")

    assert query(f"{store}/../long", LONG).out.splitlines()[3:] == lines


def test_the_format_is_the_one_asked_for_else_the_projects_else_the_operators(home: Path, store: str) -> None:
    (home / "config.yaml").write_text("defaults: {output: csv}\n")
    assert query(store, NONE).out == "n.slug,n.text\n"
    (home / "omnigraph.yaml").write_text("cli: {output_format: kv}\n")
    assert query(store, NONE).out.endswith("(no rows)\n")
    assert json.loads(query(store, NONE, "--json").out)["rows"] == []
    (home / "omnigraph.yaml").write_text("cli: {output_format: xml}\n")
    wrong = query(store, NONE)
    assert (wrong.code, wrong.out) == (1, "")
    assert "cli.output_format is 'xml'" in wrong.err


# On a terminal


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "terminal_size", lambda: os.terminal_size((30, 10)))


@pytest.mark.usefixtures("terminal")
def test_a_table_fits_the_terminal_and_short_columns_keep_their_width() -> None:
    lines = list(tables.table(["id", "text", "more"], [["a", "x" * 50, "y" * 40]]))

    assert lines[0] == "id | text        | more       "
    assert lines[2] == f"a  | {'x' * 10}… | {'y' * 10}…"
    assert {cell_len(line) for line in lines} == {30}


def test_a_pipe_gets_whole_cells() -> None:
    assert list(tables.table(["id"], [["x" * 70]]))[-1] == "x" * 70


@pytest.mark.usefixtures("terminal")
def test_a_terminal_shows_the_first_rows_and_how_many_are_left() -> None:
    found = Result("q", "main", pa.table({"n": list(range(tables.MOST_ON_TERMINAL + 5))}), None)

    shown = list(tables.rows_text(found, read_head(found, None), tables.Look()))

    assert len(shown) == tables.MOST_ON_TERMINAL + 4
    assert isinstance(shown[-1], Line)
    assert shown[-1].is_note
    assert shown[-1].text.startswith("… 5 more rows; use --format csv")
