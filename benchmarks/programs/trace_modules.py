"""Run a Python program and note each of its own modules when a function of that module is first called.

``python trace_modules.py NOTES TREE PYTHON -I some/file.py ARGS`` stands for ``PYTHON -I some/file.py ARGS``. PYTHON is the wrapper
script that calls this program, so that whatever the program starts with `sys.executable` is noted too. NOTES gets a line for each
module of TREE: ``seconds path``.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time
from types import FrameType
from typing import Any


def note_modules(notes: str, tree: str) -> None:
    """Append the time and the path of each file below `tree` to the file `notes`, at the first call of one of its functions."""
    fd = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    seen: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_name == "<module>" or code.co_filename in seen or not code.co_filename.startswith(tree):
            return
        seen.add(code.co_filename)
        os.write(fd, f"{time.time()!r} {code.co_filename}\n".encode())

    threading.setprofile(note)
    sys.setprofile(note)


def main() -> None:
    notes, tree, python, *words = sys.argv[1:]
    while words and words[0] in ("-I", "-u", "-P"):
        words.pop(0)
    if not words or words[0].startswith("-"):  # -c, -m and the like are not the program's own
        os.execv(sys.executable, [sys.executable, *sys.argv[4:]])
    sys.executable, sys.argv = python, words
    sys.path[0] = os.path.dirname(words[0])
    note_modules(notes, tree)
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
