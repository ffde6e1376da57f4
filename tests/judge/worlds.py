"""The worlds in which every case runs, and how the judge goes on after a case that crashes or hangs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from orchestrator.testing import cluster
from worker.values.fast_dataclass import dataclass

from .tasks import Unit, patience, run_units

UNIT_S = 180.0
"""How long nothing may happen before a unit counts as hanging. A unit takes about a second on a free core."""
WAITING_S, IDLE = 45, 0.02
"""For so many seconds all tasks together may be awake for less than this part of the time: then they wait for each other. On a machine with
much other work a task gets little of a core, and waits for more.
"""
Answers = dict[str, dict[str, Any]]
"""By task: the result of a unit, or its error, and the lines that orch has printed."""


@dataclass(frozen=True)
class World:
    name: str
    title: str
    settings: Mapping[str, Any]
    reference: str = ""
    """The world of one process that has the same Keras."""
    keras: str = ""
    """The release of Keras 3; the installed one, if empty."""
    has_every_form: bool = True
    """False: a form that is easier than the hardest one of a case is judged only where the hardest one is not as in one process."""
    by_hand: Mapping[str, Any] = field(default_factory=dict)
    """If Keras trains here without orch as well, the settings for this: what fails with them is no mistake of orch."""
    replicas: int = 1
    """The replicas of each worker. Without GPUs TensorFlow makes one, however many CPU devices there are, unless it is told otherwise."""

    @property
    def tasks(self) -> int:
        return int(self.settings["workers"])


ALONE = {"workers": 1, "strategy": "none"}
MIRRORED = {"workers": 1, "strategy": "mirrored", "cpus": 2}
KERAS_2 = {"workers": 2, "keras": "legacy"}
KERAS_2_BY_HAND = {"keras": "off", "env": {"TF_USE_LEGACY_KERAS": "1"}}
OLDEST = "3.10.0"
WORLDS = {
    world.name: world
    for world in (
        World("one", "one process", ALONE),
        World("two", "2 workers", {"workers": 2}, "one"),
        World("three", "3 workers", {"workers": 3}, "one", has_every_form=False),
        World("two-of-two", "2 workers of 2 replicas", {"workers": 2, "cpus": 2}, "one", has_every_form=False, replicas=2),
        World("mirrored", "MirroredStrategy", MIRRORED, "one", has_every_form=False, by_hand={"keras": "off"}),
        World("one-keras-2", "one process, Keras 2", {**ALONE, "keras": "legacy"}),
        World("two-keras-2", "2 workers, Keras 2", KERAS_2, "one-keras-2", has_every_form=False, by_hand=KERAS_2_BY_HAND),
        World("one-oldest", f"one process, Keras {OLDEST}", ALONE, keras=OLDEST),
        World("two-oldest", f"2 workers, Keras {OLDEST}", {"workers": 2}, "one-oldest", keras=OLDEST, has_every_form=False),
    )
}


def judge_world(
    world: World, units: list[Unit], directory: Path, packages: Mapping[str, Path], tell: Callable[[str], None]
) -> dict[Unit, Answers]:
    """What every unit gives in this world. `packages`: where a release of Keras 3 is, by version."""
    found: dict[Unit, Answers] = {}
    left = list(units)
    environment = {"PYTHONHASHSEED": "0", "TF_CPP_MIN_LOG_LEVEL": "2"}
    if world.keras:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(packages[world.keras]), os.environ.get("PYTHONPATH", ""))))
    while left:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        _run_some(world, left, directory, environment)
        done = _read(world, directory)
        # A world that never came to its first unit would go on for ever.
        if not done:
            raise RuntimeError(f"{world.title}: no unit began; see {directory}")
        for number, answers in done.items():
            found[left[number]] = answers
        last = max(done)
        if any("result" not in answer for answer in done[last].values()):
            tell(f"{world.title}: {left[last][0]}, {left[last][1]}: {' | '.join(_short(answer) for answer in done[last].values())}")
        left = left[last + 1 :]
    shutil.rmtree(directory, ignore_errors=True)
    return found


def _short(answer: Mapping[str, Any]) -> str:
    return str(answer.get("error") or ("fine" if "result" in answer else answer.get("ended", ""))).partition("\n")[0][:100]


def _run_some(world: World, units: list[Unit], directory: Path, environment: dict[str, str]) -> None:
    """Run these units until one of them fails in a task, or nothing happens any longer."""
    settings = {**world.settings, "env": {**environment, **world.settings.get("env", {})}}
    with cluster(**settings, timeout=24 * 3600, grace=3) as c:
        job = c.start(run_units, units, str(directory), world.replicas)
        hangs, mark = False, (0.0, 0.0, dict[Path, float]())
        while not job.join(1):
            if any(outcome.has_ended for outcome in job.tasks.values()):
                job.join(4)  # the others may raise the same
                break
            now, change, awake = time.time(), _last_change(directory), _awake_seconds([c[name].pid for name in job.tasks])
            # A thread that has ended since takes nothing away.
            spent = sum(max(0.0, seconds - mark[2].get(thread, 0.0)) for thread, seconds in awake.items())
            waits = change == mark[1] and now - mark[0] > WAITING_S and spent < IDLE * (now - mark[0])
            if change != mark[1] or now - mark[0] > WAITING_S:
                mark = (now, change, awake)
            if waits or now - change > patience(UNIT_S):
                hangs = True
                for name, stack in c.stacks().items():
                    print(f"{name} hangs at:\n{stack}", file=sys.stderr, flush=True)
                break
        endings = {name: "hangs" if hangs else outcome.describe() for name, outcome in job.tasks.items() if outcome.state != "returned"}
        (directory / "endings.json").write_text(json.dumps(endings))


def _awake_seconds(pids: list[int | None]) -> dict[Path, float]:
    """How long each thread of these processes has run or waited for a core (proc(5), schedstat)."""
    awake = {}
    for path in (path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")):
        with contextlib.suppress(OSError):  # it has ended
            on_core, waiting, _ = path.read_text().split()
            awake[path] = (int(on_core) + int(waiting)) / 1e9
    return awake


def _last_change(directory: Path) -> float:
    changes = [directory.stat().st_mtime]
    with contextlib.suppress(FileNotFoundError):
        changes += [path.stat().st_mtime for path in directory.glob("*.jsonl")]
    return max(changes)


def _read(world: World, directory: Path) -> dict[int, Answers]:
    """The answers of the tasks, by the number of the unit. A task that came to no end has the way in which it ended."""
    endings = json.loads((directory / "endings.json").read_text())
    found: dict[int, Answers] = {}
    began = -1
    for task in (f"worker-{index}" for index in range(world.tasks)):
        path = directory / f"{task}.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            entry = json.loads(line)
            began = max(began, entry.get("begins", -1))
            if "ends" in entry:
                found.setdefault(entry.pop("ends"), {})[task] = entry
    if began < 0:
        print(endings, file=sys.stderr)
        return {}
    for number in range(began + 1):
        answers = found.setdefault(number, {})
        for index in range(world.tasks):
            answers.setdefault(f"worker-{index}", {"ended": endings.get(f"worker-{index}", "it waited for the others")})
    return found
