"""What is too long for every change: ``python -m tests.nightly [PART] [--minutes N]`` (`make nightly`).

The parts run one after the other, and a part that takes longer than its budget is ended. The last lines are a table of them; the exit code
is 1 if one is not well. With --minutes, the number of the commit chooses short commands, of each part in turn, that together take no
longer: after some changes each of them has had its turn, and 300 minutes are enough for all of them. A machine of any speed must pass
then, so a short command that is ended by its budget counts for what it has done so far.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from benchmarks.measure import table
from tests.conftest import ROOT
from tests.matrix.cells import CELLS, CORNERS, NEXT

ENDS_S = 10.0
"""How long a part that is told to end may take to do so."""
PASSED, FAILED, LATE, CUT = "passed", "failed", "over its budget", "cut by its budget"
_SLOW = "python -m pytest -n 2 -p tests.again -m 'slow and not core'"
_ENGINES = "tests/backends tests/real/test_ssh.py tests/real/test_slurm.py tests/real/test_join.py tests/real/test_kubernetes*.py"
_JOIN = "tests/backends/test_join.py tests/backends/test_join_engines.py tests/real/test_join.py tests/test_archive.py"
_DRAWN = "tests/model tests/record tests/insight/profiling tests/worker/protocol tests/worker/test_element_counts.py"
"""Where tests draw their examples."""
_SLOW_TESTS = (  # each group takes about as long
    _ENGINES,
    "tests/real/test_keras.py tests/real/test_judge.py tests/real/test_lines.py",
    "tests/real/test_keras_*.py tests/real/test_template.py tests/real/test_up.py",
    "tests/real/test_data*.py tests/real/test_files.py tests/real/test_input.py tests/real/test_guard.py tests/real/test_pace.py",
    "tests/real/test_snapshots.py tests/real/test_elastic.py tests/real/test_slow_causes.py tests/real/test_c[oa]*.py",
    "tests/real/test_resume.py tests/real/test_restarts.py tests/real/test_preemption.py tests/real/test_private_network.py",
    "tests/real/test_examples.py tests/real/test_shards.py tests/real/test_t[aepu]*.py tests/real/test_p[il]*.py tests/real/test_by*.py",
    "tests/real/test_verify.py tests/real/test_patched_names.py tests/real/test_goodput.py tests/real/test_links.py",
    "tests/real/test_scale.py",
    "tests/worker tests/testing tests/insight tests/cli tests/test_[a-z]*.py tests/real/test_chaos.py",
)
_AREAS = (
    *("losses", "metrics", "callbacks", "layers", "models", "endings", "loops"),
    *("optimizers --forms uneven", "inputs --forms uneven"),  # which have more cases than the others
)
_JUDGE, _CHAOS, _MATRIX, _KERAS_TESTS = (f"python -m tests.{name}" for name in ("judge", "real.chaos", "matrix", "keras_tests"))

_BENCHMARKS = ("relay", "verdict", "steptime", "plan", "keras", "input", "testing", "seeing", "resume", "restart")
"""Those that end within some minutes; so one that no longer runs is found."""
_CALM = ("optimizers",)
"""The groups of Keras's own tests in which every failure is known. The others are not in CI before that is so."""


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    command: str
    minutes: float
    short: tuple[str, ...] = ()
    """Each stands for the whole in CI; none: `make test` has the part, or it is too long. ``{number}``: that of the commit."""
    short_minutes: float = 0


# The short commands take less than half of their budgets on two cores, since .ci/run may compile Kubernetes beside them.
PARTS = (
    Part("judge", _JUDGE, 240, tuple(f"{_JUDGE} --worlds one,two --areas {area}" for area in _AREAS), 8),
    Part("draws", f"{_JUDGE} --draws 3000 --seed {{number}} --minutes 60", 75, (f"{_JUDGE} --draws 20 --seed {{number}}",), 6),
    Part(
        "chaos",
        f"{_CHAOS} --trials 60 --seed {{number}}",
        30,
        tuple(f"{_CHAOS} --trials 6 --seed {{number}} --only {who}" for who in ("task", "template", "agent", "controller")),
        4,
    ),
    Part(
        "verify",
        "python -m tests.judge.same --part {number}",  # the slow tests have their own part
        15,
        ("python -m pytest tests/real/test_verify.py -m 'not slow'", "python -m tests.judge.same --areas loops"),
        4,
    ),
    Part(
        "slow", f"{_SLOW} --durations=30", 60, tuple(f"{_SLOW} {tests}" for tests in _SLOW_TESTS), 6
    ),  # the tests that `make test` leaves out
    Part("drawn", f"python -m pytest -n 2 --hypothesis-profile night {_DRAWN}", 30),
    Part("engines", f"{_SLOW} {_ENGINES}", 30),
    Part("join", f"python -m pytest -n 2 {_JOIN} --durations=10", 15),
    Part("dist", "make dist", 15),
    Part("htcondor", "python -m tests.debian_condor", 20),
    Part("slurm-26", "make slurm-26", 30),
    Part("kubectl", "python -m tests.newer_kubectl", 30),
    Part("soak", "python -m pytest --soak -n 2 -m soak --durations=0", 120),
    Part("bench", "make bench", 60, tuple(f"make bench BENCHMARKS={name}" for name in _BENCHMARKS), 4),
    Part("next", f"{_MATRIX} {NEXT.name}", 60),  # not in CI: a new release elsewhere must not fail a change here
    Part(
        "matrix",
        " ".join((_MATRIX, *(cell.name for cell in CELLS if cell != NEXT))),
        300,
        tuple(f"{_MATRIX} --corners {cell.name}" for cell in CORNERS if cell != NEXT),
        6,
    ),
    Part("python-3.14", "python -m tests.python_3_14", 20),
    Part(
        "keras-tests", f"{_KERAS_TESTS} --all && {_KERAS_TESTS} --all --next", 120, tuple(f"{_KERAS_TESTS} {group}" for group in _CALM), 10
    ),
)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nightly", description=__doc__)
    parser.add_argument("part", nargs="?", choices=[part.name for part in PARTS], metavar="PART", help="only this one")
    parser.add_argument("--minutes", type=float, metavar="N", help="short commands that take so many minutes at most")
    given = parser.parse_args(words)
    number = commit()
    chosen = [part for part in PARTS if given.part in (None, part.name)]
    todo = shorten(chosen, number, given.minutes) if given.minutes else chosen
    rows = []
    for part in todo:
        command = part.command.format(number=number % 10**6)
        print(f"== {part.name}: {command}", flush=True)
        began = time.monotonic()
        end = run(command, part.minutes * 60)
        end = CUT if given.minutes and end == LATE else end
        rows.append((part.name, f"{(time.monotonic() - began) / 60:.1f}", f"{part.minutes:g}", end))
    table(("part", "minutes", "budget", "end"), rows)
    return int(any(end not in (PASSED, CUT) for *_, end in rows))


def commit() -> int:
    """A number for the commit that is checked out; 0 outside of a repository."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return int(done.stdout[:12] or "0", 16)


def shorten(parts: Sequence[Part], number: int, minutes: float) -> list[Part]:
    """The short commands that this commit runs: from the part that its number names, one of each part and then the next of each, as far as
    they fit into the minutes."""
    turns = [part for part in parts if part.short]
    chosen: list[Part] = []
    for again in range(max((len(part.short) for part in turns), default=0)):
        for place in range(len(turns)):
            part = turns[(number + place) % len(turns)]
            if again < len(part.short) and sum(each.minutes for each in chosen) + part.short_minutes <= minutes:
                command = part.short[(number // len(turns) + again) % len(part.short)]
                chosen.append(Part(part.name, command, part.short_minutes))
    return chosen


def run(command: str, seconds: float) -> str:
    """How a command of the shell ends that may take so long. Its processes end with it, also those in groups of their own."""
    env = {**os.environ, "PATH": os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))}
    process = psutil.Popen(["bash", "-c", command], cwd=ROOT, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        return FAILED if process.wait(seconds) else PASSED
    except psutil.TimeoutExpired:
        return LATE
    finally:
        end(process)


def end(process: psutil.Popen) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended by itself
        family = [process, *process.children(recursive=True)]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for each in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.send_signal(number)
            _, family = psutil.wait_procs(family, ENDS_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the children of those that ended


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
