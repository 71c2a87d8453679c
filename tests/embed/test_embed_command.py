"""`omnigraph embed`: files of records, manifests, graphs, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import omnigraph
from omnigraph.cli import app
from omnigraph.embed.embedder import Purpose, embed_texts
from omnigraph.embed.files import Selector, plan_from_text
from omnigraph.embed.local import MockEmbedder
from omnigraph.errors import OmnigraphError
from tests.embed.service import KEY, Service, answer

PROGRAM = Path(sys.executable).parent / "omnigraph"
SPEC = {
    "dimension": 4,
    "types": {
        "Doc": {"target": "v", "fields": ["title", "tags", "pages"]},
        "Note": {"target": "w", "fields": ["text"]},
    },
}
LINES = [
    '{"type":"Doc", "data": {"slug": "a", "title": "Äpfel", "tags": ["x", "y"], "pages": 3}}',
    "",
    '{"type": "Doc", "data": {"slug": "b", "title": "", "v": []}}',
    '{"type": "Doc", "data": {"slug": "c", "v": [1.0, 0, 0, 0]}}',
    '{"type": "Note", "data": {"slug": "a", "text": "hm", "w": null}}',
    '{"type": "Other",  "data": {"v": null}}',
    '{"edge": "Cites", "from": "a", "to": "b"}',
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "in.jsonl").write_text("\n".join(LINES), encoding="utf-8")
    (tmp_path / "spec.json").write_text(json.dumps(SPEC), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMNIGRAPH_EMBEDDINGS_MOCK", "1")
    return tmp_path


@dataclass(frozen=True, slots=True)
class Run:
    code: int
    out: str
    err: str


def run(*arguments: str) -> Run:
    """Run the command in this process; errors leave it as they leave `main`."""
    done = CliRunner().invoke(app, ["embed", *arguments])
    if isinstance(done.exception, OmnigraphError):
        return Run(1, done.stdout, str(done.exception))
    return Run(done.exit_code, done.stdout, done.stderr)


def summary(*arguments: str) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert (done.code, done.err) == (0, "")
    found: dict[str, Any] = json.loads(done.out)
    return found


FILES = ("--input", "in.jsonl", "--output", "out.jsonl", "--spec", "spec.json")


def records(path: Path) -> list[Any]:
    return [json.loads(line) if line else "" for line in path.read_text(encoding="utf-8").splitlines()]


def vector(text: str) -> list[float]:
    found: list[float] = embed_texts(MockEmbedder(), [text], 4, Purpose.DOCUMENT)[0].tolist()
    return found


def test_missing_vectors_are_added_and_everything_else_is_copied_as_it_is(folder: Path) -> None:
    done = run(*FILES)

    assert done.out == "embedded 3 records (selected 4, cleaned 0) from in.jsonl -> out.jsonl [mock 4d]\n"
    lines = (folder / "out.jsonl").read_text(encoding="utf-8").splitlines()
    first, _, second, *_ = found = records(folder / "out.jsonl")
    assert first["data"] == {
        "slug": "a", "title": "Äpfel", "tags": ["x", "y"], "pages": 3,
        "v": vector("type: Doc\ntitle: Äpfel\ntags: x, y\npages: 3"),
    }  # fmt: skip
    assert second["data"]["v"] == vector("type: Doc")
    assert found[4]["data"]["w"] == vector("type: Note\ntext: hm")
    assert [lines[at] for at in (1, 3, 5, 6)] == [LINES[at] for at in (1, 3, 5, 6)]
    assert sorted(path.name for path in folder.iterdir()) == ["in.jsonl", "out.jsonl", "spec.json"]


SUMMARIES = [
    ((), (4, 3, 0, "fill_missing")),
    (("--reembed-all",), (4, 4, 0, "reembed_all")),
    (("--type", "Note"), (1, 1, 0, "fill_missing")),
    (("--type", "Note", "--type", "Doc"), (4, 3, 0, "fill_missing")),
    (("--select", "slug=c"), (1, 1, 0, "reembed_selected")),
    (("--select", "slug=a"), (2, 2, 0, "reembed_selected")),
    (("--select", "Doc:slug=a", "--select", "pages=3", "--select", "slug=c"), (2, 2, 0, "reembed_selected")),
    (("--select", "slug=a", "--type", "Note"), (1, 1, 0, "reembed_selected")),
    (("--clean",), (4, 0, 3, "clean")),
    (("--clean", "--select", "slug=c"), (1, 0, 1, "clean")),
]


@pytest.mark.parametrize("options, expected", SUMMARIES, ids=[" ".join(options) for options, _ in SUMMARIES])
@pytest.mark.usefixtures("folder")
def test_the_summary_counts_what_was_done(options: tuple[str, ...], expected: tuple[int, int, int, str]) -> None:
    selected, embedded, cleaned, mode = expected
    assert summary(*FILES, *options) == {
        "input": "in.jsonl",
        "output": "out.jsonl",
        "records": 6,
        "selected_records": selected,
        "embedded_records": embedded,
        "cleaned_records": cleaned,
        "mode": mode,
        "dimension": 4,
        "model": "mock" if embedded else None,
        "rows": 6,
        "selected_rows": selected,
        "embedded_rows": embedded,
        "cleaned_rows": cleaned,
    }


def test_a_file_can_be_embedded_into_itself_and_cleaned_again(folder: Path) -> None:
    plain = [json.loads(line) for line in LINES if line and "null" not in line and '"v"' not in line]
    (folder / "in.jsonl").write_text("".join(json.dumps(one) + "\n" for one in plain), encoding="utf-8")

    assert summary("--input", "in.jsonl", "--output", "in.jsonl", "--spec", json.dumps(SPEC))["embedded_records"] == 1
    assert records(folder / "in.jsonl") != plain
    run("--input", "in.jsonl", "--output", "in.jsonl", "--spec", "spec.json", "--clean")

    assert records(folder / "in.jsonl") == plain


def test_a_manifest_names_files_from_where_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = {"sources": {"raw_seed": "in.jsonl"}, "embeddings": SPEC}
    (folder / "seed.yaml").write_text(json.dumps(manifest), encoding="utf-8")
    monkeypatch.chdir(folder.parent)

    assert summary("--seed", str(folder / "seed.yaml"))["embedded_records"] == 3
    assert len(records(folder / "build" / "seed.embedded.jsonl")) == 7


def test_a_manifest_may_name_its_output_and_use_the_older_word_for_its_data(folder: Path) -> None:
    text = "seed: {data: ./in.jsonl}\nartifacts: {embedded_seed: other.jsonl}\nembeddings:\n  dimension: 4\n  types:\n"
    (folder / "seed.yaml").write_text(text + "    Doc: {target: v, fields: [title]}\n", encoding="utf-8")

    assert summary("--seed", "seed.yaml")["output"] == "other.jsonl"
    assert (folder / "other.jsonl").exists()


@pytest.mark.parametrize("text", ["a: [", "a: 2026-02-30"])
def test_a_manifest_that_is_not_yaml_is_refused(folder: Path, text: str) -> None:
    (folder / "seed.yaml").write_text(text, encoding="utf-8")

    done = run("--seed", "seed.yaml")

    assert (done.code, "is not valid YAML" in done.err) == (1, True), done.err


def test_many_records_are_embedded_in_batches(folder: Path, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps({"type": "Note", "data": {"text": f"n {number}"}}) + "\n" for number in range(600)]
    (folder / "in.jsonl").write_text("".join(lines), encoding="utf-8")
    monkeypatch.delenv("OMNIGRAPH_EMBEDDINGS_MOCK")
    monkeypatch.setenv("OMNIGRAPH_EMBED_BASE_URL", service.url)
    monkeypatch.setenv("OPENROUTER_API_KEY", KEY)

    assert summary(*FILES)["model"] == "openai/text-embedding-3-large"
    assert max(map(len, service.texts)) == 64
    assert [one["data"]["w"] for one in records(folder / "out.jsonl")] == [
        pytest.approx(vector(f"type: Note\ntext: n {number}"), abs=1e-6) for number in range(600)
    ]


def test_a_failure_leaves_no_output(folder: Path, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMNIGRAPH_EMBEDDINGS_MOCK")
    monkeypatch.setenv("OMNIGRAPH_EMBED_BASE_URL", service.url)
    monkeypatch.setenv("OPENROUTER_API_KEY", KEY)
    service.script = [answer(401, {"error": f"bad key {KEY}"})]

    done = run(*FILES)

    assert (done.code, done.out) == (1, "")
    assert "it answered 401" in done.err
    assert KEY not in done.err
    assert sorted(path.name for path in folder.iterdir()) == ["in.jsonl", "spec.json"]


@pytest.mark.parametrize(
    "spec, message",
    [
        ("{", "not valid JSON"),
        ("nowhere.json", "cannot read nowhere.json"),
        ("in.jsonl", "not valid JSON"),
        ("{}", "`dimension`"),
        ('{"dimension": true, "types": {}}', "`dimension`"),
        ('{"dimension": 0, "types": {}}', "`dimension`"),
        ('{"dimension": 4}', "`types` is not an object"),
        ('{"dimension": 4, "types": {"A": 1}}', "`types.A` is not an object"),
        ('{"dimension": 4, "types": {"A": {"fields": ["x"]}}}', "`types.A.target`"),
        ('{"dimension": 4, "types": {"A": {"target": "v", "fields": []}}}', "`types.A.fields`"),
        ('{"dimension": 4, "types": {"A": {"target": "v", "fields": "x"}}}', "`types.A.fields`"),
        ('{"dimension": 4, "types": {}, "model": 1}', "`model`"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_specification_that_cannot_be_used_is_told(spec: str, message: str) -> None:
    with pytest.raises(OmnigraphError) as caught:
        plan_from_text(spec)

    assert message in caught.value.message


@pytest.mark.parametrize(
    "line, message",
    [("{", "in.jsonl:2 is not valid JSON"), ("[1]", "in.jsonl:2 is not a JSON object"), ('"x"', "in.jsonl:2 is not")],
)
def test_a_line_that_is_no_record_is_named(folder: Path, line: str, message: str) -> None:
    (folder / "in.jsonl").write_text(f"{LINES[0]}\n{line}\n", encoding="utf-8")

    done = run(*FILES)

    assert (done.code, message in done.err) == (1, True), done.err
    assert not (folder / "out.jsonl").exists()


def test_the_model_of_a_specification_must_be_the_one_that_is_used(folder: Path) -> None:
    (folder / "spec.json").write_text(json.dumps({**SPEC, "model": "m-1"}), encoding="utf-8")

    done = run(*FILES)

    assert done.code == 1
    assert "'m-1'" in done.err
    assert "'mock'" in done.err


@pytest.mark.parametrize(
    "text, found",
    [
        ("slug=a", Selector(None, "slug", "a")),
        ("Doc:slug=a=b", Selector("Doc", "slug", "a=b")),
        ("slug=", Selector(None, "slug", "")),
        ("slug=x:y", Selector(None, "slug", "x:y")),
        ("slug", None),
        ("=a", None),
        (":slug=a", None),
        ("Doc:=a", None),
    ],
)
def test_a_selector_names_a_type_a_field_and_a_value(text: str, found: Selector | None) -> None:
    assert Selector.parse(text) == found


WRONG = [
    (),
    ("graph.omni",),
    ("--input", "in.jsonl"),
    ("--seed", "x", "--input", "in.jsonl"),
    (*FILES, "--clean", "--reembed-all"),
    (*FILES, "--branch", "main"),
    (*FILES, "--as", "me"),
    (*FILES, "--select", "slug"),
    (*FILES, "--store", "g"),
    ("--store", "g", "--clean"),
    ("--store", "g", "--select", "slug=a"),
]


@pytest.mark.parametrize("arguments", WRONG, ids=[" ".join(one) or "nothing" for one in WRONG])
def test_a_wrong_command_line_is_refused(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).code == 2


@pytest.mark.usefixtures("folder")
def test_the_program_tells_of_a_failure_on_stderr() -> None:
    done = subprocess.run([PROGRAM, "embed", *FILES, "--seed", "x"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")

    done = subprocess.run(
        [PROGRAM, "embed", *FILES[:5], "{}"], capture_output=True, text=True, check=False, encoding="utf-8"
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: `dimension` is not the length of a vector\nhint: ")


def test_a_graph_is_filled_and_the_document_says_how(folder: Path) -> None:
    graph = omnigraph.init(folder / "g", "node Note { text: String  w: Vector(4)? @embed(text) }")
    graph.load([{"type": "Note", "data": {"text": text}} for text in ("a", "b")], mode="append")

    found = summary("--store", "g", "--as", "eve")

    [commit] = graph.commits(actor="eve")
    assert found == {
        "store": "g",
        "branch": "main",
        "mode": "fill_missing",
        "model": "mock",
        "properties": [{"name": "Note.w", "entities_embedded": 2}],
        "total_entities": 2,
        "commits": [commit.commit_id],
    }
    again = run("--store", "g", "--type", "Note", "--reembed-all")
    assert again.out == "embedded 2 entities of g on branch main in 1 commits [mock]\n"
