"""The GPUs of this host, read from the output of ``nvidia-smi``. orch does not know GPUs of other makers; tasks use them as without orch.

``nvidia-smi`` lists GPUs in the order of the PCI bus and ignores ``CUDA_VISIBLE_DEVICES``. `visible` applies this variable, as CUDA does
("CUDA Environment Variables" in the CUDA C++ Programming Guide). Pure: gpu_driver.py starts the program.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ...protocol.messages import Gpu

QUERY = "driver_version,index,uuid,memory.total,mig.mode.current,name"
"""The fields of each GPU; see ``nvidia-smi --help-query-gpu``. The name is the last field, because it may contain a comma."""
# With --format=csv,noheader,nounits:  550.54.15, 0, GPU-5e8…, 143771, Disabled, NVIDIA H200
_GPU = re.compile(r"(?P<version>[\d.]+), (?P<index>\d+), (?P<uuid>GPU-\S+), (?P<memory>[^,]*), (?P<mig>[^,]*), (?P<name>.*)")
# nvidia-smi -L:  GPU 0: NVIDIA H200 (UUID: GPU-5e8…)
#                   MIG 1g.18gb     Device  0: (UUID: MIG-c6d…)
_LISTED = re.compile(r"GPU (?P<index>\d+): ")
_PART = re.compile(r"\s+(?P<name>MIG \S+)\s+Device\s+\d+: \(UUID: (?P<uuid>MIG-\S+)\)")


def read(out: str) -> tuple[str, tuple[Gpu, ...]]:
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
