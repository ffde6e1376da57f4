"""What the engines share (`Engine`): the command of a job, and how the files of a controller are reached that this machine does not see."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from worker.values.fast_dataclass import dataclass

CONTROLLER = str(Path(__file__).parents[1] / "controller.py")


def controller_argv(directory: str, python: str = sys.executable, program: str = CONTROLLER) -> tuple[str, ...]:
    """The command of a job: the controller of the run in `directory`, which exits with the run's code.

    Started again in the same directory, as after a requeue, the controller goes on with the next attempt. SIGTERM ends the run, and gives
    the tasks the user's grace period.
    """
    return (python, program, directory, "--submitted")


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of a file of a run, for the mirror of its directory (record/storage/mirror.py)."""

    path: str
    """Relative to the directory of the run."""
    stamp: int
    """Of a file that only grows: where the bytes begin. Of a file that is replaced as a whole: its time in ns; -1: it is gone."""
    data: bytes = b""


class Channel(Protocol):
    """The way to one controller, whose run directory this machine does not see."""

    def deliver(self, line: bytes) -> None:
        """Append a line to the file `requests` in the directory of the controller. Raises `OrchError`."""
        ...

    def fetch(self, have: Mapping[str, int]) -> Iterator[Piece]:
        """Run `mirror_argv` beside the controller, with `have` as its input, and return its output. Raises `OrchError`.

        `have`: the files that are here, with their stamps (`Piece.stamp`; of a file that only grows, its size).
        """
        ...
