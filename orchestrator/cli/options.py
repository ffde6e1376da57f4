"""The options that several commands have. The options for settings of a spec come from the declarations of the settings.

This module checks no setting: `spec_overlays` reads the values.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import click

from worker.values.fast_dataclass import dataclass
from worker.values.words import few

from ..errors import UsageError
from ..model.settings.durations import EXAMPLES, seconds_of
from ..model.settings.findings import nearest
from ..model.task_names import group_tasks
from ..sources import HOME, home_of_new_run
from ..sources import nearest as nearest_above
from . import completion
from .option_lines import IN_ONE_LINE, SETTINGS_ALONE
from .script_command import OPTIONS

if TYPE_CHECKING:  # not for a help text
    from ..record.run_directory import RunDir

SET = "Set any key of orch.yaml, for example restart.max=3. May be repeated."
HOSTFILE = "Run on the hosts in this file. Its lines are HOST slots=N, or HOST:N."
FILE = "Read the settings from this file. [default: orch.yaml, if this file exists]"
VARIABLE = "Set an environment variable of the tasks. NAME alone copies it from the shell that starts orch. May be repeated."

_HOME: dict[str, Any] = {"envvar": "ORCH_HOME", "metavar": "DIR", "shell_complete": completion.directories}

F = TypeVar("F", bound=Callable[..., Any])


def spec_options(command: F, keys: Sequence[str] = ()) -> F:
    """The options and the argument that describe a run: SCRIPT, ``-f``, ``--set``, ``--env``, and the option of each setting.

    `keys`: the keys of orch.yaml that matter to the command: its help text leaves out the options of other keys. Empty: all matter.
    """
    for option in reversed(OPTIONS):
        is_of_keys = any(f"{option.path}.".startswith(f"{key}.") for key in keys)
        if option.name in SETTINGS_ALONE and not is_of_keys:
            continue
        is_hidden = not is_of_keys if keys else option.name in IN_ONE_LINE
        settings: dict[str, Any] = {"help": option.help, "hidden": is_hidden, "envvar": option.variable, "multiple": option.adds_up}
        name = f"{option.name}/--no-{option.name[2:]}" if option.says else option.name
        settings |= {"default": None} if option.says else {"metavar": option.metavar}
        if option.path == "checkpoints.resume":
            settings["shell_complete"] = completion.runs
        if option.choices:
            settings["shell_complete"] = completion.one_of(option.choices)
        command = click.option(*filter(None, (option.short, name)), option.parameter, **settings)(command)
    has_program = not keys or "defaults.env" in keys
    decorators = (
        click.option("--set", "assignments", multiple=True, metavar="KEY.PATH=VALUE", help=SET, shell_complete=completion.assignments),
        click.option(
            "--env",
            "variables",
            multiple=True,
            metavar="NAME[=VALUE]",
            help=VARIABLE,
            hidden=not has_program,
            shell_complete=completion.variables,
        ),
        click.option(
            "--hostfile", envvar="ORCH_HOSTFILE", metavar="FILE", help=HOSTFILE, hidden=bool(keys), shell_complete=completion.files
        ),
        click.option("--no-python", is_flag=True, help="Run SCRIPT as a program, not as a Python file.", hidden=bool(keys)),
        click.option("-f", "--file", envvar="ORCH_FILE", metavar="FILE", help=FILE, shell_complete=completion.files),
        click.argument("script", required=False, shell_complete=completion.files),
    )
    for decorate in decorators:
        command = decorate(command)
    return command


def home_option(command: F) -> F:
    """``--home``: the directory of the runs, as an absolute path."""
    text = "The directory of all runs. [default: .orch here, or in the nearest directory above that has one]"
    return click.option("--home", "home", callback=_existing_home, **_HOME, help=text)(command)


def new_home_option(command: F) -> F:
    """``--home`` of a command that makes a run: a run is kept next to the orch.yaml that it is made of."""
    text = "The directory of all runs. [default: .orch next to orch.yaml, or here if there is no orch.yaml; -f does not count]"
    return click.option("--home", "home", callback=_new_home, **_HOME, help=text)(command)


def run_argument(command: F) -> F:
    """RUN (default: the latest) and ``--home``, for a command that only looks: it gets the `RunDir` that `find_to_look` finds."""

    return _run_argument(command, find_and_name_others)


def exact_run_argument(command: F) -> F:
    """RUN (default: the latest) and ``--home``, for a command that acts on the run: several runs that begin as RUN are a mistake."""

    def find_exactly(home: Path, name: str | None) -> RunDir:
        from ..control.engine_jobs import find  # not for a help text

        return find(home, name)

    return _run_argument(command, find_exactly)


def _run_argument(command: F, find: Callable[[Path, str | None], RunDir]) -> F:
    @functools.wraps(command)
    def with_run(*, run: str | None, home: Path, **given: Any) -> Any:
        return command(run=find(home, run), **given)

    return cast("F", click.argument("run", required=False, shell_complete=completion.runs)(home_option(with_run)))


def find_and_name_others(home: Path, name: str | None) -> RunDir:
    """`find_to_look`; where no one has named a run, and the latest has ended, orch names those that go on."""
    from ..record.run_store import going

    run = find_to_look(home, name)
    if name is None and not run.is_alive() and (others := going(home)):
        click.echo(f"orch: note: {run.run_id} has ended, and others go on, which can be named here: {few(others)}", err=True)
    return run


def find_to_look(home: Path, name: str | None) -> RunDir:
    """The run that `name` names, or of several that begin so the newest, which orch prints. Raises `UsageError`."""
    from ..control.engine_jobs import attach, find  # not for a help text
    from ..record.run_store import SeveralRunsError

    try:
        return find(home, name)
    except SeveralRunsError as error:
        newest = attach(error.runs[-1])
        click.echo(f"orch: note: {len(error.runs)} runs begin with {name!r}; this is the newest, {newest.run_id}", err=True)
        return newest


class Span(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """A span of time: a number of seconds, or a text with units."""

    name = "time"

    def __init__(self, least: float = 0.0, most: float = math.inf, *, has_unit: bool = False) -> None:
        self._least, self._most, self._has_unit = least, most, has_unit
        """`has_unit`: a number alone is refused, as it could mean days."""

    def convert(self, value: Any, parameter: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):  # a default
            return value
        if self._has_unit and value.replace(".", "", 1).isdigit():
            self.fail(f"{value!r} has no unit: {value}d are days, {value}h hours", parameter, ctx)
        found = seconds_of(value)
        if found is None:
            try:
                found = float(value)
            except ValueError:
                found = math.nan
        if not math.isfinite(found):
            self.fail(f"{value!r} is not a time; write seconds, or a time with units: {EXAMPLES}", parameter, ctx)
        if not self._least <= found <= self._most:
            limits = f"at least {self._least:g}" + (f" and at most {self._most:g}" if self._most < math.inf else "")
            self.fail(f"{value!r} must be {limits} seconds", parameter, ctx)
        return found


class Count(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """A whole number, of at least `least` and at most `most`. The help text has no range, as it has with Click's own type."""

    name = "integer"

    def __init__(self, least: int = 0, most: int | None = None) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, parameter: click.Parameter | None, ctx: click.Context | None) -> int:
        found = None
        with contextlib.suppress(ValueError):
            found = int(value)
        if found is None or found < self._least or (self._most is not None and found > self._most):
            limits = f"at least {self._least:,}" + (f" and at most {self._most:,}" if self._most is not None else "")
            self.fail(f"{value!r} must be a whole number, {limits}", parameter, ctx)
        return found


def import_timeout_option(what: str) -> Callable[[F], F]:
    """``--import-timeout``: the longest that `what` may take, in seconds."""
    text = f"The longest that {what} may take, in seconds or as 2m. [default: 120]"
    return click.option("--import-timeout", type=Span(1, 86400), default=120.0, metavar="TIME", help=text)


def _existing_home(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Path:
    return _absolute(value if value is not None else str(nearest_above(HOME) or HOME))


def _new_home(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Path:
    return _absolute(value if value is not None else home_of_new_run(ctx.params.get("file")))


def _absolute(value: str) -> Path:
    if not value:  # this would be the working directory
        raise UsageError("--home: must not be empty; leave it out to keep runs in .orch")
    return Path(os.path.abspath(value))


@dataclass(frozen=True, slots=True)
class ViewOptions:
    only: tuple[str, ...]
    quiet: bool
    timestamps: bool
    color: Literal["auto", "always", "never"]
    everything: bool

    @classmethod
    def of(cls, ctx: click.Context) -> ViewOptions:
        return cls(**{field.name: ctx.params[field.name] for field in fields(cls)})


def view_options(command: F) -> F:
    """``--only --quiet --timestamps``, and `color_options`; see `ViewOptions`."""
    times = "Print the time at the beginning of each line."
    decorators = (
        click.option("--only", multiple=True, metavar="TASK", help="Show only the output of this task. May be repeated."),
        click.option("-q", "--quiet", envvar="ORCH_QUIET", is_flag=True, help="Show only the result, and no output of the tasks."),
        click.option("--timestamps", is_flag=True, hidden=True, help=times),
        color_options,
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def metavar(choice: click.Choice) -> str:  # type: ignore[type-arg]  # generic since click 8.2
    """The words of a choice as the help texts of settings have them, without Click's brackets."""
    return "|".join(choice.choices)


def color_options(command: F) -> F:
    """``--color --all``."""
    text = "Also show TensorFlow's own messages, and the progress bars of every task."
    return color_option(click.option("--all", "everything", is_flag=True, help=text)(command))


def color_option(command: F) -> F:
    """``--color``."""
    choices, text = click.Choice(["auto", "always", "never"]), "Use colours: auto (on a terminal), always or never. [default: auto]"
    return click.option("--color", envvar="ORCH_COLOR", type=choices, default="auto", metavar=metavar(choices), help=text)(command)


def only_tasks(names: Sequence[str], known: Sequence[str]) -> set[str] | None:
    """The tasks with these names or types; None (all) without names. Raises `UsageError`."""
    if not names:
        return None
    found: set[str] = set()
    for name in names:
        matching = [task for task in known if name in (task, task.rpartition("-")[0])]
        if not matching:
            near = nearest(name, known)
            has_type = any(task.rpartition("-")[0] == name.rpartition("-")[0] for task in known)  # the number is wrong
            raise UsageError(
                f"there is no task {name!r}; " + (f"did you mean {near!r}?" if near and not has_type else f"tasks: {group_tasks(known)}")
            )
        found.update(matching)
    return found
