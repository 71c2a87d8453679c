"""`tests.toml` names the tests that are nearest to each module that is mutated."""

from __future__ import annotations

import tomllib
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src" / "omnigraph"
TARGETS = ("commit", "manifest", "history")


def test_every_module_that_is_mutated_has_its_nearest_tests() -> None:
    nearest = tomllib.loads((HERE / "tests.toml").read_text(encoding="utf-8"))
    modules = {str(file.relative_to(SOURCE)) for target in TARGETS for file in (SOURCE / target).rglob("*.py")}
    assert nearest.keys() == modules | {"write/validate.py"}
    missing = [name for names in nearest.values() for name in names if not (HERE.parent / f"{name}.py").is_file()]
    assert not missing, "a test file was renamed"
