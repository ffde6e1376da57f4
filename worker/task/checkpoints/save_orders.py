"""Saves on order, before a run, a host or a task is taken away: all trainings of a run save after one and the same step, and then end.

The controller knows all tasks, and the agent writes its orders into a file that the training reads at the end of each step:

    ask         each training waits at the end of its step, and says which step this is
    save STEP   the training goes on to this step, saves, and ends with exit code 42
    stop        orch ends the task: its SIGTERM is no request to save

While a training waits, the others come at most to the end of the step that needs all of them, so the highest step that was said, or the
one after it, is a step that all can reach. A training that is already further says so, and another step is named.

A task that gets SIGTERM from elsewhere (an engine, `kill`) says so, and the controller orders a save. Without an order the task ends, as
without orch. A program that handles SIGTERM itself, as TensorFlow's `PreemptionCheckpointHandler` does, keeps its handler.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
import time
from typing import Any, NoReturn

from ...protocol import task_files
from ...protocol.task_files import SAVED_CODE
from .. import patches, sigterm
from ..observe import reports
from ..patches.features import SAVES

Series = Any
ORDER_S = 10.0
"""How long a training waits for an order, after it has said its step or that it got SIGTERM. Then it goes on, or ends."""
MANIFEST_S = 60.0
"""How long a worker waits until the chief has finished the save."""
POLL_S, MANIFEST_POLL_S = 0.002, 0.02
_acting = threading.Lock()


@dataclasses.dataclass
class _State:
    fd: int = -1
    directory: str = ""
    step: int = 0
    """The last finished step."""
    begun: int = 0
    """How many trainings have begun, without those that turned out not to be saved. One that is over counts: another may follow."""


_task = _State()


def begin(step: int) -> None:
    """The training, which has finished `step`, can save on order from now on. Outside orch, there are no orders."""
    directory = os.environ.get("ORCH_LOG_DIR")
    _task.step = step
    _task.begun += 1
    if not directory or (_task.fd >= 0 and _task.begun > 1):
        return
    if _task.fd >= 0:
        _say("ready", step)
        return
    try:
        # An order of an earlier training of this task is none for this one: each attempt has a directory of its own.
        _task.fd = task_files.open_regular(os.path.join(directory, task_files.SAVE_ORDER), os.O_RDWR | os.O_CREAT)
        _task.directory = directory
        reports.append(os.path.join(directory, task_files.SAVING), f"ready {step}\n".encode())
    except OSError:  # a full disk: this training cannot save on order
        return
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL and threading.current_thread() is threading.main_thread():
        _catch_sigterm()


def end() -> None:
    """A training that has begun turns out not to be saved. A later one of the program may `begin`."""
    _task.begun -= 1
    if _task.fd >= 0 and not _task.begun:
        _say("unable", _task.step)


def is_due(before: int, step: int, series: Series) -> bool:
    """True if the training saves now, on order; called after each step, and may wait. `before`: the step of the last call."""
    _task.step = step
    word, wanted = _read()
    if word in ("", task_files.STOP):
        return False
    if series.place.own:  # no other task trains in step with this one
        return True
    if word == task_files.ASK or wanted <= before:
        word, wanted = _say_and_wait(step, wanted)
    return word == task_files.SAVE and before < wanted <= step


def leave(series: Series, step: int) -> None:
    """The save of this step was begun, on order: end the program with exit code 42 once it is on the disk.

    Returns if another step was named meanwhile, because a task was further.
    """
    while series.is_writing:  # the chief waits for the files of all, and one that is further writes none of this step
        if _names_later(step):
            return
        time.sleep(MANIFEST_POLL_S)
    series.wait()
    until = time.monotonic() + MANIFEST_S
    while not (is_saved := series.is_saved(step)) and not series.is_chief and time.monotonic() < until:
        if _names_later(step):
            return
        time.sleep(MANIFEST_POLL_S)
    if is_saved:
        _say("saved", step)
        series.tell(f"{series.name} is saved at step {step}, because the run or one of its tasks is to end; exit code {SAVED_CODE}")
    raise SystemExit(SAVED_CODE)


def _names_later(step: int) -> bool:
    """True if the newest order names a step after this one."""
    word, wanted = _read()
    return word == task_files.SAVE and wanted > step


def _read() -> tuple[str, int]:
    """The newest order, and its step; empty: there is none. One read of a file that the kernel has in memory."""
    if _task.fd < 0:
        return "", 0
    data = os.pread(_task.fd, task_files.ORDER_BYTES, 0)
    if not data:
        return "", 0
    word, _, step = data.decode("ascii", "replace").strip().partition(" ")
    return (word, int(step)) if step.isdecimal() else ("", 0)


def _say(state: str, step: int) -> None:
    with contextlib.suppress(OSError):
        reports.append(os.path.join(_task.directory, task_files.SAVING), f"{state} {step}\n".encode())


def _say_and_wait(step: int, former: int) -> tuple[str, int]:
    """Say the step, and wait for an order that names one; `former`: the step of an order that came too late."""
    _say("waits", step)
    until = time.monotonic() + ORDER_S
    while time.monotonic() < until:
        word, wanted = _read()
        if word == task_files.STOP or (word == task_files.SAVE and wanted > former):
            return word, wanted
        time.sleep(POLL_S)
    return "", 0


# --- SIGTERM that is not orch's -----------------------------------------------------------------


def _catch_sigterm() -> None:
    """Let a thread act on SIGTERM: the main thread may stand in an operation of TensorFlow, where Python calls no handler."""
    receiver, sender = os.pipe()
    os.set_blocking(sender, False)
    former = signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
    if former >= 0:  # the program has one, such as that of asyncio
        signal.set_wakeup_fd(former)
        os.close(receiver)
        os.close(sender)
        return

    owner = os.getpid()

    @patches.guarded(SAVES)
    def handle(number: int, frame: object) -> None:
        if os.getpid() != owner:  # a child that has not come to `leave_child` yet
            _end()
        # The program may have given the wakeup to another (asyncio does).
        threading.Thread(target=patches.guarded(SAVES)(_act_on_sigterm), daemon=True).start()

    @patches.guarded(SAVES)
    def leave_child() -> None:
        """A forked child ends at its own SIGTERM, of which its parent learns nothing."""
        with contextlib.suppress(ValueError):  # the program forks from an interpreter in which no handler can be set
            former = signal.set_wakeup_fd(-1)
            if former not in (-1, sender):
                signal.set_wakeup_fd(former)
            if signal.getsignal(signal.SIGTERM) is handle:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    os.register_at_fork(after_in_child=leave_child)
    signal.signal(signal.SIGTERM, handle)

    def watch() -> None:
        while data := os.read(receiver, 64):
            if signal.SIGTERM in data and signal.getsignal(signal.SIGTERM) is handle:
                _act_on_sigterm()

    threading.Thread(target=patches.guarded(SAVES)(watch), name="orch-sigterm", daemon=True).start()


def _act_on_sigterm() -> None:
    """Tell the controller, and end this task if orch ends it, or if no order comes."""
    if not _acting.acquire(blocking=False):
        return
    try:
        if not _task.begun:
            _end()
        if not _read()[0]:
            _say("asks", _task.step)
        until = time.monotonic() + ORDER_S
        while not (word := _read()[0]) and time.monotonic() < until:
            time.sleep(POLL_S)
        if word not in (task_files.ASK, task_files.SAVE):
            _end()
    finally:
        _acting.release()


def _end() -> NoReturn:
    """End this process as SIGTERM does without a handler."""
    sigterm.set_default()
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        time.sleep(1.0)
