"""The warm process: it has imported, never computes, and forks itself for each run that may use its imports.

A request is one message (`warm_socket`); its ``ask`` is the kind of request:

``agent``: a fork that becomes the agent of a run, for which orch asks before it imports most of itself. The fork waits for a second
    message with three descriptors: the agent's end of the channel, its stderr, and a description of the run's imports and of the caller's
    state. The fork answers ``{"pid": …, "since": …}`` when it is the agent, and ``{"code": …}`` when it ends; if the run cannot be
    served, the answer is ``{"refused": reason}``. An imported file that has changed also ends the warm process.
``compare``: `facts`, and why a run with the imports in the description, the message's descriptor, would not be served (``refused``).
``status``: `facts`.
``end``: the same, before the warm process ends.

Each try of a controller has a channel of its own. So a controller that has waited in vain closes that channel and starts an agent by
itself, and a fork that comes too late finds its channel closed and ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...machine import clock
from ...protocol.messages import TemplateOrder
from ...protocol.orders import Hello, Program
from .. import agent
from ..facts import keras_use, program_files
from ..network import private_network
from ..processes.lifeline import become_subreaper, hold_lifeline
from ..processes.process_setup import find_env_slot, redirect, write_env_slot
from . import caller_state, import_environment, warm_socket
from .math_threads import THREADS, find_setters
from .safety import Safety, open_files
from .template_link import TemplateProcess
from .template_server import describe as describe_error
from .template_server import fork_tasks, load, show
from .warm_socket import SOCKET, peer, read_in_memory, receive, send

_REQUEST_S = 1.0
"""How long a caller may take to send its request: no other caller is served meanwhile."""
_LONGEST_S = 86_400.0
"""The longest single wait for a caller."""
_RETRY_S = 0.1
"""How long the process waits after a caller that it could not accept: there may be too many open files."""


_kept_in_forks: list[WarmProcess] = []
"""Keeps the warm process's own objects in each fork: to destroy them, a task would write to, and so copy, thousands of shared pages."""


class StartError(Exception):
    """This process cannot be forked from; the message says why. `danger`: the imports are done, and a fork of them is not safe."""

    danger = ""


class WarmProcess:
    """Imports `preload` when it is made. Raises `StartError`."""

    def __init__(self, preload: Sequence[str], idle_s: float) -> None:
        """`idle_s`: the process ends so many seconds after the start of the last run that used it."""
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self._room = find_env_slot("ORCH_RUN_ID")
        """The memory for the run's id in the environment that other processes see."""
        for name in ("ORCH_RUN_ID", "ORCH_TASK"):
            os.environ.pop(name, None)
        self._preload, self._idle_s = list(preload), idle_s
        self._imports = describe_imports(sys.executable, caller_state.package(), preload, os.getcwd(), os.environ)
        _import_what_agents_need()
        before = open_files()
        for fd in before:
            if fd > 2:
                os.set_inheritable(fd, False)  # such as the lifeline: what a fork executes has no use for it
        try:
            self._import_s, watch = load(preload)
        except BaseException as error:
            show(error)
            raise StartError(f"importing {', '.join(preload)} failed: {describe_error(error)}") from None
        # No module was found next to a program, which is what the directory in a `Safety` is about.
        self._safety = Safety(os.devnull, before, watch)
        if danger := self._safety.find_activity():
            refused = StartError(f"{', '.join(preload)} cannot be kept for forking: {danger}")
            refused.danger = danger
            raise refused
        self._set_by_imports = import_environment.frozen(os.environ, preload) - self._imports["variables"].items()
        """The variables that the imports themselves have set: in a caller that has imported the same, such as a test, they differ from
        nothing."""
        self._kept = {fd for fd in open_files() if fd not in before}
        """The harmless descriptors that the imports have left open, such as one of /dev/urandom: tasks keep these."""
        self._threads, self._thread_setters = os.environ.get(THREADS, ""), tuple(find_setters())
        self._stamps = {path: _stamp(path) for path in _imported_files()}
        self._since, self._used_at, self._uses = time.time(), time.monotonic(), 0
        self._server = warm_socket.open_socket()
        self._is_over = False
        _kept_in_forks.append(self)
        os.chdir("/")

    def serve(self, directory: str, on_listening: Callable[[], None]) -> dict[str, Any] | None:
        """Serve callers until no run has come for too long, a caller ends this process, or an imported file has changed.

        Returns the task's order in a task, None in the warm process.
        """
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel removes agents that have ended
        path = os.path.join(directory, SOCKET)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of a process that was killed
        self._server.bind(path)
        self._server.listen(128)
        on_listening()
        while not self._is_over and (left_s := self._used_at + self._idle_s - time.monotonic()) > 0:
            self._server.settimeout(min(left_s, _LONGEST_S))
            try:
                connection, _ = self._server.accept()
            except TimeoutError:
                continue
            except OSError:
                time.sleep(_RETRY_S)
                continue
            order = self._serve_caller(connection)
            if order is not None:
                return order
        with contextlib.suppress(OSError):
            os.unlink(path)
        return None

    def facts(self) -> dict[str, Any]:
        """Return what `orch warm status` shows."""
        return {
            "pid": os.getpid(),
            "preload": self._preload,
            "python": sys.executable,
            "since": self._since,
            "import_s": self._import_s,
            "idle_timeout_s": self._idle_s,
            "idle_s": time.monotonic() - self._used_at,
            "uses": self._uses,
        }

    def _serve_caller(self, connection: socket.socket) -> dict[str, Any] | None:
        """Answer one request, or fork an agent that does. Returns as `serve` does."""
        pid = -1
        with connection, contextlib.ExitStack() as received:
            try:
                connection.settimeout(_REQUEST_S)
                if peer(connection)[1] != os.geteuid():
                    return None
                request, fds = receive(connection)
                for fd in fds:
                    received.callback(os.close, fd)
                if request["ask"] != "agent":
                    send(connection, self._answer(request, fds))
                elif why := self._find_obstacle():
                    send(connection, {"refused": why})
                else:
                    try:
                        pid = os.fork()
                    except OSError as error:
                        send(connection, {"refused": f"it cannot be forked: {error.strerror}"})
                    self._uses, self._used_at = self._uses + 1, time.monotonic()
            except OSError:
                pass  # the caller has gone
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                show(error)  # in the log: a mistake in orch, or a caller that is not orch
            return self._become_agent(connection) if pid == 0 else None

    def _answer(self, request: Mapping[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        if request["ask"] == "compare":
            description = read_in_memory(os.dup(fds[0]))
            return {**self.facts(), "refused": self._find_obstacle() or self._find_difference(description)}
        self._is_over = request["ask"] == "end"
        return self.facts()

    def _find_obstacle(self) -> str | None:
        """Why no run can be forked from this process; None: a run can. This process ends if an imported file has changed."""
        changed = next((path for path, stamp in self._stamps.items() if _stamp(path) != stamp), None)
        if changed is not None:
            self._is_over = True
            return f"{changed} has changed since it was imported; it has ended, and orch warm start starts a new one"
        return self._safety.find_activity()

    def _find_difference(self, description: Mapping[str, Any]) -> str | None:
        """Why the run that is described must not be forked from this process; None: it may."""
        env = import_environment.compose_for_template(TemplateOrder((), 1, description["spec_env"]), description["env"], "")
        callers = describe_imports(description["python"], description["package"], description["preload"], description["imports_in"], env)
        callers["variables"] = dict(callers["variables"].items() - self._set_by_imports)
        if difference := _find_difference(self._imports, callers):
            both = f" (the run takes {description['python']}, and the warm process {sys.executable})"
            shown = both if difference.startswith("the interpreter") else ""
            return f"{difference} from what {', '.join(self._preload)} has been imported under{shown}"
        if difference := _find_difference(caller_state.describe_surroundings(), description["surroundings"]):
            return f"{difference} from its own"
        return None

    # --- in a fork ---------------------------------------------------------------------------

    def _become_agent(self, connection: socket.socket) -> dict[str, Any]:
        """Wait for the description of the run, and be its agent until `os._exit`. Returns in a task only, with its order."""
        try:
            self._server.close()
            os.setsid()
            connection.settimeout(None)
            request, fds = receive(connection)
            if request is None:
                os._exit(0)  # the caller has no use for an agent
            channel, stderr, in_memory = fds
            description = read_in_memory(in_memory)
            if why := self._find_difference(description):
                send(connection, {"refused": why})
                os._exit(0)
            caller_state.apply_inherited(description["inherited"], description["env"])
            if description["private_network"]:
                private_network.enter()  # the template below, too
            for number in (1, 2):
                os.dup2(stderr, number)
            os.close(stderr)
            become_subreaper()
            clock.reset()
            control, templates = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            life_read, life_write = os.pipe()
            pid = os.fork()
        except Exception as error:
            with contextlib.suppress(OSError):
                send(connection, {"refused": str(error)})
            os._exit(1)
        if pid == 0:
            connection.close()
            control.close()
            os.close(channel)
            os.close(life_write)
            return self._become_template(templates, life_read)
        templates.close()
        os.close(life_read)
        code = 1
        try:
            send(connection, {"pid": os.getpid(), "since": self._since})
        except OSError:
            os._exit(code)  # the controller has gone
        try:
            code = agent.Agent(channel, os.dup(channel), TemplateProcess(pid, life_write, control)).run()
        except Exception as error:
            show(error)
        finally:
            with contextlib.suppress(OSError):  # the controller has gone
                send(connection, {"code": code})
            os._exit(code)

    def _become_template(self, control: socket.socket, lifeline: int) -> dict[str, Any]:
        """Be this run's template, as `template_server.serve` is after its imports. Returns in a task only, with its order."""
        try:
            own_files = self._prepare_template(control, lifeline)
        except Exception as error:
            show(error)  # first: when the agent reads the message, it kills this process
            with contextlib.suppress(OSError):  # the agent has gone
                send(control, {"ready": False, "why": describe_error(error)})
            os._exit(1)
        order = fork_tasks(control, self._safety, own_files, seconds=0.0)
        threads = os.environ.get(THREADS, "")
        if threads != self._threads and threads.isdigit():
            for set_threads in self._thread_setters:
                set_threads(max(1, int(threads)))
        return order

    def _prepare_template(self, control: socket.socket, lifeline: int) -> dict[int, str]:
        """Wait until the agent has sent the log and the run's id, and use them. Returns the descriptors that a task does not keep."""
        os.setsid()
        hold_lifeline(lifeline)
        os.close(lifeline)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        start, _ = receive(control)
        if start is None:
            os._exit(0)  # the run has no use for a template
        redirect(start["log"], start["log"])
        if self._room is not None:
            write_env_slot(self._room, start["run_id"])
        return {fd: path for fd, path in open_files().items() if fd not in self._kept}


def _import_what_agents_need() -> None:
    """Look at a program as an agent does: this imports the modules that each agent would import."""
    sources = program_files.read_sources((Program("script", os.path.abspath(__file__)),), "/", {})
    keras_use.find_uses(sources, Hello("warm", cwd="/"))


def describe_imports(python: str, package: str, preload: Sequence[str], cwd: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Return what an import of `preload` in `cwd` under `env` depends on; by names that "differs" can follow."""
    variables = dict(import_environment.frozen(env, preload))
    variables.pop(THREADS, None)
    path = env.get("PYTHONPATH", "")
    return {
        "the interpreter": _identify(python),
        "orch": package,
        "preload": list(preload),
        "PYTHONPATH": [os.path.join(cwd, entry) for entry in path.split(os.pathsep)] if path else [],
        "variables": variables,
    }


def _identify(python: str) -> list[str]:
    """The file that is executed, and the directory in which it was found under any name: ``python`` and ``python3`` of a venv are the same.

    Python finds its prefix, and with it its packages, from these two (Modules/getpath.py): the venv, if pyvenv.cfg is in or above that
    directory. So a link in another directory is another interpreter.
    """
    return [os.path.realpath(python), os.path.dirname(os.path.abspath(python))]


def _find_difference(own: Mapping[str, Any], callers: Mapping[str, Any]) -> str:
    """Return what is not equal, as the beginning of a sentence, such as ``preload differs``; empty: everything is equal."""
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
