"""The stacks of a task: it writes them itself, when SIGQUIT asks it, into a file that is there once it can."""

from __future__ import annotations

import os
import signal
import time

from .. import files
from . import conditions, evidence, processes

PATIENCE_S = 2.0
"""How long at most a task that was asked is left alone: a SIGTERM that came at once would end it before its handler has run."""
LOOK_S = 0.05
"""How often to look whether they are there; and they are once nothing was added for so long."""


class Stacks:
    """Those of one attempt of a task. `directory`: its own; `pid`: its first process."""

    def __init__(self, directory: str, pid: int) -> None:
        self._path, self._pid = os.path.join(directory, files.STACKS), pid
        self._asked = self._seen = 0
        self._patient_until = 0.0

    def ask(self) -> None:
        """If it is ready for it: SIGQUIT kills any other program. Of one that will not answer, the file says why."""
        if not os.path.exists(self._path):
            return
        evidence.append(self._path, f"orch: asked at {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        deaf = conditions.why_deaf(self._pid)
        held = conditions.what_holds(self._pid)  # while it writes its stacks it waits for the disk, for a moment
        if held or deaf:
            evidence.append(self._path, f"orch: {f'is {held}' if held else deaf}\n")
        if not deaf:
            self._asked = self._seen = self._size()
            self._patient_until = time.monotonic() + PATIENCE_S
            processes.signal_one(self._pid, signal.SIGQUIT)

    def wake(self) -> None:
        """SIGCONT to one that was asked while it was stopped, and could not answer."""
        if time.monotonic() < self._patient_until:
            processes.signal_group(self._pid, signal.SIGCONT)
            self._patient_until = time.monotonic() + PATIENCE_S

    def are_coming(self) -> bool:
        """Whether it was asked and has not answered in full. To be called every `LOOK_S`."""
        if time.monotonic() >= self._patient_until:
            return False
        before, self._seen = self._seen, self._size()
        return self._seen == self._asked or self._seen != before

    def _size(self) -> int:
        try:
            return os.path.getsize(self._path)
        except OSError:
            return 0
