"""The options that change a spec, in one table: flag, ``ORCH_*`` variable and key of `orch.yaml` are three names of one thing.

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

from worker.records import dataclass

from ..errors import UsageError
from ..model import strategies

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class SpecOption:
    """An option whose text goes to `path`. `flag`: it takes no text and means `flag`; `off` is what a variable turns it off with."""

    names: tuple[str, ...]
    path: str
    help: str
    metavar: str = "TEXT"
    flag: str | None = None
    off: str = "0"
    adds_up: bool = False
    """Given again, it adds to what it said before; of the others the last counts."""
    parts: tuple[str, ...] = ()
    """The keys below `path` that its text is for, with commas between; those that it leaves out it does not touch."""

    @property
    def parameter(self) -> str:
        return "spec_" + self.long.lstrip("-").replace("-", "_")

    @property
    def long(self) -> str:
        return self.names[-1]

    @property
    def variable(self) -> str:
        return "ORCH_" + self.long.lstrip("-").replace("-", "_").upper()


OPTIONS = (
    SpecOption(("-n", "--workers"), "tasks.worker.count", "How many workers.", "N"),
    SpecOption(("--ps",), "tasks.ps.count", "How many parameter servers.", "N"),
    SpecOption(("--chief",), "tasks.chief.count", "Add a chief.", flag="1"),
    SpecOption(("--evaluator",), "tasks.evaluator.count", "Add an evaluator.", flag="1"),
    SpecOption(("--data-workers",), "tasks.data_worker.count", "How many servers of the tf.data service.", "N"),
    SpecOption(("--strategy",), "strategy", f"{strategies.which(lambda row: True)}.", "NAME"),
    SpecOption(("-m", "--module"), "module", "Run a module, as python -m does.", "MODULE"),
    SpecOption(("--name",), "name", "The run's name; its id begins with it.", "NAME"),
    SpecOption(("--python",), "python", "The tasks' interpreter.", "PATH"),
    SpecOption(("--workdir",), "workdir", "The tasks' working directory.", "DIR"),
    SpecOption(("--gpus",), "defaults.devices.gpus", "Each task's GPUs: auto, how many, or which (0,2 or GPU:1 or UUIDs).", "GPUS"),
    SpecOption(("--share-gpus",), "defaults.devices.share_gpus", "Let tasks have the same GPUs.", flag="true", off="false"),
    SpecOption(("--gpu-memory",), "defaults.devices.memory_limit_mb", "The most that a task takes of each of its GPUs.", "MB"),
    SpecOption(("--memory-growth",), "defaults.devices.memory_growth", "Take GPU memory as it is needed.", flag="true", off="false"),
    SpecOption(("--logical-gpus",), "defaults.devices.logical_gpus", "Split each GPU into logical ones of these sizes.", "MB,MB"),
    SpecOption(("--cpus",), "defaults.devices.cpus", "Logical CPU devices per task.", "N"),
    SpecOption(
        ("--threads",), "defaults.devices.threads", "Sizes of TensorFlow's thread pools.", "INTRA[,INTER]", parts=("intra", "inter")
    ),
    SpecOption(("--affinity",), "defaults.devices.affinity", "Tie each task to its share of the cores.", flag="true", off="false"),
    SpecOption(("--log-placement",), "defaults.devices.log_placement", "Log each operation's device.", flag="true", off="false"),
    SpecOption(
        ("--soft-placement",), "defaults.devices.soft_placement", "Take another device for one not there.", flag="true", off="false"
    ),
    SpecOption(("--no-soft-placement",), "defaults.devices.soft_placement", "Fail there.", flag="false", off="true"),
    SpecOption(("--xla",), "defaults.devices.xla", "Have XLA compile what it can.", flag="true", off="false"),
    SpecOption(("--tf32",), "defaults.devices.tf32", "Multiply float32 matrices in TensorFloat-32.", flag="true", off="false"),
    SpecOption(("--no-tf32",), "defaults.devices.tf32", "Keep float32 whole there.", flag="false", off="true"),
    SpecOption(
        ("--determinism",), "defaults.devices.determinism", "Same results each time, if the script sets a seed.", flag="true", off="false"
    ),
    SpecOption(("--serve",), "serve", "Run TensorFlow servers in worker and ps tasks.", flag="true", off="false"),
    SpecOption(("--ports",), "ports", "Take the tasks' ports from this range.", "A-B"),
    SpecOption(("--start-timeout",), "timeouts.start_s", "Seconds until all tasks must be up, which means: listen on their ports.", "S"),
    SpecOption(("--hang-timeout",), "timeouts.hang_s", "Seconds that all tasks may be silent.", "S"),
    SpecOption(("--timeout",), "timeouts.run_s", "Seconds until the run must be over.", "S"),
    SpecOption(("--grace",), "timeouts.grace_s", "Seconds between SIGTERM and SIGKILL.", "S"),
    SpecOption(("--max-restarts",), "restart.max", "How often to start again after a failure.", "N"),
    SpecOption(("--log-level",), "defaults.log_level", "TensorFlow's own log: debug, info, warning or error.", "LEVEL"),
    SpecOption(("--backend",), "backend.type", "Where the tasks run: local or ssh.", "NAME"),
    SpecOption(
        ("-H", "--hosts"),
        "backend.hosts",
        "Run on these hosts, over ssh, so many tasks on each; given again, it adds.",
        "HOST:N,…",
        adds_up=True,
    ),
)


class ScriptCommand(click.Command):
    """A command whose words after ``--`` are the script's and are not looked at."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["orch.script_args"] = None
        if "--" in args:
            split = args.index("--")
            ctx.meta["orch.script_args"] = args[split + 1 :]
            args = args[:split]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            near = f"; did you mean {error.possibilities[0]}?" if error.possibilities else ""
            own = f"; an option of the script itself goes after --: orch {self.name} SCRIPT -- {error.option_name}"
            raise click.UsageError(f"there is no option {error.option_name}{near}{own}", ctx) from None
        except click.UsageError as error:
            if "unexpected extra argument" in error.message:
                raise click.UsageError(f"{error.message.rstrip('.')}; the script's own arguments go after --", ctx) from None
            raise


def _join(ctx: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> str | None:
    return ",".join(texts) if texts else None


def spec_options(command: F) -> F:
    """Everything that says what to run: SCRIPT, ``-f``, ``--set``, ``--env`` and the table above."""
    for option in reversed(OPTIONS):
        settings: dict[str, Any] = {"help": option.help}
        if option.flag is None:
            settings["metavar"] = option.metavar
            if option.adds_up:
                settings |= {"multiple": True, "callback": _join}
        else:
            settings |= {"is_flag": True, "flag_value": option.flag, "default": None}
        command = click.option(*option.names, option.parameter, **settings)(command)
    decorators = (
        click.option("--set", "assignments", multiple=True, metavar="KEY.PATH=VALUE", help="Set any key of orch.yaml."),
        click.option("--env", "variables", multiple=True, metavar="K=V", help="Set a variable of the tasks' environment."),
        click.option(
            "--hostfile", "hostfile", envvar="ORCH_HOSTFILE", metavar="FILE", help="Run on the hosts of this file: HOST slots=N, or HOST:N."
        ),
        click.option("--no-python", "no_python", is_flag=True, help="SCRIPT is a program, not a Python file."),
        click.option(
            "-f", "--file", "file", envvar="ORCH_FILE", metavar="FILE", help="Read this spec; default: orch.yaml, if there is one."
        ),
        click.argument("script", required=False),
    )
    for decorate in decorators:
        command = decorate(command)
    return command


def home_option(command: F) -> F:
    """``--run-dir``: where runs are kept, an absolute path."""
    text = "Keep runs here; default: .orch where orch is started, whatever --workdir or -f says."
    options: dict[str, Any] = {"envvar": "ORCH_HOME", "default": ".orch", "metavar": "DIR", "help": text}
    return click.option("--run-dir", "home", callback=_absolute, **options)(command)


def run_argument(command: F) -> F:
    """RUN, the latest if it is left out, below ``--run-dir``: the command is given its `RunDir`."""

    @functools.wraps(command)
    def find(*, run: str | None, home: Path, **given: Any) -> Any:
        from ..record.home import find_run  # only now: a help text needs none of it

        return command(run=find_run(home, run), **given)

    return cast("F", click.argument("run", required=False)(home_option(find)))


def import_timeout_option(what: str) -> Callable[[F], F]:
    """``--import-timeout``: how many seconds `what` may take."""
    text = f"Seconds that {what} may take; default: 120."
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
