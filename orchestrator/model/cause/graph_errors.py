"""Errors of graphs: TensorFlow's message has the whole stack of the place where the operation was made, and the reason at its end. Pure.

Keras's message about a layer or a model has the reason in its second line and the arguments of the call below, and AutoGraph's about code
of the user has the reason below its frames. Each may wrap the other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from worker.values.words import count_of

from .peer_errors import CHAINED

_HEAD = "Graph execution error:"
_OF_KERAS = "Exception encountered when calling "
_OF_AUTOGRAPH = "in user code:"
_BEGINNING = re.compile(r"\A\s*(?:\x1b\[1m)?\s*")
"""What stands before a message inside of another one: Keras prints it bold."""
_FRAME = re.compile(r'  File "(?P<path>[^"]+)", line \d+, in .+')
_PLACE = re.compile(r'  File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<what>.+)')
_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib/python3[\d.]*/|<frozen |/__autograph_generated_file")
_OF_WRAPPER = re.compile(r"/traceback_utils\.py\", line \d+, in error_handler$")
MOST_FRAMES = 6
"""The most frames of installed packages in a row that are shown."""


def reason(message: str) -> str:
    """The line that says why: of a graph's error the first one below its stacks, of a message of Keras or AutoGraph that wraps another
    one the reason of this one, else the whole message."""
    lines = message.splitlines()
    if message.startswith(_OF_KERAS):
        return _wrapped(lines[1:]) or message
    if message.startswith(_OF_AUTOGRAPH):
        below = lines[lines.index("", 2) + 1 :] if "" in lines[2:] else []  # an empty line ends the frames
        said = "\n".join(line.removeprefix("    ") for line in below).partition(": ")[2]
        return _wrapped(said.splitlines()) or message
    if not message.startswith(_HEAD):
        return message
    frames = [place for place, line in enumerate(lines) if _FRAME.fullmatch(line)]
    below = [line.strip() for line in lines[_end_of(lines, frames[-1]) if frames else 1 :]]
    return next((line for line in below if line and not line.startswith(("[[", "Detected at node"))), message)


def _wrapped(lines: Sequence[str]) -> str:
    """The reason of a message inside of another one, in one line; empty if it has none."""
    message = _BEGINNING.sub("", "\n".join(lines))
    return reason(message).strip().partition("\n")[0]


def without_frames(lines: Sequence[str]) -> Sequence[str]:
    """The lines of tracebacks without most frames of installed packages: of many in a row, and in the message of a graph's error. And
    without those of Keras's wrapper, through which each call of a model goes."""
    lines = _without_rows(_without_wrappers(lines))
    for head in reversed([place for place, line in enumerate(lines) if line.endswith(_HEAD)]):
        end = next((place for place in range(head + 1, len(lines)) if lines[place] in CHAINED), len(lines))
        lines = [*lines[: head + 1], *_without_stacks(lines[head + 1 : end]), *lines[end:]]
    return lines


def _without_stacks(lines: Sequence[str]) -> Sequence[str]:
    """The lines below the head of a graph's error without the frames of installed packages, and without empty lines around the others."""
    ends = {place: _end_of(lines, place) for place, line in enumerate(lines) if _FRAME.fullmatch(line)}
    gone = {place for start, end in ends.items() if _is_installed(lines[start]) for place in range(start, end)}
    stacks = max(ends.values(), default=0)
    return [line for place, line in enumerate(lines) if place not in gone and (place > stacks or line.strip())] if gone else lines


def _is_installed(line: str) -> bool:
    frame = _FRAME.fullmatch(line)
    return frame is not None and _INSTALLED.search(frame["path"]) is not None


def _without_wrappers(lines: Sequence[str]) -> Sequence[str]:
    starts = [place for place, line in enumerate(lines) if _OF_WRAPPER.search(line)]
    gone = {place for start in starts for place in range(start, _end_of(lines, start))}
    return [line for place, line in enumerate(lines) if place not in gone] if gone else lines


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
            kept += [*lines[shown : ends[at]], _count(last - at - 3)]
            shown = starts[last - 2]
        at = max(last, at + 1)
    return [*kept, *lines[shown:]] if shown else lines


def of_user(lines: Sequence[str]) -> Sequence[str]:
    """A traceback with the user's frames and the last one: the frames of packages are counted. One without the user's stays whole."""
    lines = _without_wrappers(lines)
    starts = [place for place, line in enumerate(lines) if _FRAME.fullmatch(line)]
    if all(_is_installed(lines[start]) for start in starts):
        return without_frames(lines)
    kept, hidden, shown = list[str](), 0, 0
    for start in starts:
        end = _end_of(lines, start)
        is_last = end == len(lines) or not _FRAME.fullmatch(lines[end])
        if _is_installed(lines[start]) and not is_last:
            kept += lines[shown:start]
            hidden, shown = hidden + 1, end
            continue
        kept += [*lines[shown:start], *([_count(hidden)] if hidden else []), *lines[start:end]]
        hidden, shown = 0, end
    return [*kept, *([_count(hidden)] if hidden else []), *lines[shown:]]


def place_in(trace: str) -> str:
    """The innermost line of the user in a traceback: ``train.py:14 in evaluate: model.evaluate(x, y)``; empty: there is none."""
    lines, found = trace.splitlines(), ""
    for place, line in enumerate(lines):
        if (frame := _PLACE.fullmatch(line)) and not _is_installed(line):
            source = lines[place + 1].strip() if lines[place + 1 : place + 2] and lines[place + 1].startswith("    ") else ""
            if not source and found:  # the message of a graph's error has the same places again, without their lines
                continue
            found = f"{frame['path'].rpartition('/')[2]}:{frame['line']} in {frame['what']}{': ' if source else ''}{source}"
    return found


def without_arguments(lines: Sequence[str]) -> Sequence[str]:
    """A message without the arguments of the call, which Keras adds at its end, and without empty lines at the end."""
    end = next((place for place, line in enumerate(lines) if line.startswith("Arguments received by ")), len(lines))
    while 0 < end < len(lines) and not lines[end - 1].strip():
        end -= 1
    return lines[:end]


def _count(frames: int) -> str:
    return f"  … {count_of(frames, 'frame')} of installed packages"


def _end_of(lines: Sequence[str], start: int) -> int:
    return next((place for place in range(start + 1, len(lines)) if not lines[place].startswith("    ")), len(lines))
