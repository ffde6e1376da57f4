"""The network namespace of a resident and its forks, in a cluster whose network a test can cut (`orchestrator/testing/partitions.py`)."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from ...protocol.task_environment import bypass_proxies

_CLONE_NEWNET = 0x40000000
"""`os.unshare` is there from Python 3.12 on."""


def change(order: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Run the lines of ``request["lines"]`` as `ip` does, in the namespace of this process, and return the order of this task.

    With ``request["addresses"]``, by task, this process enters a namespace of its own first; in the order, each task then has
    its new address. Raises OSError with what is missing.
    """
    addresses = request.get("addresses")
    if addresses is not None:
        _leave_network()
        order = _readdress(order, addresses)
    lines = "".join(f"{line}\n" for line in request["lines"])
    done = subprocess.run(["ip", "-batch", "-"], input=lines, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip: {' '.join(done.stderr.split())}")
    return order


def _leave_network() -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"a new network namespace: {os.strerror(number)}")


def _readdress(order: dict[str, Any], addresses: dict[str, str]) -> dict[str, Any]:
    os.environ["MASTER_ADDR"] = next(iter(addresses.values()))
    bypass_proxies(os.environ, addresses.values())
    if order["tf_config"] is None:
        return order
    config = json.loads(order["tf_config"])
    for type_, old in config["cluster"].items():
        config["cluster"][type_] = [f"{addresses[f'{type_}-{index}']}:{at.rpartition(':')[2]}" for index, at in enumerate(old)]
    return {**order, "tf_config": json.dumps(config)}
