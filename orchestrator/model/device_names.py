"""TensorFlow's names for devices: read in every spelling, written in one.

``GPU:1``, ``/gpu:1``, ``/device:GPU:1`` and ``/job:localhost/replica:0/task:0/device:GPU:1`` are the same device to
TensorFlow (tensorflow/python/framework/device_spec.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(
    r"(?:/job:(?P<job>[A-Za-z0-9_.\-]+))?(?:/replica:[0-9]+)?(?:/task:(?P<task>[0-9]{1,9}))?"
    r"/?(?:device:)?(?P<kind>[A-Za-z][A-Za-z_]*):(?P<index>[0-9]{1,9})"
)


@dataclass(frozen=True, slots=True)
class DeviceName:
    """A device. `kind`: ``CPU``, ``GPU``, …; `job` and `task` are those of the process that has it: empty and None for one's own."""

    kind: str
    index: int
    job: str = ""
    task: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}"

    @property
    def is_local(self) -> bool:
        """Whether it is a device of whatever process uses the name."""
        return self.job in ("", "localhost") and not self.task


def parse(text: str) -> DeviceName | None:
    """The device that a name means, whatever its spelling; None for what is no name of a device."""
    found = _NAME.fullmatch(text.strip())
    if found is None:
        return None
    task = found["task"]
    return DeviceName(found["kind"].upper(), int(found["index"]), found["job"] or "", None if task is None else int(task))
