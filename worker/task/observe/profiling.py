"""`orch profile`: TensorFlow's profiler for some seconds in this task, at a moment that all tasks of the cluster share.

The agent leaves the newest request in the file `task_files.PROFILE_ASKED` of the task. A thread, which begins when TensorFlow's runtime
does, looks for this file once a second, and adds the answer to the file `task_files.PROFILE`. The program needs no line for this.

**The crash.** When a session ends, TensorFlow's recorder completes the events that began in one thread and ended in another: it writes to
them by pointers. Since 2.18 the list that holds the events may have moved in memory by then (`TraceMeRecorder::Consume` in
xla/tsl/profiler/backends/cpu/traceme_recorder.cc; the list of 2.17 had its full size from the start). Under MultiWorkerMirroredStrategy
each collective operation has such an event in every worker but the first: the others ask the first for the parameters of the operation, and
the answer comes in another thread. So such a worker crashes sooner or later, with any options: docs/design-notes.md has the trials.
"""

from __future__ import annotations

import json
import os
import sys
import time

from ...protocol import task_files
from .. import patches
from ..patches.features import PROFILES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

POLL_S = 1.0
LONGEST_ASKED = 4096
CRASHES_SINCE = (2, 18)
"""The release of TensorFlow from which on the crash was seen."""


def watch(log_dir: str) -> None:
    """Answer requests from the moment on at which TensorFlow's runtime begins: before that, the program may still fork."""
    patches.after(PROFILES, "tensorflow.python.eager.context", lambda module: _watch(log_dir))


def _watch(log_dir: str) -> None:
    def ensure_initialized(real: Any, self: Any) -> None:
        begin(log_dir)
        real(self)
        patches.give_back(PROFILES, "Context.ensure_initialized")  # each operation calls this function

    patches.replace(PROFILES, "Context.ensure_initialized", ensure_initialized)


_begun: set[int] = set()


def begin(log_dir: str) -> None:
    """Answer requests from now on. A process that the task has forked does not answer."""
    import threading  # TensorFlow has imported threading by now

    if not _begun:
        _begun.add(os.getpid())
        threading.Thread(target=patches.guarded(PROFILES)(_look_forever), args=(log_dir,), name="orch-profile", daemon=True).start()


def _look_forever(log_dir: str) -> None:
    seen = b""
    while os.getpid() in _begun:
        asked = task_files.read(os.path.join(log_dir, task_files.PROFILE_ASKED), most=LONGEST_ASKED)
        if asked not in (b"", seen):
            seen = asked
            try:
                request = json.loads(asked)
            except ValueError:  # the agent is writing it
                seen = b""
            else:
                _answer(log_dir, request)
        time.sleep(POLL_S)


def why_not(leader: str, task: str, version: str) -> str:
    """Why a profile may end this task, in words; empty: no crash is known.

    `leader`: the task that the others ask in each collective operation, as TensorFlow's runtime names it: ``/job:worker/replica:0/task:0``;
    empty: this task has no such operations with other tasks. `task`: ``worker-1``. `version`: TensorFlow's.
    """
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    kind, _, index = task.rpartition("-")
    if not leader or numbers < CRASHES_SINCE or leader == f"/job:{kind}/replica:0/task:{index}":
        return ""
    return f"TensorFlow {version} often crashes when it profiles another task than the first of those that train in step"


def _answer(log_dir: str, request: dict[str, Any]) -> None:
    """Add the answer to a request: its `id`, and `refused` or `failed` with the reason, or `begun`, `seconds` and `bytes`."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    leader = getattr(context.context(), "_collective_leader", None)
    reason = why_not(leader or "", os.environ.get("ORCH_TASK", ""), tf.__version__)
    if reason and not request.get("at_risk"):
        _write(log_dir, {"id": request["id"], "refused": reason})
        return
    try:
        time.sleep(max(0.0, request["at"] - time.monotonic()))
        begun, data = _profile(tf, log_dir, request["seconds"])
    except Exception as error:
        _write(log_dir, {"id": request["id"], "failed": f"{type(error).__name__}: {error}"[:1000]})
    else:
        _write(log_dir, {"id": request["id"], "begun": begun, "seconds": time.time() - begun, "bytes": len(data)}, data)


def _profile(tf: Any, log_dir: str, seconds: float) -> tuple[float, bytes]:
    """When the profile began, in seconds since the epoch, and TensorFlow's `XSpace`. Raises what TensorFlow raises, and OSError."""
    import shutil
    import tempfile

    directory = tempfile.mkdtemp(prefix="profile-", dir=log_dir)
    try:
        tf.profiler.experimental.start(directory)
        begun = time.time()
        try:
            time.sleep(seconds)
        finally:
            tf.profiler.experimental.stop()
        found = [os.path.join(place, name) for place, _, names in os.walk(directory) for name in names if name.endswith(".xplane.pb")]
        if not found:
            raise FileNotFoundError("TensorFlow has written no profile")
        with open(found[0], "rb") as file:
            return begun, file.read()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _write(log_dir: str, answer: dict[str, Any], data: bytes = b"") -> None:
    try:
        with open(task_files.open_regular(os.path.join(log_dir, task_files.PROFILE), os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
            file.write(json.dumps(answer).encode() + b"\n" + data)
    except OSError as error:
        print(f"orch: warning: a profile could not be written in {log_dir}: {error.strerror or error}", file=sys.stderr)
