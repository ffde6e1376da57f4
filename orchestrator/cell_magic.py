"""``%load_ext orchestrator``: the cell magic ``%%orch``, which runs the text of its cell in a cluster, as `orch up` runs a script."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile

from worker.machine.own_process import set_parent_death_signal

from .errors import OrchError, UsageError


def run_cell(line: str, cell: str) -> None:
    """``%%orch -n 2 -- --epochs 3``: the options of `orch up`, then the arguments of the cell. The variables of the notebook are not there.

    The stop button ends the run as Ctrl-C does. Raises `OrchError` if the run fails.
    """
    words = shlex.split(line)
    if {"-d", "--detach"} & {*words[: [*words, "--"].index("--")]}:
        raise UsageError("%%orch shows the run until its end, and then removes its file: leave -d out\nfix: orch up notebook.ipynb -d")
    with tempfile.NamedTemporaryFile("w", suffix=".ipynb", prefix=".orch-cell-", dir=os.getcwd()) as file:
        # With the first line: the numbers of lines are those of the cell.
        json.dump({"cells": [{"cell_type": "code", "source": f"%%orch\n{cell}"}]}, file)
        file.flush()
        words = ["up", "--name", "cell", file.name, *words]
        if "tensorflow" in sys.modules:
            from .api import warn_of_held_gpus
            from .cli.commands.up_command import up_command
            from .cli.spec_overlays import read_spec

            with contextlib.suppress(Exception):  # the run itself tells of mistakes
                warn_of_held_gpus(read_spec(up_command.make_context(words[0], words[1:]))[0])
        if code := _follow([sys.executable, "-m", "orchestrator", *words]):
            raise OrchError(f"the run of the cell has ended with exit code {code}, as its last lines say")


def _follow(command: list[str]) -> int:
    """Run a command and show its output. A KeyboardInterrupt is sent on as SIGINT, in a session that gets no other one."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=lambda: set_parent_death_signal(signal.SIGTERM),  # the kernel of the notebook may be killed
    ) as process:
        assert process.stdout is not None
        while True:
            try:
                for text in process.stdout:
                    print(text, end="", flush=True)
                return process.wait()
            except KeyboardInterrupt:
                process.send_signal(signal.SIGINT)  # a second time: at once
