"""Starts, queries and ends the warm process of this user on this machine. See `worker.host.warm`."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import worker
from worker.cpu_cores import count_cores
from worker.host.warm import warm_socket
from worker.host.warm.caller_state import describe_request
from worker.task_environment import default_environment

from ..errors import OrchError, UsageError
from . import Imports

ENDING_S = 5.0
"""How long the process may take to end after a request to end, or after SIGKILL."""
LOCKED_S = 1.0
"""How long processes that the imports have forked may hold the lock of the directory after SIGKILL."""
STACK_S = 1.0
MOST_FRAMES = 12
NAME_ROOMS = {"ORCH_RUN_ID": "-" * 256, "ORCH_TASK": "-" * 64}
"""Room for the names of a run and of a task in the environment that other processes see of a fork (see `process_setup.find_env_slot`)."""
_WORKER = Path(worker.__file__).parent


class NoAnswerError(OrchError):
    """A warm process exists and does not answer."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"warm: the warm process {pid} does not answer; orch warm stop ends it")
        self.pid = pid


def status(python: str, imports: Imports) -> dict[str, Any]:
    """Facts about the process; ``refused``: why a run with these imports would not use it. Raises `OrchError`."""
    facts = _request({"ask": "status", **describe_request(python, imports.preload, imports.cwd, imports.env)})
    return {"running": False} if facts is None else {"running": True, **facts}


def start(python: str, imports: Imports, idle_s: float, import_s: float) -> dict[str, Any]:
    """Start a process, unless one is there that these imports can use. Another one is ended first.

    It ends after `idle_s` seconds without use; its imports may take `import_s` seconds. Returns `status` with ``was_running`` and
    ``replaced``: why the one before could not be used. Raises `OrchError`.
    """
    old = status(python, imports)
    if old["running"] and not old["refused"]:
        return {**old, "was_running": True, "replaced": None}
    if old["running"]:
        stop()
    with _trusted(), warm_socket.make(_directory()) as place:
        log = os.open(warm_socket.LOG, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=place.fd)
        env = {**default_environment(count_cores(), 1), **os.environ, **imports.env, **NAME_ROOMS, "ORCH_WARM_DIRECTORY": place.path}
        reader, writer = os.pipe()
        try:
            process = subprocess.Popen(
                [python, str(_WORKER / "host" / "warm" / "start_warm.py"), str(writer), str(idle_s), *imports.preload],
                cwd=imports.cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[writer],
                start_new_session=True,
            )
        except OSError as error:
            place.clear()
            raise UsageError(f"{python!r} cannot be run: {error.strerror or error}; set --python") from None
        finally:
            os.close(writer)
        try:
            _await_imports(process, reader, f"importing {', '.join(imports.preload)}", import_s, python, log)
        except BaseException:
            _end_start(process, place)
            raise
        finally:
            os.close(reader)
            os.close(log)
    try:
        new = status(python, imports)
    except NoAnswerError as error:
        if not _wait_for_end(error.pid, kill=False):
            raise
        new = {"running": False}
    if not new["running"]:
        raise OrchError(f"warm: it was ready, and ended again after {idle_s:g} s without use (--idle-timeout)")
    return {**new, "was_running": False, "replaced": old["refused"] if old["running"] else None}


def stop() -> dict[str, Any]:
    """End the process; by SIGKILL if it does not answer. Raises `OrchError`."""
    try:
        facts = _request({"ask": "end"})
    except NoAnswerError as error:
        facts = {"pid": error.pid}
    killed = facts is not None and not _wait_for_end(facts["pid"], kill=True)
    with _trusted():
        place = warm_socket.find(_directory())
    if place is not None and (killed or facts is None):
        with place:
            if place.lock():
                place.clear()
    return {"running": False, "was_running": facts is not None, "pid": facts["pid"] if facts else None, "killed": killed}


def _directory() -> str:
    return warm_socket.directory(os.environ)


@contextlib.contextmanager
def _trusted() -> Any:
    try:
        yield
    except (warm_socket.UntrustedError, OSError) as error:
        raise OrchError(f"warm: {error}") from None


def _request(message: dict[str, Any]) -> dict[str, Any] | None:
    """The answer of the process; None: there is no process. Raises `OrchError`."""
    with _trusted():
        place = warm_socket.find(_directory())
        if place is None:
            return None
        with place:
            try:
                connection = place.connect()
            except ConnectionRefusedError:
                return None
            except BlockingIOError:
                raise OrchError("warm: the warm process accepts no connection; end it with kill") from None
    if connection is None:
        return None
    with connection:
        pid, _ = warm_socket.peer(connection)
        connection.settimeout(warm_socket.PATIENCE_S)
        try:
            warm_socket.send(connection, message)
            answer, _ = warm_socket.receive(connection)
        except OSError:
            raise NoAnswerError(pid) from None
    found: dict[str, Any] | None = answer
    return found


def _await_imports(process: subprocess.Popen[bytes], reader: int, doing: str, import_s: float, python: str, log: int) -> None:
    """Wait for the end of the imports. Raises `OrchError`."""
    output, is_all = _read(reader, import_s)
    if not is_all:
        process.send_signal(signal.SIGQUIT)  # the process writes where the import is
        stack, _ = _read(reader, STACK_S)
        raise OrchError(f"warm: {doing} has not ended after {import_s:g} s (--import-timeout){_describe_stack(stack)}")
    if not output:
        last = os.pread(log, 64 * 1024, 0).decode(errors="replace").strip().splitlines()[-1:]
        raise OrchError(": ".join((f"warm: {doing} ended the process; is {python!r} the right Python? (--python)", *last)))
    if error := json.loads(output).get("error"):
        raise OrchError(f"warm: {error}")


def _read(fd: int, limit_s: float) -> tuple[str, bool]:
    """What can be read within `limit_s` seconds, and whether that was all."""
    until, output = time.monotonic() + limit_s, b""
    while select.select([fd], [], [], max(0.0, until - time.monotonic()))[0]:
        data = os.read(fd, 64 * 1024)
        if not data:
            return output.decode(errors="replace"), True
        output += data
    return output.decode(errors="replace"), False


def _describe_stack(stack: str) -> str:
    """The frames that `faulthandler` wrote, the innermost first, without those of orch and of the import system."""
    own = ("<frozen ", f'"{_WORKER}')
    lines = [line for line in stack.splitlines() if line.startswith("  File ") and not any(word in line for word in own)]
    return "\n".join(["; it was here", *lines[:MOST_FRAMES]]) if lines else ""


def _end_start(process: subprocess.Popen[bytes], place: warm_socket.WarmDirectory) -> None:
    """End a process that is not ready, with its children, and remove its files, unless another warm process uses the directory."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    until = time.monotonic() + LOCKED_S
    while not (is_locked := place.lock()) and time.monotonic() < until:
        time.sleep(0.01)
    if is_locked:
        place.clear()


def _wait_for_end(pid: int, *, kill: bool) -> bool:
    """Wait until a process has ended; False: it has not ended by itself. `kill`: such a process is killed."""
    try:
        fd = os.pidfd_open(pid)  # not the pid: another process may get the same pid
    except ProcessLookupError:
        return True
    try:
        if select.select([fd], [], [], ENDING_S)[0]:
            return True
        if kill:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            select.select([fd], [], [], ENDING_S)
        return False
    finally:
        os.close(fd)
