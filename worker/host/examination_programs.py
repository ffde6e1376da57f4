"""The programs that examine a host for `orch doctor`: machine_survey.py for the machine, task/examine.py for the interpreter of the tasks.

Each program is a process of its own, with limits of time and output, because it may hang, die, or be no Python at all.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable

from ..protocol.messages import Examine, ProgramEnded
from .processes.async_subprocess import Question
from .processes.loop import Loop

SURVEY_S = 60.0
ANSWER_S = 20.0
"""How long an interpreter may take besides the import of TensorFlow."""
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def begin(loop: Loop, order: Examine, on_ended: Callable[[ProgramEnded], None]) -> Question:
    """Start the program. `on_ended` is called once, unless the question is ended before."""
    if order.what == "machine":
        # The agent's own interpreter: the machine is examined even if the interpreter of the tasks is broken.
        words = json.dumps({"run_dir": order.run_dir or tempfile.gettempdir(), "ports": order.ports})
        argv = [sys.executable, "-I", os.path.join(_ROOT, "host", "start_agent.py"), "facts.machine_survey", words]
        return Question(loop, argv, os.environ, SURVEY_S, on_ended)
    argv = [order.program or sys.executable, os.path.join(_ROOT, "task", "examine.py"), str(order.import_s)]
    return Question(loop, argv, {**os.environ, **order.env}, order.import_s + ANSWER_S, on_ended)
