"""The options that change a spec, in one table: flag, ``ORCH_*`` variable and key of `orch.yaml` are three names of one thing.

Nothing is checked here: a flag's text goes into the document at its path, with the flag as its place, and the one parser
says what is wrong with it. So precedence is an order of overlays: default, file, environment, ``--set``, flag.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from ..errors import Problem, SpecError, UsageError
from ..model.document import Node

F = TypeVar("F", bound=Callable[..., Any])
Overlay = tuple[str | Sequence[str], Node]
PROGRAM_KINDS = ("script", "module", "command")


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
    SpecOption(("--strategy",), "strategy", "multi_worker_mirrored, parameter_server, mirrored, one_device or none.", "NAME"),
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
    SpecOption(("--affinity",), "defaults.devices.affinity", "Tie each task to its share of the cores.", flag="true", off="false"),
    SpecOption(("--log-placement",), "defaults.devices.log_placement", "Log each operation's device.", flag="true", off="false"),
    SpecOption(
        ("--soft-placement",), "defaults.devices.soft_placement", "Take another device for one not there.", flag="true", off="false"
    ),
    SpecOption(("--no-soft-placement",), "defaults.devices.soft_placement", "Fail there.", flag="false", off="true"),
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


_NOTHING_TO_RUN = (
    "there is nothing to run, and no orch.yaml here\n"
    "name a script: orch up train.py -n 2 -- ITS ARGUMENTS\n"
    "or write a spec: orch init, then orch up"
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
    """``--run-dir``: where runs are kept."""
    text = "Keep runs here; default: .orch in the working directory."
    options: dict[str, Any] = {"envvar": "ORCH_HOME", "default": ".orch", "metavar": "DIR", "help": text}
    return click.option("--run-dir", "home", callback=_not_empty, **options)(command)


def import_timeout_option(what: str) -> Callable[[F], F]:
    """``--import-timeout``: how many seconds `what` may take."""
    limits = click.FloatRange(1, 86400)
    return click.option("--import-timeout", type=limits, default=120.0, metavar="S", help=f"Seconds that {what} may take; default: 120.")


def _not_empty(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    if not value:  # it would be the working directory itself
        raise UsageError("--run-dir: must not be empty; leave it out to keep runs in .orch")
    return value


def read_document(ctx: click.Context) -> tuple[Node, str]:
    """The document that the command line means, and the directory that its paths start from. Raises `SpecError`, `UsageError`."""
    document, base = read_settings(ctx)
    if not document.place and not says(document, *PROGRAM_KINDS):
        raise UsageError(_NOTHING_TO_RUN)
    return document, base


def read_settings(ctx: click.Context) -> tuple[Node, str]:
    """The same, for a command that needs nothing to run."""
    from ..model import document as documents

    given = ctx.params
    document, base = _read_file(given["file"])
    assignments = [documents.parse_assignment(text, "--set") for text in given["assignments"]]
    environment, flags = _option_overlays(ctx)
    for path, value in [*environment, *assignments, *flags, *_variables(given["variables"]), *_program(ctx, base)]:
        document = documents.overlay(document, path, value)
    return document, base


def says(document: Node, *keys: str) -> bool:
    """Whether the document has a value for one of these keys."""
    return isinstance(document.value, dict) and any(key in document.value and document.value[key].value is not None for key in keys)


def _read_file(name: str | None) -> tuple[Node, str]:
    from ..model import document as documents

    path = Path(name or "orch.yaml")
    if name is None and not path.is_file():
        return documents.empty(), os.getcwd()
    return documents.read(_read_whole(path), str(path)), str(path.resolve().parent)


def _read_whole(path: Path) -> bytes:
    from ..model import document as documents

    try:
        with open(path, "rb") as file:
            # One byte more than allowed is enough to be refused; a spec of gigabytes is not read.
            data = file.read(documents.MAX_BYTES + 1)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    if size > documents.MAX_BYTES:
        raise SpecError(Problem(str(path), f"{size / 1e6:.1f} MB long; a spec is at most {documents.MAX_BYTES >> 20} MiB"))
    return data


def _option_overlays(ctx: click.Context) -> tuple[list[Overlay], list[Overlay]]:
    """What the environment says, and what the flags say. An empty variable says nothing."""
    environment: list[Overlay] = []
    flags: list[Overlay] = []
    for option in OPTIONS:
        told, text = os.environ.get(option.variable), ctx.params[option.parameter]
        if told:
            environment += _overlays(option, _meaning(option, told), option.variable)
        if text is not None:
            flags += _overlays(option, text, option.long)
    (environment if _is_variable(ctx, "hostfile") else flags).extend(_hostfile(ctx))
    return environment, flags


def _is_variable(ctx: click.Context, parameter: str) -> bool:
    """Whether click has taken this parameter's value from its variable: a flag would have more weight."""
    return ctx.get_parameter_source(parameter) is ParameterSource.ENVIRONMENT


def _overlays(option: SpecOption, text: str, place: str) -> Iterator[Overlay]:
    if option.path in PROGRAM_KINDS:
        yield from _instead_of_others(option.path, place)
    if option.path == "backend.type" and text == "local":
        yield "backend.hosts", Node(None, place, "")  # this machine takes the place of hosts that were named with less weight
    yield option.path, _node(text, place, option.path)


def _meaning(option: SpecOption, told: str) -> str:
    """What a variable says: one that stands for a flag is on or off."""
    word = told.lower()
    if option.flag is not None and word in ("1", "true", "yes", "on"):
        return option.flag
    if option.flag is not None and word in ("0", "false", "no", "off"):
        return option.off
    return told


def _instead_of_others(chosen: str, place: str) -> Iterator[Overlay]:
    """The program that is chosen takes the place of one that was named with less weight."""
    for kind in PROGRAM_KINDS:
        if kind != chosen:
            yield (kind,), Node(None, place, "")


def _hostfile(ctx: click.Context) -> Iterator[Overlay]:
    """The hosts of ``--hostfile`` or its variable, which take the place of those that were named with less weight."""
    from ..model.hosts import read_hostfile

    name, has_flag = ctx.params["hostfile"], ctx.params["spec_hosts"] is not None
    if not name or (has_flag and _is_variable(ctx, "hostfile")):
        return
    if has_flag:
        raise UsageError("both -H and --hostfile name hosts; give one of them")
    if os.environ.get("ORCH_HOSTS") and _is_variable(ctx, "hostfile"):
        raise UsageError("both ORCH_HOSTS and ORCH_HOSTFILE name hosts; set one of them")
    yield "backend.hosts", read_hostfile(_read_whole(Path(name)).decode("utf-8", "replace"), name)


def _variables(texts: Sequence[str]) -> Iterator[Overlay]:
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise SpecError(Problem("--env", f"{text!r} has no '='", "write --env NAME=VALUE"))
        yield ("defaults", "env", name), Node(value, "--env", value)


def _program(ctx: click.Context, base: str) -> Iterator[Overlay]:
    """A program named on the command line takes the place of the file's."""
    script, module = ctx.params["script"], ctx.params["spec_module"]
    if script is not None and module is not None:
        raise UsageError(f"both a script ({script}) and a module ({module}) are given; only one can run")
    if script is not None:
        chosen = "command" if ctx.params["no_python"] else "script"
        yield from _instead_of_others(chosen, "SCRIPT")
        yield (chosen,), Node(_as_seen_from(base, script, chosen), "SCRIPT", script)
    elif ctx.params["no_python"]:
        raise UsageError("--no-python needs a program: orch up --no-python PROGRAM -- ARGS")
    script_args = ctx.meta["orch.script_args"]
    if script_args is not None:
        yield ("args",), Node([Node(word, "ARGS", word) for word in script_args], "ARGS")


def _as_seen_from(base: str, script: str, kind: str) -> str:
    """A path typed here, for tasks that start in `base`."""
    if base == os.getcwd() or (kind == "command" and os.sep not in script):
        return script
    return os.path.abspath(script)


def _node(text: str, place: str, path: str) -> Node:
    from ..model import document as documents

    # What may be a word that YAML would read as something else, such as a name of "null", stays the text that it is.
    is_text = path in ("name", "module", "python", "workdir")
    return Node(text, place, text) if is_text else documents.scalar(text, place)
