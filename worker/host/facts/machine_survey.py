"""The facts about a host for `orch doctor`: prints one JSON object.

    python -I start_agent.py facts.machine_survey '{"run_dir": ".orch", "ports": [41000, 41999]}'

The facts are the fields of `orchestrator.checks.facts`; unknown facts are left out. This module neither judges nor changes
anything.
"""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import socket
import sys
from typing import Any

from ...machine.cpu_cores import count_cores
from ...machine.kernel_files import memory, text_of
from ...machine.tpu_host import count_chips
from ...values.redact import disclose
from ..network import private_network
from ..processes.loop import Loop
from . import gpu_driver

MAX_PORTS = 10_000
"""More ports of a range than this are not tried."""


def survey(run_dir: str, ports: tuple[int, int] | None) -> dict[str, Any]:
    return {
        "hostname": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": count_cores(),
        **dict(zip(("memory_bytes", "memory_free_bytes"), memory(), strict=True)),
        "run_dir": _disk(_existing(run_dir)),
        "shm": _disk("/dev/shm") if os.path.isdir("/dev/shm") else None,
        "open_files": [None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(resource.RLIMIT_NOFILE)],
        "environment": disclose(os.environ),
        "ports": _ports(ports),
        "private_network_problem": private_network.find_obstacle(),
        "nvidia": nvidia(),
        "tpu_chips": count_chips(),
    }


def _existing(path: str) -> str:
    path = os.path.abspath(path)
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def _disk(path: str) -> dict[str, Any]:
    try:
        found = os.statvfs(path)
    except OSError as error:
        return {"path": path, "writable": False, "problem": error.strerror or str(error)}
    free = found.f_bfree if os.geteuid() == 0 else found.f_bavail
    return {
        "path": path,
        "free_bytes": free * found.f_frsize,
        "writable": os.access(path, os.W_OK | os.X_OK) and not found.f_flag & os.ST_RDONLY,
    }


def _ports(asked: tuple[int, int] | None) -> dict[str, Any]:
    """Return whether any port can be bound, and which ports of the range cannot."""
    tried = range(asked[0], asked[1] + 1)[:MAX_PORTS] if asked else range(0)
    return {"problem": _bind(0), "tried": len(tried), "busy": {str(port): problem for port in tried if (problem := _bind(port))}}


def _bind(port: int) -> str:
    """Why a program cannot bind this port on every interface, as TensorFlow's servers do; "" if it can."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.bind(("0.0.0.0", port))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def nvidia() -> dict[str, Any]:
    """The driver and all of its GPUs, as `orch up` finds them, also if they are hidden from programs here."""
    env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    loop, drivers = Loop(), list[gpu_driver.Driver]()
    asked = gpu_driver.request(loop, env, drivers.append, anyway=True)
    loop.run(lambda: bool(drivers))
    if asked is not None:
        asked.end()
    version = re.search(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)", text_of("/proc/driver/nvidia/version"))
    return {
        "driver": drivers[0].version or (version[1] if version else ""),
        "gpus": [{"index": gpu.index, "name": gpu.name, "memory_mb": gpu.memory_mb} for gpu in drivers[0].gpus],
        "problem": drivers[0].problem,
    }


def main() -> int:
    asked = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    ports = asked.get("ports")
    print(json.dumps(survey(asked.get("run_dir", ".orch"), tuple(ports) if ports else None)), flush=True)
    return 0
