import subprocess
import sys
from pathlib import Path

import pytest

_HEAVY = {"pyarrow", "lance", "pyspark", "fastapi", "pandas"}
_REPORT = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"


def _loaded(code: str, *arguments: str) -> set[str]:
    """Run code in a fresh interpreter and tell which packages it has loaded then."""
    words = [sys.executable, "-c", f"{code}\n{_REPORT}", *arguments]
    run = subprocess.run(words, check=True, capture_output=True, text=True)
    return set(run.stdout.splitlines()[-1].split())


_HELP = """
import sys
from omnigraph.cli import main
sys.argv = ["omnigraph", {arguments}]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
else:
    raise AssertionError("it went on")
"""
_USE = """
from omnigraph.lang import *
catalog = compile_schema(Source("node A { a: String @key }"))
compile_query(Source("query q() { match { $a: A } return { $a.a } }"), catalog)
"""


def test_the_languages_load_no_engine_and_no_terminal() -> None:
    loaded = _loaded(_USE)

    assert "omnigraph" in loaded
    assert not loaded & (_HEAVY | {"numpy", "typer", "rich", "ulid"})


@pytest.mark.parametrize("arguments", ['"--help"', '"schema", "plan", "--help"', '"--version"'])
def test_help_and_version_load_no_engine(arguments: str) -> None:
    loaded = _loaded(_HELP.format(arguments=arguments))

    assert {"omnigraph", "typer"} <= loaded
    assert not loaded & _HEAVY


def test_help_does_not_even_load_the_parser() -> None:
    assert "lark" not in _loaded(_HELP.format(arguments='"--help"'))


_MAKE = """
import sys
import omnigraph
omnigraph.init(sys.argv[1], "node A { a: String @key }")
"""
_READ = """
"query", "--store", sys.argv[1], "-e", "query q() { match { $a: A } return { $a.a } }"
"""


def test_a_query_on_storage_loads_no_server_no_client_and_no_spark(tmp_path: Path) -> None:
    loaded = _loaded(_MAKE + _HELP.format(arguments=_READ), str(tmp_path / "g"))

    assert "lance" in loaded
    assert not loaded & {"pyspark", "fastapi", "uvicorn", "httpx", "yaml", "duckdb", "networkx"}


def test_a_query_from_the_command_line_waits_for_no_pandas_and_no_stemmers(tmp_path: Path) -> None:
    _loaded(_MAKE, str(tmp_path / "g"))
    loaded = _loaded(_HELP.format(arguments=_READ), str(tmp_path / "g"))

    assert "lance" in loaded
    assert not loaded & {"pandas", "snowballstemmer", "yaml", "pycurl", "pyspark"}


def test_the_package_itself_loads_nothing_but_itself() -> None:
    ours = _loaded("import omnigraph") - _loaded("import dataclasses, unicodedata, typing, __future__")

    assert ours <= {"omnigraph"}


def test_a_client_loads_no_engine_no_server_and_no_spark() -> None:
    loaded = _loaded("import omnigraph; omnigraph.connect('http://localhost')")

    assert "pycurl" in loaded
    assert not loaded & (_HEAVY | {"numpy", "obstore", "py4j", "uvicorn", "starlette", "duckdb", "networkx"})
