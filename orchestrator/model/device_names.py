"""TensorFlow's names for devices, in all notations.

``GPU:1``, ``/gpu:1``, ``/device:GPU:1`` and ``/job:localhost/replica:0/task:0/device:GPU:1`` are the same device to
TensorFlow (tensorflow/python/framework/device_spec.py; `DeviceNameUtils::ParseFullName`, tensorflow/core/util/device_name_utils.cc).
"""

from __future__ import annotations

import re

from worker.values.fast_dataclass import dataclass

# A cluster that orch did not make may have other names for its jobs.
_NAME = re.compile(
    r"(?:/job:(?P<job>[A-Za-z0-9_.\-]+))?(?:/replica:[0-9]+)?(?:/task:(?P<task>[0-9]{1,9}))?"
    r"/?(?:device:)?(?!(?:job|replica|task):)(?P<kind>[A-Za-z][A-Za-z_]*):(?P<number>[0-9]+|\*)"
)
_MOST_DIGITS = 9
LOCAL = "localhost"


@dataclass(frozen=True, slots=True)
class DeviceName:
    kind: str
    """``CPU``, ``GPU``, …"""
    number: str
    """As written: digits or ``*``."""
    job: str = ""
    """The job of the process that has the device; empty: this process."""
    task: int | None = None
    """The index of the task in the job."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}"

    @property
    def index(self) -> int | None:
        """The number; None for ``*``, or if the number is too large for any machine."""
        return int(self.number) if self.number.isdigit() and len(self.number) <= _MOST_DIGITS else None

    @property
    def owner(self) -> str:
        """The task that has the device, such as ``ps-0``; empty if the name has none."""
        return "" if self.job in ("", LOCAL) else f"{self.job}-{self.task or 0}"

    @property
    def is_local(self) -> bool:
        """True if the name means a device of the process that uses it."""
        return not self.owner and not self.task


def read(text: str) -> DeviceName | None:
    """The device that a name means, also with ``*``; None if the text is not a name of a device."""
    found = _NAME.fullmatch(text.strip())
    if found is None:
        return None
    task = found["task"]
    return DeviceName(found["kind"].upper(), found["number"], found["job"] or "", None if task is None else int(task))


def parse(text: str) -> DeviceName | None:
    """The one device that a name means; None for ``*``, or if the text is not a name of a device."""
    found = read(text)
    return None if found is None or found.index is None else found
