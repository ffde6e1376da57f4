"""Statements that are to fail, each in a fork of this process, so that what one of them leaves behind does not reach the next."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

from worker.task import failure


def run(statements: list[str], directory: str, **names: Any) -> None:
    """Execute each statement in ``directory/NUMBER``, where its output is ``out``, and its error ``error.json``.

    `names`: what the statements find, besides `tf` and `os`.
    """
    for number, statement in enumerate(statements):
        place = Path(directory, str(number))
        (place / "d").mkdir(parents=True)
        child = os.fork()
        if child == 0:
            os.chdir(place)
            os.dup2(os.open("out", os.O_WRONLY | os.O_CREAT), 1)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            try:
                exec(statement, {"tf": tf, "os": os, **names})
            except BaseException as error:
                failure.record(error, str(place))
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
