"""Finds the GPUs of this host by ``nvidia-smi``, in a process of its own: a broken driver may hang or crash the process that asks.

``nvidia-smi`` lists GPUs in the order of the PCI bus and ignores ``CUDA_VISIBLE_DEVICES``. `visible` applies this variable, as CUDA does
("CUDA Environment Variables" in the CUDA C++ Programming Guide). orch does not know GPUs of other makers; tasks use them as without orch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ...protocol.messages import Gpu, GpuUse, ProgramEnded
from ...values.fast_dataclass import dataclass
from ..processes.loop import Loop

if TYPE_CHECKING:
    from ..processes.async_subprocess import Question

ANSWER_S = 25.0
"""The driver may take this long to list its GPUs, in seconds. A driver takes several seconds for each GPU if persistence mode is off."""
_FILES = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")
"""One of these files exists if a driver is installed. The last one is for WSL."""
_WSL = "/usr/lib/wsl/lib"
NO_DEVICES = 6
"""nvidia-smi(1): "A query to find an object was unsuccessful"."""
NOT_FOUND = 127
"""The shell's exit code for a program that is not installed."""
_QUERY = "driver_version,index,uuid,memory.total,mig.mode.current,name"
"""The fields of each GPU; see ``nvidia-smi --help-query-gpu``. The name is the last field, because it may contain a comma."""
# With --format=csv,noheader,nounits:  550.54.15, 0, GPU-5e8…, 143771, Disabled, NVIDIA H200
_GPU = re.compile(r"(?P<version>[\d.]+), (?P<index>\d+), (?P<uuid>GPU-\S+), (?P<memory>[^,]*), (?P<mig>[^,]*), (?P<name>.*)")
# nvidia-smi -L:  GPU 0: NVIDIA H200 (UUID: GPU-5e8…)
#                   MIG 1g.18gb     Device  0: (UUID: MIG-c6d…)
_LISTED = re.compile(r"GPU (?P<index>\d+): ")
_PART = re.compile(r"\s+(?P<name>MIG \S+)\s+Device\s+\d+: \(UUID: (?P<uuid>MIG-\S+)\)")
# Only -L lists the parts of GPUs in MIG mode.
_SCRIPT = f"""\
found=$(nvidia-smi --query-gpu={_QUERY} --format=csv,noheader,nounits)
code=$?
echo "$found"
case $found in *", Enabled, "*) nvidia-smi -L || code=$?;; esac
exit $code
"""


@dataclass(frozen=True, slots=True)
class Driver:
    version: str = ""
    """Such as ``550.54.15``; empty: unknown."""
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""
    """Why the driver does not list its GPUs; empty: there is no problem."""


def is_installed() -> bool:
    """True if a driver is installed. The driver may still not work."""
    return any(map(os.path.exists, _FILES))


def command() -> list[str]:
    """The program that prints the GPUs of the host."""
    return ["/bin/sh", "-c", f"PATH=$PATH:{_WSL}\n{_SCRIPT}"]


def use_command() -> list[str]:
    """The program that prints what each GPU does now."""
    query = "index,utilization.gpu,memory.used"
    return ["/bin/sh", "-c", f"PATH=$PATH:{_WSL}\nexec nvidia-smi --query-gpu={query} --format=csv,noheader,nounits"]


def read_use(out: str) -> tuple[GpuUse, ...]:
    """Return what each GPU did, from the output of `use_command`. A number that the driver does not know is 0."""
    found = []
    for line in out.splitlines():
        index, *numbers = (word.strip() for word in line.split(","))
        if index.isdigit() and len(numbers) == 2:
            busy, memory = (float(word) if re.fullmatch(r"\d{1,9}(\.\d+)?", word) else 0.0 for word in numbers)
            found.append(GpuUse(int(index), busy, int(memory) << 20))
    return tuple(found)


def request(loop: Loop, env: Mapping[str, str], on_answer: Callable[[Driver], None], *, anyway: bool = False) -> Question | None:
    """Ask for the GPUs that programs with this environment may use; the loop calls `on_answer`. `anyway`: also without a driver."""
    variable = env.get("CUDA_VISIBLE_DEVICES")
    if not (anyway or is_installed()) or variable in ("", "-1"):
        loop.after(0.0, lambda: on_answer(Driver()))
        return None
    from ..processes.async_subprocess import Question  # a host without a driver does not need this import

    return Question(loop, command(), env, ANSWER_S, lambda ending: on_answer(_read(ending, variable)))


def _read(ending: ProgramEnded, variable: str | None) -> Driver:
    """The driver, from the output of `command`. `variable`: the ``CUDA_VISIBLE_DEVICES`` of programs here."""
    version, found = _read_list(ending.out)
    if found or ending.code in (0, NO_DEVICES, NOT_FOUND):
        # Without nvidia-smi there are no GPUs: for example in a container without GPUs, on a host that has some.
        return Driver(version, visible(found, variable))
    said = ending.reason or " ".join((ending.out + ending.err).split())[:300] or f"exit code {ending.code}"
    return Driver(problem=f"nvidia-smi: {said}")


def _read_list(out: str) -> tuple[str, tuple[Gpu, ...]]:
    """The driver's version and all GPUs, from the lines of the query and of ``nvidia-smi -L`` after them.

    A GPU in MIG mode is replaced by its parts, whose memory is in neither list. A GPU that has fallen off the bus has no UUID and is left
    out: CUDA does not use it either.
    """
    version, names, found = "", dict[int, str](), dict[int, list[Gpu]]()
    index = -1
    for line in out.splitlines():
        if gpu := _GPU.fullmatch(line.strip()):
            version, index = gpu["version"], int(gpu["index"])
            names[index] = gpu["name"]
            memory = int(gpu["memory"]) if gpu["memory"].isdigit() else 0
            found[index] = [] if gpu["mig"] == "Enabled" else [Gpu(index, gpu["uuid"], gpu["name"], memory, gpu["uuid"])]
        elif listed := _LISTED.match(line):
            index = int(listed["index"])
        elif (part := _PART.fullmatch(line.rstrip())) and index in found:
            found[index].append(Gpu(index, part["uuid"], f"{names[index]} {part['name']}", 0, part["uuid"]))
    return version, tuple(gpu for gpus in found.values() for gpu in gpus)


def visible(gpus: tuple[Gpu, ...], variable: str | None) -> tuple[Gpu, ...]:
    """The GPUs that a ``CUDA_VISIBLE_DEVICES`` names, in its order. An empty variable names none; the first unknown word ends the list."""
    if variable is None:
        return gpus
    chosen: dict[str, Gpu] = {}
    for word in variable.split(","):
        gpu = _named(word.strip(), gpus)
        if gpu is None:
            break
        if gpu.uuid in chosen:
            return ()  # with a GPU named twice, CUDA finds no device at all
        chosen[gpu.uuid] = replace(gpu, id=word.strip())
    return tuple(chosen.values())


def _named(word: str, gpus: tuple[Gpu, ...]) -> Gpu | None:
    if re.fullmatch("[0-9]+", word):
        found = [gpu for gpu in gpus if gpu.index == int(word)][:1]  # of a GPU in parts, CUDA takes the first
    else:
        found = [gpu for gpu in gpus if word and gpu.uuid.lower().startswith(word.lower())]
    return found[0] if len(found) == 1 else None
