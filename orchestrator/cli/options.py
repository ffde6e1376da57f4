"""The options that several commands take. Those that say something of a spec come from the declarations of its settings.

Nothing of a spec is checked here: what the options mean is read by `settings`.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from ..errors import UsageError
from ..model.spec.describe import options

VARIABLE = "Set an environment variable of the tasks. NAME alone copies the variable from the shell that starts orch. May be repeated."

F = TypeVar("F", bound=Callable[..., Any])


OPTIONS = options()


GROUPS = {
    "What runs": ("script", "module", "command", "python", "workdir", "defaults.env", "prepare", "keras", "serve", "name"),
    "The cluster": ("strategy", "tasks", "tpu"),
    "Devices": ("defaults.devices",),
    "Input": ("input",),
    "Limits and restarts": ("timeouts", "restart"),
    "Where the tasks run": ("backend", "ports"),
    "Output": ("defaults.log_level",),
}
"""The headings of the settings in a help text, each with the keys of orch.yaml that stand below it. A setting without a heading of its own
stands below `OTHER_SETTINGS`."""
OTHER_SETTINGS = "Other settings"
HELPERS = {
    "file": "What runs",
    "no_python": "What runs",
    "variables": "What runs",
    "assignments": "What runs",
    "hostfile": "Where the tasks run",
    **dict.fromkeys(("home", "only", "quiet", "verbose", "timestamps", "color", "everything", "as_json"), "Output"),
}
"""Options that are no settings of their own, and the headings that they belong to. All others are about the command itself."""


def _heading(parameter: str) -> str:
    """The heading that an option stands below; empty for one that is about the command itself and not about the run."""
    if parameter in HELPERS:
        return HELPERS[parameter]
    path = next((option.path for option in OPTIONS if option.parameter == parameter), "")
    found = (heading for heading, keys in GROUPS.items() for key in keys if f"{path}.".startswith(f"{key}."))
    return next(found, OTHER_SETTINGS if path else "")


class ScriptCommand(click.Command):
    """A command whose words after ``--`` are the script's and are not looked at. Its help text has the options in groups.

    `reads`: the keys of orch.yaml that matter to the command. Its help text leaves out the options of other keys. Empty: all matter.
    """

    def __init__(self, *given: Any, reads: tuple[str, ...] = (), **more: Any) -> None:
        super().__init__(*given, **more)
        self._reads = reads

    def _matters(self, parameter: str) -> bool:
        path = next((option.path for option in OPTIONS if option.parameter == parameter), "")
        if not self._reads:
            return True
        return path.partition(".")[0] in self._reads if path else parameter not in ("no_python", "variables", "hostfile")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (*GROUPS, OTHER_SETTINGS, "")}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None and self._matters(parameter.name or ""):
                groups[_heading(parameter.name or "")].append(record)
        for heading, rows in groups.items():
            if rows:
                with formatter.section(heading or "This command"):
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


def _join(ctx: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> str | None:
    return ",".join(texts) if texts else None


def spec_options(command: F) -> F:
    """Everything that says what to run: SCRIPT, ``-f``, ``--set``, ``--env`` and an option for each setting that has one."""
    for option in reversed(OPTIONS):
        settings: dict[str, Any] = {"help": option.help}
        if not option.says:
            settings["metavar"] = option.metavar
            if option.adds_up:
                settings |= {"multiple": True, "callback": _join}
        else:
            settings |= {"is_flag": True, "flag_value": option.says, "default": None}
        command = click.option(*filter(None, (option.short, option.name)), option.parameter, **settings)(command)
    decorators = (
        click.option(
            "--set",
            "assignments",
            multiple=True,
            metavar="KEY.PATH=VALUE",
            help="Set any key of orch.yaml, for example restart.max=3. May be repeated.",
        ),
        click.option("--env", "variables", multiple=True, metavar="NAME[=VALUE]", help=VARIABLE),
        click.option(
            "--hostfile",
            "hostfile",
            envvar="ORCH_HOSTFILE",
            metavar="FILE",
            help="Run on the hosts in this file. Its lines are HOST slots=N, or HOST:N.",
        ),
        click.option("--no-python", "no_python", is_flag=True, help="Run SCRIPT as a program, not as a Python file."),
        click.option(
            "-f",
            "--file",
            "file",
            envvar="ORCH_FILE",
            metavar="FILE",
            help="Read the settings from this file. Default: orch.yaml, if this file exists.",
        ),
        click.argument("script", required=False),
    )
    for decorate in decorators:
        command = decorate(command)
    return command


def home_option(command: F) -> F:
    """``--run-dir``: where runs are kept, an absolute path."""
    text = "The directory that holds the runs. Default: .orch in the directory where orch is started, whatever --workdir or -f says."
    options: dict[str, Any] = {"envvar": "ORCH_HOME", "default": ".orch", "metavar": "DIR", "help": text}
    return click.option("--run-dir", "home", callback=_absolute, **options)(command)


def run_argument(command: F) -> F:
    """RUN, the latest if it is left out, below ``--run-dir``: the command is given its `RunDir`."""

    @functools.wraps(command)
    def find(*, run: str | None, home: Path, **given: Any) -> Any:
        from ..record.storage.run_store import find_run  # only now: a help text needs none of it

        return command(run=find_run(home, run), **given)

    return cast("F", click.argument("run", required=False)(home_option(find)))


def import_timeout_option(what: str) -> Callable[[F], F]:
    """``--import-timeout``: how many seconds `what` may take."""
    text = f"The most seconds that {what} may take. Default: 120."
    return click.option("--import-timeout", type=click.FloatRange(1, 86400), callback=not_nan, default=120.0, metavar="S", help=text)


def not_nan(ctx: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """For a number of seconds: NaN is neither more nor less than any limit, and so passes click's ranges."""
    if value is not None and math.isnan(value):
        raise click.BadParameter("'nan' is not a number of seconds", ctx, parameter)
    return value


def _absolute(ctx: click.Context, parameter: click.Parameter, value: str) -> Path:
    if not value:  # it would be the working directory itself
        raise UsageError("--run-dir: must not be empty; leave it out to keep runs in .orch")
    return Path(os.path.abspath(value))
