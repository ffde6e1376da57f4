"""Reads a run's files for `orch top`, again and again: only what has changed since the last time."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping

from worker.protocol import task_files
from worker.protocol.messages import Sampled
from worker.protocol.task_id import STREAMS

from ..model.policy import stragglers
from ..model.state.cluster import Cluster, Outcome
from ..model.state.progress import describe as describe_progress
from ..record import samples
from ..record.run_directory import RunDir
from ..record.run_files import size_of
from ..record.run_view import RunView
from ..record.text.event_messages import describe_outcome, headline
from ..record.text.lines import clean
from ..record.text.noise import Noise
from .top_state import TopState, View, rows_of

LOG_BYTES = 64 * 1024
"""How much of the end of a task's output is shown."""


class Watcher:
    def __init__(self, run: RunDir) -> None:
        self.run = run
        self._view = RunView(run)
        self._latest: Mapping[str, Sampled] = {}
        self._sampled = (-1, -1)
        """The sizes of the files of samples when they were last read."""

    def read(self, view: View) -> TopState:
        """The run now. Raises `OrchError` for files that cannot be read."""
        lives = self.run.is_alive()  # read first: a controller writes its last event before it releases the lock
        cluster = self._view.cluster(lives=lives)
        verdict = None if lives else self.run.read_verdict()
        phase = cluster.word if lives else describe_outcome(verdict.outcome) if verdict else "lost (its controller died)"
        if lives and (done := describe_progress(cluster.progress(time.time()))):
            phase += f", {done}"
        if verdict is not None and verdict.exit_code:
            phase += f" (exit code {verdict.exit_code})"
        latest = self._read_samples()
        training = stragglers.training(cluster)
        alert = stragglers.describe_absent(latest, training) or self._slow(latest, training) or cluster.odd_link if lives else ""
        if verdict is not None and verdict.cause is not None:
            what = "" if verdict.outcome is Outcome.CANCELLED else "first failure: "
            alert = what + clean(" ".join(headline(verdict.cause).split()))
        elif cluster.awaits_plan and cluster.waiting:
            alert = f"waits: {cluster.waiting}"
        ended = verdict.ended_at if verdict else time.time() if lives else self._last(cluster)
        seconds = max(0.0, ended - cluster.began_at) if cluster.began_at else 0.0
        strategy = cluster.policy.strategy
        rows = rows_of(cluster, latest)
        return TopState(self.run.run_id, strategy, phase, cluster.attempt, seconds, rows, latest, alert, lives, view)

    def _read_samples(self) -> Mapping[str, Sampled]:
        folder = self.run.path / samples.DIRECTORY
        sizes = size_of(folder / "0.jsonl"), size_of(folder / "0.old.jsonl")
        if sizes != self._sampled:
            self._sampled, self._latest = sizes, samples.read_latest(self.run.path)
        return self._latest

    def _slow(self, latest: Mapping[str, Sampled], training: Mapping[str, int]) -> str:
        """The line about a task that is slow in the newest window."""
        uses = [use for use in stragglers.running(latest, training).values() if use.window and use.came]
        for use in uses:
            others = [other for other in uses if other is not use]
            if others and stragglers.is_slow(use, others):
                return stragglers.describe(use, others, latest)
        return ""

    def _last(self, cluster: Cluster) -> float:
        """When anything was last seen of a run whose controller has died."""
        return max([cluster.began_at, cluster.active_at, *(sample.at for sample in self._latest.values()), self._last_event()])

    def _last_event(self) -> float:
        """When the last event was recorded; the last line may be cut."""
        path = str(self.run.path / "events.jsonl")
        tail = task_files.read(path, max(0, task_files.size(path) - LOG_BYTES), most=LOG_BYTES)
        for line in reversed(tail.splitlines()):
            with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
                return float(json.loads(line)["at"])
        return 0.0

    def read_log(self, task: str, attempt: int) -> tuple[str, ...]:
        """The newest lines of a task's output, without TensorFlow's own."""
        found: list[str] = []
        for stream in STREAMS:
            path = self.run.log_path(task, attempt, stream)
            data = task_files.read(str(path), max(0, task_files.size(str(path)) - LOG_BYTES), most=LOG_BYTES)
            lines = clean(data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")).split("\n")
            shown = Noise(shows_losses=True).fold([line for line in lines if line])
            found += [f"--- {task}, attempt {attempt}: {path.name}", *shown]
        return tuple(found)
