"""TensorFlow's names for devices: read in every spelling, written in one.

``GPU:1``, ``/gpu:1``, ``/device:GPU:1`` and ``/job:localhost/replica:0/task:0/device:GPU:1`` are the same device to
TensorFlow (tensorflow/python/framework/device_spec.py; `DeviceNameUtils::ParseFullName`, tensorflow/core/util/device_name_utils.cc).
"""

from __future__ import annotations

import re

from worker.fast_dataclass import dataclass

# A job may have whatever name its cluster gave it; ours have letters and underscores.
_NAME = re.compile(
    r"(?:/job:(?P<job>[A-Za-z0-9_.\-]+))?(?:/replica:[0-9]+)?(?:/task:(?P<task>[0-9]{1,9}))?"
    r"/?(?:device:)?(?!(?:job|replica|task):)(?P<kind>[A-Za-z][A-Za-z_]*):(?P<number>[0-9]+|\*)"
)
_MOST_DIGITS = 9
LOCAL = "localhost"
"""The job of a process that has no cluster."""


@dataclass(frozen=True, slots=True)
class DeviceName:
    """A device. `kind`: ``CPU``, ``GPU``, …; `number`: as written; `job` and `task` are those of the process that has it: empty and
    None for one's own.
    """

    kind: str
    number: str
    job: str = ""
    task: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}"

    @property
    def index(self) -> int | None:
        """Which of its kind; None: any of them (``*``), or one that no machine can have."""
        return int(self.number) if self.number.isdigit() and len(self.number) <= _MOST_DIGITS else None

    @property
    def owner(self) -> str:
        """The task that has it, ``ps-0``; empty if that is not said."""
        return "" if self.job in ("", LOCAL) else f"{self.job}-{self.task or 0}"

    @property
    def is_local(self) -> bool:
        """Whether it is a device of whatever process uses the name."""
        return not self.owner and not self.task


def read(text: str) -> DeviceName | None:
    """What a name means, whatever its spelling, be there such a device or not; None for what is no name of a device."""
    found = _NAME.fullmatch(text.strip())
    if found is None:
        return None
    task = found["task"]
    return DeviceName(found["kind"].upper(), found["number"], found["job"] or "", None if task is None else int(task))


def parse(text: str) -> DeviceName | None:
    """The one device that a name means; None for what is no name of a device, or of any."""
    found = read(text)
    return None if found is None or found.index is None else found
