"""Errors of graphs: TensorFlow's message has the whole stack of the place where the operation was made, and the reason at its end. Pure.

Keras's message about a layer or a model has the reason in its second line, and AutoGraph's about code of the user in its last one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_HEAD = "Graph execution error:"
_OF_KERAS = "Exception encountered when calling "
_OF_AUTOGRAPH = "in user code:"
_KIND = re.compile(r"[\w.]+(?:Error|Exception): ")
_FRAME = re.compile(r'  File "(?P<path>[^"]+)", line \d+, in .+')
_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib/python3[\d.]*/|<frozen |/__autograph_generated_file")
MOST_FRAMES = 6
"""The most frames of installed packages in a row that are shown."""


def reason(message: str) -> str:
    """The line that says why: of a graph's error the first one below its stacks, of a message of Keras or AutoGraph that wraps another
    one this one, else the whole message."""
    lines = message.splitlines()
    if message.startswith(_OF_KERAS):
        return next((line for line in lines[1:] if line.strip()), message)
    if message.startswith(_OF_AUTOGRAPH):
        last = next(line.strip() for line in reversed(lines) if line.strip())
        return _KIND.sub("", last, count=1)
    if not message.startswith(_HEAD):
        return message
    frames = [place for place, line in enumerate(lines) if _FRAME.fullmatch(line)]
    below = (line.strip() for line in lines[frames[-1] + 1 if frames else 1 :])
    return next((line for line in below if line and not line.startswith(("[[", "Detected at node"))), message)


def without_frames(lines: Sequence[str]) -> Sequence[str]:
    """The lines of a traceback without most frames of installed packages: of many in a row, and in the message of a graph's error."""
    lines = _without_rows(lines)
    head = next((place for place, line in enumerate(lines) if line.endswith(_HEAD)), len(lines))
    below = [line for line in lines[head + 1 :] if line.strip()]
    kept = [line for line in below if not _is_installed(line)]
    return [*lines[: head + 1], *kept] if kept != below else lines


def _is_installed(line: str) -> bool:
    frame = _FRAME.fullmatch(line)
    return frame is not None and _INSTALLED.search(frame["path"]) is not None


def _without_rows(lines: Sequence[str]) -> Sequence[str]:
    """The lines with the first and the last two of more than `MOST_FRAMES` frames of installed packages in a row."""
    starts = [place for place, line in enumerate(lines) if _FRAME.fullmatch(line)]
    ends = [_end_of(lines, start) for start in starts]
    kept, shown, at = list[str](), 0, 0
    while at < len(starts):
        last = at
        while last < len(starts) and _is_installed(lines[starts[last]]) and (last == at or ends[last - 1] == starts[last]):
            last += 1
        if last - at > MOST_FRAMES:
            kept += [*lines[shown : ends[at]], f"  … {last - at - 3} frames of installed packages"]
            shown = starts[last - 2]
        at = max(last, at + 1)
    return [*kept, *lines[shown:]] if shown else lines


def _end_of(lines: Sequence[str], start: int) -> int:
    """The line after a frame and its source."""
    return next((place for place in range(start + 1, len(lines)) if not lines[place].startswith("    ")), len(lines))
