"""What saves cost, and what a death costs: orch's own saves beside Keras's BackupAndRestore and a training without saves.

Two workers train a small model by Keras's `fit` (300,000 weights with Adam, 4 epochs of 50 steps); saves on the disk are made every 10
steps, or, beside snapshots in memory, at the end of each epoch. Worker 1 kills itself in step 136 (of 200), so 7 steps after the newest
save. Measured are the median time of a step without a death, and the share of all steps' time that saves add; and, with a death, how many
finished steps are done again, and the seconds from the death until the training has finished the step at which it died.

Then two trainings of one model take turns of about a second, so that each has a snapshot: one with all that orch does so that a restart can
continue from memory, and one without. Each pair of turns meets the same load of the machine; the figure is the median of the pairs, for
seconds and for seconds of CPU. The last figure has less noise: the seconds of CPU of orch's calls after the steps alone, which are all that
the two trainings do otherwise.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import tempfile
from pathlib import Path

from benchmarks.measure import PROGRAMS, environment, load, orch_command, spread, table

DIE_AT = 136
COLUMNS = ("steps that can continue", "ms of a step", "seconds", "seconds of CPU", "of the calls alone", "memory", "pairs")
WAYS = {
    "no saves": ("none", ()),
    "orch --checkpoint: snapshots in memory": ("none", ("--checkpoint",)),
    "orch --checkpoint, every 10 steps, on the disk alone": (
        "none",
        ("--checkpoint", "--set", "checkpoints.every=10", "--set", "checkpoints.snapshots=false"),
    ),
    "BackupAndRestore(save_freq=10)": ("backup", ()),
}


def run(name: str, saves: str, options: tuple[str, ...], die_at: int) -> None:
    """Train, with files in this directory."""
    program = [str(PROGRAMS / "resume_steps.py"), "-n", "2", "--max-restarts", "1", "--quiet", *options]
    words = [*orch_command(), "up", *program, "--", name, saves, str(die_at)]
    subprocess.run(words, cwd=name, env=environment(TF_CPP_MIN_LOG_LEVEL="2"), check=True, capture_output=True, timeout=900)


def train(saves: str, options: tuple[str, ...], die_at: int) -> dict[int, list[tuple[int, float]]]:
    """The steps of the chief with their times, by attempt."""
    with tempfile.TemporaryDirectory() as name:
        run(name, saves, options, die_at)
        found = {}
        for path in Path(name).glob("worker-0-*"):
            lines = [line.split() for line in path.read_text().splitlines()]
            found[int(path.name.rpartition("-")[2])] = [(int(step), float(at)) for step, at in lines]
        return found


def take_turns(turns: int, steps: int, width: int) -> list[tuple[str, ...]]:
    """Return what it costs each worker that its steps can be continued from memory."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        program = [str(PROGRAMS / "resume_turns.py"), "-n", "2", "--max-restarts", "1", "--quiet"]
        words = [*orch_command(), "up", *program, "--", name, str(turns), str(steps), str(width)]
        subprocess.run(words, cwd=name, env=environment(TF_CPP_MIN_LOG_LEVEL="2"), check=True, capture_output=True, timeout=1800)
        for task in ("worker-0", "worker-1"):
            *lines, last = (Path(name) / f"turns-{task}").read_text().splitlines()
            told = [[float(word) for word in line.split()] for line in lines]
            pairs = [sorted(pair, reverse=True) for pair in zip(told[::2], told[1::2], strict=True)]
            columns = [shown([100 * (kept[place] / plain[place] - 1) for kept, plain in pairs]) for place in (1, 2)]
            after = 100 * sum(kept[3] - plain[3] for kept, plain in pairs) / sum(plain[2] for _, plain in pairs)
            step = 1000 * statistics.median(plain[1] for _, plain in pairs) / steps
            rows.append((task, f"{step:.1f}", *columns, f"{after:.2f} %", f"{int(last) / 1e6:.1f} MB", str(len(pairs))))
    return rows


def shown(shares: list[float]) -> str:
    """The median of the pairs, and the interval that has the true one in 95 of 100 cases, whatever the distribution of the noise is."""
    ordered, margin = sorted(shares), round(0.98 * len(shares) ** 0.5)  # the binomial distribution of the pairs below the true median
    middle = len(ordered) // 2
    low, high = ordered[max(0, middle - margin)], ordered[min(len(ordered) - 1, middle + margin)]
    return f"{statistics.median(ordered):+.2f} % ({low:+.2f} to {high:+.2f})"


def step_times(steps: list[tuple[int, float]]) -> tuple[float, float]:
    """The median and the mean time of a step in milliseconds, without the first ten."""
    taken = [(after[1] - before[1]) * 1000 for before, after in itertools.pairwise(steps[10:])]
    return statistics.median(taken), statistics.mean(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=120, help="how many turns the training takes; a multiple of 4")
    parser.add_argument("--steps", type=int, default=200, help="of each turn, which should take a second or more")
    parser.add_argument("--width", type=int, default=512, help="of its two hidden layers: how long a step takes")
    parser.add_argument("--cost", action="store_true", help="only these turns")
    parser.add_argument("--quick", action="store_true", help="one round")
    options = parser.parse_args()
    print(load(), flush=True)
    if options.cost:
        table(COLUMNS, take_turns(options.turns, options.steps, options.width))
        print(load())
        return
    medians: dict[str, list[float]] = {name: [] for name in WAYS}
    means: dict[str, list[float]] = {name: [] for name in WAYS}
    again: dict[str, list[float]] = {name: [] for name in WAYS}
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(1 if options.quick else options.rounds):
        for name, (saves, words) in WAYS.items():
            median, mean = step_times(train(saves, words, -1)[1])
            medians[name].append(median)
            means[name].append(mean)
            attempts = train(saves, words, DIE_AT)
            reached, died = attempts[1][-1]
            again[name].append(reached + 1 - attempts[2][0][0])
            seconds[name].append(next(at for step, at in attempts[2] if step >= reached) - died)
    base = statistics.median(means["no saves"])
    rows = [
        (
            *(name, spread(medians[name], "{:.1f}"), f"{100 * (statistics.median(means[name]) / base - 1):+.0f} %"),
            *(spread(again[name], "{:.0f}"), spread(seconds[name], "{:.1f}")),
        )
        for name in WAYS
    ]
    table(("2 workers", "ms of a step", "all steps", "steps done again", "s to the step of the death"), rows)
    print()
    table(COLUMNS, take_turns(options.turns, options.steps, options.width))
    print(load())


if __name__ == "__main__":
    main()
