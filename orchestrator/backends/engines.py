"""Defines what the engines share (`Engine`): the command of a job, and how the files of a controller are reached that this machine does not
see."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from worker.values.fast_dataclass import dataclass

from ..errors import OrchError
from .connection.boot import BOOT

SILENCE_S = 60.0
"""How long a program on the controller's machine may take to answer, or to go on with its answer."""
READ_BYTES = 1 << 16
SAID_BYTES = 1 << 16
CONTROLLER = str(Path(__file__).parents[1] / "controller.py")


def controller_argv(directory: str, python: str = sys.executable, program: str = CONTROLLER) -> tuple[str, ...]:
    """The command of a job: the controller of the run in `directory`, which exits with the run's code.

    Started again in the same directory, as after a requeue, the controller goes on with the next attempt. SIGTERM ends the run, and gives
    the tasks the user's grace period.
    """
    return (python, program, directory, "--submitted")


@dataclass(frozen=True, slots=True)
class Channel:
    """The way to one controller whose run directory this machine does not see: how to run a program on the controller's machine."""

    prefix: tuple[str, ...]
    """A command that runs the words after it as they are, with this machine's stdin, stdout and stderr: ``kubectl exec -i POD --``."""
    directory: str
    """The directory of the run, there."""
    python: str = "python3"
    """An interpreter there; no module of orch is needed."""

    def exchange(self, program: str, verb: str, given: bytes) -> Iterator[bytes]:
        """Run a program's text there with the directory and `verb`, and return its output. Raises `OrchError` if it fails, or is silent."""
        # On stdin, because the words of a command may be part of a URL, which a proxy on the way limits (kubectl exec).
        first = f"import sys;sys.argv[1:]={[self.directory, verb]!a};exec({program!a})\n".encode("ascii")
        argv = (*self.prefix, self.python, "-c", BOOT)
        with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as said:  # files: neither side waits for the other
            stdin.write(first + given)
            stdin.seek(0)
            try:
                process = subprocess.Popen(argv, stdin=stdin, stdout=subprocess.PIPE, stderr=said)
            except OSError as error:
                raise OrchError(f"{argv[0]} cannot be run: {error.strerror or error}") from None
            try:
                yield from _read(process, argv[0])
            finally:
                process.kill()
                process.communicate()
            if process.returncode:
                said.seek(0)
                last = said.read(SAID_BYTES).decode(errors="replace").strip().rpartition("\n")[2]
                raise OrchError(f"the machine of the controller cannot be asked: {last or f'{argv[0]} ended with {process.returncode}'}")


def _read(process: subprocess.Popen[bytes], name: str) -> Iterator[bytes]:
    assert process.stdout is not None
    fd = process.stdout.fileno()
    while select.select((fd,), (), (), SILENCE_S)[0]:
        data = os.read(fd, READ_BYTES)
        if not data:
            try:
                process.wait(SILENCE_S)
            except subprocess.TimeoutExpired:
                break
            return
        yield data
    raise OrchError(f"the machine of the controller has not answered for {SILENCE_S:g} s ({name})")
