"""The package as people install it: without the extras, with what each of them adds, and as a wheel."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCHEMA = "node Person { name: String @key  age: I32? }"
SERVER = ("fastapi", "starlette", "uvicorn", "prometheus_client")
SPARK = ("pyspark", "py4j", "pandas")
EMBED = ("wordllama", "safetensors", "tokenizers")
_HIDE = """
import sys
class Hiding:
    def __init__(self, finder):
        self._finder = finder
    def __getattr__(self, name):
        return getattr(self._finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {names!r} else self._finder.find_spec(name, path, target)
sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
"""


def _without(names: Iterable[str], code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program as if these libraries were not installed."""
    words = [sys.executable, "-W", "error", "-c", _HIDE.format(names=tuple(names)) + code, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


_BASE = """
from pathlib import Path
import omnigraph
folder = Path(sys.argv[1])
graph = omnigraph.init(folder / "graph", sys.argv[2])
graph.mutate('query add() { insert Person { name: "ann", age: 30 } }')
(folder / "more.jsonl").write_text('{"type": "Person", "data": {"name": "bob"}}\\n')
graph.load(folder / "more.jsonl", mode="append")
graph.create_branch("side")
graph.merge("side")
graph.optimize()
rows = graph.query("query all() { match { $p: Person } return { $p.name } order { $p.name asc } }").rows
assert [row["p.name"] for row in rows] == ["ann", "bob"], rows
graph.export(folder / "out.jsonl")
omnigraph.connect("http://localhost:1").close()
import omnigraph.cli, omnigraph.lang
"""


def test_without_any_extra_a_graph_can_be_used_and_a_served_one_be_reached(tmp_path: Path) -> None:
    run = _without([*SERVER, *SPARK, *EMBED], _BASE, tmp_path, SCHEMA)

    assert (run.returncode, run.stderr) == (0, "")


_SERVER = """
from omnigraph.server.main import main
main()
"""


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn", "prometheus_client"])
def test_a_server_that_lacks_its_extra_says_how_to_install_it(missing: str, tmp_path: Path) -> None:
    run = _without([missing], _SERVER, tmp_path / "graph", "--bind", "127.0.0.1:0")

    assert (run.returncode, run.stdout) == (1, "")
    assert "Traceback" not in run.stderr
    assert f"{missing} is not installed" in run.stderr
    assert "install it with: pip install 'omnigraph[server]'" in run.stderr


_COMMAND = """
import omnigraph
from omnigraph.cli import main
omnigraph.init(sys.argv[1], sys.argv[2])
sys.argv[1:] = ["load", "--store", sys.argv[1], "--data", sys.argv[3], "--mode", "append", "--engine", "spark"]
main()
"""


def test_a_load_on_spark_that_lacks_its_extra_says_how_to_install_it(tmp_path: Path) -> None:
    data = tmp_path / "people.jsonl"
    data.write_text('{"type": "Person", "data": {"name": "ann"}}\n')

    run = _without(SPARK, _COMMAND, tmp_path / "graph", SCHEMA, data)

    assert run.returncode == 1
    assert "Traceback" not in run.stderr
    assert "pyspark is not installed" in run.stderr
    assert "install it with: pip install 'omnigraph[spark]'" in run.stderr


_EMBED = """
from omnigraph.embed.local import LocalEmbedder
from omnigraph.errors import EmbedderMissingError
try:
    LocalEmbedder().embed(["a"], 64, None)
except EmbedderMissingError as error:
    assert "pip install 'omnigraph[embed]'" in error.hint, error.hint
else:
    raise AssertionError("it has worked")
"""


def test_a_local_embedder_that_lacks_its_extra_says_how_to_install_it() -> None:
    run = _without(EMBED, _EMBED)

    assert (run.returncode, run.stderr) == (0, "")


def test_every_extra_is_part_of_all_and_all_of_dev() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]

    assert extras["all"] == ["omnigraph[connect,embed,mcp,server,spark]"]
    assert "omnigraph[all]" in extras["dev"]
    assert not [one for one in project["dependencies"] if one.startswith(("pyspark", "fastapi", "uvicorn", "pandas"))]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.iterdir()
    return built


@pytest.mark.slow
def test_a_wheel_holds_the_grammars_the_types_and_true_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        about = Parser().parsestr(archive.read(metadata).decode())

    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*") if path.is_file()}
    wanted = {name for name in sources if not name.endswith(".pyc")}
    assert wanted <= names
    assert {"omnigraph/py.typed"} < wanted
    assert [name for name in wanted if name.endswith(".lark")]
    assert set(about.get_all("Provides-Extra", [])) >= {"all", "embed", "server", "spark"}


@pytest.mark.slow
def test_a_wheel_works_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    """What it depends on is found in this environment: nothing is fetched."""
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")}))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, "--disable-pip-version-check", str(wheel)], check=True, capture_output=True)

    def say(*words: str | Path) -> str:
        return subprocess.run(list(map(str, words)), cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    program = tmp_path / "venv" / "bin" / "omnigraph"
    (tmp_path / "people.pg").write_text(SCHEMA)
    assert say(python, "-c", "import omnigraph.client as it; print(it.__file__)").startswith(str(packages))
    assert say(program, "--version").startswith("omnigraph ")
    say(program, "init", "graph", "--schema", "people.pg")
    say(program, "mutate", "--store", "graph", "-e", 'query add() { insert Person { name: "ann", age: 30 } }')
    read = "query all() { match { $p: Person } return { $p.name } }"
    assert "ann" in say(program, "query", "--store", "graph", "-e", read)
    assert "omnigraph-server" in say(tmp_path / "venv" / "bin" / "omnigraph-server", "--version")
