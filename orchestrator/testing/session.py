"""The things that all tests of one process share: a directory, a process that has imported TensorFlow, the connections to the tasks.

These things are made for the first cluster, and end with the process of the tests, however this process ends: the warm process and the
controller of each run end when a pipe closes whose other end is in the process of the tests.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import itertools
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
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worker.task.calls import debugger, task_coverage

from ..backends import Imports, warm_process
from .connections import Connection, join_terminal, open_terminal
from .failures import ClusterLost

if TYPE_CHECKING:
    from ..model.spec import ClusterSpec
    from .clusters import Cluster
    from .pool import PooledRun

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
        self.recent: deque[Cluster] = deque(maxlen=16)
        """The clusters that were entered last; a report of pytest says what became of their tasks."""
        self.runs: list[PooledRun] = []
        """The pool, in the order of the last use (`pool.acquire`)."""
        self.mutex = threading.RLock()
        self.greeted: dict[str, Connection] = {}
        """The connections of processes that have said their names, until somebody takes them out: those who wait for these processes."""
        self.calls = itertools.count(1)
        """Numbers for the functions that are started, whichever cluster starts them."""
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

    @classmethod
    def get(cls) -> Session:
        """The session of this process. A session that was inherited by a fork is the parent's."""
        found = cls.current()
        if found is None:
            found = cls._current = Session()
            atexit.register(found.end)
        return found

    @classmethod
    def current(cls) -> Session | None:
        """The session of this process; None if there has been no cluster yet."""
        return cls._current if cls._current is not None and cls._current._owner == os.getpid() else None

    # --- the import --------------------------------------------------------------------------------

    def import_for(self, spec: ClusterSpec, env: Mapping[str, str]) -> None:
        """Have the import ready from which a run of this spec forks its tasks. `env`: the environment of the run. Raises `ClusterLost`."""
        if spec.preload:
            self.warm_up({**env, **spec.env})

    def warm_up(self, env: Mapping[str, str]) -> None:
        """Start the process that imports TensorFlow, unless it runs, and wait for the import. `env`: the environment of the tasks.

        Raises `ClusterLost` with the output of an import that has failed.
        """
        if self._warm is not None:
            return
        directory = self.path / "orch"  # where a controller with this path as XDG_RUNTIME_DIR finds the process
        directory.mkdir(mode=0o700)
        lifeline, self._lifeline = os.pipe()
        imports = Imports(("tensorflow",), {**env, "ORCH_WARM_LIFELINE": str(lifeline)}, os.getcwd())
        with open(self.path / "warm.log", "wb") as log:
            self._warm, reader = warm_process.execute(sys.executable, str(directory), IDLE_S, imports, log.fileno(), [lifeline])
        os.close(lifeline)
        with os.fdopen(reader) as report:
            waiter = selectors.DefaultSelector()  # select.select fails in a process with 1,024 open files
            waiter.register(report, selectors.EVENT_READ)
            has_come = waiter.select(IMPORT_S)
            waiter.close()
            if not has_come:
                raise ClusterLost(f"importing tensorflow has not ended after {IMPORT_S:g} s")
            text = report.read()
        found = json.loads(text) if text else {"error": "the process that imports tensorflow has died"}
        if "error" in found:
            log_text = (self.path / "warm.log").read_text(errors="replace").strip()
            raise ClusterLost(f"{found['error']}\n{log_text}".strip())

    # --- messages ----------------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> None:
        """Wait so long for messages, and put them into the inboxes of their connections. From any thread."""
        with self.mutex:
            for key, _ in self._selector.select(max(0.0, timeout_s)):
                if key.fileobj is self._listener:
                    sock, _ = self._listener.accept()
                    self._selector.register(sock, selectors.EVENT_READ, Connection(sock))
                    continue
                connection = key.data
                if connection.name == debugger.NAME:
                    self._attend(connection)
                    continue
                connection.receive()
                if not connection.name and connection.inbox:
                    self._greet(connection, connection.inbox.popleft())
                if not connection.is_open:
                    self.close(connection)

    def close(self, connection: Connection) -> None:
        """Close a connection."""
        with self.mutex, contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.sock)
        connection.sock.close()
        connection.is_open = False

    def _greet(self, connection: Connection, greeting: dict[str, Any]) -> None:
        connection.name, connection.pid = greeting["who"], greeting["pid"]
        if connection.name == debugger.NAME:
            self._attend(connection, b"+")
        else:
            self.greeted[connection.name] = connection

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

    # --- the end -----------------------------------------------------------------------------------

    def end(self) -> None:
        """End everything that the tests of this process share. A cluster that is started afterwards has a new session."""
        if self._owner != os.getpid():
            return
        Session._current = None
        atexit.unregister(self.end)
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self.close(key.data)  # a resident ends with its connection
        for run in self.runs:
            run.handle.stop(now=True)
        self._selector.close()
        self._listener.close()
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
