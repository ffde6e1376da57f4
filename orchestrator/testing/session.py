"""The things that all tests of one process share: a directory, a process that has imported TensorFlow, the connections to the tasks.

These things are made for the first cluster, and end with the process of the tests, however this process ends: the warm process and the
controller of each run end when a pipe closes whose other end is in the process of the tests.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import itertools
import os
import selectors
import shutil
import socket
import stat
import sys
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from worker.task.fixture import debugger, task_coverage

from ..backends import Imports, warm_process
from ..backends.warm_process import OwnWarmProcess, place_of_sockets
from ..errors import OrchError
from ..record.run_files import open_file
from .connections import Connection, join_terminal

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_PREFIX = "orch-testing-"


class Shown(Protocol):
    """A cluster, for a report of pytest."""

    tasks: dict[str, Any]


class Session:
    """See the module. `get` gives the one of this process."""

    _current: Session | None = None

    def __init__(self) -> None:
        _sweep()
        self._owner = os.getpid()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place_of_sockets()))
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.temporary = self.path / "tmp"
        """The TMPDIR of the tasks. Its path is short, for sockets may be made there."""
        self.temporary.mkdir(mode=0o700)
        self.keeps = False
        """Leave the directory, with the runs and all output, when the process ends."""
        self.recent: deque[Shown] = deque(maxlen=16)
        """The clusters that were entered last; a report of pytest says what became of their tasks."""
        self.at_end: list[Callable[[], object]] = []
        """Functions that `end` calls."""
        self.mutex = threading.RLock()
        self.expected: dict[str, Callable[[Connection], None]] = {}
        """By the names of processes: functions that get the connection of the process when it has said its name."""
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
        self._warm: OwnWarmProcess | None = None
        self._is_cold = False
        """The imports cannot be forked: each process imports TensorFlow for itself."""
        self._level: dict[str, str] | None = None

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

    def warm_up(self, env: Mapping[str, str]) -> None:
        """Start the process that imports TensorFlow, unless it runs, and wait for the import. `env`: the environment of the tasks.

        If the user has a warm process that fits (`orch warm`), there is nothing to start. If the imports cannot be forked, a warning says
        why. Raises `OrchError` with the output of an import that has failed.
        """
        if self._warm is not None or self._is_cold or self._users_fits(env):
            return
        try:
            self._warm = OwnWarmProcess(self.path, sys.executable, Imports(("tensorflow",), env, os.getcwd()))
        except warm_process.CannotForkError as error:
            self._is_cold = True
            warnings.warn(f"{error}; each process of a cluster imports TensorFlow for itself, which takes longer", stacklevel=2)

    @property
    def runtime(self) -> dict[str, str]:
        """The variable by which a run finds the process that has imported TensorFlow. Without the variable it finds the user's."""
        return self._warm.variables if self._warm is not None else {}

    @property
    def log_level(self) -> dict[str, str]:
        """The level at which TensorFlow's C++ logs in a test: the shell's, or that of the user's warm process, or else errors alone."""
        if LEVEL in os.environ:
            return {LEVEL: os.environ[LEVEL]}
        if self._level is None:
            quiet = {LEVEL: "2"}
            self._level = {} if not self._users_fits(quiet) and self._users_fits({}) else quiet
        return self._level

    def _users_fits(self, env: Mapping[str, str]) -> bool:
        return warm_process.fits(sys.executable, Imports(("tensorflow",), env, os.getcwd()))

    # --- messages ----------------------------------------------------------------------------------

    def now(self) -> float:
        """`time.monotonic`, but the time in which debuggers wait for the user does not count."""
        return time.monotonic() - self.debugged_s

    def poll(self, timeout_s: float) -> None:
        """Wait so long for messages, and pass them on. From any thread: it may be another than the one that waits for the message."""
        with self.mutex:
            for key, _ in self._selector.select(max(0.0, timeout_s)):
                if key.fileobj is self._listener:
                    sock, _ = self._listener.accept()
                    self._selector.register(sock, selectors.EVENT_READ, Connection(sock))
                elif key.data.name == debugger.NAME:
                    self._attend(key.data)
                elif key.data.is_open:
                    self.read(key.data)

    def read(self, connection: Connection) -> None:
        """Pass on the messages that have come on this connection, and close the connection if it has ended."""
        for message in connection.receive():
            if connection.name:
                connection.on_message(message)
            else:
                self._greet(connection, message)
        if not connection.is_open:
            self.close(connection)

    def close(self, connection: Connection) -> None:
        """Forget a connection to a task, and close it."""
        with self.mutex, contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.sock)
        connection.sock.close()
        connection.is_open = False

    def _greet(self, connection: Connection, greeting: dict[str, Any]) -> None:
        connection.name, connection.pid = greeting["who"], greeting["pid"]
        if connection.name == debugger.NAME:
            self._attend(connection, b"+")
        elif connection.name in self.expected:
            self.expected.pop(connection.name)(connection)
        else:
            connection.is_open = False  # no one waits for it any more

    def _attend(self, connection: Connection, first: bytes = b"") -> None:
        """A task has stopped in its debugger: join the debugger and the terminal until the task goes on."""
        began = time.monotonic()
        try:
            if not join_terminal(connection.sock, first):
                self.close(connection)
        finally:
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
        for function in self.at_end:
            function()
        self._selector.close()
        self._listener.close()
        if self._warm is not None:
            self._warm.end()
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


def _sweep() -> None:
    """Remove the directories of processes of this user that were killed: no process holds their lock."""
    for directory in Path(place_of_sockets()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, OrchError):
            found = directory.lstat()
            # Every user may write into the place, and opening another user's named pipe would wait for a writer.
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            with open_file(directory / "lock") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - os.fstat(file.fileno()).st_mtime > 60:  # a new process may be about to lock it
                    shutil.rmtree(directory, ignore_errors=True)
