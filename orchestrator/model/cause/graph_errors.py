"""Errors of graphs: TensorFlow's message has the whole stack of the place where the operation was made, and the reason at its end. Pure.

Keras's message about a layer or a model has the reason in its second line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_HEAD = "Graph execution error:"
_OF_KERAS = "Exception encountered when calling "
_FRAME = re.compile(r'  File "(?P<path>[^"]+)", line \d+, in .+')
_INSTALLED = re.compile(r"/(?:site|dist)-packages/")


def reason(message: str) -> str:
    """The line that says why: of a graph's error the first one below its stacks, of one that Keras has wrapped the second, else all."""
    if message.startswith(_OF_KERAS):
        return next((line for line in message.splitlines()[1:] if line.strip()), message)
    if not message.startswith(_HEAD):
        return message
    lines = message.splitlines()
    frames = [place for place, line in enumerate(lines) if _FRAME.fullmatch(line)]
    below = (line.strip() for line in lines[frames[-1] + 1 if frames else 1 :])
    return next((line for line in below if line and not line.startswith(("[[", "Detected at node"))), message)


def without_frames(lines: Sequence[str]) -> Sequence[str]:
    """The lines of a traceback: in the message of a graph's error without the frames of installed packages, and without empty lines."""
    head = next((place for place, line in enumerate(lines) if line.endswith(_HEAD)), len(lines))
    below = [line for line in lines[head + 1 :] if line.strip()]
    kept = [line for line in below if not ((frame := _FRAME.fullmatch(line)) and _INSTALLED.search(frame["path"]))]
    return [*lines[: head + 1], *kept] if kept != below else lines
