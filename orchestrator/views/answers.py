"""The profiles of the tasks of a run: what the tasks have answered to one request, and the files for TensorBoard."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from worker.protocol import task_files
from worker.protocol.task_id import PROFILE
from worker.values.fast_dataclass import dataclass

from ..model.state.cluster import Cluster
from ..record.run_directory import RunDir
from ..record.run_files import private_opener, size_of
from ..record.run_progress import read_cluster
from ..record.run_view import RunView

PATIENCE_S = 60.0
"""How long after the end of a profile its file is waited for: TensorFlow orders the events, and a host may have to send them."""
MOST_BYTES = 1 << 30
MOST_ANSWERS, MOST_HEAD = 1000, 1 << 16
"""A task may write into the file what it likes."""


@dataclass(frozen=True, slots=True)
class ProfileAnswer:
    data: bytes = b""
    """TensorFlow's `XSpace`; empty: there is no profile."""
    begun: float = 0.0
    """In seconds since the epoch, by the clock of the task's host."""
    seconds: float = 0.0
    refused: str = ""
    """Why the task does not let itself be profiled."""
    failed: str = ""
    """Why there is no profile, other than by a refusal."""


def find(data: bytes, request: str) -> ProfileAnswer | None:
    """The answer to this request among the answers of a task (worker/task/observe/profiling.py); None: it is not there, or not complete."""
    at = 0
    for _ in range(MOST_ANSWERS):
        end = data.find(b"\n", at, at + MOST_HEAD)
        if end < 0:
            return None
        try:
            head = json.loads(data[at:end])
            size = int(head.get("bytes", 0))
            answer = ProfileAnswer(
                data[end + 1 : end + 1 + max(0, size)] if head.get("id") == request else b"",
                float(head.get("begun", 0.0)),
                float(head.get("seconds", 0.0)),
                str(head.get("refused", "")),
                str(head.get("failed", "")),
            )
        except (AttributeError, TypeError, ValueError, OverflowError, RecursionError):  # any program may write into the file
            return None
        if head.get("id") == request:
            return answer if 0 <= size <= len(data) - end - 1 else None
        at = end + 1 + max(0, size)
    return None


def collect(
    run: RunDir, cluster: Cluster, tasks: Sequence[str], request: str, seconds: float, ask: Callable[[], None]
) -> dict[str, ProfileAnswer]:
    """The answers of these tasks after `ask` has asked the controller, in their order. A task that does not answer in time has failed."""
    paths = {name: run.log_path(name, cluster.tasks[name].attempt, PROFILE) for name in tasks}
    before = {name: size_of(path) for name, path in paths.items()}
    ask()
    found: dict[str, ProfileAnswer] = {}
    read: dict[str, int] = {}
    """The sizes of the files that were read without an answer: only one that has grown is read again."""
    deadline = time.monotonic() + seconds + PATIENCE_S
    view = RunView(run)
    while len(found) < len(paths):
        view.rest()
        late = time.monotonic() >= deadline
        now = read_cluster(run)
        for name, path in paths.items():
            if name in found:
                continue
            answer = find(task_files.read(str(path), before[name], most=MOST_BYTES), request) if size_of(path) != read.get(name) else None
            read[name] = size_of(path)
            if answer is None and (late or not run.is_alive() or _has_ended(now, cluster, name)):
                why = "the task ended meanwhile" if not late else "no answer: TensorFlow's runtime has not begun in it, or it stands still"
                answer = ProfileAnswer(failed=why)
            if answer is not None:
                found[name] = answer
    return {name: found[name] for name in tasks}


def _has_ended(now: Cluster, before: Cluster, name: str) -> bool:
    task = now.tasks.get(name)
    return task is None or task.has_ended or task.attempt != before.tasks[name].attempt


def write(run: RunDir, request: str, answers: Mapping[str, ProfileAnswer]) -> dict[str, Path]:
    """Write each profile where TensorBoard looks for it below ``profile`` of the run, and return the paths. Raises OSError."""
    place = directory(run) / "plugins" / "profile" / request
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = {}
    for name, answer in answers.items():
        if answer.data:
            found[name] = place / f"{name}.xplane.pb"
            with open(found[name], "wb", opener=private_opener) as file:
                file.write(answer.data)
    return found


def directory(run: RunDir) -> Path:
    """Return what TensorBoard takes as its `--logdir`."""
    return run.path / "profile"
