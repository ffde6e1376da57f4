"""A system clock that is set while processes run. The machine's own is left alone: `time.time` jumps, in every Python process."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

_JUMP = """
import os, time
if not hasattr(time, "real"):  # a task of a clock's python has PYTHONPATH, too
    time.real = time.time
    def jumped():
        return time.real() + (float(os.environ["JUMP_S"]) if os.path.exists(os.environ["JUMP_FILE"]) else 0.0)
    time.time = jumped
"""


class Clock:
    """`seconds`: how far it is set, once `jump` exists. `env` is for the controller, which takes the patch from PYTHONPATH.

    An agent is isolated from that; `python` is an interpreter whose own directory has it, with all packages of ours.
    """

    def __init__(self, directory: Path, seconds: float) -> None:
        self.jump = directory / "jump"
        (directory / "patched").mkdir()
        (directory / "patched" / "sitecustomize.py").write_text(_JUMP)
        venv.create(directory / "env")
        (packages,) = (directory / "env" / "lib").glob("python*/site-packages")
        (packages / "jump.py").write_text(_JUMP)
        (packages / "jump.pth").write_text("\n".join(["import jump", *(path for path in sys.path if path.endswith("-packages"))]) + "\n")
        self.python = directory / "env" / "bin" / "python"
        self.path = str(directory / "patched")
        self.env = {"JUMP_S": str(seconds), "JUMP_FILE": str(self.jump)}
