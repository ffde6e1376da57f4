"""The machine orch itself runs on: one host, whose agent is a child process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence

from ..errors import Problem
from ..model.settings import ClusterSpec
from . import Backend, Cleanup, Diagnosis, Host, NamedHosts, Request, RunFacts, StartFailure, interpreters

NAME = "local"


class Local(NamedHosts):
    def problems(self, spec: ClusterSpec) -> Sequence[Problem]:
        if spec.network == "private" and sys.platform != "linux":
            return (Problem("network", "a private network takes Linux, which has network namespaces", "leave it out"),)
        return ()

    def request(self, run: RunFacts) -> Request:
        python = interpreters.find(run.spec)
        transport = interpreters.transport_here(python, run.spec)
        return Request(run, (Host(NAME, "127.0.0.1", sees_run_dir=True, python=python, transport=transport),))

    def explain(self, host: Host, failure: StartFailure) -> Diagnosis:
        return explain(failure)

    def cancel(self, run: RunFacts) -> Cleanup:
        return Cleanup(kill_tasks(run.run_id))


def make() -> Backend:
    return Local()


def explain(failure: StartFailure) -> Diagnosis:
    """Why a child process did not become an agent. It may be no Python, as with ``--python /bin/cat``."""
    remedy = "set python: or --python"
    if failure.code == interpreters.TOO_OLD:
        said = failure.said.strip().rpartition("\n")[2].removeprefix("orch: ")
        return Diagnosis(f"{said}; orch needs 3.10 or newer", remedy)
    return Diagnosis(failure.text, remedy if failure.error is not None else f"is {failure.program!r} a Python? {remedy}")


def kill_tasks(run_id: str) -> int:
    """Kill the processes of this machine that have the run in their environment. Returns their number, usually 0."""
    try:
        import psutil  # loaded only when a run has to be cleared away
    except ImportError:  # orch is an archive, which has no compiled module
        return _kill_by_proc(run_id)
    processes = psutil.process_iter(["environ"])  # None for a process that may not be read
    found = [one for one in processes if one.pid != os.getpid() and (one.info["environ"] or {}).get("ORCH_RUN_ID") == run_id]
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return len(found)


def _kill_by_proc(run_id: str) -> int:
    """As `kill_tasks`, on Linux."""
    killed, mark = 0, f"ORCH_RUN_ID={run_id}".encode()
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as environ:
            if pid != os.getpid() and mark in environ.read().split(b"\0"):
                os.kill(pid, signal.SIGKILL)
                killed += 1
    return killed
