"""Starts, queries and ends the warm process of this user on this machine. See `worker.host.forkserver`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import worker
from worker.host.forkserver import warm_socket
from worker.host.forkserver.caller_state import describe_request
from worker.host.processes.proc_files import read_own_memory
from worker.machine.cpu_cores import count_cores
from worker.protocol.task_environment import default_environment

from ..errors import OrchError, UsageError
from ..model.settings import ClusterSpec
from . import Imports, imagine, interpreters

ENDING_S = 5.0
"""How long the process may take to end after a request to end, or after SIGKILL."""
_RUN_ID_ROOM = {"ORCH_RUN_ID": "-" * 256}
"""Room for a run's id in the environment that other processes see of a fork (see `process_setup.find_env_slot`)."""
LOG = "warm.log"
IMPORT_S = 250.0
"""How long an import of TensorFlow may take, if nothing else is said."""
_NEVER_IDLE_S = 1e6
_START = Path(worker.__file__).parent / "host" / "forkserver" / "start_warm.py"


class NoAnswerError(OrchError):
    """A warm process exists and does not answer."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"warm: the warm process {pid} does not answer; orch warm stop ends it")
        self.pid = pid


def status() -> dict[str, Any]:
    """Facts about the process. Raises `OrchError`."""
    facts = _request("status")
    return {"running": False} if facts is None else _complete(facts)


def start(python: str, imports: Imports, idle_s: float, import_s: float) -> dict[str, Any]:
    """Start a process, unless one is there that these imports can use. Another one is ended first.

    It ends `idle_s` seconds after the start of the last run; its imports may take `import_s` seconds. Returns `status` with
    ``was_running`` and ``replaced``: why the one before could not be used. Raises `OrchError`.
    """
    if sys.platform != "linux":
        raise UsageError("orch warm works on Linux only")
    old = _request("compare", describe_request(python, imports.preload, imports.cwd, imports.env))
    replaced = old.pop("refused") if old is not None else None
    if old is not None and replaced is None:
        return {**_complete(old), "was_running": True, "replaced": None}
    if old is not None:
        stop()
    return {**_complete(_start(python, imports, idle_s, import_s)), "was_running": False, "replaced": replaced}


def fits(python: str, imports: Imports) -> bool:
    """True if a warm process is there that a run with these imports would use."""
    if not warm_socket.is_there(os.environ):
        return False
    with contextlib.suppress(OrchError):
        answer = _request("compare", describe_request(python, imports.preload, imports.cwd, imports.env))
        return answer is not None and answer["refused"] is None
    return False


def stop() -> dict[str, Any]:
    """End the process; by SIGKILL if it does not answer. Raises `OrchError`."""
    try:
        facts = _request("end")
    except NoAnswerError as error:
        facts = {"pid": error.pid}
    killed = facts is not None and _await_end(facts["pid"])
    if warm_socket.is_there(os.environ):  # a process that was killed has left its socket
        _remove_socket()
    return {"running": False, "was_running": facts is not None, "pid": facts["pid"] if facts else None, "killed": killed}


def _directory() -> str:
    return warm_socket.directory(os.environ)


def _log() -> str:
    return os.path.join(_directory(), LOG)


def _complete(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts that the process has sent, and those that others see of it."""
    return {"running": True, **facts, "pss_bytes": read_own_memory(facts["pid"]) or None, "log": _log()}


def _request(ask: str, description: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """The answer of the process; None: there is no process. Raises `OrchError`."""
    try:
        connection = warm_socket.connect(_directory())
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except OSError as error:
        raise OrchError(f"warm: {error}") from None
    with connection:
        connection.settimeout(warm_socket.PATIENCE_S)
        try:
            warm_socket.send(connection, {"ask": ask}, more=description)
            answer: dict[str, Any] | None = warm_socket.receive(connection)[0]
        except OSError:
            raise NoAnswerError(warm_socket.peer(connection)[0]) from None
    return answer


def _start(python: str, imports: Imports, idle_s: float, import_s: float) -> dict[str, Any]:
    """Start a process, and wait until its imports are done. Returns its facts. Raises `OrchError`."""
    log = _lock_log()
    os.truncate(log, 0)
    try:
        process, reader = execute(python, _directory(), idle_s, replace(imports, env={**os.environ, **imports.env}), log)
    except OSError as error:
        raise UsageError(f"{python!r} cannot be run: {error.strerror or error}; set --python") from None
    finally:
        os.close(log)
    try:
        return await_imports(reader, _log(), f"importing {', '.join(imports.preload)}", import_s, python)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    finally:
        os.close(reader)


def execute(
    python: str, directory: str, idle_s: float, imports: Imports, log: int, inherited: Sequence[int] = ()
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a process with its socket in `directory`, and return it and a pipe with the result of its start. Raises OSError."""
    reader, writer = os.pipe()
    cores = count_cores()
    try:
        process = subprocess.Popen(
            [python, str(_START), str(writer), directory, str(idle_s), *imports.preload],
            cwd=imports.cwd,
            env={**default_environment(cores, tasks=cores), **imports.env, **_RUN_ID_ROOM},  # one thread: see `math_threads`
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[writer, *inherited],
            start_new_session=True,
        )
    except OSError:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    return process, reader


def _remove_socket() -> None:
    """Remove the socket of a process that has ended, not that of a process which is started at this moment."""
    with contextlib.suppress(OrchError):
        log = _lock_log()
        try:
            os.unlink(os.path.join(_directory(), warm_socket.SOCKET))
        except OSError:
            pass  # removed already
        finally:
            os.close(log)


def _lock_log() -> int:
    """The log, locked: a process that is being started, or runs, holds this lock. Raises `OrchError`."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(_directory(), 0o700)
        warm_socket.check(_directory())
        log = os.open(_log(), os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise OrchError(f"warm: {error}") from None
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(log)
        raise OrchError("warm: another one is being started at this moment") from None
    return log


class CannotForkError(OrchError):
    """The imports are done, and no task can be forked from them."""


class OwnWarmProcess:
    """A warm process for the runs of this program alone: several runs need one import. It ends with this program, however that ends."""

    def __init__(self, home: Path, python: str, imports: Imports, import_s: float = IMPORT_S) -> None:
        """Start it, and wait until its imports are done. Raises `OrchError`, and `CannotForkError`.

        `home`: a directory of this program; its path is short, for the socket is in it. `imports`: with all variables, not only those of
        a spec.
        """
        directory = home / "orch"  # where a controller with `home` as XDG_RUNTIME_DIR finds the process
        directory.mkdir(mode=0o700)
        self.variables = {"XDG_RUNTIME_DIR": str(home)}
        """By these a run finds the process. Without them it finds the user's."""
        lifeline, self._lifeline = os.pipe()
        given = replace(imports, env={**imports.env, "ORCH_WARM_LIFELINE": str(lifeline)})
        path = str(directory / LOG)
        try:
            with open(path, "wb") as log:
                self._process, reader = execute(python, str(directory), _NEVER_IDLE_S, given, log.fileno(), [lifeline])
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(lifeline)
        try:
            with os.fdopen(reader):
                await_imports(reader, path, f"importing {', '.join(imports.preload)}", import_s, python)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End the process. Runs that use it go on."""
        os.close(self._lifeline)
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def one_import(spec: ClusterSpec) -> Iterator[dict[str, str]]:
    """The variables by which several runs of a spec share an import; none where the user's warm process fits, or none can."""
    python, imports = interpreters.of_this_machine(spec), Imports(spec.imported_ahead, {**os.environ, **spec.env}, spec.workdir)
    can = sys.platform == "linux" and imports.preload and spec.network != "private" and all(host.is_here for host in imagine(spec).hosts)
    own = None
    with tempfile.TemporaryDirectory(prefix="orch-", dir=place_of_sockets(), ignore_cleanup_errors=True) as home:
        if can and not fits(python, replace(imports, env=spec.env)):
            with contextlib.suppress(OrchError, OSError):  # the runs say it themselves
                own = OwnWarmProcess(Path(home), python, imports)
        try:
            yield own.variables if own is not None else {}
        finally:
            if own is not None:
                own.end()


def place_of_sockets() -> str:
    """The directory for temporary directories with sockets. The path of a socket may have 104 bytes on macOS, and 108 on Linux."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) < 75 else "/tmp"


def await_imports(reader: int, log: str, doing: str, import_s: float, python: str) -> dict[str, Any]:
    """Return what the process sends when its imports are done. `log`: the file with its output. Raises `OrchError`."""
    poll = select.poll()  # select.select fails in a process with 1,024 open files
    poll.register(reader, select.POLLIN)
    if not poll.poll(import_s * 1000):
        remedy = "orch doctor shows where an import of TensorFlow hangs"
        raise OrchError(f"warm: {doing} has not ended after {import_s:g} s (--import-timeout; its output is in {log}); {remedy}")
    report = os.read(reader, 64 * 1024)
    if not report:
        last = Path(log).read_text(errors="replace").strip().splitlines()[-1:]
        raise OrchError(": ".join((f"warm: {doing} ended the process; is {python!r} the right Python? (--python)", *last)))
    facts: dict[str, Any] = json.loads(report)
    if "error" in facts:
        raise (CannotForkError if facts.get("danger") else OrchError)(f"warm: {facts['error']}")
    return facts


def _await_end(pid: int) -> bool:
    """Wait until a process has ended; it is killed if it does not end by itself. Returns whether it was killed."""
    try:
        fd = os.pidfd_open(pid)  # not the pid: another process may get the same pid
    except ProcessLookupError:
        return False
    try:
        if select.select([fd], [], [], ENDING_S)[0]:
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        select.select([fd], [], [], ENDING_S)
        return True
    finally:
        os.close(fd)
