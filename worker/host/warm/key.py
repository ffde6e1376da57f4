"""What must be equal for tasks to be forked from a warm process, and what a fork of it must be given to be as if started anew.

The two sides describe themselves with `describe`; the warm process says what differs (`find_difference`). The rest a process
hands to its children, and a fork of the warm process takes over from the agent in whose place it comes (`inherit`, `take_over`).
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from ..tasks import import_environment
from .files import fingerprint

THREADS = "OMP_NUM_THREADS"
"""Read when a library is loaded; `threads.py` can change it afterwards."""
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
_STATUS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Mems_allowed", "Groups", "Gid", "Uid")
_LIMITS = sorted(number for name, number in vars(resource).items() if name.startswith("RLIMIT_"))


def describe(env: Mapping[str, str], preload: Iterable[str], cwd: str) -> dict[str, Any]:
    """What an import of `preload` under `env`, in `cwd`, depends on, and what no process can change about itself."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = env.get("PYTHONPATH", "")
    return {
        "the interpreter": [sys.executable, sys.version, sys.prefix],
        "orch": fingerprint(package),
        "preload": list(preload),
        "PYTHONPATH": [os.path.join(cwd, entry) for entry in path.split(os.pathsep)] if path else [],
        "environment": dict(import_environment.frozen(env, preload)),
        "the processor cores": sorted(os.sched_getaffinity(0)),
        "the namespaces": [_read_link(f"/proc/self/ns/{name}") for name in _NAMESPACES],
        "the root directory": _read_link("/proc/self/root"),
        "the privileges": [_status(), _read("/proc/self/attr/current"), _read("/proc/self/personality")],
    }


def find_difference(ours: Mapping[str, Any], theirs: Mapping[str, Any], threads_are_free: bool) -> str | None:
    """What keeps them from being used in place of one another, for a sentence that begins with it; None: nothing.

    `threads_are_free`: the number of OpenMP threads may differ.
    """
    for name in ours:
        if name != "environment" and ours[name] != theirs.get(name):
            return f"{name} differ" if name.endswith("s") else f"{name} differs"
    names = {name for name, _ in ours["environment"].items() ^ theirs["environment"].items()}
    if threads_are_free:
        names.discard(THREADS)
    return f"{', '.join(sorted(names))} {'differs' if len(names) == 1 else 'differ'}" if names else None


def _status() -> list[str]:
    return [line for line in _read("/proc/self/status").splitlines() if line.startswith(_STATUS)]


def _read(path: str) -> str:
    try:
        with open(path, errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


# --- what can be given ---------------------------------------------------------------------------


def inherit() -> dict[str, Any]:
    """What a child of this process would have from it."""
    umask = os.umask(0o77)
    os.umask(umask)
    return {
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "umask": umask,
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "scheduler": [os.sched_getscheduler(0), os.sched_getparam(0).sched_priority],
        "limits": [[number, *resource.getrlimit(number)] for number in _LIMITS],
        "ignored": [int(number) for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN],
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        "oom": _read("/proc/self/oom_score_adj").strip(),
        "dump": _read("/proc/self/coredump_filter").strip(),
        "cgroups": _read("/proc/self/cgroup"),
    }


def take_over(given: Mapping[str, Any]) -> None:
    """Be as if `inherit` had been called in our parent. Raises OSError or ValueError with what cannot be had."""
    _enter_cgroups(given["cgroups"])
    for number, soft, hard in given["limits"]:
        if resource.getrlimit(number) != (soft, hard):
            resource.setrlimit(number, (soft, hard))
    if given["scheduler"] != [os.sched_getscheduler(0), os.sched_getparam(0).sched_priority]:
        os.sched_setscheduler(0, given["scheduler"][0], os.sched_param(given["scheduler"][1]))
    if given["nice"] != os.getpriority(os.PRIO_PROCESS, 0):
        os.setpriority(os.PRIO_PROCESS, 0, given["nice"])
    for name, key in (("oom_score_adj", "oom"), ("coredump_filter", "dump")):
        if given[key] != _read(f"/proc/self/{name}").strip():
            with open(f"/proc/self/{name}", "w") as file:
                file.write(given[key])
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError):  # the C library's own
            signal.signal(number, signal.SIG_IGN if number in given["ignored"] else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, given["blocked"])
    os.umask(given["umask"])
    os.chdir(given["cwd"])
    os.environ.clear()
    os.environ.update(given["env"])


def _enter_cgroups(wanted: str) -> None:
    have = set(_read("/proc/self/cgroup").splitlines())
    for line in wanted.splitlines():
        if line in have:
            continue
        _, controllers, path = line.split(":", 2)
        root = "/sys/fs/cgroup" if not controllers else f"/sys/fs/cgroup/{controllers.removeprefix('name=')}"
        with open(f"{root}{path}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))
