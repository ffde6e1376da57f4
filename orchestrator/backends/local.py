"""The machine orch itself runs on: one host, whose agent is a child process."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import worker

from ..model.spec import ClusterSpec
from . import Backend, Errand, Host, Transport, interpreters

NAME = "local"


class Local:
    """See `Backend`."""

    def hosts(self, spec: ClusterSpec) -> tuple[Host, ...]:
        return (Host(NAME, "127.0.0.1", sees_run_dir=True),)

    def transport(self, spec: ClusterSpec, host: Host, errand: Errand = "agent") -> Transport:
        return transport(interpreters.of(spec, host), errand)

    def request(self, spec: ClusterSpec) -> Mapping[str, str]:
        return {"agent-local.txt": shlex.join(self.transport(spec, self.hosts(spec)[0]).argv) + "\n"}

    def cancel(self, run_id: str) -> int:
        """Nothing should be there: an agent dies with its controller. What has slipped away is found by its environment."""
        mark = f"ORCH_RUN_ID={run_id}".encode()
        found = [pid for pid, environ in _environments() if mark in environ]
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return len(found)


def make() -> Backend:
    return Local()


def transport(python: str, errand: Errand = "agent") -> Transport:
    """An agent on this machine, run by `python`. What asks whether that is one is run by the interpreter that runs orch."""
    start = str(Path(worker.__file__).parent / "host" / "start.py")
    return Transport((python, "-I", start) if errand == "agent" else (sys.executable, "-I", start, errand))


def _environments() -> Iterator[tuple[int, list[bytes]]]:
    import psutil  # loaded only when a run has to be cleared away

    for pid in psutil.pids():
        if pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error, OSError):
            environ = psutil.Process(pid).environ()
            yield pid, [os.fsencode(f"{key}={value}") for key, value in environ.items()]
