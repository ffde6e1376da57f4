"""The batch script of a run: a typed value, and its text, which `--dry-run` prints and `sbatch` gets. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from worker.values.fast_dataclass import dataclass

from ...errors import UsageError
from ...model.settings import SlurmSettings
from ...model.settings.durations import seconds_of

NAME = "job.sbatch"
OUTPUT = "controller.log"
"""The file of the run's directory that gets the messages of the controller, and Slurm's own about the job."""
_AGAIN = """\
{command} &
trap 'kill "$!"' TERM
wait "$!"; code=$?
while kill -0 "$!" 2>/dev/null; do wait "$!"; code=$?; done
# 42: the tasks have saved, and the run continues when the job starts again.
[ "$code" = 42 ] && scontrol requeue "$SLURM_JOB_ID"
exit "$code"\
"""
_FLAGS = {"true": True, "false": False}
_OWN = ("partition", "account", "qos", "nodes", "ntasks", "ntasks_per_node", "cpus_per_task", "gpus_per_node", "gres", "mem", "time")


@dataclass(frozen=True, slots=True)
class BatchScript:
    name: str
    output: str
    """The path of the file for the output of the batch step."""
    command: tuple[str, ...]
    """The program of the batch step."""
    settings: SlurmSettings

    def text(self) -> str:
        """The script. Raises `UsageError` for a path that no script of Slurm's can have."""
        lines = ["#!/bin/sh", *(f"#SBATCH {option}" for option in self._options())]
        comment = "# The controller of one run of orch: it starts the tasks on the nodes (srun), and continues after a requeue."
        command = shlex.join(self.command)
        steps = _AGAIN.format(command=command) if self.settings.requeues else f"exec {command}"
        return "\n".join([*lines, comment, steps, ""])

    def _options(self) -> Iterator[str]:
        settings = self.settings
        yield f"--job-name={_quoted(self.name)}"
        for key in (*_OWN, "constraint"):
            value = getattr(settings, key)
            if key == "time":
                value = _job_time(value)
            if value not in (None, ""):
                yield f"--{key.replace('_', '-')}={_quoted(str(value))}"
        for name, text in settings.options.items():
            if _FLAGS.get(text, True):
                yield f"--{name}" if text in _FLAGS else f"--{name}={_quoted(text)}"
        yield f"--output={_quoted(self.output.replace('%', '%%'))}"
        yield "--open-mode=append"
        yield "--no-requeue" if settings.requeue == "no" else "--requeue"


def _job_time(text: str) -> str:
    """A limit with units as sbatch writes limits: ``2h30m`` is ``2:30:00``. Other limits stay as they are."""
    seconds = seconds_of(text) if re.search("[dhms]$", text) else None
    if seconds is None:
        return text
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _quoted(text: str) -> str:
    """A value for an #SBATCH line. Raises `UsageError`."""
    if "\n" in text or "\r" in text:
        raise UsageError(f"a batch script of Slurm cannot have a value with a line break: {text!r}")
    plain = all(character.isalnum() or character in "-_./:,=%+@&|*[]()" for character in text)
    if plain and not any(character in "&|*()" for character in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def sbatch_argv(file: str, options: Sequence[str] = ()) -> tuple[str, ...]:
    """The command that submits a script."""
    return ("sbatch", "--parsable", *options, file)
