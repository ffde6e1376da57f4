"""Follows a run that goes on, for a process that only looks at it: when to look, and what has grown since the last look."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from worker.protocol.task_id import STREAMS

from ..model.state.cluster import Cluster
from .follower import Follower
from .run_directory import RunDir
from .run_progress import Progress, read_cluster

LOOK_S = 0.1
"""Seconds between two looks."""
REST = 20
"""Between two looks at all files, so many times as long as a look takes: a run of 300 tasks has 600 files."""

K = TypeVar("K")


class RunView:
    """A run, as one process sees it::

    for lives in view.looks():
        ...  # the last time after the end of the run
    """

    def __init__(self, run: RunDir, every_s: float = LOOK_S, lives: Callable[[], bool] | None = None) -> None:
        """`lives`: returns whether the run goes on, for a process that knows more than `RunDir.is_alive`."""
        self.run, self._every_s, self.lives = run, every_s, lives or run.is_alive
        self._progress: Progress | None = None
        self._ended: Cluster | None = None
        self._followers: dict[object, Follower] = {}
        self._looked_s = 0.0
        """How long the last look at the files of `grown` has taken."""

    @property
    def pause_s(self) -> float:
        """The time until the next look."""
        return max(self.run.look_s(self._every_s), REST * self._looked_s)

    def looks(self, timeout_s: float = math.inf) -> Iterator[bool]:
        """One turn for each look: True while the run goes on.

        The end is found before the caller looks, who then sees all: a run that is over writes no more. Raises `TimeoutError` if the run
        still goes on after `timeout_s`.
        """
        until = time.monotonic() + timeout_s
        while self.lives():
            yield True
            if time.monotonic() >= until:
                raise TimeoutError
            time.sleep(self.pause_s)
        yield False

    def rest(self) -> None:
        """Wait until the next look, and bring the record of a submitted run up to date."""
        time.sleep(self.pause_s)
        self.run.renew()

    def cluster(self, *, lives: bool) -> Cluster:
        """The state now. `lives`: the run goes on, as was found out before."""
        if not lives or self.run.is_submitted:
            self._ended = self._ended if self._ended is not None and not lives else read_cluster(self.run)
            return self._ended
        self._ended = None
        self._progress = self._progress or Progress(self.run)
        return self._progress.read()

    def outputs(self, streams: Collection[str] = STREAMS) -> dict[tuple[str, int, str], Path]:
        """The files of output, by task, attempt and stream."""
        newest = self.run.last_attempts()
        keys = [(task, attempt, one) for task, last in newest.items() for attempt in range(1, last + 1) for one in streams]
        return {key: self.run.log_path(*key) for key in keys}

    def grown(self, paths: Mapping[K, Path]) -> list[tuple[K, Follower]]:
        """The files of these that have bytes that were not read yet."""
        began = time.monotonic()
        found = []
        for key, path in paths.items():
            if (follower := self._followers.get(key)) is None:
                follower = self._followers[key] = Follower(path)
            follower.path = path  # the run's directory may have been moved
            if follower.has_new:
                found.append((key, follower))
        self._looked_s = time.monotonic() - began
        return found
