"""Short names of devices, and remedies for devices that do not exist.

A name is as short as possible: ``GPU:0`` in the task that has it, ``ps-0 CPU:0`` in another task. Pure: no I/O, no clock.
"""

from __future__ import annotations

from worker.tensorflow_facts import missing_devices

from ...model import device_names

_MOST_DIGITS = 3
"""The most digits of a device number for which a remedy names a setting."""
_MOST_SPELT = 8
"""The most logical GPUs whose sizes a remedy lists."""


def shorten(name: str, task: str = "") -> str:
    """A device's name as seen by `task` (``worker-1``): ``GPU:0`` if it is the task's own, else ``ps-0 CPU:0``.

    Raises ValueError for a text that names no device.
    """
    found = device_names.read(name)
    if found is None:
        raise ValueError(
            f"{name!r} is not the name of a device; write it as GPU:0, /device:CPU:1 or /job:worker/replica:0/task:0/device:GPU:0"
        )
    return str(found) if found.owner in ("", task) else f"{found.owner} {found}"


def explain(text: str) -> str | None:
    """Explains TensorFlow's error about a device that does not exist, with the setting that creates the device; None for other texts."""
    missing = missing_devices.find(text)
    return None if missing is None else _explain(missing.asked, None if missing.had is None else _names(missing.had))


def _names(text: str) -> list[str]:
    names = []
    for word in text.replace(",", " ").split():
        try:
            names.append(shorten(word))
        except ValueError:
            continue  # a list may end in an ellipsis
    return names


def _explain(asked: str, had: list[str] | None) -> str | None:
    try:
        wanted = shorten(asked)
    except ValueError:
        return None
    there = "" if had is None else f"; the task has {', '.join(had) or 'none'}"
    place, _, device = wanted.rpartition(" ")
    kind, _, number = device.partition(":")
    if place and had is not None and not any(name.startswith(f"{place} ") for name in had):
        return f"the script asks for {device} of {place}, which is not in this task's cluster{there}"
    return f"the script asks for {device}, which does not exist{there}: {_remedy(kind, number, had)}"


def _remedy(kind: str, number: str, had: list[str] | None) -> str:
    soft = "devices.soft_placement: true (--soft-placement) lets TensorFlow take a device that is there"
    if kind not in ("CPU", "GPU") or (number.isdigit() and len(number) > _MOST_DIGITS):
        return soft  # no host has so many devices
    count = int(number) + 1 if number.isdigit() else 1
    if kind == "CPU":
        return f"devices.cpus: {count} (--cpus {count}) makes {count} logical CPU devices"
    if had is not None and not any(name.rpartition(" ")[2].startswith("GPU:") for name in had):
        return f"orch doctor says why TensorFlow sees no GPU; {soft}"
    sizes = ["1024"] * min(count, _MOST_SPELT) + ["…"] * (count > _MOST_SPELT)
    split = f"devices.logical_gpus: [{', '.join(sizes)}] (--logical-gpus {','.join(sizes)}) splits one"
    more = f"devices.gpus: {count} (--gpus {count}) gives the task {count} GPUs, {split}"
    return f"{more if count > 1 else 'orch doctor says whether TensorFlow sees a GPU'}; {soft}"
