"""What Keras's `fit`, `evaluate` and `predict` say of their progress: which lines of a task's output are theirs, whole and by their shape.

Workers that train in step say the same, each on its own: a view shows the chief's. The shapes are those of Keras 3 and of Keras 2, both
of which draw their bars into files as well (keras/src/utils/progbar.py and tf_keras/src/utils/generic_utils.py, `Progbar`)::

    Epoch 1/2
    16/16 ━━━━━━━━━━━━━━━━━━━━ 7s 352ms/step - loss: 0.5022 - val_loss: 0.3794       Keras 3
    20/20 - 1s - 29ms/step - loss: 0.2986                                            Keras 3, verbose=2
    16/16 [==============================] - 7s 304ms/step - loss: 0.5033            Keras 2
    20/20 - 0s - loss: 0.3188 - mae: 0.4698 - 449ms/epoch - 22ms/step                Keras 2, verbose=2

Pure: no I/O, no clock.
"""

from __future__ import annotations

import re

_COUNT = r" *\d+/(?:\d+|Unknown)"
_TIME = r"\d+(?:s|(?::\d\d){1,2})"
_EACH = r"\d+(?:s|ms|us)/"
_STEP = rf"{_EACH}(?:step|sample)"
_METRICS = r"(?: - [^:]+: (?:-?\d+\.\d{4}(?:e[+-]\d+)?|-?inf|nan))*"
_BAR = re.compile(
    rf"{_COUNT}(?:"
    rf"(?: [━=]+)? {_TIME} {_STEP}{_METRICS}"  # Keras 3; with "=" where the task's output is no UTF-8
    rf"|(?: \[[=>.]+\])? - (?:ETA: {_TIME}|{_TIME} {_STEP}){_METRICS}"  # Keras 2
    rf"| - {_TIME}(?: - {_STEP}{_METRICS}|{_METRICS} - {_EACH}epoch - {_STEP})"  # verbose=2
    r")(?P<rest>.*)",
    re.ASCII,
)
_EPOCH = re.compile(r"Epoch \d+/\d+", re.ASCII)
_SGR = re.compile(r"\x1b\[[0-9;:]*m")


class KerasBars:
    """Recognises the lines of progress in one stream of one task; fed in order.

    An ``Epoch 1/2`` is Keras's only if a bar follows, so it is held back until the next line. With verbose=2 that is written when the epoch
    ends.
    """

    __slots__ = ("count", "held")

    def __init__(self) -> None:
        self.count = 0
        """How many lines were progress so far."""
        self.held: list[str] = []
        """A line that the next one explains, if there is one."""

    def without(self, lines: list[str]) -> list[str]:
        """The other lines, in order; the same list object if all are. What the program has printed behind a bar is a line."""
        if not self.held and not any("/s" in line or "- ETA: " in line or line.startswith("Epoch ") for line in lines):
            return lines
        return [shown for line in lines for shown in self._shown(line)]

    def end(self) -> list[str]:
        """What is held back, since nothing follows."""
        held, self.held = self.held, []
        return held

    def _shown(self, line: str) -> list[str]:
        text = _SGR.sub("", line) if "\x1b" in line else line
        if _EPOCH.fullmatch(text):
            before, self.held = self.held, [line]
            return before
        found = _BAR.match(text)
        if found is None or found["rest"].startswith(" - "):
            return [*self.end(), line]
        self.count += 1 + len(self.end())
        rest = found["rest"].strip(" ")
        return [rest] if rest else []
