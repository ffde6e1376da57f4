"""The GPUs of this host, from NVIDIA's driver: NVML by ctypes, or ``nvidia-smi`` where that library is not found.

``start.py gpus`` (or ``python -m worker.host.gpus``) prints what was found as JSON: a driver may hang or crash whoever asks it.
Another maker's GPUs are not seen; tasks see them as if orch was not there.

NVML's calls are those of nvml.h (NVIDIA's NVML API reference). They list GPUs in the order of the PCI bus and do not look at
``CUDA_VISIBLE_DEVICES``; `visible` does, as CUDA would ("CUDA Environment Variables" in the CUDA C++ Programming Guide).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from ..contract import Gpu
from .driver import Driver

LIBRARIES = ("libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
SMI_S = 20.0
NO_DEVICES = 6
"""nvidia-smi(1): "A query to find an object was unsuccessful"."""
_TEXT = 96
"""Room for a name, a UUID or a version: NVML_DEVICE_NAME_V2_BUFFER_SIZE, NVML_DEVICE_UUID_V2_BUFFER_SIZE; the version's is smaller."""
_MB = 1 << 20


class _Memory(ctypes.Structure):
    """``nvmlMemory_t``."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class DriverError(Exception):
    """The driver did not answer a question; the message names the call, with NVML's words and code."""


def find(env: Mapping[str, str]) -> Driver:
    """The driver, and the GPUs that a program with this environment may use."""
    nvml = load_nvml()
    version = driver_version(nvml)
    try:
        return Driver(version, visible(list_all(nvml), env.get("CUDA_VISIBLE_DEVICES")))
    except DriverError as error:
        return Driver(version, problem=str(error))


def visible(gpus: tuple[Gpu, ...], variable: str | None) -> tuple[Gpu, ...]:
    """Those that a ``CUDA_VISIBLE_DEVICES`` leaves, in its order: an empty one none, and none from the first unknown one on."""
    if variable is None:
        return gpus
    chosen: dict[str, Gpu] = {}
    for word in variable.split(","):
        gpu = _named(word.strip(), gpus)
        if gpu is None:
            break
        if gpu.uuid in chosen:
            return ()  # CUDA then finds no device at all
        chosen[gpu.uuid] = replace(gpu, id=word.strip())
    return tuple(chosen.values())


def _named(word: str, gpus: tuple[Gpu, ...]) -> Gpu | None:
    if re.fullmatch("[0-9]+", word):
        found = [gpu for gpu in gpus if gpu.index == int(word)][:1]  # of a GPU in parts, CUDA takes the first
    else:
        found = [gpu for gpu in gpus if word and gpu.uuid.lower().startswith(word.lower())]
    return found[0] if len(found) == 1 else None


# --- NVML --------------------------------------------------------------------------------------


def load_nvml() -> Any:
    """The library, or None."""
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def list_all(nvml: Any) -> tuple[Gpu, ...]:
    """All GPUs that the driver lets this user see; `nvml`: the loaded library, or None for ``nvidia-smi``'s word.

    Where neither is installed there are none, as in a container that was given none. Raises `DriverError`.
    """
    if nvml is None:
        return tuple(_ask_smi())
    _call(nvml, "nvmlInit_v2")
    try:
        return tuple(_devices(nvml))
    finally:
        nvml.nvmlShutdown()


def driver_version(nvml: Any) -> str:
    """Such as ``550.54.15``; empty where NVML does not say."""
    version = ctypes.create_string_buffer(_TEXT)
    try:
        _call(nvml, "nvmlInit_v2")
        _call(nvml, "nvmlSystemGetDriverVersion", version, ctypes.c_uint(_TEXT))
        _call(nvml, "nvmlShutdown")
    except DriverError:
        return ""
    return version.value.decode("utf-8", "replace")


def _devices(nvml: Any) -> Iterator[Gpu]:
    count = ctypes.c_uint()
    _call(nvml, "nvmlDeviceGetCount_v2", ctypes.byref(count))
    for index in range(count.value):
        handle = ctypes.c_void_p()
        try:
            _call(nvml, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            yield from _parts(nvml, index, handle) or [_describe(nvml, index, handle)]
        except DriverError:
            continue  # a GPU that has fallen off the bus: CUDA does not use it either


def _parts(nvml: Any, index: int, handle: ctypes.c_void_p) -> list[Gpu]:
    """What a GPU in MIG mode is split into."""
    current, pending, most = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
    try:
        _call(nvml, "nvmlDeviceGetMigMode", handle, ctypes.byref(current), ctypes.byref(pending))
        if not current.value:
            return []
        _call(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle, ctypes.byref(most))
    except DriverError:
        return []  # it cannot be split
    found = []
    for position in range(most.value):
        part = ctypes.c_void_p()
        try:
            _call(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, ctypes.c_uint(position), ctypes.byref(part))
            found.append(_describe(nvml, index, part))
        except DriverError:
            continue  # no part at this position
    return found


def _describe(nvml: Any, index: int, handle: ctypes.c_void_p) -> Gpu:
    uuid, name, memory = ctypes.create_string_buffer(_TEXT), ctypes.create_string_buffer(_TEXT), _Memory()
    _call(nvml, "nvmlDeviceGetUUID", handle, uuid, ctypes.c_uint(_TEXT))
    _call(nvml, "nvmlDeviceGetName", handle, name, ctypes.c_uint(_TEXT))
    with contextlib.suppress(DriverError):  # a GPU that shares the host's memory has none of its own to tell of
        _call(nvml, "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    known = uuid.value.decode("utf-8", "replace")
    return Gpu(index, known, name.value.decode("utf-8", "replace"), memory.total // _MB, known)


def _call(nvml: Any, name: str, *arguments: Any) -> None:
    function: Callable[..., int] | None = getattr(nvml, name, None)
    if function is None:
        raise DriverError(f"this driver has no {name}")
    code = function(*arguments)
    if code:
        raise DriverError(f"{name}: {_words(nvml, code)}NVML error {code}")


def _words(nvml: Any, code: int) -> str:
    """Such as ``Driver/library version mismatch, ``; NVML has them also if it could not be initialised."""
    function = getattr(nvml, "nvmlErrorString", None)
    if function is None:
        return ""
    function.restype = ctypes.c_char_p
    words: bytes | None = function(code)
    return f"{words.decode('utf-8', 'replace')}, " if words else ""


# --- nvidia-smi --------------------------------------------------------------------------------


def _ask_smi() -> Iterator[Gpu]:
    """One line each: ``0, GPU-5e8…, NVIDIA H200, 143771``. It does not tell of parts. Raises `DriverError`."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return
    command = [program, "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SMI_S, check=False)
    except subprocess.TimeoutExpired:
        raise DriverError(f"nvidia-smi has not answered for {SMI_S:g} s") from None
    except OSError as error:
        raise DriverError(f"nvidia-smi: {error.strerror or error}") from None
    if done.returncode == NO_DEVICES:
        return
    if done.returncode:
        raise DriverError(f"nvidia-smi: {' '.join((done.stdout + done.stderr).split())[:300] or f'exit code {done.returncode}'}")
    for line in done.stdout.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 4 and parts[0].isdigit():
            index, uuid, name, memory = parts
            yield Gpu(int(index), uuid, name, int(memory) if memory.isdigit() else 0, uuid)


def main() -> int:
    """Print a `Driver`, with the GPUs that this environment leaves."""
    print(json.dumps(asdict(find(os.environ))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
