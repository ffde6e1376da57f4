"""The options of `orch up` and `orch logs` that say how a run is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from ..errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


def view_options(command: F) -> F:
    """``--only --quiet --timestamps``, and `color_options`."""
    decorators = (
        click.option("--only", multiple=True, metavar="TASK", help="Show only the output of this task. May be repeated."),
        click.option("-q", "--quiet", envvar="ORCH_QUIET", is_flag=True, help="Show only the verdict, and no output of the tasks."),
        click.option(
            "-v", "--verbose", is_flag=True, envvar="ORCH_VERBOSE", help="Print at the end which phase of the start was the slowest."
        ),
        click.option("--timestamps", envvar="ORCH_TIMESTAMPS", is_flag=True, help="Print the time at the beginning of each line."),
        color_options,
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def color_options(command: F) -> F:
    """``--color --all``."""
    everything = click.option(
        "--all", "everything", is_flag=True, help="Show also TensorFlow's own messages, and the progress bars of every task."
    )
    return color_option(everything(command))


def color_option(command: F) -> F:
    """``--color``."""
    choices = click.Choice(["auto", "always", "never"])
    return click.option(
        "--color", envvar="ORCH_COLOR", type=choices, default="auto", help="Use colours: auto (on a terminal), always or never."
    )(command)


def only_tasks(names: Sequence[str], known: Sequence[str]) -> set[str] | None:
    """The tasks that are asked for; None: all. A type stands for all of its tasks. Raises `UsageError`."""
    if not names:
        return None
    found: set[str] = set()
    for name in names:
        matching = [task for task in known if name in (task, task.rpartition("-")[0])]
        if not matching:
            raise UsageError(f"there is no task {name!r}{_nearest(name, known)}")
        found.update(matching)
    return found


def _nearest(name: str, known: Sequence[str]) -> str:
    import difflib

    from ..model.run.readiness import group_tasks

    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; tasks: {group_tasks(known)}"
