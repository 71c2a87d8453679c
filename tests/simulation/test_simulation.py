"""Histories of random seeds, with faults: a few here, any number with `make simulate`, many merges with `make soak`."""

from __future__ import annotations

import http.client
import os
from itertools import count
from pathlib import Path

import pytest

from omnigraph.graph import Graph
from tests.simulation import __main__ as program
from tests.simulation.generator import FAULTS, PROFILES, Step, generate, read, save
from tests.simulation.runner import Runner
from tests.support.s3 import S3Server

SOAK = bool(os.environ.get("OMNIGRAPH_SOAK"))
MERGES, STEPS = (2_000, 200) if SOAK else (4, 15)
CASES = sorted(Path(__file__).with_name("cases").glob("*.json"))


@pytest.mark.slow
@pytest.mark.parametrize("profile, seed", [("mixed", 1), ("mixed", 2), ("alone", 1)])
def test_a_history_with_faults_leaves_what_the_model_says(profile: str, seed: int) -> None:
    counts = program.simulate(generate(seed, 20, profile), profile)
    assert counts["steps"] >= 20
    assert any(name.startswith("fault") for name in counts)


@pytest.mark.slow
@pytest.mark.usefixtures("s3_uri")
def test_a_history_on_an_object_store_leaves_what_the_model_says() -> None:
    counts = program.simulate(generate(4, 8, "s3"), "s3")
    assert any(name.startswith("fault") for name in counts)


@pytest.mark.slow
def test_merges_among_branches_that_come_and_go_do_what_the_model_does() -> None:
    merges = 0
    for seed in count():
        merges += program.simulate(generate(seed, STEPS, "merges"), "merges")["merges"]
        if merges >= MERGES:
            break
    print(f"{merges} merges, {seed + 1} histories")  # noqa: T201 - the number is part of the answer


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_a_case_that_failed_once_does_not_fail_again(case: Path) -> None:
    program.simulate(read(case), "mixed")


def test_a_failure_prints_the_line_that_repeats_it_and_keeps_a_shorter_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Graph, "create_tag", lambda *_: None)
    steps = [_clock(1), Step("create_tag", {"branch": 0, "other": 0}), _clock(2)]
    monkeypatch.setattr(program, "generate", lambda _, number, __: steps[:number])
    assert program.main(["--seed", "5", "--steps", "3", "--save", str(tmp_path / "case.json")]) == 1
    shown = capsys.readouterr().out
    assert "acknowledged: Call(method='create_tag'" in shown
    assert "again: python -m tests.simulation --seed 5 --steps 3 --profile mixed" in shown
    assert [step.do for step in read(tmp_path / "case.json")] == ["create_tag"]
    assert program.main(["--case", str(tmp_path / "case.json")]) == 1
    assert program.main(["--seeds", "1", "--steps", "0"]) == 0


def _clock(seconds: int) -> Step:
    return Step("clock", {"seconds": seconds})


def test_a_seed_is_one_history_and_a_case_file_is_the_same(tmp_path: Path) -> None:
    for profile in PROFILES:
        steps = generate(7, 200, profile)
        assert generate(7, 100, profile) == steps[:100]
        save(tmp_path / "case.json", steps)
        assert read(tmp_path / "case.json") == steps
        assert {step.do for step in steps} == PROFILES[profile].keys()
        assert {step.fault for step in steps} == FAULTS.get(profile, FAULTS["local"]).keys()


def test_a_world_has_a_method_for_every_step() -> None:
    assert all(hasattr(Runner, f"_{do}") for profile in PROFILES.values() for do in profile)


def test_an_armed_bucket_loses_or_repeats_one_write(s3_server: S3Server) -> None:
    bucket = s3_server.create_bucket()
    headers = {
        "If-None-Match": "*",
        "Authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/s3/aws4_request",
    }

    def put(key: str) -> int:
        connection = http.client.HTTPConnection(s3_server.host, s3_server.port)
        connection.request("PUT", f"/{bucket}/{key}", b"x", headers)
        answer = connection.getresponse()
        connection.close()
        return answer.status

    s3_server.arm(bucket, "lost", 2)
    assert [put("a"), put("b"), put("c")] == [200, 500, 200]
    s3_server.arm(bucket, "repeated")
    assert put("d") == 412
    assert s3_server.requests(bucket)["put"] == 5  # with that of the bucket
    assert [put(key) for key in "bd"] == [412, 412]
