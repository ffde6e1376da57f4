"""TensorFlow's errors about a missing device."""

from __future__ import annotations

import re

# TensorFlow 2.21's texts, each with the requested device.
# Sources: eager/execute.cc, eager/placement_utils.cc, placer.cc, process_function_library_runtime.cc, eager/context.cc.
_TEXTS = tuple(
    re.compile(pattern)
    for pattern in (
        r"Could not satisfy device specification '([^']+)'\.",
        r"was explicitly assigned to (\S+) but available devices are ",
        r"Could not satisfy explicit device specification '([^']+)' because no devices matching",
        r"Unable to find any devices for spec (\S+)",
        r"((?:/job:\S+|/?(?:device:)?[A-Za-z_]+:\d+)) unknown device\.",
    )
)


def find(text: str) -> str | None:
    """The first missing device in `text`, as TensorFlow writes its name; None if there is none."""
    for pattern in _TEXTS:
        found = pattern.search(text)
        if found is not None:
            return found[1].rstrip(".,;'\"")
    return None
