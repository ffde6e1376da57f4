"""Recognises the progress lines of Keras's `fit`, `evaluate` and `predict` in the output of a task, by their shape.

Workers that train in step print the same lines; a view shows the chief's only. Keras draws its bars into files too
(keras/src/utils/progbar.py and tf_keras/src/utils/generic_utils.py, `Progbar`)::

    Epoch 1/2
    16/16 ━━━━━━━━━━━━━━━━━━━━ 7s 352ms/step - loss: 0.5022 - val_loss: 0.3794       Keras 3
    20/20 - 1s - 29ms/step - loss: 0.2986                                            Keras 3, verbose=2
    16/16 [==============================] - 7s 304ms/step - loss: 0.5033            Keras 2
    20/20 - 0s - loss: 0.3188 - mae: 0.4698 - 449ms/epoch - 22ms/step                Keras 2, verbose=2

Pure: no I/O, no clock.
"""

from __future__ import annotations

import re

from .lines import strip_colors

_COUNT = r" *\d+/(?:\d+|Unknown)"
_TIME = r"\d+(?:s|(?::\d\d){1,2})"
_EACH = r"\d+(?:s|ms|us)/"
_STEP = rf"{_EACH}(?:step|sample)"
_METRICS = r"(?: - [^:]+: (?:-?\d+\.\d{4}(?:e[+-]\d+)?|-?inf|nan))*"
_BAR = re.compile(
    rf"{_COUNT}(?:"
    rf"(?: [━=]+)? {_TIME} {_STEP}{_METRICS}"  # Keras 3; with "=" if the output of the task is not UTF-8
    rf"|(?: \[[=>.]+\])? - (?:ETA: {_TIME}|{_TIME} {_STEP}){_METRICS}"  # Keras 2
    rf"| - {_TIME}(?: - {_STEP}{_METRICS}|{_METRICS} - {_EACH}epoch - {_STEP})"  # verbose=2
    r")(?P<rest>.*)",
    re.ASCII,
)
_EPOCH = re.compile(r"Epoch \d+/\d+", re.ASCII)


def without_bars(lines: list[str]) -> list[str]:
    """The lines without progress, in order; the same list object if none is progress. Text of the program behind a bar is a line."""
    if not any("/s" in line or "- ETA: " in line or line.startswith("Epoch ") for line in lines):
        return lines
    shown = []
    for line in lines:
        text = strip_colors(line)
        found = _BAR.match(text)
        if not _EPOCH.fullmatch(text) and (found is None or found["rest"].startswith(" - ")):
            shown.append(line)
        elif found and (rest := found["rest"].strip(" ")):
            shown.append(rest)
    return shown
