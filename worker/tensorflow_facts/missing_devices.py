"""TensorFlow's errors about a missing device. A task explains such an error when it happens, `orch placement` from the logs."""

from __future__ import annotations

import re
from typing import NamedTuple

# TensorFlow 2.21's texts, each with the requested device and, in some texts, the existing devices.
# Sources: eager/execute.cc, eager/placement_utils.cc, placer.cc, process_function_library_runtime.cc, eager/context.cc.
_TEXTS = tuple(
    re.compile(pattern)
    for pattern in (
        r"Could not satisfy device specification '(?P<asked>[^']+)'\.[^\n]*?All available devices \[(?P<had>[^\]\n]*)\]",
        r"was explicitly assigned to (?P<asked>\S+) but available devices are \[(?P<had>[^\]\n]*)\]",
        r"Could not satisfy explicit device specification '(?P<asked>[^']+)' because no devices matching"
        r"[^\n]*?available devices: (?P<had>[^\n]*)",
        r"Unable to find any devices for spec (?P<asked>\S+)",
        r"(?P<asked>(?:/job:\S+|/?(?:device:)?[A-Za-z_]+:\d+)) unknown device\.",
    )
)


class MissingDevice(NamedTuple):
    """The names of the devices, as TensorFlow writes them."""

    asked: str
    """The requested device."""
    had: str | None
    """The existing devices; None: not in the text."""


def find(text: str) -> MissingDevice | None:
    """The first missing device in `text`; None if there is none."""
    for pattern in _TEXTS:
        found = pattern.search(text)
        if found is not None:
            return MissingDevice(found["asked"].rstrip(".,;'\""), found.groupdict().get("had"))
    return None
