"""The documentation is true: its examples run, its tables are complete, its links lead somewhere.

The first word behind an opening fence says what happens to the block:

    pg              must compile as a schema and be in canonical layout
    gq              must compile against the nearest valid `pg` block above it on the page, and be canonical
    python          runs; all blocks of a page share one namespace and one temporary directory
    console         each `$ ` line runs in that directory; the lines below it are what it must print. A line that starts
                    `omnigraph-server` and ends with `&` starts a server, which runs until the page ends
    sh json text ebnf       not executed

`error=CODE` behind `pg` or `gq` says that the block must fail, with this code first. `file=NAME` also writes the
block to the page's directory, for the python and console blocks below it.

In what a command prints, `/data` stands for the page's directory. A commit id or a time is different in every run: the
one on the page stands for the one that was printed, in the rest of the page as well. So does the address of a server,
whose port the kernel chooses.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from typer.main import get_command

import omnigraph
from omnigraph import errors, lang
from omnigraph.api.pipelines import RUNS
from omnigraph.api.results import Commit, Entry, MutationResult, Snapshot, TableVersion
from omnigraph.cli import app
from omnigraph.cli.command import loaded_command
from omnigraph.cli.flags import COMMANDS as ENTRIES
from omnigraph.commit import audit, failpoints, gates, sidecar
from omnigraph.commit.plan import PublishPlan, TableAction, WriterKind
from omnigraph.commit.publish import begin, publish
from omnigraph.commit.store import Store
from omnigraph.core.location import Location
from omnigraph.errors import OmnigraphError, SchemaError, Violation
from omnigraph.history import old_merges, reviews
from omnigraph.lang import Source, compile_schema, format_queries, format_schema, lint_queries
from omnigraph.lang.annotations import KNOWN
from omnigraph.maintenance import relocate
from omnigraph.manifest import members, rows, schema_files, segments
from omnigraph.manifest.publisher import Changes, Lineage
from omnigraph.manifest.rows import MANIFEST_PATH, SCHEMA, STAMP_KEY
from omnigraph.storage import observe
from omnigraph.storage.objects import storage_error
from omnigraph.version import INTERNAL_SCHEMA_VERSION
from tests.support.forks import forked_program

ROOT = Path(__file__).parents[2]
EXAMPLES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]
PAGES = [*EXAMPLES, "CHANGELOG.md"]
OPTIONS = {
    "pg": {"error", "file"},
    "gq": {"error", "file"},
    "text": {"file"},
    "yaml": {"file"},
    "python": set(),
    "console": set(),
    "sh": set(),
    "json": set(),
    "ebnf": set(),
}
CODE = r"(?:[PT]\d{1,2}|[CSD]\d|[QL]\d{3}|OG-[A-Z]{2}-\d{3})"
ADDRESS = r"127\.0\.0\.1:\d+"
VARYING = re.compile(rf"\b(?:[0-7][0-9A-HJKMNP-TV-Z]{{25}}|\d{{16}}|{ADDRESS})\b")  # ULIDs, times, servers


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: where it stands, what its fence says, what it holds."""

    page: str
    line: int
    language: str
    options: dict[str, str]
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@cache
def blocks_of(page: str) -> list[Block]:
    found, opened = [], None
    lines = text_of(page).splitlines()
    for at, line in enumerate(lines):
        if not line.lstrip().startswith(("```", "~~~")):
            continue
        if opened is not None:
            assert line == "```", f"{page}:{at + 1}: a fence is closed by three backticks"
            words = lines[opened].removeprefix("```").split()
            options = dict(word.split("=", 1) for word in words[1:])
            body = "\n".join(lines[opened + 1 : at]) + "\n"
            found.append(Block(page, opened + 1, words[0] if words else "", options, body))
        opened = at if opened is None else None
    assert opened is None, f"{page}: the last fence is never closed"
    return found


def prose_of(page: str) -> str:
    """The page without its fenced blocks and its code spans."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL))


def sections_of(page: str, level: str) -> dict[str, str]:
    """Heading -> text, for the headings of one level; deeper headings belong to the section."""
    parts = re.split(rf"^{level} (.+)$", text_of(page), flags=re.MULTILINE)
    higher = re.compile(rf"^#{{1,{len(level)}}} ", re.MULTILINE)
    return {parts[at]: higher.split(parts[at + 1])[0] for at in range(1, len(parts), 2)}


def examples(*languages: str, wrong: bool = False) -> list[Any]:
    blocks = [block for page in EXAMPLES for block in blocks_of(page) if block.language in languages]
    return [pytest.param(block, id=str(block)) for block in blocks if ("error" in block.options) == wrong]


# Examples ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", EXAMPLES)
def test_every_block_says_what_it_is(page: str) -> None:
    for block in blocks_of(page):
        assert block.language in OPTIONS, f"{block}: unknown kind of block `{block.language}`"
        assert block.options.keys() <= OPTIONS[block.language], f"{block}: unknown option"


def problems_of(block: Block) -> list[str]:
    """The codes a block fails with, in order of the text."""
    source = Source(block.text, str(block))
    if block.language == "pg":
        try:
            compile_schema(source)
        except SchemaError as error:
            return [diagnostic.code for diagnostic in error.diagnostics]
        return []
    report = lint_queries(source, catalog_above(block), {})
    unparsed = [finding.code for finding in report.findings if finding.severity == "error"]
    return unparsed + [result.error.code for result in report.results if result.error]


def catalog_above(block: Block) -> Any:
    schemas = [other for other in blocks_of(block.page) if other.language == "pg" and "error" not in other.options]
    above = [schema for schema in schemas if schema.line < block.line]
    assert above, f"{block}: a gq block needs a pg block above it"
    return compile_schema(Source(above[-1].text))


@pytest.mark.parametrize("block", examples("pg", "gq"))
def test_an_example_compiles_and_is_in_canonical_layout(block: Block) -> None:
    assert problems_of(block) == []
    layout = format_schema if block.language == "pg" else format_queries
    assert layout(Source(block.text)) == block.text


@pytest.mark.parametrize("block", examples("pg", "gq", wrong=True))
def test_a_wrong_example_fails_with_its_code(block: Block) -> None:
    assert problems_of(block)[:1] == [block.options["error"]]


@pytest.mark.parametrize("page", EXAMPLES)
def test_what_a_page_runs_works(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    seen: dict[str, str] = {}
    with ExitStack() as servers:
        for block in blocks_of(page):
            if "file" in block.options:
                path = tmp_path / block.options["file"]
                path.parent.mkdir(exist_ok=True)
                path.write_text(block.text, encoding="utf-8")
            if block.language == "python":
                code = compile(as_seen(block.text, seen), str(block), "exec", dont_inherit=True)
                exec(code, names)  # noqa: S102 - our own text
            if block.language == "console":
                for command, printed, expected in run_console(block, tmp_path, seen, servers):
                    assert printed == expected, f"{block}: $ {command}"


def environment_of(directory: Path) -> dict[str, str]:
    """As plain as can be: the commands of this environment, and a home of the page's own."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {"PATH": path, "NO_COLOR": "1", "TERM": "dumb", "PYTHONUTF8": "1", "HOME": str(directory)}


def run_console(
    block: Block, directory: Path, seen: dict[str, str], servers: ExitStack
) -> Iterator[tuple[str, str, str]]:
    """Run the commands of a block one by one: each, what it printed, and what it should have."""
    plain = environment_of(directory)
    before, *steps = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert steps and not before, f"{block}: a console block starts with `$ `"  # noqa: PT018
    status = 0
    for step in steps:
        command, _, expected = step.partition("\n")
        if command.startswith("omnigraph-server ") and command.endswith(" &"):
            shown, address = servers.enter_context(served_page(as_seen(command, seen), directory, plain))
            seen[shown] = address
            yield command, f"OMNIGRAPH_LISTEN_ADDR={shown}\n", expected
            continue
        assert re.match(r"omnigraph |curl |cat |echo \$\?$", command), f"{block}: `{command}` is not ours to run"
        if command.startswith("curl ") and shutil.which("curl") is None:
            continue
        status, output = run_command(as_seen(command, seen), status, directory, plain)
        printed = output.replace(str(directory), "/data")
        for ours, theirs in zip(VARYING.findall(expected), VARYING.findall(printed), strict=False):
            seen.setdefault(ours, theirs)
        yield command, trimmed(printed), trimmed(as_seen(expected, seen))
        assert status != 2, f"{block}: $ {command} is not a valid command"


def run_command(command: str, status: int, directory: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Run a command after one that ended with a status: how it ends, and what it prints.

    A page has many commands, and to start Python takes longer than what they do.
    """
    for_the_shell = re.search(r"[$`|&;<>*?~]", re.sub(r"'[^']*'", "", command))
    if command.startswith("omnigraph ") and not for_the_shell:
        with tempfile.NamedTemporaryFile("r", encoding="utf-8") as printed:
            streams = (os.devnull, printed.name, printed.name)
            return forked_program(shlex.split(command), streams, directory, environment), printed.read()
    done = subprocess.run(
        ["/bin/sh", "-c", f"(exit {status}); {command}"],
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def trimmed(text: str) -> str:
    """Without blanks at the ends of lines, which no page keeps for long."""
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip()


@contextmanager
def served_page(command: str, directory: Path, environment: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Start a server of a page on a port that the kernel chooses; give its address on the page and the real one."""
    [shown] = re.findall(ADDRESS, command)
    words = shlex.split(command.removesuffix(" &").replace(shown, "127.0.0.1:0"))
    with subprocess.Popen(words, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            ready = server.stdout.readline().strip()
            assert ready.startswith("OMNIGRAPH_LISTEN_ADDR="), f"$ {command}: {ready!r}"
            yield shown, ready.partition("=")[2]
        finally:
            server.terminate()


def as_seen(text: str, seen: dict[str, str]) -> str:
    """Put what was printed in the place of what the page shows for it."""
    return VARYING.sub(lambda found: seen.get(found[0], found[0]), text)


# Completeness --------------------------------------------------------------------------------------


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield name, command
    for sub in getattr(command, "commands", {}).values():
        yield from commands(sub, f"{name} {sub.name}")


COMMANDS = {
    **dict(commands(get_command(app), "omnigraph")),
    **{path: one for name in ENTRIES for path, one in commands(loaded_command(name), f"omnigraph {name}")},
}


@pytest.mark.parametrize("name", ENTRIES)
def test_the_help_of_the_program_has_the_first_line_of_each_command(name: str) -> None:
    entry, command = ENTRIES[name], COMMANDS[f"omnigraph {name}"]
    assert (entry.summary, entry.hidden) == (command.help.partition("\n")[0], command.hidden)


def options_of(command: Any) -> set[str]:
    spelled = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return {option for option in spelled if option.startswith("-")} | {"-h", "--help"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_documented_and_no_other(name: str) -> None:
    sections = sections_of("docs/reference/cli.md", "##")
    section = sections[f"`{name}`"]
    documented = set(re.findall(r"`(--?[a-z][a-z-]*)", section))
    common = options_of(COMMANDS["omnigraph"])
    assert options_of(COMMANDS[name]) - common <= documented
    assert documented <= options_of(COMMANDS[name]) | common


def test_the_command_line_page_names_no_command_that_does_not_exist() -> None:
    headings = {heading.strip("`") for heading in sections_of("docs/reference/cli.md", "##") if "`" in heading}
    assert headings == set(COMMANDS)


def documented_codes() -> dict[str, str]:
    sections = sections_of("docs/reference/errors.md", "###")
    return {match[0]: text for heading, text in sections.items() if (match := re.match(CODE + r"\b", heading))}


def test_every_code_that_can_be_raised_is_documented_and_no_other() -> None:
    sources = (path.read_text(encoding="utf-8") for path in ROOT.glob("src/omnigraph/lang/*.py"))
    raised = {code for source in sources for code in re.findall(rf'"({CODE})"', source)}
    assert raised == set(documented_codes())


@pytest.mark.parametrize("code", documented_codes())
def test_every_code_has_an_example_that_triggers_it_and_says_what_to_do(code: str) -> None:
    section = documented_codes()[code]
    fenced = re.findall(r"^```(\w+)(.*)\n((?:.*\n)*?)```$", section, re.MULTILINE)
    expected = [f"error={code}" in options for language, options, _ in fenced if language in ("pg", "gq")]
    printed = [code in text for language, _, text in fenced if language in ("python", "console")]
    assert any(expected + printed)
    assert "\nFix: " in section


def test_every_annotation_is_documented_and_no_other() -> None:
    table = sections_of("docs/reference/schema.md", "##")["Annotations"]
    assert set(re.findall(r"^\| `@(\w+)", table, re.MULTILINE)) == set(KNOWN)


CLASSES = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, OmnigraphError)]


def test_every_exception_is_documented_with_its_code_and_status() -> None:
    rows = re.findall(r"^\| `(\w+Error)` \| `(\w+)` \| (\d+) \|", text_of("docs/reference/errors.md"), re.MULTILINE)
    assert set(rows) == {(item.__name__, item.code, str(item.http_status)) for item in CLASSES}


def test_an_exception_that_is_never_raised_is_said_to_be() -> None:
    files = [
        path for path in ROOT.glob("src/omnigraph/**/*.py") if path.parent.name != "errors"
    ]  # they are defined there
    sources = [path.read_text(encoding="utf-8") for path in files]
    raised = {name for source in sources for name in re.findall(r"\b(\w+Error)(?:\.of)?\(", source)}
    rows = re.findall(
        r"^\| `(\w+Error)` \| `\w+` \| \d+ \| (.+?) \|", text_of("docs/reference/errors.md"), re.MULTILINE
    )
    never = {name for name, when in rows if when.startswith(("never itself", "not yet"))}
    assert never == {item.__name__ for item in CLASSES} - raised


def test_every_name_of_the_package_is_documented_and_no_other() -> None:
    table = text_of("docs/reference/python.md").partition("\n## ")[0]
    assert set(re.findall(r"^\| \[?`(\w+)`", table, re.MULTILINE)) == set(omnigraph.__all__)


@pytest.mark.parametrize("owner", [omnigraph.Graph, MutationResult, Violation, Snapshot, Entry, TableVersion, Commit])
def test_every_member_is_documented_and_no_other(owner: type) -> None:
    """What a commit is stored as is nobody's business."""
    table = sections_of("docs/reference/python.md", "##")[owner.__name__]
    documented = set(re.findall(r"^\| `(\w+)(?:\([^`]*\))?` \|", table, re.MULTILINE))
    stored = {"record", "head_record"} if owner is Commit else set()
    members = {name for name in dir(owner) if not name.startswith("_")} - stored
    assert documented == members | ({"read_only"} if owner is omnigraph.Graph else set())


def test_every_environment_variable_is_documented_and_no_other() -> None:
    source = text_of("src/omnigraph/core/location.py")
    documented = re.findall(r"`(AWS_\w+)`", sections_of("docs/concepts.md", "##")["Addresses"])
    assert set(documented) == set(re.findall(r'"(AWS_\w+)"', source))


def first_column(page: str, section: str) -> set[str]:
    """Everything in backticks in the first column of the tables of a section."""
    cells = re.findall(r"^\| (`.+?) \|", sections_of(page, "##")[section], re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_everything_a_graph_consists_of_is_in_the_layout() -> None:
    paths = {path.partition("/")[0] for path in first_column("docs/dev/storage.md", "The layout")}
    control = {*schema_files.FILES, MANIFEST_PATH, sidecar.DIRECTORY, gates.DIRECTORY, audit.PATH}
    control |= {schema_files.BESIDE, RUNS, segments.DIRECTORY, members.DIRECTORY, old_merges.MARK, reviews.DIRECTORY}
    assert paths == {*control, relocate.MARK, rows.RESTORING, "nodes", "edges", "__tmp"}


def test_every_column_of_the_manifest_is_documented_and_no_other() -> None:
    kinds = {"table", rows.VERSION, rows.TOMBSTONE, rows.COMMIT, "graph_head", rows.SCHEMA_ID, rows.PAST, rows.SEGMENT}
    kinds |= {rows.RULE_ROW, rows.STREAM_HEAD}
    assert first_column("docs/dev/storage.md", "The manifest") == kinds | set(SCHEMA.names)


def test_every_field_of_a_recovery_record_is_documented_and_no_other() -> None:
    fields = {field.name for kind in (sidecar.Sidecar, sidecar.Pin) for field in dataclasses.fields(kind)}
    assert first_column("docs/dev/commit.md", "The recovery record") == fields


def test_every_failpoint_is_documented_and_no_other() -> None:
    names = {value for name, value in vars(failpoints).items() if name.isupper() and isinstance(value, str)}
    assert first_column("docs/dev/commit.md", "Failpoints") == names


def test_every_test_that_is_named_exists() -> None:
    named = {name for page in EXAMPLES for name in re.findall(r"`(test_\w+)`", text_of(page))}
    tests = (path.read_text(encoding="utf-8") for path in ROOT.glob("tests/*/*.py"))
    there = {name for source in tests for name in re.findall(r"^def (test_\w+)", source, re.MULTILINE)}
    assert named
    assert named <= there


def test_every_name_of_the_language_package_is_documented_and_no_other() -> None:
    table = sections_of("docs/index.md", "##")["The Python package"]
    names = re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \|", table, re.MULTILINE)
    assert {name for row in names for name in row if name} == set(lang.__all__)


def test_every_make_target_is_documented_and_no_other() -> None:
    [targets] = re.findall(r"^\.PHONY: help (.+)$", text_of("Makefile"), re.MULTILINE)
    documented = re.findall(r"^\| `make ([\w-]+)`", text_of("docs/install.md"), re.MULTILINE)
    assert set(documented) == set(targets.split())


def test_what_runs_is_pinned_as_it_is_tested() -> None:
    assert set(text_of("requirements.lock").splitlines()) <= set(text_of("requirements-dev.lock").splitlines())


def test_the_map_of_the_layers_is_that_of_the_import_rules_and_shows_what_is_there() -> None:
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)` \| .+ \|$", text_of("docs/dev/architecture.md"), re.MULTILINE)
    [contract] = re.findall(r"^layers = \[\n(.+?)^\]", text_of("pyproject.toml"), re.MULTILINE | re.DOTALL)
    there = {path.name for path in (ROOT / "src/omnigraph").iterdir() if path.is_dir()} | {"graph"}
    assert rows == [name for name in re.findall(r"\w+", contract) if name in there]


# What a person sees of an error --------------------------------------------------------------------

AUTHOR, BOOK = "node:Author", "node:Book"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    schema = next(block.text for block in blocks_of("docs/reference/errors.md") if block.language == "pg")
    omnigraph.init(tmp_path / "graph", schema)
    return Store.at(Location.parse(tmp_path / "graph"))


def prepared(store: Store, *keys: str) -> PublishPlan:
    txn = begin(store)
    tables = {key: store.tables.open(txn.entries[key].table) for key in keys}
    row = {key: pa.table({name: ["x"] for name in table.schema.names}) for key, table in tables.items()}
    actions = tuple(TableAction(store.tables.stage_append(txn.entries[key].table, row[key])) for key in keys)
    return PublishPlan(txn, WriterKind.MUTATION, actions)


def append_by_hand(store: Store, path: str) -> None:
    dataset = lance.dataset(store.location.child(path))
    lance.write_dataset(
        dataset.to_table() if dataset.count_rows() else _one_row(dataset.schema), dataset, mode="append"
    )


def _one_row(schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([dict.fromkeys(schema.names, "x")], schema=schema)


def stamp(store: Store, text: str) -> None:
    lance.dataset(store.location.child(MANIFEST_PATH)).update_schema_metadata({STAMP_KEY: text})
    store.manifest.load()


def fill_the_disk(store: Store) -> None:
    path = store.location.child(schema_files.IR)
    raise storage_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "write", path)


def double_the_manifest(store: Store) -> None:
    append_by_hand(store, MANIFEST_PATH)
    store.manifest.load()


def move_a_table_during_a_write(store: Store) -> None:
    work = prepared(store, AUTHOR)
    path = work.actions[0].staged.base.path
    with failpoints.armed(failpoints.PUBLISH_AFTER_SIDECAR, lambda: append_by_hand(store, path)):
        publish(store, work)


def move_a_table_before_a_write(store: Store) -> None:
    work = prepared(store, AUTHOR)
    append_by_hand(store, work.actions[0].staged.base.path)
    publish(store, work)


def write_twice_on_one_base(store: Store) -> None:
    first, second = prepared(store, AUTHOR), prepared(store, AUTHOR)
    publish(store, first)
    publish(store, second)


def replace_the_graph_during_a_write(store: Store) -> None:
    work, place = prepared(store, AUTHOR), Path(store.location.uri)
    schema = (place / schema_files.SOURCE).read_text()
    shutil.rmtree(place)
    omnigraph.init(place, schema)
    publish(store, work)


def use_a_handle_from_before_a_fork(store: Store) -> None:
    graph = omnigraph.open(store.location.uri)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 0)  # as in a child: a real fork is unsafe with the threads of Lance
        graph.branches()


@contextmanager
def others_first(store: Store) -> Iterator[None]:
    """Whenever somebody is about to publish, somebody else does."""
    inside = threading.local()

    def come_first(operation: str, _: str) -> None:
        if operation == "publish" and not getattr(inside, "publish", False):
            inside.publish = True
            store.manifest.publish(None, Changes(), {}, Lineage.new())
            inside.publish = False

    previous = observe.set_write_hook(come_first)
    try:
        yield
    finally:
        observe.set_write_hook(previous)


def write_and_lose_every_attempt(store: Store) -> None:
    work = prepared(store, AUTHOR)
    with others_first(store):
        publish(store, work)


def recover_and_lose_every_attempt(store: Store) -> None:
    with suppress(CrashError), failpoints.armed(failpoints.PUBLISH_BEFORE_MANIFEST, crash):
        publish(store, prepared(store, AUTHOR))
    with others_first(store):
        begin(store)


def hold_a_gate(store: Store) -> None:
    work = prepared(store, AUTHOR)
    with store.gates.hold([gates.Gate("branch:main")]):
        publish(Store.at(store.location, gate_timeout=0), work)


class CrashError(Exception):
    """No error of ours, so that nobody cleans up after it."""


def crash() -> None:
    raise CrashError


def meet_a_dead_write(store: Store) -> None:
    work = prepared(store, AUTHOR)
    with suppress(CrashError), failpoints.armed(failpoints.PUBLISH_AFTER_TABLE_COMMIT, crash):
        publish(store, prepared(store, AUTHOR, BOOK))
    with store.gates.hold([gates.Gate(f"table:main:{BOOK}")]):
        publish(Store.at(store.location, gate_timeout=0), work)


def compare_with_a_state_that_was_cleaned_up(store: Store) -> None:
    first = store.manifest.load().head
    publish(store, prepared(store, AUTHOR))
    path = store.manifest.load().snapshot.entries[AUTHOR].table.path
    store.tables.head(path, None).cleanup_old_versions(retain_versions=1, delete_unverified=True)
    assert first
    omnigraph.open(store.location.uri).diff(first.commit_id, "main")


PROVOKED: dict[str, Callable[[Store], None]] = {
    "HistoryReclaimedError": compare_with_a_state_that_was_cleaned_up,
    "StorageFullError": fill_the_disk,
    "FormatTooNewError": lambda store: stamp(store, str(INTERNAL_SCHEMA_VERSION + 1)),
    "FormatTooOldError": lambda store: stamp(store, "0"),
    "CorruptGraphError": double_the_manifest,
    "OutcomeUnknownError": write_and_lose_every_attempt,
    "ConflictError": move_a_table_during_a_write,
    "ExpectedVersionMismatchError": write_twice_on_one_base,
    "GraphReplacedError": replace_the_graph_during_a_write,
    "ForkedHandleError": use_a_handle_from_before_a_fork,
    "ContentionError": recover_and_lose_every_attempt,
    "DriftError": move_a_table_before_a_write,
    "GateTimeoutError": hold_a_gate,
    "RecoveryRequiredError": meet_a_dead_write,
}


@pytest.mark.parametrize("name", PROVOKED)
def test_what_the_page_shows_of_an_exception_is_what_a_person_sees(name: str, store: Store, tmp_path: Path) -> None:
    [shown] = re.findall(r"^```text\n(.+?)^```$", graph_errors()[name], re.MULTILINE | re.DOTALL)
    with pytest.raises(getattr(errors, name)) as caught:
        PROVOKED[name](store)
    lines = "".join(traceback.format_exception_only(caught.value))
    assert _settled(lines.replace(str(tmp_path), "/data")) == _settled(shown)


def _settled(text: str) -> str:
    holder = re.sub(r"process \d+ on \S+; gave up after [\d.]+ s", "somebody for some time", text)
    return VARYING.sub("an id", holder)


def graph_errors() -> dict[str, str]:
    page = "docs/reference/errors.md"
    return {name: text for name, text in sections_of(page, "###").items() if name.endswith("Error")}


def test_every_exception_of_a_graph_has_an_example_and_says_what_to_do() -> None:
    table = (
        text_of("docs/reference/errors.md")
        .partition("\nGraphs and their storage.")[2]
        .partition("\n\nEvery exception")[0]
    )
    rows = dict(re.findall(r"^\| `(\w+Error)` \| `\w+` \| \d+ \| (.+?) \|", table, re.MULTILINE))
    sections = graph_errors()
    assert set(sections) == {name for name, when in rows.items() if not when.startswith("never itself")}
    for name, section in sections.items():
        assert "\nFix: " in section, name
        shown = re.findall(r"^```(console|python)$", section, re.MULTILINE)
        assert shown or name in PROVOKED or rows[name].startswith("not yet"), name


# Links and paths -----------------------------------------------------------------------------------


def anchors_of(page: str) -> set[str]:
    """The anchors a page offers, made from its headings the way GitHub does."""
    without_code = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", without_code, re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    assert len(slugs) == len(set(slugs)), f"{page}: two headings have one anchor"
    return set(slugs)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (ROOT / page).parent / path if path else ROOT / page
        assert linked.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors_of(str(linked.resolve().relative_to(ROOT))), f"{page}: {target}"


@pytest.mark.parametrize("start", ["README.md", "docs/index.md"])
def test_every_page_can_be_reached_from_where_people_start(start: str) -> None:
    seen, waiting = {"README.md"} - {start}, [start]
    while waiting:
        page = waiting.pop()
        if page in seen:
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)\s#:]+\.md)", prose_of(page))
        waiting += [str(((ROOT / page).parent / link).resolve().relative_to(ROOT)) for link in links]
    assert seen >= set(PAGES)


def test_no_file_names_a_path_of_some_machine() -> None:
    machine_path = re.compile(r"(?<![\w.])/(?:home|work|root|Users)\b")
    folders = ("docs", "src", "tests", "examples", "benchmarks", "scripts")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    named = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in [*files, *ROOT.glob("*.*"), ROOT / "Makefile"]
        if path.suffix in {".md", ".py", ".lark", ".pg", ".gq", ".toml", ".lock", ".yaml", ""} and path.name != ".git"
        if path.is_file() and (match := machine_path.search(path.read_text(encoding="utf-8")))
    ]
    assert named == []
