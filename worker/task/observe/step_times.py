"""Measures how long the steps of this task take: work, the wait for its peers, and the wait for input, each folded over windows of steps.

`mark` is called after a step: by `fit`, or by `worker.report(step=…)`. Where neither calls it, the batches count that the task has got.
A window ends after `WINDOW_STEPS` steps and `WINDOW_S` seconds, or after `LONGEST_S`, and has the medians of its marks: a step with a
validation or a checkpoint in it changes nothing. Marks within `APART_S` count as one. So a mark costs a comparison, and some 50 to 200 µs
for every `APART_S`.

The agent reads the newest window from the file `task_files.PACE`, which a thread writes once a second.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from ...protocol import task_files
from .. import patches
from ..patches.features import PACE
from ..shared import shared
from . import meetings

WINDOW_STEPS, WINDOW_S, LONGEST_S = 20, 1.0, 10.0
APART_S = 0.1
POLL_S = 1.0
"""The time between two writings of the file, in seconds."""


class Pace:
    """The steps of one process. `path`: the file for the agent; `clock`: seconds that only grow."""

    def __init__(self, path: str, clock: Any = time.monotonic) -> None:
        self._path, self._clock, self._pid = path, clock, os.getpid()
        self._lock = threading.Lock()
        self._next = 0.0
        """Marks before this time are left out."""
        self._is_marked = False
        """The program, or `fit`, tells of its steps."""
        self.step = 0.0
        """The number of the newest step."""
        self._before: tuple[float, float, float, float] | None = None
        """At the last mark: the time, the step, the seconds waited for peers, and those waited for input."""
        self._marks: list[tuple[float, float, float, float, float]] = []
        """Of the window so far: the seconds, the steps, and for each step the work and both waits, in seconds."""
        self._windows = 0
        self._newest: dict[str, float] = {}
        self._made = 0
        self._met: tuple[float, ...] = (0.0, 0.0, 0.0)
        """What was read of the meetings, and when another value was read first."""
        self._met_at = clock()
        self._busy = -1
        """How often `poll` has found that the task had met its peers meanwhile; the first time it has not looked before."""
        self._written = ""

    @property
    def is_here(self) -> bool:
        """True if this is the process that began, and not a fork of it."""
        return os.getpid() == self._pid

    def mark(self, step: float) -> None:
        self._is_marked = True
        self.step = step
        if self._clock() >= self._next:
            self._mark(step)

    def _mark(self, step: float) -> None:
        if not self._lock.acquire(blocking=False):  # another thread, or a signal handler in this one
            return
        try:
            now = self._clock()
            self._next = now + APART_S
            waited, within = meetings.read()[2:4]
            # Of the time to get a batch, the meeting of the workers in it is a wait for peers.
            self._count(now, step, waited, max(0.0, _input(0) - within))
        except Exception:  # TensorFlow may be ending
            self._before = None
        finally:
            self._lock.release()

    def _count(self, now: float, step: float, peers: float, fetched: float) -> None:
        before, self._before = self._before, (now, step, peers, fetched)
        if before is None or step <= before[1]:  # the first step, or the numbers began again
            return
        seconds, steps = now - before[0], step - before[1]
        waited, read = max(0.0, peers - before[2]), max(0.0, fetched - before[3])
        self._marks.append((seconds, steps, max(0.0, seconds - waited - read) / steps, waited / steps, read / steps))
        lasted, counted = sum(mark[0] for mark in self._marks), sum(mark[1] for mark in self._marks)
        if (counted >= WINDOW_STEPS and lasted >= WINDOW_S) or lasted >= LONGEST_S:
            self._windows += 1
            work, waited, read = (sorted(mark[place] for mark in self._marks)[len(self._marks) // 2] for place in (2, 3, 4))
            self._newest = {"rate": counted / lasted, "work": work, "peers": waited, "input": read}
            self._marks.clear()

    # --- in the thread ---------------------------------------------------------------------------

    def poll_forever(self) -> None:
        while self.is_here:
            time.sleep(POLL_S)
            self.poll()

    def poll(self) -> None:
        """Write the file for the agent, if anything has changed."""
        try:
            if not self._is_marked and (steps := _input(1)):
                self.step = steps
                self._mark(steps)
            came, met, _, _, changing = meetings.read()
            waiting, made = meetings.new_variables
            reads = round(_reading(), 1) if came <= met else 0.0
        except Exception:  # TensorFlow may be ending
            return
        if (came, met, changing) != self._met:
            self._met, self._met_at = (came, met, changing), self._clock()
            self._busy += 1
        if made != self._made:
            self._made, self._met_at = made, self._clock()
        came += waiting
        waits = round(self._clock() - self._met_at, 1) if came > met else 0.0
        found = {
            "step": self.step,
            **self._newest,
            "window": self._windows,
            "came": came,
            "met": met,
            "waits": waits,
            "reads": reads,
            "busy": max(0, self._busy),
        }
        text = json.dumps({name: round(value, 6) for name, value in found.items()})
        if text != self._written:
            self._written = text
            directory, name = os.path.split(self._path)
            task_files.write(directory, name, text)


class _State:
    pace: Pace | None = None
    fits = 0
    """How many calls of Keras's `fit` go on, one inside the other."""
    read_input: Callable[[int], float] | None = None
    """Gives for 0 the seconds that the task has taken to get its batches, with the meetings in this, and for 1 how many it has got. None:
    orch does not count the input of this process."""
    read_since: Callable[[], float] | None = None
    """Gives when the fetch of a batch began that goes on, in seconds since 1970; 0: none does."""


_state = shared("steps", _State)


def _input(number: int) -> float:
    return 0.0 if _state.read_input is None else _state.read_input(number)


def take_input(read: Callable[[int], float], read_since: Callable[[], float]) -> None:
    """From now on the input is counted; see `_State`."""
    _state.read_input, _state.read_since = read, read_since


def _reading() -> float:
    """Return how long the fetch of a batch has gone on."""
    since = 0.0 if _state.read_since is None else _state.read_since()
    return max(0.0, time.time() - since) if since else 0.0


def watch(log_dir: str) -> None:
    """Measure the steps of this task, and its waits for its peers, once TensorFlow is imported."""
    meetings.watch(begin)


@patches.guarded(PACE)
def begin() -> Pace | None:
    """Begin to measure, once, in a task of orch. Returns what measures; None: not in a task, or in a process that a task has forked."""
    directory = os.environ.get("ORCH_LOG_DIR")
    if directory and _state.pace is None:
        _state.pace = Pace(os.path.join(directory, task_files.PACE))
        threading.Thread(target=patches.guarded(PACE)(_state.pace.poll_forever), name="orch-steps", daemon=True).start()
    return _state.pace if _state.pace is not None and _state.pace.is_here else None


@patches.guarded(PACE)
def mark(step: float) -> None:
    """The program says that the step of this number is over. `fit` counts better, so within `fit` this does nothing."""
    if not _state.fits and (pace := begin()) is not None:
        pace.mark(step)


def newest() -> float:
    """Return the number of the newest step that the program, or `fit`, has told; 0: neither has."""
    return 0.0 if _state.pace is None else _state.pace.step


def begin_fit() -> None:
    """Keras's `fit` begins, and will call `advance`."""
    _state.fits += 1


def end_fit() -> None:
    _state.fits = max(0, _state.fits - 1)


@patches.guarded(PACE)
def advance(steps: int) -> None:
    """So many steps of `fit` are over since the last call."""
    if (pace := begin()) is not None:
        pace.mark(pace.step + steps)
