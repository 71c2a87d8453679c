"""Histories: lists of steps that mean something on any graph, so that one can be replayed, kept and shortened."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from omnigraph.maintenance.fold import FEW, FEWEST, INDEXED
from omnigraph.manifest.segments import FAN_OUT, WINDOW
from tests.simulation.model import WRITES

NAMES = ("ann", "bob", "cat", "dan", "eve", "fay")
NOTES = ("n1", "n2", "n3", "n4")
NICKNAMES = (None, None, "x", "y", "z")
HOWS = (None, "", "work")
HANDLES = 3
DAY = 86_400

# How often each step is chosen. The names are those of the methods of `runner.Runner`.
PROFILES: Mapping[str, Mapping[str, int]] = {
    "mixed": {
        "mutate": 30, "load": 8, "merge": 14, "revert": 4, "create_branch": 8, "delete_branch": 6, "create_tag": 3,
        "delete_tag": 2, "optimize": 5, "ensure_indices": 3, "cleanup": 5, "repair": 2, "relocate": 1, "backup": 3,
        "restore": 3, "move": 2, "clock": 2, "apply_schema": 1, "bounds": 4,
    },
    "merges": {"mutate": 30, "merge": 40, "revert": 4, "cherry_pick": 6, "create_branch": 12, "delete_branch": 6,
               "cleanup": 6, "optimize": 3, "bounds": 2},
    "alone": {"mutate": 30, "load": 15, "apply_schema": 10, "revert": 6, "optimize": 6, "cleanup": 5, "create_tag": 4,
              "backup": 4, "restore": 4, "clock": 4, "ensure_indices": 4, "bounds": 4},
    "s3": {"mutate": 30, "load": 8, "merge": 14, "revert": 3, "create_branch": 8, "delete_branch": 5, "optimize": 3,
           "cleanup": 3, "create_tag": 3, "clock": 3, "bounds": 4},
}  # fmt: skip
FAULTS: Mapping[str, Mapping[str, int]] = {
    "local": {"none": 60, "race": 12, "crash": 8, "cut": 8, "kill": 3, "eio": 5, "full": 4},
    "s3": {"none": 50, "race": 10, "crash": 8, "eio": 5, "sleep": 5, "lost": 10, "repeated": 6, "slow": 6},
    "merges": {"none": 80, "race": 12, "crash": 5, "eio": 3},
}
# How long the log and the tails of tables may become. A short history does not reach the usual bounds, the last ones.
BOUNDS: Mapping[str, Sequence[int]] = {
    "window": (1, 2, 3, WINDOW),
    "fan_out": (2, 3, FAN_OUT),
    "fold_within": (1, 1, 2, 6),
    "fold_few": (1, 2, FEW),
    "fold_every": (1, 1, 2, 16),
    "fold_fewest": (2, 2, 2, FEWEST),
    "fold_indexed": (2, INDEXED),
}
# What another handle may do in the middle of a step, and the steps that others can come into the middle of.
RIVALS = ("mutate", "load", "merge", "create_branch", "delete_branch", "optimize", "cleanup", "create_tag")
OPEN_TO_RIVALS = ("mutate", "load", "merge", "revert", "optimize", "ensure_indices", "backup")


@dataclass(frozen=True, slots=True)
class Step:
    """One call through one handle. Numbers choose among what is there when the step comes: branches, tags, commits."""

    do: str
    values: Mapping[str, Any] = field(default_factory=dict)
    handle: int = 0
    fault: str = "none"
    at: int = 1  # the durable write, or the request, that the fault is at
    pick: int = 0  # chooses among the disks that a power cut leaves
    rival: Step | None = None  # comes when this one has begun to stage


def generate(seed: int, count: int, profile: str = "mixed") -> list[Step]:
    """Make the history of a seed. A longer one begins with the shorter."""
    chance = Random(f"{profile}-{seed}")  # noqa: S311 - chooses steps, guards nothing
    bounds = Step("bounds", _values(chance, "bounds"))
    return [bounds, *(_step(chance, profile) for _ in range(count - 1))][:count]


def _step(chance: Random, profile: str) -> Step:
    do, fault = _chosen(chance, PROFILES[profile]), _chosen(chance, FAULTS.get(profile, FAULTS["local"]))
    at, pick, handle = chance.randint(1, 12), chance.randrange(10_000), chance.randrange(HANDLES)
    values, rival = _values(chance, do), None
    if fault == "race":
        other = chance.choice(RIVALS)
        rival = Step(other, _values(chance, other), (handle + 1) % HANDLES)
        fault = "race" if do in OPEN_TO_RIVALS else "none"
    return Step(do, values, handle, fault, at, pick, rival if fault == "race" else None)


def _chosen(chance: Random, weights: Mapping[str, int]) -> str:
    return chance.choices([*weights], [*weights.values()])[0]


def _values(chance: Random, do: str) -> dict[str, Any]:
    numbers: dict[str, Any] = {"branch": chance.randrange(1000), "other": chance.randrange(1000)}
    match do:
        case "mutate":
            return numbers | {"write": chance.choice([*WRITES])} | _entities(chance)
        case "load":
            return numbers | {"mode": chance.choice(("merge", "merge", "append", "overwrite"))} | _records(chance)
        case "merge" | "cherry_pick":
            return numbers | {"resolve": chance.choice((None, None, "ours", "theirs"))}
        case "cleanup":
            return numbers | {"keep": chance.choice((1, 1, 2, 5)), "young": chance.random() < 0.5}
        case "bounds":
            return {name: chance.choice(sizes) for name, sizes in BOUNDS.items()}
        case "clock":
            return {"seconds": chance.choice((-3 * DAY, -3600, -1, 1, 3600, 3 * DAY))}
        case "restore" | "move":
            return numbers | {"continue": chance.random() < 0.5}
    return numbers


def _entities(chance: Random) -> dict[str, Any]:
    return {
        "n": chance.choice(NAMES),
        "m": chance.choice(NAMES),
        "t": chance.choice(NOTES),
        "x": chance.choice(NICKNAMES),
        "h": chance.choice(HOWS),
        "a": chance.choice((None, 1, 2, 3)),
        "r": chance.choice((None, 1, 2, 3)),
    }


def _records(chance: Random) -> dict[str, Any]:
    edges = [f"k{number}" for number in range(4)]
    return {
        "people": {name: chance.choice((None, 1, 2)) for name in chance.sample(NAMES, chance.randint(0, 3))},
        "notes": dict.fromkeys(chance.sample(NOTES, chance.randint(0, 2))),
        "knows": {
            name: [chance.choice(NAMES), chance.choice(NAMES), chance.choice(HOWS)]
            for name in chance.sample(edges, chance.randint(0, 2))
        },
    }


# Case files ----------------------------------------------------------------------------------------


def save(path: Path, steps: Sequence[Step], note: str = "") -> None:
    """Keep a history, with what it showed."""
    lines = ",\n  ".join(json.dumps(asdict(step)) for step in steps)
    path.write_text(f'{{"note": {json.dumps(note)}, "steps": [\n  {lines}\n]}}\n', encoding="utf-8")


def read(path: Path) -> list[Step]:
    return [_read_step(one) for one in json.loads(path.read_text(encoding="utf-8"))["steps"]]


def _read_step(document: Mapping[str, Any]) -> Step:
    rival = document["rival"]
    return Step(**{**document, "rival": _read_step(rival) if rival else None})
