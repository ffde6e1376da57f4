"""The things that all tests of one process share: a directory, a process that has imported TensorFlow, the connections to the tasks.

These things are made for the first cluster, and end with the process of the tests, however this process ends: the warm process and the
controller of each run end when a pipe closes whose other end is in the process of the tests.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker.task.calls import task_coverage

from ..backends import Imports, warm_process
from .connections import Connection, ignore, join_terminal, open_terminal
from .failures import ClusterLost

if TYPE_CHECKING:
    from ..model.spec import ClusterSpec
    from .clusters import Cluster
    from .pool import Pool

IMPORT_S = 250.0
"""How long the import of TensorFlow may take."""
IDLE_S = 1e6
"""How long the process that has imported TensorFlow waits for the next cluster."""
_PREFIX = "orch-testing-"


class Session:
    """See the module. `get` gives the one of this process."""

    _current: Session | None = None

    def __init__(self) -> None:
        _sweep()
        self._owner = os.getpid()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_place()))
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.keeps = False
        """Leave the directory, with the runs and all output, when the process ends."""
        self.on_end: list[Callable[[], None]] = []
        self.recent: deque[Cluster] = deque(maxlen=16)
        """The clusters that were entered last; a report of pytest says what became of their tasks."""
        self.pool: Pool | None = None
        """See `pool.pool_of`."""
        self.mutex = threading.RLock()
        self._greeted: dict[tuple[str, str, int], Connection] = {}
        """See `wait_greeting`."""
        self.debugged_s = 0.0
        """For how long debuggers have waited for the user. This time is not counted as the time of a function."""
        self._selector = selectors.DefaultSelector()
        self.address = str(self.path / "calls")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address)
        self._listener.listen(512)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._warm: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self._report = -1

    @classmethod
    def get(cls) -> Session:
        """The session of this process. A session that was inherited by a fork is the parent's."""
        if cls._current is None or cls._current._owner != os.getpid():
            cls._current = Session()
            atexit.register(cls._current.end)
        return cls._current

    @classmethod
    def current(cls) -> Session | None:
        """The session of this process; None if there has been no cluster yet."""
        return cls._current if cls._current is not None and cls._current._owner == os.getpid() else None

    # --- the import --------------------------------------------------------------------------------

    def warm_up(self, env: Mapping[str, str]) -> None:
        """Start the process that imports TensorFlow, unless it runs; does not wait for the import. `env`: the environment of the tasks."""
        if self._warm is not None:
            return
        directory = self.path / "orch"  # where a controller with this path as XDG_RUNTIME_DIR finds the process
        directory.mkdir(mode=0o700)
        lifeline, self._lifeline = os.pipe()
        imports = Imports(("tensorflow",), {**env, "ORCH_WARM_LIFELINE": str(lifeline)}, os.getcwd())
        with open(self.path / "warm.log", "wb") as log:
            self._warm, self._report = warm_process.execute(sys.executable, str(directory), IDLE_S, imports, log.fileno(), [lifeline])
        os.close(lifeline)

    def import_for(self, spec: ClusterSpec, env: Mapping[str, str]) -> None:
        """Have the import ready from which a run of this spec forks its tasks. `env`: the environment of the run. Raises `ClusterLost`."""
        if spec.preload:
            self.warm_up({**env, **spec.env})
            self.await_warm()

    def await_warm(self) -> None:
        """Wait for the import. Raises `ClusterLost` with the output of an import that has failed."""
        if self._report < 0:
            return
        with selectors.DefaultSelector() as selector:
            selector.register(self._report, selectors.EVENT_READ)
            if not selector.select(IMPORT_S):
                raise ClusterLost(f"importing tensorflow has not ended after {IMPORT_S:g} s")
        with os.fdopen(self._report) as file:
            text = file.read()
        self._report = -1
        report = json.loads(text) if text else {"error": "the process that imports tensorflow has died"}
        if "error" in report:
            log = (self.path / "warm.log").read_text(errors="replace").strip()
            raise ClusterLost(f"{report['error']}\n{log}".strip())

    # --- messages ----------------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> None:
        """Wait so long for messages, and call `on_message` of their connections. From any thread."""
        with self.mutex:
            for key, _ in self._selector.select(max(0.0, timeout_s)):
                if key.fileobj is self._listener:
                    sock, _ = self._listener.accept()
                    connection = Connection(sock)
                    connection.on_message = functools.partial(self._on_greeting, connection)
                    self._selector.register(sock, selectors.EVENT_READ, connection)
                    continue
                connection = key.data
                if connection.is_debugger:
                    self._attend(connection)
                    continue
                for message in connection.read():
                    connection.on_message(message)
                if not connection.is_open:
                    self.close(connection)
                    connection.on_message(None)

    def wait_greeting(self, run: str, task: str, number: int, check: Callable[[], None], until: float) -> Connection:
        """The connection of a new process of a task, once the process has sent its greeting.

        `number`: of the process; 0 is the resident. Raises what `check` raises, which is called now and then, and `ClusterLost` at the
        time `until`.
        """
        who = run, task, number
        while who not in self._greeted:
            self.poll(0.05)
            if who not in self._greeted:
                check()
                if time.monotonic() > until:
                    raise ClusterLost(f"{task} has not connected in time")
        return self._greeted.pop(who)

    def close(self, connection: Connection) -> None:
        """Close a connection."""
        with self.mutex, contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.sock)
        connection.sock.close()
        connection.is_open = False

    def _attend(self, connection: Connection, first: bytes = b"") -> None:
        """A task has stopped in its debugger: join the debugger and the terminal until the task goes on."""
        began, terminal = time.monotonic(), open_terminal()
        try:
            if terminal is not None:
                connection.sock.sendall(first)
            if terminal is None or not join_terminal(terminal, connection.sock):
                self.close(connection)
        finally:
            if terminal is not None:
                os.close(terminal)
            self.debugged_s += time.monotonic() - began

    def _on_greeting(self, connection: Connection, message: dict[str, Any] | None) -> None:
        if message is not None and message["who"] == "debugger":
            connection.is_debugger = True
            self._attend(connection, b"+")
        elif message is not None:
            who = (message["run"], message["task"], message.get("number", 0))
            self._greeted[who], connection.pid = connection, message["pid"]
            connection.on_message = ignore

    # --- the end -----------------------------------------------------------------------------------

    def end(self) -> None:
        """End everything that the tests of this process share. A cluster that is started afterwards has a new session."""
        if self._owner != os.getpid():
            return
        for end in self.on_end:
            end()
        Session._current = None
        atexit.unregister(self.end)
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self.close(key.data)
        self._selector.close()
        self._listener.close()
        if self._report >= 0:
            os.close(self._report)
        if self._warm is not None:
            os.close(self._lifeline)
            self._warm.kill()
            self._warm.wait()
        if not self.keeps:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def environment() -> dict[str, str]:
    """The environment for orch's own processes: without what makes coverage.py measure each Python process (``patch = subprocess``)."""
    return {name: value for name, value in os.environ.items() if name not in ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START")}


def coverage_of_tasks() -> dict[str, str]:
    """Variables by which coverage.py measures the tasks, where it measures this process. It takes coverage 7.10."""
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage is not None else None
    if current is None or not hasattr(current.config, "serialize"):
        return {}
    return {task_coverage.VARIABLE: current.config.serialize()}


def _place() -> str:
    """The directory for the directories of sessions. The path of a socket may have 104 bytes on macOS, and 108 on Linux."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) < 75 else "/tmp"


def _sweep() -> None:
    """Remove the directories of processes that were killed: no process holds their lock."""
    for lock in Path(_place()).glob(f"{_PREFIX}*/lock"):
        with contextlib.suppress(OSError):
            if lock.stat().st_uid != os.geteuid() or time.time() - lock.stat().st_mtime < 60:
                continue
            with lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
