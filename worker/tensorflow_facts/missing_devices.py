"""What TensorFlow says of a device that it has not. A task explains it where it happens, `orch placement` from the logs."""

from __future__ import annotations

import re
from typing import NamedTuple

# TensorFlow 2.21's texts, each with the device and, where it names them, those that it has.
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
    """As TensorFlow writes them: the device that was asked for, and the list of those that there are, if it says."""

    asked: str
    had: str | None


def find(text: str) -> MissingDevice | None:
    """The first device that `text` says is missing; None for any other text."""
    for pattern in _TEXTS:
        found = pattern.search(text)
        if found is not None:
            return MissingDevice(found["asked"].rstrip(".,;'\""), found.groupdict().get("had"))
    return None
