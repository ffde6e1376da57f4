"""The warm process: it has imported, never computes, and forks itself for each run that may use its imports.

A request is one message (`warm_socket`); its ``ask`` is the kind of request:

``agent``: a fork that becomes the agent of a run. With the message come two descriptors, the agent's end of the channel and its stderr.
    The message describes the run's imports and the caller's state; the fork answers ``{"pid": …, "since": …}`` when it is the agent.
    When the agent has ended, the warm process sends ``{"code": …}`` on the same connection.
``status``: facts about the warm process. If the message describes imports, also why a run with these would not be served (``refused``).
``end``: the same facts, before the warm process ends.

A caller that cannot be served gets ``{"refused": reason, "stale": …}``. A process is stale when an imported file has changed; it ends
then. Each try of a controller has a channel of its own. So a controller that has waited in vain closes that channel and starts an
agent by itself, and a fork that comes too late finds its channel closed and ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...protocol.messages import TemplateOrder
from ...protocol.orders import Program
from ..processes.process_setup import find_env_slot
from ..program.program_checks import check_keras
from ..template import import_environment
from ..template.safety import Safety, open_files
from ..template.template_server import describe as describe_error
from ..template.template_server import load, show
from . import caller_state
from .math_threads import THREADS, find_setters
from .warm_fork import Fork, Threads
from .warm_socket import WarmDirectory, peer, receive, send

_REQUEST_S = 1.0
"""How long a caller may take to send its request: no other caller is served meanwhile."""
_AGENT_FDS = 2


class StartError(Exception):
    """This process cannot be forked from; the message says why."""


class WarmProcess:
    """Imports `preload` when it is made. Raises `StartError`."""

    def __init__(self, preload: Sequence[str]) -> None:
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self._rooms = tuple(find_env_slot(name) for name in ("ORCH_RUN_ID", "ORCH_TASK"))
        for name in ("ORCH_RUN_ID", "ORCH_TASK"):
            os.environ.pop(name, None)
        self._preload = list(preload)
        self._imports = describe_imports(sys.executable, caller_state.package(), preload, os.getcwd(), os.environ)
        check_keras(
            (Program("script", os.path.abspath(__file__)),), "/", ({},), ""
        )  # for an agent to find what this imports, and makes once
        before = open_files()
        try:
            self._import_s = load(preload)
        except BaseException as error:
            show(error)
            raise StartError(f"importing {', '.join(preload)} failed: {describe_error(error)}") from None
        # No module was found beside a program, which is what the directory in a `Safety` is about.
        self._safety = Safety(os.devnull, before)
        if danger := self._safety.find_activity():
            raise StartError(f"{', '.join(preload)} cannot be kept for forking: {danger}")
        self._kept = {fd for fd in open_files() if fd not in before}
        self._threads = Threads(os.environ.get(THREADS, ""), tuple(find_setters()))
        self._stamps = {path: _stamp(path) for path in _imported_files()}
        self._since, self._used_at, self._uses = time.time(), time.monotonic(), 0
        self._agents: dict[int, tuple[int, socket.socket]] = {}
        """The pid of each fork that is an agent, and the connection to its controller, by pidfd."""
        self._is_over = False
        os.chdir("/")

    def serve(self, place: WarmDirectory, idle_s: float, on_listening: Callable[[], None]) -> Fork | None:
        """Serve callers until no run has come for `idle_s`, a caller ends it, or it is stale. Returns a `Fork` only in a fork."""
        self._place, self._idle_s = place, idle_s
        self._server = place.listen()
        on_listening()
        poll = select.poll()
        poll.register(self._server, select.POLLIN)
        while not self._is_over and (left_s := self._left_s()) > 0:
            for fd, _ in poll.poll(None if self._agents else left_s * 1000):
                if fd != self._server.fileno():
                    poll.unregister(fd)
                    self._reap(fd)
                    continue
                fork = self._on_connection()
                if fork is not None:
                    return fork
                for pidfd in self._agents:
                    poll.register(pidfd, select.POLLIN)
        place.clear()
        return None

    def _left_s(self) -> float:
        """Seconds until this process has been idle for too long; infinite while an agent runs."""
        return float("inf") if self._agents else self._used_at + self._idle_s - time.monotonic()

    def _reap(self, pidfd: int) -> None:
        pid, connection = self._agents.pop(pidfd)
        _, status = os.waitpid(pid, 0)
        os.close(pidfd)
        _send_if_connected(connection, {"code": os.waitstatus_to_exitcode(status)})
        connection.close()
        self._used_at = time.monotonic()

    def _on_connection(self) -> Fork | None:
        """Serve one caller."""
        try:
            connection, _ = self._server.accept()
        except OSError:
            return None
        fds: Sequence[int] = ()
        try:
            connection.settimeout(_REQUEST_S)
            if peer(connection)[1] != os.geteuid():
                return None
            request, fds = receive(connection, _AGENT_FDS)
            kind = request["ask"]
            self._is_over = kind == "end"
            why = self._find_obstacle(request) if "preload" in request else None
            fork = None
            if kind == "agent" and why is None:
                why, fork = self._fork(connection, request, fds)
            elif kind == "status":
                why = why or self._find_change()
            if kind != "agent" or why is not None:
                send(connection, {**self._describe(), "refused": why, "stale": self._is_over})
            return fork
        except OSError:
            return None  # the caller has gone
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            show(error)  # in the log: a mistake in orch, or a caller that is not orch
            return None
        finally:
            for fd in fds:
                os.close(fd)
            connection.close()

    def _find_obstacle(self, request: Mapping[str, Any]) -> str | None:
        """Why a run must not be forked from here; None: it may."""
        env = import_environment.compose_for_template(TemplateOrder((), 1, request["spec_env"]), request["env"], "")
        callers = describe_imports(request["python"], request["package"], request["preload"], request["imports_in"], env)
        if difference := _find_difference(self._imports, callers):
            return f"{difference} from what {', '.join(self._preload)} has been imported under"
        if difference := _find_difference(caller_state.describe_surroundings(), request["surroundings"]):
            return f"{difference} from its own"
        return self._safety.find_activity()

    def _find_change(self) -> str | None:
        """The imported file that has changed since, in words: no run can use this process any more. None: no file has changed."""
        changed = next((path for path, stamp in self._stamps.items() if _stamp(path) != stamp), None)
        self._is_over = self._is_over or changed is not None
        return f"{changed} has changed since it was imported" if changed is not None else None

    def _describe(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "preload": self._preload,
            "python": sys.executable,
            "since": self._since,
            "import_s": self._import_s,
            "idle_timeout_s": self._idle_s,
            "idle_s": 0.0 if self._agents else time.monotonic() - self._used_at,
            "uses": self._uses,
            "running_agents": len(self._agents),
            "pss_bytes": _pss_bytes(),
        }

    def _fork(self, connection: socket.socket, request: Mapping[str, Any], received: Sequence[int]) -> tuple[str | None, Fork | None]:
        """Returns why the fork was ended again, None if it goes on; and, in the fork, the `Fork`.

        Checking thousands of files takes about as long as the start of the fork. So this process checks them meanwhile.
        """
        channel, stderr = received
        go_read, go_write = os.pipe()
        pid = os.fork()
        if pid:
            os.close(go_read)
            why = self._find_change()
            if why is None:
                os.write(go_write, b"+")
            os.close(go_write)
            self._agents[os.pidfd_open(pid)] = pid, connection.dup()
            self._uses += 1
            self._used_at = time.monotonic()
            return why, None
        os.close(go_write)
        self._server.close()
        self._place.__exit__()
        for pidfd, (_, other) in self._agents.items():
            os.close(pidfd)
            other.close()
        fds = connection.dup(), go_read, os.dup(channel), os.dup(stderr)
        return None, Fork(*fds, request["inherited"], request["env"], self._since, self._kept, self._safety, self._threads, self._rooms)


def describe_imports(python: str, package: str, preload: Sequence[str], cwd: str, env: Mapping[str, str]) -> dict[str, Any]:
    """What an import of `preload` in `cwd` under `env` depends on; by names that "differs" can follow."""
    variables = dict(import_environment.frozen(env, preload))
    variables.pop(THREADS, None)
    path = env.get("PYTHONPATH", "")
    return {
        "the interpreter": python,
        "orch": package,
        "preload": list(preload),
        "PYTHONPATH": [os.path.join(cwd, entry) for entry in path.split(os.pathsep)] if path else [],
        "variables": variables,
    }


def _find_difference(own: Mapping[str, Any], callers: Mapping[str, Any]) -> str:
    """What is not equal, as the beginning of a sentence, such as ``preload differs``; empty: everything is equal."""
    for name, value in own.items():
        if value == callers.get(name):
            continue
        if name == "variables":
            names = sorted({variable for variable, _ in value.items() ^ callers[name].items()})
            return f"{', '.join(names)} {'differs' if len(names) == 1 else 'differ'}"
        return f"{name} {'differ' if name.endswith('s') else 'differs'}"
    return ""


def _imported_files() -> set[str]:
    """The files that the imports depend on: the interpreter, all modules' files, the directories of packages (a new package changes the
    time), and what Keras reads when it is imported."""
    keras = os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras")
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    packages = (path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages"))
    return {sys.executable, os.path.realpath(sys.executable), os.path.join(keras, "keras.json"), *packages, *filter(None, files)}


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _pss_bytes() -> int | None:
    """The memory of this process (PSS): its own pages, and its part of the pages that it shares with other processes."""
    try:
        with open("/proc/self/smaps_rollup") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:")), None)
    except OSError:
        return None


def _send_if_connected(connection: socket.socket, message: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):
        send(connection, message)
