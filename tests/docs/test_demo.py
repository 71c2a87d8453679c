"""The demo does what it says, leaves nothing behind, and says so when something is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples import demo

ROOT = Path(__file__).parents[2]


def test_the_demo_runs_to_its_end_and_leaves_nothing_behind(tmp_path: Path) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    environment = {**os.environ, "TMPDIR": str(place), "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo", "400"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "merged agent into main" in done.stdout
    assert "default-deny" in done.stdout
    assert "nothing of it is left" in done.stdout
    assert [path.name for path in place.iterdir() if not path.name.startswith("hsperfdata")] == []


def test_a_command_that_ends_otherwise_than_expected_stops_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pytest"])
    with pytest.raises(demo.DemoError, match="ended with 1, not with 0"):
        demo.command("snapshot nowhere")
    assert "$ omnigraph snapshot nowhere" in capsys.readouterr().out
