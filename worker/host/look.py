"""What an agent finds out about its host before anything starts."""

from __future__ import annotations

import glob
import os
import platform
import re
import sys
from collections.abc import Mapping

from ..contract import Gpu


def count_cores() -> int:
    """The cores this process may use, which in a container or a Slurm step are not all there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cores_of(part: int, parts: int) -> list[int] | None:
    """One of so many parts of the cores that this process may use, as the kernel numbers their hardware threads. No core is in two parts
    as long as there are enough of them; then no thread; then several parts have the same one. None: this platform ties nobody to cores.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    threads: dict[tuple[int, int], list[int]] = {}
    for number in sorted(os.sched_getaffinity(0)):
        threads.setdefault(_core_of(number), []).append(number)
    cores = [threads[core] for core in sorted(threads)]
    if parts > len(cores):
        cores = [[number] for core in cores for number in core]
    count = len(cores)
    mine = cores[part * count // parts : (part + 1) * count // parts] if parts <= count else [cores[part % count]]
    return [number for core in mine for number in core]


def _core_of(number: int) -> tuple[int, int]:
    """Its package, and its number there (Linux's Documentation/admin-guide/cputopology.rst)."""
    found = []
    for name in ("physical_package_id", "core_id"):
        try:
            with open(f"/sys/devices/system/cpu/cpu{number}/topology/{name}") as file:
                found.append(int(file.read()))
        except (OSError, ValueError):
            found.append(0 if name == "physical_package_id" else number)
    return found[0], found[1]


def free_bytes(path: str) -> int | None:
    """Bytes that this user may still write below `path`; None where nobody can tell."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return (found.f_bfree if os.geteuid() == 0 else found.f_bavail) * found.f_frsize


_DRIVER_FILES = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")
"""One of these is there if NVIDIA's driver is, the last one under WSL."""


def has_nvidia_driver() -> bool:
    """It is there; whether it works is another question."""
    return any(map(os.path.exists, _DRIVER_FILES))


def find_gpus(env: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs that a program with this environment may use."""
    if not has_nvidia_driver():
        return ()
    from . import gpus  # a host without a driver need not load what asks one

    return gpus.find(env)


def python_version() -> str:
    """Such as ``3.11.7``."""
    return platform.python_version()


def find_tensorflow(env: Mapping[str, str]) -> str:
    """The version of TensorFlow that a task with this environment would import, without importing it; empty if there is none.

    The agent runs isolated; what the tasks get from PYTHONPATH and from the user's own site-packages counts as well, the latter
    not in a virtual environment (site.py: only if it sees the system's packages).
    """
    import site  # wanted on hosts that were reached over a network only

    python_path = env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    own = [site.getusersitepackages()] if _sees_users_packages() else []
    for entry in [*python_path.split(os.pathsep), *own, *sys.path]:
        if not entry or not os.path.isfile(os.path.join(entry, "tensorflow", "__init__.py")):
            continue
        found = glob.glob(os.path.join(glob.escape(entry), "t*f*-*.dist-info"))
        versions = [match["version"] for name in found if (match := _PACKAGE.fullmatch(os.path.basename(name)))]
        return versions[0] if versions else "of unknown version"
    return ""


def _sees_users_packages() -> bool:
    if sys.prefix == sys.base_prefix:
        return True
    try:
        with open(os.path.join(sys.prefix, "pyvenv.cfg"), encoding="utf-8") as file:
            words = ("".join(line.split()).lower() for line in file)
            return "include-system-site-packages=true" in words
    except OSError:
        return True


_PACKAGE = re.compile(r"(tensorflow|tensorflow_(cpu|gpu|intel|rocm|macos|cpu_aws)|tf_nightly(_cpu)?)-(?P<version>[^-]+)\.dist-info")
