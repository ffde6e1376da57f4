"""Finds which package starts a thread when it is imported. A process must not be forked while it has a thread that knows nothing
of forks."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator

_JOINED_S = 0.2
_ARROW, _NO_THREAD = "JE_ARROW_MALLOC_CONF", "background_thread:false"
"""What keeps the allocator of pyarrow, which Keras imports with pandas, from a thread of its own that frees memory now and then."""
_OF_BLAS = ("numpy", "scipy")
"""Packages with threads that `stop_pools` ends."""


@contextlib.contextmanager
def watched() -> Iterator[ThreadWatch]:
    """While this is entered, imports start no thread that they can do without, and it is noted which packages start one all the same."""
    watch, is_set = ThreadWatch(), _ARROW in os.environ
    os.environ.setdefault(_ARROW, _NO_THREAD)
    sys.meta_path.insert(0, watch)
    try:
        yield watch
    finally:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(watch)
        if not is_set:
            os.environ.pop(_ARROW, None)
        watch.look()


class ThreadWatch:
    """A finder of modules that finds none, and counts threads whenever a module of another package is imported."""

    def __init__(self) -> None:
        self._threads, self._package = count_threads(), ""
        self._before = self._threads
        """How many threads there were, such as that of the time limit in the program that `orch doctor` starts."""
        self._packages: list[str] = []
        """The packages during whose import a thread came."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        package = name.partition(".")[0]
        if package != self._package and package not in sys.stdlib_module_names:
            self.look()
            self._package = package

    def look(self) -> None:
        threads = count_threads()
        if threads > self._threads and self._package:
            self._packages.append(self._package)
        self._threads = threads

    def find_thread(self) -> str | None:
        """Why this process, which has only imported, must not be forked; None: it has no thread more than before."""
        if count_threads() > self._before:
            stop_pools()
            _await_joined(self._before)
        return self.describe() if count_threads() > self._before else None

    def describe(self) -> str:
        others = [name for name in self._packages if name not in _OF_BLAS] or self._packages
        return f"the import of {' or '.join(dict.fromkeys(others))} has started a thread" if others else "an import has started a thread"


def stop_pools() -> None:
    """End the helper threads that a fork would end anyway, by forking a child that ends at once.

    Each OpenBLAS (NumPy and SciPy have one each) keeps helper threads on a machine with several cores. It stops them before a fork, in
    parent and child, and starts them when it is next used (pthread_atfork in its driver/others/memory.c). A thread that is still there
    afterwards does not know of forks, and a process with such a thread must not be forked.
    """
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _await_joined(most: int) -> None:
    """Wait for threads that are ending: `Thread.join` returns a moment before the kernel has removed the thread."""
    until = time.monotonic() + _JOINED_S
    while count_threads() > most and time.monotonic() < until:
        time.sleep(0.005)


def count_threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1
