"""The options that several commands have. The options for settings of a spec come from the declarations of the settings.

This module checks no setting: `spec_overlays` reads the values.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from ..errors import UsageError
from ..model.spec.describe import options
from ..model.spec.findings import nearest
from ..model.task_names import group_tasks

SET = "Set any key of orch.yaml, for example restart.max=3. May be repeated."
HOSTFILE = "Run on the hosts in this file. Its lines are HOST slots=N, or HOST:N."
FILE = "Read the settings from this file. Default: orch.yaml, if this file exists."
VARIABLE = "Set an environment variable of the tasks. NAME alone copies the variable from the shell that starts orch. May be repeated."

F = TypeVar("F", bound=Callable[..., Any])

OPTIONS = options()

GROUPS = {
    "What runs": (
        *("script", "module", "command", "python", "workdir", "defaults.env", "prepare", "keras", "serve", "name"),
        *("file", "no_python", "variables", "assignments"),
    ),
    "The cluster": ("strategy", "tasks", "tpu"),
    "Devices": ("defaults.devices",),
    "Input": ("input",),
    "Limits and restarts": ("timeouts", "restart"),
    "Where the tasks run": ("backend", "ports", "hostfile"),
    "Output": ("defaults.log_level", "home", "only", "quiet", "verbose", "timestamps", "color", "everything", "as_json"),
}
"""The headings of a help text. Below each: keys of orch.yaml, and parameters of options that are no settings."""
OTHERS = "This command"


def _heading(parameter: str) -> str:
    """The heading of an option."""
    path = next((option.path for option in OPTIONS if option.parameter == parameter), parameter)
    found = (heading for heading, keys in GROUPS.items() for key in keys if f"{path}.".startswith(f"{key}."))
    return next(found, OTHERS)


class ScriptCommand(click.Command):
    """A command whose words after ``--`` are arguments of the script. Its help text has the options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (*GROUPS, OTHERS)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                groups[_heading(parameter.name or "")].append(record)
        for heading, rows in groups.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["orch.script_args"] = None
        if "--" in args:
            split = args.index("--")
            ctx.meta["orch.script_args"] = args[split + 1 :]
            args = args[:split]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            near = f": did you mean {error.possibilities[0]}?" if error.possibilities else "."
            own = f"An option of the script itself goes after --: orch {self.name} SCRIPT -- {error.option_name}"
            raise click.UsageError(f"there is no option {error.option_name}{near}\n{own}", ctx) from None
        except click.UsageError as error:
            if "unexpected extra argument" in error.message:
                raise click.UsageError(f"{error.message.rstrip('.')}; the script's own arguments go after --", ctx) from None
            raise


def spec_options(command: F, keys: Sequence[str] = ()) -> F:
    """The options and the argument that describe a run: SCRIPT, ``-f``, ``--set``, ``--env``, and the option of each setting.

    `keys`: the keys of orch.yaml that matter to the command: its help text leaves out the options of other keys. Empty: all matter.
    """
    for option in reversed(OPTIONS):
        is_hidden = bool(keys) and option.path.partition(".")[0] not in keys
        settings: dict[str, Any] = {"help": option.help, "hidden": is_hidden, "envvar": option.variable, "multiple": option.adds_up}
        name = f"{option.name}/--no-{option.name[2:]}" if option.says else option.name
        settings |= {"default": None} if option.says else {"metavar": option.metavar}
        command = click.option(*filter(None, (option.short, name)), option.parameter, **settings)(command)
    decorators = (
        click.option("--set", "assignments", multiple=True, metavar="KEY.PATH=VALUE", help=SET),
        click.option("--env", "variables", multiple=True, metavar="NAME[=VALUE]", help=VARIABLE, hidden=bool(keys)),
        click.option("--hostfile", envvar="ORCH_HOSTFILE", metavar="FILE", help=HOSTFILE, hidden=bool(keys)),
        click.option("--no-python", is_flag=True, help="Run SCRIPT as a program, not as a Python file.", hidden=bool(keys)),
        click.option("-f", "--file", envvar="ORCH_FILE", metavar="FILE", help=FILE),
        click.argument("script", required=False),
    )
    for decorate in decorators:
        command = decorate(command)
    return command


def home_option(command: F) -> F:
    """``--run-dir``: the directory of the runs, as an absolute path."""
    text = "The directory that holds the runs. Default: .orch in the directory where orch is started, whatever --workdir or -f says."
    options: dict[str, Any] = {"envvar": "ORCH_HOME", "default": ".orch", "metavar": "DIR", "help": text}
    return click.option("--run-dir", "home", callback=_absolute, **options)(command)


def run_argument(command: F) -> F:
    """RUN (default: the latest) and ``--run-dir``: the command gets the `RunDir`."""

    @functools.wraps(command)
    def find(*, run: str | None, home: Path, **given: Any) -> Any:
        from ..record.storage.run_store import find_run  # not for a help text

        return command(run=find_run(home, run), **given)

    return cast("F", click.argument("run", required=False)(home_option(find)))


def import_timeout_option(what: str) -> Callable[[F], F]:
    """``--import-timeout``: the most seconds that `what` may take."""
    text = f"The most seconds that {what} may take. Default: 120."
    return click.option("--import-timeout", type=click.FloatRange(1, 86400), callback=not_nan, default=120.0, metavar="S", help=text)


def not_nan(ctx: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Refuses NaN as a number of seconds: NaN passes click's ranges."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("'nan' is not a number of seconds", ctx, parameter)
    return value


def _absolute(ctx: click.Context, parameter: click.Parameter, value: str) -> Path:
    if not value:  # this would be the working directory
        raise UsageError("--run-dir: must not be empty; leave it out to keep runs in .orch")
    return Path(os.path.abspath(value))


def view_options(command: F) -> F:
    """``--only --quiet --timestamps``, and `color_options`."""
    slowest = "Print at the end which phase of the start was the slowest."
    decorators = (
        click.option("--only", multiple=True, metavar="TASK", help="Show only the output of this task. May be repeated."),
        click.option("-q", "--quiet", envvar="ORCH_QUIET", is_flag=True, help="Show only the verdict, and no output of the tasks."),
        click.option("-v", "--verbose", is_flag=True, envvar="ORCH_VERBOSE", help=slowest),
        click.option("--timestamps", envvar="ORCH_TIMESTAMPS", is_flag=True, help="Print the time at the beginning of each line."),
        color_options,
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def color_options(command: F) -> F:
    """``--color --all``."""
    text = "Show also TensorFlow's own messages, and the progress bars of every task."
    return color_option(click.option("--all", "everything", is_flag=True, help=text)(command))


def color_option(command: F) -> F:
    """``--color``."""
    choices, text = click.Choice(["auto", "always", "never"]), "Use colours: auto (on a terminal), always or never."
    return click.option("--color", envvar="ORCH_COLOR", type=choices, default="auto", help=text)(command)


def only_tasks(names: Sequence[str], known: Sequence[str]) -> set[str] | None:
    """The tasks with these names or types; None (all) without names. Raises `UsageError`."""
    if not names:
        return None
    found: set[str] = set()
    for name in names:
        matching = [task for task in known if name in (task, task.rpartition("-")[0])]
        if not matching:
            near = nearest(name, known)
            raise UsageError(f"there is no task {name!r}; " + (f"did you mean {near!r}?" if near else f"tasks: {group_tasks(known)}"))
        found.update(matching)
    return found
