import json
import os
import pty
import re
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omnigraph import __version__
from omnigraph.cli import app
from omnigraph.version import INTERNAL_SCHEMA_VERSION
from tests.support.cli import PROGRAM, Run, command, error_on_stdout, quick_program, real_program

_SCHEMA = """node Person {
    name: String @key
    age: I32?
}

node Company {
    name: String @key
}

edge WorksAt: Person -> Company
"""
_LINT = ("lint", "--query", "queries.gq", "--schema", "schema.pg")
_READ = "query ada($n: String) { match { $p: Person { name: $n } } return { $p.age } }\n"
_BAD = "query older($n: String) { update Person set { agee: 3 } where name = $n }\n"
_HARDCODED = 'query acme() { insert Company { name: "Acme" } }\n'
_MESSY = "// people\nnode Person{name:String @key}\n"
_TIDY = "// people\nnode Person {\n    name: String @key\n}\n"


def _environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    unset = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "COLUMNS", "PYTHONIOENCODING")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return {**kept, "TERM": "xterm-256color", **(extra or {})}


def _omnigraph(*arguments: str | Path, stdin: str = "", **environment: str) -> Run:
    return quick_program(*arguments, stdin=stdin, environment=_environment(environment))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a schema and a file of queries; paths in output are then short and known."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.pg").write_text(_SCHEMA)
    (tmp_path / "queries.gq").write_text(_READ + _BAD + _HARDCODED)
    return tmp_path


# The program itself


def test_version_names_the_program_and_its_storage_format() -> None:
    lines = f"omnigraph {__version__}\ninternal-schema {INTERNAL_SCHEMA_VERSION}\n"

    assert real_program("version") == Run(0, lines, "")


def test_the_version_flags_print_one_line_also_from_the_module() -> None:
    run = subprocess.run([sys.executable, "-m", "omnigraph", "-v"], check=True, capture_output=True, text=True)

    assert run.stdout == _omnigraph("--version").out == f"omnigraph {__version__}\n"


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize(
    "command, words",
    [
        ([], ["lint", "fmt", "schema", "version", "--version"]),
        (["lint"], ["--query", "--schema", "--json"]),
        (["fmt"], ["--check", "--lang", "--json"]),
        (["schema"], ["plan"]),
        (["schema", "plan"], ["--from", "--to", "--allow-data-loss", "--json"]),
        (["version"], ["Usage"]),
    ],
)
def test_help_names_every_command_and_option(command: list[str], words: list[str], flag: str) -> None:
    result = CliRunner().invoke(app, [*command, flag], env={"COLUMNS": "200"})

    assert result.exit_code == 0
    assert [word for word in words if word not in result.stdout] == []


@pytest.mark.parametrize("words", [["--help"], ["query", "--help"], ["branch", "merge", "--help"]])
def test_help_shows_no_type_for_a_flag(words: list[str]) -> None:
    assert "bool" not in CliRunner().invoke(app, words, env={"COLUMNS": "200"}).stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["nope"],
        ["--nope"],
        ["lint"],
        ["lint", "--query"],
        ["fmt"],
        ["fmt", "--lang", "sql", "schema.pg"],
        ["fmt", "-"],
        ["schema", "plan", "--from", "schema.pg"],
        ["schema", "nope"],
        ["version", "extra"],
    ],
)
@pytest.mark.usefixtures("folder")
def test_wrong_arguments_end_with_two_and_say_so_on_stderr(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error" in result.stderr


@pytest.mark.usefixtures("folder")
def test_lint_without_a_schema_names_both_ways_to_give_one() -> None:
    done = _omnigraph("lint", "--query", "queries.gq")

    assert (done.code, done.out) == (1, "")
    assert "--schema FILE" in done.err
    assert "address of a graph" in done.err


def test_commands_can_run_again_and_again_in_one_process() -> None:
    outputs = [CliRunner().invoke(app, ["version"]).stdout for _ in range(2)]

    assert outputs[0] == outputs[1] != ""


def test_a_shell_gets_its_completion_script() -> None:
    run = _omnigraph(_OMNIGRAPH_COMPLETE="source_bash")

    assert run.code == 0
    assert "complete -o default -F" in run.out
    assert "_OMNIGRAPH_COMPLETE=complete_bash" in run.out


@pytest.mark.parametrize("words, completed", [("omnigraph sch", "schema"), ("omnigraph lint --que", "--query")])
def test_completion_knows_commands_and_options(words: str, completed: str) -> None:
    at = str(len(words.split()) - 1)
    run = _omnigraph(_OMNIGRAPH_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=at)

    assert run.out.split() == [completed]


@pytest.mark.parametrize(
    "typed, meant", [(["qeury"], "query"), (["brnch", "list"], "branch"), (["branch", "lst"], "list")]
)
def test_a_command_that_does_not_exist_gets_a_suggestion(typed: list[str], meant: str) -> None:
    run = command(*typed)

    assert (run.code, run.out) == (2, "")
    assert f"Did you mean '{meant}'" in run.err


# Streams


def test_a_closed_pipe_ends_the_program_quietly(folder: Path) -> None:
    (folder / "many.gq").write_text(_READ * 200)
    many = ["lint", "--query", "many.gq", "--schema", "schema.pg"]
    for arguments in (many, ["fmt", "--lang", "pg", "-"], ["version"], ["--version"], ["--help"], ["fmt", "--help"]):
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb") as stdout:
            run = subprocess.run(
                [PROGRAM, *arguments], input=_MESSY.encode(), stdout=stdout, stderr=subprocess.PIPE, check=False
            )

        assert (run.returncode, run.stderr) == (141, b""), arguments


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
@pytest.mark.usefixtures("folder")
def test_a_full_disk_is_an_error_and_not_a_crash() -> None:
    with Path("/dev/full").open("wb") as stdout:
        run = subprocess.run([PROGRAM, *_LINT], stdout=stdout, stderr=subprocess.PIPE, check=False)

    assert run.returncode == 1
    assert run.stderr.startswith(b"Error:")
    assert b"Traceback" not in run.stderr


@pytest.mark.usefixtures("folder")
def test_output_is_utf_8_whatever_the_terminal_says() -> None:
    text = 'node A @description("Zoë → 東京") {}\n'

    ascii_only = _environment({"PYTHONIOENCODING": "ascii"})
    assert real_program("fmt", "--lang", "pg", "-", stdin=text, environment=ascii_only).out == text


@pytest.mark.usefixtures("folder")
def test_a_pipe_gets_no_colour_unless_it_is_forced() -> None:
    plain, forced = _omnigraph(*_LINT), _omnigraph(*_LINT, FORCE_COLOR="1")

    assert "\x1b" not in plain.out + plain.err
    assert "\x1b[31mERROR" in forced.out
    assert re.sub(r"\x1b\[[0-9;]*m", "", forced.out) == plain.out


@pytest.mark.usefixtures("folder")
def test_errors_on_stderr_have_colour_when_it_is_forced() -> None:
    assert re.match(r"(\x1b\[[0-9;]+m)+Error: \x1b\[0mcannot read", _omnigraph("fmt", "none.pg", FORCE_COLOR="1").err)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("environment, coloured", [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_colour_unless_it_says_no(environment: dict[str, str], coloured: bool) -> None:  # noqa: FBT001
    leader, follower = pty.openpty()
    subprocess.run([PROGRAM, *_LINT], stdout=follower, env=_environment(environment), check=False)
    os.close(follower)
    written = os.read(leader, 65536)
    os.close(leader)

    assert b"query `ada` (read)" in written
    assert (b"\x1b[" in written) is coloured


def test_control_characters_of_a_source_do_not_reach_the_terminal(folder: Path) -> None:
    (folder / "evil.pg").write_text("node A { \x1b[31m\x07 }\n")

    run = _omnigraph("fmt", "evil.pg")

    assert "evil.pg:1:10" in run.err
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", run.err)


# lint


@pytest.mark.usefixtures("folder")
def test_lint_prints_a_line_per_query_and_a_summary() -> None:
    run = _omnigraph(*_LINT, COLUMNS="20")

    lines = run.out.splitlines()
    assert lines[0] == "OK    query `ada` (read)"
    assert lines[1].startswith("ERROR query `older`: queries.gq:2:47: T11: ")
    assert lines[2] == f"2 | {_BAD.rstrip()}"
    assert lines[3] == "  | " + " " * 46 + "^^^^"
    assert lines[4] == "hint: did you mean `age`?"
    assert lines[5] == "OK    query `acme` (mutation)"
    assert lines[6].startswith("WARN  query `acme`: ")
    assert lines[7:] == ["INFO  Lint complete: 3 queries processed (1 error(s), 1 warning(s), 0 info item(s))"]
    assert (run.code, run.err) == (1, "")


@pytest.mark.usefixtures("folder")
def test_lint_as_json_is_one_indented_document_without_colour() -> None:
    run = _omnigraph(*_LINT, "--json", FORCE_COLOR="1")

    document = run.document
    assert run.out == json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    assert (document["status"], document["query_path"]) == ("error", "queries.gq")
    assert document["schema_source"] == {"kind": "file", "path": "schema.pg"}
    assert [result["status"] for result in document["results"]] == ["ok", "error", "ok"]
    assert (run.code, run.err) == (1, "")


def test_lint_succeeds_when_there_are_only_warnings(folder: Path) -> None:
    (folder / "queries.gq").write_text(_HARDCODED)

    assert _omnigraph(*_LINT).code == 0


def test_lint_tells_where_a_file_does_not_parse(folder: Path) -> None:
    (folder / "queries.gq").write_text("query (")

    run = _omnigraph(*_LINT)

    lines = run.out.splitlines()
    assert lines[0].startswith("ERROR queries.gq:1:7: Q000: ")
    assert lines[1:3] == ["1 | query (", "  |       ^"]
    assert lines[-1].startswith("INFO  Lint complete: 0 queries processed (1 error(s)")
    assert run.code == 1


def test_lint_points_out_properties_that_no_update_sets(folder: Path) -> None:
    (folder / "queries.gq").write_text("query q($n: String) { update Company set { city: $n } where name = $n }")
    (folder / "schema.pg").write_text("node Company { name: String @key city: String? founded: Date? }")

    run = _omnigraph(*_LINT)

    assert [line for line in run.out.splitlines() if "L201" in line and line.startswith("WARN  ")]
    assert run.code == 0


def test_lint_cannot_start_without_a_schema_that_compiles(folder: Path) -> None:
    (folder / "schema.pg").write_text("node A { id: String }\nedge E: A -> B\n")

    run = _omnigraph(*_LINT)

    assert (run.code, run.out) == (1, "")
    assert run.err.startswith("Error: schema.pg:1:10: P2: ")
    assert "schema.pg:2:14: C2: " in run.err


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "arguments",
    [
        ["lint", "--query", ".", "--schema", "schema.pg"],
        ["lint", "--query", "queries.gq", "--schema", "none.gq"],
        ["schema", "plan", "--from", "schema.pg", "--to", "none.gq"],
        ["fmt", "none.gq"],
    ],
)
def test_a_file_that_cannot_be_read_is_named_on_stderr(arguments: list[str]) -> None:
    run = _omnigraph(*arguments)

    assert (run.code, run.out) == (1, "")
    assert re.match(r"Error: cannot read (none\.gq|\.): ", run.err)
    assert "hint: " in run.err


def test_what_is_no_text_is_refused_with_its_place(folder: Path) -> None:
    bad = {
        "bytes.pg": b"node A {}\nnode \xff",
        "nul.pg": b"node A {\x00}",
        "utf16.pg": "node A {}".encode("utf-16"),
        "large.pg": b"// " + b"x" * (5 * 1024 * 1024),
    }
    for name, data in bad.items():
        (folder / name).write_bytes(data)

    run = _omnigraph("fmt", *bad)

    assert run.code == 1
    assert re.findall(r"Error: (\S+): S1: ", run.err) == ["bytes.pg:2:6", "nul.pg:1:9", "utf16.pg:1:1", "large.pg:1:1"]
    assert {name: (folder / name).read_bytes() for name in bad} == bad


# fmt


def test_fmt_rewrites_files_in_place_and_then_leaves_them_alone(folder: Path) -> None:
    (folder / "messy.pg").write_text(_MESSY)

    first, second = (_omnigraph("fmt", *flags, "messy.pg", "schema.pg") for flags in ((), ("--check",)))

    assert (first.code, first.out) == (0, "formatted messy.pg\n")
    assert "2 file(s), 1 changed, 0 failed" in first.err
    assert (folder / "messy.pg").read_text() == _TIDY
    assert (second.code, second.out) == (0, "")


def test_fmt_check_changes_nothing_and_fails_if_something_would_change(folder: Path) -> None:
    (folder / "messy.pg").write_text(_MESSY)

    run = _omnigraph("fmt", "--check", "messy.pg", "schema.pg")

    assert (run.code, run.out) == (1, "would format messy.pg\n")
    assert (folder / "messy.pg").read_text() == _MESSY


def test_fmt_walks_directories_and_takes_only_its_own_files(folder: Path) -> None:
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "named.pg").mkdir()
    for name in ("z.pg", "b/y.pg", "notes.txt"):
        (folder / "a" / name).write_text(_MESSY)
    (folder / "a" / "q.gq").write_text(_READ)

    run = _omnigraph("fmt", "a")

    assert run.code == 0
    assert run.out.splitlines() == ["formatted a/b/y.pg", "formatted a/q.gq", "formatted a/z.pg"]
    assert (folder / "a" / "b" / "y.pg").read_text() == _TIDY
    assert (folder / "a" / "notes.txt").read_text() == _MESSY


def test_fmt_leaves_a_file_that_does_not_parse_as_it_was(folder: Path) -> None:
    (folder / "broken.pg").write_text("node Person{ // half\n")
    (folder / "messy.pg").write_text(_MESSY)

    run = _omnigraph("fmt", "broken.pg", "messy.pg")

    assert (run.code, run.out) == (1, "formatted messy.pg\n")
    assert run.err.startswith("Error: broken.pg:1:")
    assert (folder / "broken.pg").read_text() == "node Person{ // half\n"
    assert (folder / "messy.pg").read_text() == _TIDY


def test_fmt_keeps_permissions_links_and_leaves_nothing_behind(folder: Path) -> None:
    (folder / "real").mkdir()
    target, link = folder / "real" / "target.pg", folder / "link.pg"
    target.write_text(_MESSY)
    target.chmod(0o640)
    link.symlink_to(Path("real") / "target.pg")

    assert _omnigraph("fmt", "link.pg").out == "formatted link.pg\n"

    assert target.read_text() == _TIDY
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert link.readlink() == Path("real") / "target.pg"
    assert [path.name for path in target.parent.iterdir()] == ["target.pg"]
    assert sorted(path.name for path in folder.iterdir()) == ["link.pg", "queries.gq", "real", "schema.pg"]


def test_fmt_settles_line_ends_and_byte_order_marks(folder: Path) -> None:
    (folder / "windows.pg").write_bytes(b"\xef\xbb\xbf" + _TIDY.replace("\n", "\r\n").encode())

    assert _omnigraph("fmt", "windows.pg").out == "formatted windows.pg\n"
    assert (folder / "windows.pg").read_bytes() == _TIDY.encode()


def test_fmt_as_json_tells_what_happened_to_each_file(folder: Path) -> None:
    (folder / "broken.pg").write_text("node {")
    (folder / "messy.pg").write_text(_MESSY)

    run = _omnigraph("fmt", "--json", "--check", "messy.pg", "schema.pg", "broken.pg", "none.pg")

    document = run.document
    assert (run.code, document["check"], document["changed"]) == (1, True, 1)
    assert document["files"][:2] == [{"path": "messy.pg", "changed": True}, {"path": "schema.pg", "changed": False}]
    broken, missing = (file["error"] for file in document["files"][2:])
    assert (broken["code"], broken["diagnostics"][0]["column"]) == ("schema_invalid", 6)
    assert (missing["code"], missing["path"]) == ("file_unreadable", "none.pg")


def test_fmt_reads_stdin_and_writes_stdout() -> None:
    assert _omnigraph("fmt", "--lang", "pg", "-", stdin=_MESSY) == Run(0, _TIDY, "")
    assert _omnigraph("fmt", "--lang", "gq", "-", stdin=_READ).out.startswith("query ada($n: String) {\n")


def test_fmt_of_stdin_reports_what_does_not_parse() -> None:
    run = _omnigraph("fmt", "--lang", "pg", "-", stdin="node {")

    assert (run.code, run.out) == (1, "")
    assert run.err.startswith("Error: <stdin>:1:6: P1: ")


def test_fmt_check_of_stdin_answers_with_its_exit_code() -> None:
    runs = [_omnigraph("fmt", "--lang", "pg", "--check", "-", stdin=text) for text in (_MESSY, _TIDY)]

    assert [(run.code, run.out) for run in runs] == [(1, "would format <stdin>\n"), (0, "")]


def test_fmt_needs_to_know_the_language_of_a_file(folder: Path) -> None:
    (folder / "schema.txt").write_text(_MESSY)

    unknown, told = _omnigraph("fmt", "schema.txt"), _omnigraph("fmt", "--lang", "pg", "schema.txt")

    assert unknown.code == 1
    assert "--lang" in unknown.err
    assert (told.code, told.out) == (0, "formatted schema.txt\n")


# schema plan


def test_schema_plan_prints_the_verdict_and_the_steps(folder: Path) -> None:
    (folder / "next.pg").write_text("node Person { name: String @key email: String? }\nnode Team {}\n")

    run = _omnigraph("schema", "plan", "--from", "schema.pg", "--to", "next.pg", COLUMNS="20")

    assert run.out.splitlines() == [
        "schema plan for schema.pg -> next.pg",
        "supported: yes",
        "- add node type 'Team'",
        "- add property 'Person.email' (String?) on node 'Person'",
        "- drop property 'Person.age' of node 'Person' (soft mode)",
        "- drop edge type 'WorksAt' (soft mode)",
        "- drop node type 'Company' (soft mode)",
    ]
    assert (run.code, run.err) == (0, "")


@pytest.mark.usefixtures("folder")
def test_schema_plan_says_when_nothing_changes() -> None:
    run = _omnigraph("schema", "plan", "--from", "schema.pg", "--to", "schema.pg")

    assert run.out.splitlines()[1:] == ["supported: yes", "no schema changes"]


def test_an_unsupported_plan_is_an_answer_and_not_a_failure(folder: Path) -> None:
    (folder / "next.pg").write_text(_SCHEMA.replace("I32?", "String?"))
    arguments = ("schema", "plan", "--from", "schema.pg", "--to", "next.pg")

    human, machine = _omnigraph(*arguments), _omnigraph(*arguments, "--json")

    assert human.code == machine.code == 0
    assert "supported: no" in human.out.splitlines()
    assert "- unsupported change on property 'Person.age' [OG-MF-106, destructive]: " in human.out
    document = machine.document
    assert (document["supported"], document["step_count"]) == (False, 1)
    assert document["steps"][0]["code"] == "OG-MF-106"


def test_schema_plan_as_json_has_hard_drops_when_data_loss_is_allowed(folder: Path) -> None:
    (folder / "next.pg").write_text(_SCHEMA.replace("    age: I32?\n", ""))
    arguments = ("schema", "plan", "--from", "schema.pg", "--to", "next.pg", "--json")

    step = {"kind": "drop_property", "type_kind": "node", "type_name": "Person", "property_name": "age", "mode": "hard"}
    head = {"from": "schema.pg", "to": "next.pg", "supported": True, "step_count": 1}
    assert _omnigraph(*arguments, "--allow-data-loss").document == {**head, "steps": [step]}


def test_schema_plan_needs_schemas_that_compile(folder: Path) -> None:
    (folder / "next.pg").write_text("node A { a: Strin }")

    run = _omnigraph("schema", "plan", "--from", "schema.pg", "--to", "next.pg", "--json")

    assert (run.code, error_on_stdout(run)) == (1, True)
    assert run.err.startswith("Error: next.pg:1:13: P1: ")
