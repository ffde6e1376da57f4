"""Defines what a caller sends to the warm process: what its run would import, and what an agent that the caller executed would inherit.

The warm process compares what no process can change about itself (`describe_request`). A fork applies the rest to itself
(`read_inherited`, `apply_inherited`), so that a run has the same surroundings as with an executed agent.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from ...machine.kernel_files import text_of

_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
_PRIVILEGES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp:", "Groups", "Gid", "Uid")
_CGROUP_LIMITS = ("cpu.max", "cpuset.cpus", "memory.high", "memory.max", "memory.swap.max")
_LIMITS = sorted(number for name, number in vars(resource).items() if name.startswith("RLIMIT_"))


def package() -> str:
    """The directory of the package `worker` that this process runs, by whatever name it was imported."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def describe_request(python: str, preload: Sequence[str], cwd: str, spec_env: Mapping[str, str]) -> dict[str, Any]:
    """Return what a run would import: `preload` by the interpreter `python`, started in `cwd`, under the variables of this process and,
    over them, `spec_env`; and the surroundings of this process."""
    return {
        "python": shutil.which(python) or python,
        "package": package(),
        "preload": list(preload),
        "imports_in": cwd,
        "env": dict(os.environ),
        "spec_env": dict(spec_env),
        "surroundings": describe_surroundings(),
    }


def describe_surroundings() -> dict[str, Any]:
    """Return what no process can change about itself; by names that "differs" or "differ" can follow."""
    scheduler = [os.sched_getscheduler(0), os.sched_getparam(0).sched_priority]
    return {
        "the namespaces": [_read_link(f"/proc/self/ns/{name}") for name in _NAMESPACES],
        "the root directory": _read_link("/proc/self/root"),
        "the cgroup": find_cgroups(text_of("/proc/self/cgroup")),
        "the processor cores": sorted(os.sched_getaffinity(0)),
        "the priority (nice)": [os.getpriority(os.PRIO_PROCESS, 0), *scheduler, text_of("/proc/self/oom_score_adj")],
        "the privileges": [line for line in text_of("/proc/self/status").splitlines() if line.startswith(_PRIVILEGES)],
    }


def find_cgroups(text: str, root: str = "/sys/fs/cgroup") -> list[str]:
    """The control groups in /proc/self/cgroup that count for a run.

    systemd gives each terminal and each login a scope of its own. One that limits nothing is as good as the group around it.
    """
    found = []
    for line in text.splitlines():
        number, controllers, path = line.split(":", 2)
        while not controllers and path.endswith(".scope") and not _limits_anything(f"{root}{path}"):
            path = os.path.dirname(path)
        found.append(f"{number}:{controllers}:{path}")
    return found


def _limits_anything(directory: str) -> bool:
    return any(text_of(os.path.join(directory, name)).split()[:1] not in ([], ["max"]) for name in _CGROUP_LIMITS)


def read_inherited() -> dict[str, Any]:
    """Return what a child of this process inherits besides the variables. Raises OSError if the working directory was removed."""
    umask = os.umask(0o77)
    os.umask(umask)
    return {
        "cwd": os.getcwd(),
        "umask": umask,
        "limits": [[number, *resource.getrlimit(number)] for number in _LIMITS],
        "ignored": [int(number) for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN],
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    }


def apply_inherited(given: Mapping[str, Any], env: Mapping[str, str]) -> None:
    """Make this process as if the caller of `read_inherited`, with the variables `env`, had executed it. Raises OSError or ValueError."""
    for number, soft, hard in given["limits"]:
        if resource.getrlimit(number) != (soft, hard):
            resource.setrlimit(number, (soft, hard))
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError):  # the C library's own
            signal.signal(number, signal.SIG_IGN if number in given["ignored"] else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, given["blocked"])
    os.umask(given["umask"])
    os.chdir(given["cwd"])
    os.environ.clear()
    os.environ.update(env)


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
