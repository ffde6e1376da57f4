"""``python -I warm/command.py start|stop|status JSON``: what `orch warm` runs on the host, by the tasks' interpreter. Answers with
one JSON object; an ``error`` in it is for the user. Where the options say ``told``, the variables of the spec come by stdin."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

PATIENCE_S = 4.0
"""How long a warm process may take to answer."""
_ENDING_S = 5.0
_STACK_S = 1.0
_MOST_FRAMES = 12
_START = os.path.join(os.path.dirname(os.path.abspath(__file__)), "start_warm.py")
_WORKER = os.path.dirname(os.path.dirname(os.path.dirname(_START)))


def _load() -> tuple[Any, ...]:
    """Our modules, under the private name (see `host/start_agent.py`)."""
    package = type(sys)("_orch_worker")
    package.__path__ = [_WORKER]
    sys.modules[package.__name__] = package
    return tuple(
        importlib.import_module(f"_orch_worker.{name}")
        for name in ("cpu_cores", "host.memfd", "host.tasks.processes", "host.warm.key", "host.warm.place", "task_environment")
    )


cores, memory, processes, key, place, task_environment = _load()


class Spec:
    """What a spec says of its imports: variables, over those of the shell, and where its tasks start."""

    def __init__(self, env: dict[str, str], cwd: str) -> None:
        self.env, self.cwd = env, cwd

    def environment(self) -> dict[str, str]:
        """As `environment.compose_for_template` has it for one task."""
        return {**task_environment.default_environment(cores.count_cores(), 1), **os.environ, **self.env}


class NoAnswerError(Exception):
    """A process is there and does not answer. `pid`: which."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"the warm process {pid} does not answer; orch warm stop ends it")
        self.pid = pid


def start(preload: list[str], idle_s: float, import_s: float, spec: Spec) -> dict[str, Any]:
    """Start one, unless there is one that fits; one that does not is ended first. Its imports may take `import_s` seconds."""
    env = spec.environment()
    if moved := [name for name in _what_says_where() if env.get(name) != os.environ.get(name)]:
        return {"running": False, "error": f"the spec sets {', '.join(moved)}, and no run would find it there; set that in the shell"}
    old = status(preload, spec)
    if old["running"] and not old["refused"]:
        return {**old, "was_running": True}
    if old["running"]:
        stop()
    meeting_point = place.make(os.environ)
    with place.closing(meeting_point):
        log = os.open(place.LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=meeting_point.fd)
    reader, writer = os.pipe()
    processes.follow_parent(signal.SIGKILL)  # and it follows us, until its imports are done
    process = subprocess.Popen(
        [sys.executable, _START, str(writer), str(idle_s), *preload],
        cwd=spec.cwd,
        env={**env, "ORCH_RUN_ID": "-" * place.ROOM, "ORCH_TASK": "-" * 64},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=[writer],
        start_new_session=True,
    )
    os.close(writer)
    os.close(log)
    report = _hear(process, reader, preload, import_s)
    if "error" in report:
        return {"running": False, "error": report["error"]}
    try:
        new = status(preload, spec)
    except NoAnswerError as error:
        if not _ends(error.pid, at_last=False):
            raise
        new = {"running": False}  # it was about to end
    if not new["running"]:
        return {"running": False, "error": f"it was ready, and ended again: nobody had used it for {idle_s:g} s (--idle-timeout)"}
    return {**new, "was_running": False, "replaced": old["refused"] if old["running"] else None}


def _what_says_where() -> tuple[str, ...]:
    """What `place.directory` goes by, here and in an agent."""
    is_temporary = os.path.basename(place.directory(os.environ)) != "orch"
    return ("XDG_RUNTIME_DIR", *(("TMPDIR", "TEMP", "TMP") if is_temporary else ()))


def _hear(process: Any, reader: int, preload: list[str], import_s: float) -> dict[str, Any]:
    """What it says of its start. One that says nothing, or not in time, is ended."""
    said, has_ended = _read(reader, import_s)
    if has_ended and said:
        os.close(reader)
        found: dict[str, Any] = json.loads(said)
        return found
    why = "ended the process"
    if not has_ended:
        process.send_signal(signal.SIGQUIT)  # it says where it stands
        stack, _ = _read(reader, _STACK_S)
        why = f"has not ended after {import_s:g} s (--import-timeout){_describe(stack)}"
    os.close(reader)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    meeting_point = place.find(os.environ)
    if meeting_point is not None:
        with place.closing(meeting_point):
            _clear(meeting_point)
    return {"error": f"importing {', '.join(preload)} {why}"}


def _clear(meeting_point: Any) -> None:
    """Tidy up after the dead, unless somebody else is there. What they have forked may hold the lock a moment longer."""
    until = time.monotonic() + _ENDING_S
    while not meeting_point.lock():
        if time.monotonic() >= until:
            return
        time.sleep(0.01)
    meeting_point.clear()


def _read(fd: int, limit_s: float) -> tuple[str, bool]:
    """What comes in this time, and whether that was all."""
    until, said = time.monotonic() + limit_s, b""
    while select.select([fd], [], [], max(0.0, until - time.monotonic()))[0]:
        data = os.read(fd, 65536)
        if not data:
            return said.decode(errors="replace"), True
        said += data
    return said.decode(errors="replace"), False


def _describe(stack: str) -> str:
    """The frames that `faulthandler` wrote, the innermost first, without our own and the import's."""
    lines = [line for line in stack.splitlines() if line.startswith("  File ") and "<frozen " not in line and f'"{_WORKER}' not in line]
    return "\n".join(["; it was here", *lines[:_MOST_FRAMES]]) if lines else ""


def stop() -> dict[str, Any]:
    """End it; by SIGKILL if it does not answer."""
    found = place.find(os.environ)
    if found is None:
        return {"running": False, "was_running": False}
    with place.closing(found):
        try:
            facts = _ask(found, {"ask": "end"})
        except NoAnswerError as error:
            facts = {"pid": error.pid}
        if facts is None:
            if found.lock():
                found.clear()
            return {"running": False, "was_running": False}
        killed = not _ends(facts["pid"], at_last=True)
        if killed and found.lock():
            found.clear()
    return {"running": False, "was_running": True, "pid": facts["pid"], "killed": killed}


def status(preload: list[str], spec: Spec) -> dict[str, Any]:
    """What there is to say of it; ``refused``: why a run from here would not use it."""
    found = place.find(os.environ)
    if found is None:
        return {"running": False}
    described = key.describe(spec.environment(), preload, spec.cwd) if preload else None
    with place.closing(found):
        facts = _ask(found, {"ask": "status"}, described)
    if facts is None:
        return {"running": False}
    return {"running": True, **facts, "pss_bytes": _pss(facts["pid"])}


def _ask(found: Any, message: dict[str, Any], described: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """The answer of the process there; None: there is none. Raises `NoAnswerError`."""
    try:
        connection = found.connect(PATIENCE_S)
    except ConnectionRefusedError:
        return None
    if connection is None:
        return None
    with connection:
        pid, _ = place.peer(connection)
        try:
            place.send(connection, message, [memory.keep_in_memory(json.dumps(described).encode("ascii"))] if described else [])
            data = connection.recv(place.MESSAGE_BYTES)
        except OSError:
            raise NoAnswerError(pid) from None
    return json.loads(data) if data else None


def _ends(pid: int, *, at_last: bool) -> bool:
    """Whether it ends by itself. `at_last`: it is killed if not."""
    try:
        fd = os.pidfd_open(pid)  # and not its pid, which may be another's a moment later: somebody else may end it as well
    except ProcessLookupError:
        return True
    try:
        if select.select([fd], [], [], _ENDING_S)[0]:
            return True
        if at_last:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            select.select([fd], [], [], _ENDING_S)
        return False
    finally:
        os.close(fd)


def _pss(pid: int) -> int | None:
    """Bytes: its own pages, and its share of those that it has in common with others."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:")), None)
    except OSError:
        return None


def _main(what: str, options: dict[str, Any]) -> dict[str, Any]:
    if not hasattr(os, "pidfd_open"):
        return {"running": False, "error": "this needs Linux and Python 3.9 or newer"}
    spec = Spec(json.load(sys.stdin) if options.get("told") else {}, options.get("cwd") or os.getcwd())
    try:
        if what == "start":
            return start(options["preload"], options["idle_s"], options["import_s"], spec)
        return stop() if what == "stop" else status(options.get("preload", []), spec)
    except (place.UntrustedError, NoAnswerError, OSError) as error:
        return {"running": isinstance(error, NoAnswerError), "error": str(error)}


if __name__ == "__main__":
    print(json.dumps({**_main(sys.argv[1], json.loads(sys.argv[2])), "at": time.time()}))
