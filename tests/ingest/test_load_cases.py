"""Every load of the case files, in each way that a load can go.

    === L5 a sentence that says what is expected
    //? append
    {"type": "Person", "data": {"name": "Eve"}}
    //! 1/0
    //! + Person#Eve name=Eve

`//? MODE FILE` begins a load of a file, `//? and FILE` another file of the same load; a file without a name is
`input.jsonl`. Loads before the last one prepare the graph. The `//!` lines end a case: either the counts of nodes and
edges that were loaded and every row that goes (-) or comes (+), or the class and code of the error and every problem
with its rule, its file and line (`-` if it has none), and a fragment of its message:

    //! LoadRejectedError load_rejected
    //! endpoint input.jsonl:1 dst 'Nobody' not found in Person

`L5` and `E34` are the numbers of the behaviour that a case shows, of the language's and of the engine's list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from omnigraph.api.results import LoadResult
from omnigraph.errors import LoadRejectedError
from omnigraph.graph import Graph
from tests.support.loads import PIPELINE, SMALL, difference, load_by, look, make_graph, nothing_changes
from tests.support.templates import Templates

_COUNTS = re.compile(r"(\d+)/(\d+)")
_PROBLEM = re.compile(r"(\w+) (\S+) (.+)")
_FOLDER = Path(__file__).parent / "cases"


@dataclass(frozen=True, slots=True)
class Load:
    mode: str
    files: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    """Loads, and the lines that say what must come of the last one."""

    name: str
    loads: tuple[Load, ...]
    expected: tuple[str, ...]
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.name}"

    @property
    def counts(self) -> tuple[int, int] | None:
        """How many nodes and edges it must load; None if it must be refused."""
        found = _COUNTS.fullmatch(self.expected[0])
        return (int(found[1]), int(found[2])) if found else None

    def check(self, error: LoadRejectedError) -> None:
        """Fail unless the error is the one that the case expects."""
        kind, *problems = self.expected
        found = [_problem(str(one)) for one in error.violations]
        same = kind == f"{type(error).__name__} {error.code}" and len(found) == len(problems)
        places = [(one.rule, place) for one, (place, _) in zip(error.violations, found, strict=True)]
        for wanted, place, (_, message) in zip(problems if same else (), places, found, strict=True):
            read = _PROBLEM.fullmatch(wanted)
            assert read, f"{self}: cannot read `{wanted}`"
            same &= place == (read[1], read[2]) and read[3] in message
        told = [f"{rule} {place} {message}" for (rule, place), (_, message) in zip(places, found, strict=True)]
        assert same, "\n".join(["expected:", *self.expected, "found:", f"{type(error).__name__} {error.code}", *told])


def _problem(text: str) -> tuple[str, str]:
    """Take the place of a problem apart from its message, as a person reads it."""
    found = re.fullmatch(r"(?:(?:\S*/)?(\S+:\d+): )?(.*)", text, re.DOTALL)
    assert found
    return found[1] or "-", found[2]


def read_cases(path: Path) -> list[Case]:
    lines = path.read_text(encoding="utf-8").split("\n")
    starts = [at for at, line in enumerate(lines) if line.startswith("=== ")]
    blocks = [lines[start:stop] for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True)]
    return [_case(path.name, start + 1, block) for start, block in zip(starts, blocks, strict=True)]


def _case(file: str, line: int, block: Sequence[str]) -> Case:
    name, *rest = block
    loads: list[Load] = []
    content: list[str] = []
    for text in (text for text in rest if text.strip() and not text.startswith("//! ")):
        if text.startswith("//? "):
            mode, _, given = text.removeprefix("//? ").partition(" ")
            if mode != "and":
                loads.append(Load(mode))
            content = loads[-1].files.setdefault(given or "input.jsonl", [])
        else:
            content.append(text)
    expected = tuple(text.removeprefix("//! ") for text in rest if text.startswith("//! "))
    assert loads, f"{file}:{line}: the case loads nothing"
    assert expected, f"{file}:{line}: the case does not say what it expects"
    return Case(name.removeprefix("=== "), tuple(loads), expected, file, line)


CASES = [case for path in sorted(_FOLDER.glob("*.load")) for case in read_cases(path)]
LOADED = [case for case in CASES if case.counts]
REFUSED = [case for case in CASES if not case.counts]
TESTED_ELSEWHERE = {"L18", "E40", "E42"}  # other line ends: test_loads.py; branches; there is no such limit
OMITTED = {"L20", "L24", "L25", "L27"}  # of the compatible parser, which is not here, and of branches


@pytest.fixture
def copy_of(templates: Templates, tmp_path: Path) -> Callable[[str], Graph]:
    return lambda name: templates.copy(f"loaded-{name}", lambda uri: make_graph(name, Path(uri)), tmp_path / name)


def carry_out(way: str, graph: Graph, load: Load) -> LoadResult:
    """Write the files of a load, and load them."""
    folder = Path(graph.uri).parent / "input"
    folder.mkdir(exist_ok=True)
    for name, content in load.files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in content), encoding="utf-8")
    return load_by(way, graph, [folder / name for name in load.files], load.mode)


def check_loaded(way: str, graph: Graph, case: Case) -> None:
    *preparation, last = case.loads
    for load in preparation:
        carry_out(SMALL, graph, load)
    before = look(graph)

    done = carry_out(way, graph, last)

    after = look(graph)
    assert (sum(done.nodes.values()), sum(done.edges.values())) == case.counts
    assert difference(before, after) == sorted(case.expected[1:])
    assert done.commit
    assert after.commits == [done.commit.commit_id, *before.commits]
    moved = {key.partition(":")[2]: version - before.versions[key] for key, version in after.versions.items()}
    assert {name for name, versions in moved.items() if versions} == {*done.nodes, *done.edges}
    assert set(moved.values()) <= {0, 1}


def check_refused(way: str, graph: Graph, case: Case) -> None:
    *preparation, last = case.loads
    for load in preparation:
        carry_out(SMALL, graph, load)

    with nothing_changes(graph, way), pytest.raises(LoadRejectedError) as caught:
        carry_out(way, graph, last)

    case.check(caught.value)


# Every case by both ways is much for `make quick`: test_loads.py goes through the pipeline there.
WAYS = [SMALL, pytest.param(PIPELINE, marks=pytest.mark.slow)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", LOADED, ids=str)
def test_a_load_changes_exactly_what_its_case_lists(case: Case, way: str, copy_of: Callable[[str], Graph]) -> None:
    check_loaded(way, copy_of(Path(case.file).stem), case)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_a_refused_load_names_every_problem_and_changes_nothing(
    case: Case, way: str, copy_of: Callable[[str], Graph]
) -> None:
    check_refused(way, copy_of(Path(case.file).stem), case)


def test_every_numbered_behaviour_has_a_case() -> None:
    found = {number for case in CASES for number in re.findall(r"\b[LE]\d+\b", case.name)}
    wanted = {f"L{number}" for number in range(1, 29)} | {f"E{number}" for number in range(34, 44)}
    assert found | TESTED_ELSEWHERE | OMITTED == wanted
