"""The command line. Only this room imports Click.

The module of a subcommand is imported when this subcommand runs, so that ``orch --help`` is fast.

May import: orchestrator.__version__, orchestrator.backends, orchestrator.backends.connection, orchestrator.checks, orchestrator.control,
    orchestrator.controller, orchestrator.end_process, orchestrator.errors, orchestrator.import_asyncio, orchestrator.import_own_worker,
    orchestrator.model, orchestrator.record, orchestrator.sources, worker.host.facts.machine_survey, worker.host.forkserver.warm_socket,
    worker.machine, worker.protocol.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource

from .. import __version__, end_process, import_own_worker

import_own_worker()

from worker.host.forkserver import warm_socket  # noqa: E402

from ..errors import BROKEN, OrchError  # noqa: E402
from .other_words import answers  # noqa: E402

COMMANDS = {
    "up": ("commands.up_command", "Start a cluster, and show its output."),
    "plan": ("commands.plan_command", "Print the tasks and each TF_CONFIG; start nothing."),
    "wait": ("commands.run_commands", "Wait until a run ends, and exit with its code."),
    "restart": ("commands.run_commands", "Stop the tasks of a run, and start them again."),
    "down": ("commands.down_command", "End a run, or all runs."),
    "ps": ("commands.run_commands", "Show the tasks of a run, or all runs."),
    "logs": ("commands.logs_command", "Show the output of the tasks."),
    "top": ("commands.top_command", "Show live what each task does, and who waits."),
    "metrics": ("commands.top_command", "Print the state of a run for Prometheus."),
    "stacks": ("commands.stacks_command", "Show at which line of Python each task is."),
    "report": ("commands.report_command", "Write a run as an HTML page, or for a bug report."),
    "checkpoints": ("commands.checkpoints_command", "Show the checkpoints of a run."),
    "compare": ("commands.compare_command", "Show where two runs differ."),
    "profile": ("commands.profile_command", "Profile a run with TensorFlow's profiler."),
    "placement": ("commands.placement_command", "Show on which devices operations ran."),
    "verify": ("commands.trial_commands", "Say whether workers train as one process does."),
    "scale": ("commands.trial_commands", "Say why more workers are not faster."),
    "doctor": ("commands.doctor_command", "Check whether these machines can run a cluster."),
    "init": ("commands.setup_commands", "Write an orch.yaml to fill in."),
    "shards": ("commands.shards_command", "Show which files each worker will read."),
    "tpu": ("commands.tpu_command", "Show the layout of replicas on a TPU."),
    "warm": ("commands.warm_command", "Keep TensorFlow imported, for faster starts."),
    "prune": ("commands.prune_command", "Remove old runs."),
    "completion": ("commands.setup_commands", "Print the completion for bash, zsh or fish."),
    "help": ("explanations", "Explain a command, a failure, a key or a topic."),
}
GROUPS = {
    "Run": ("up", "plan", "wait", "restart", "down"),
    "Look": ("ps", "logs", "top", "stacks", "report", "metrics"),
    "Understand": ("checkpoints", "compare", "profile", "placement"),
    "Prepare": ("verify", "scale", "doctor", "init", "shards", "tpu", "warm"),
    "More": ("prune", "completion", "help"),
}
"""The commands below each heading of ``orch --help``."""
WORD = "orch.word"
"""The key, among the notes of Click's context, of the word of another launcher that the user has typed."""
SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 110,
    # --max_restarts is --max-restarts, and --run-dir is --home.
    "token_normalize_func": lambda word: "home" if word in ("run-dir", "run_dir") else word.replace("_", "-"),
}
COLLECTED_AFTER = 50_000
"""The number of new objects that starts a garbage collection. An import makes thousands of objects, and none is garbage."""


class Commands(click.Group):
    """The subcommands: a name and a line of help each, without an import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        module = importlib.import_module(f".{COMMANDS[cmd_name][0]}", __name__)
        command: click.Command = getattr(module, f"{cmd_name}_command")
        command.params.sort(key=lambda each: each.name == "home")  # the option that is used least comes last in a help text
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["help"] and not ctx.resilient_parsing:
            args = [args[0], *args[2:]] if args[1:2] == ["--"] else args
            word = args[1].lower() if args[1:] else ""
            explained = importlib.import_module(".explanations", __name__)
            meaning = explained.meanings().get("-".join(args[1:]).lower(), "")
            is_page = any(each in explained.pages() for each in args[2:])  # orch help run it in slurm
            of_command = not word or (not is_page and (word in COMMANDS or word in answers("command")))
            if meaning and (word not in COMMANDS or len(args) > 2):  # orch help run; orch help warm process
                of_command = False
            elif meaning:  # orch help ps
                click.echo(f"{word}: {meaning}\n")
            rest = args[1:] if args[1:] in (["--help"], ["-h"]) else ["--", " ".join(args[1:])]  # orch help out of memory
            args = [*([word] if word else []), *args[2:], "--help"] if of_command else ["help", *rest]
        return super().parse_args(ctx, ["--version"] if args == ["version"] else args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            code = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
            return code
        except BrokenPipeError:
            # The reader of the output has ended. Without this, Python would print an error when it closes stdout.
            sys.stdout = None
            return 128 + signal.SIGPIPE

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, names in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(11), COMMANDS[name][1]) for name in names])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and name not in COMMANDS and not name.startswith("-"):
            meant = answers("command").get(name) if name != "describe" else _describe(args[1:])
            if meant is not None:
                ctx.meta[WORD] = name
                return super().resolve_command(ctx, [*meant.split(), *args[1:]])
            if hint := answers("no command").get(name):
                raise click.UsageError(f"there is no command {name!r}\nfix: {hint}", ctx)
            from ..model.settings.findings import nearest

            if name in importlib.import_module(".explanations", __name__).pages():
                raise click.UsageError(f"there is no command {name!r}\nfix: orch help {name} tells about it", ctx)
            near = nearest(name, COMMANDS, cutoff=0.75) or nearest(name, answers("command"), cutoff=0.9)
            hint = f"\nfix: did you mean {near!r}?" if near else f"\nfix: orch up {name}" if name.endswith(".py") else ""
            raise click.UsageError(f"there is no command {name!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


def _describe(words: Sequence[str]) -> str:
    """Return what ``orch describe`` means: torchx describes what would run, kubectl what runs."""
    return "plan" if any(word.startswith("-") or os.path.isfile(word) for word in words) else "ps"


@click.group(cls=Commands, context_settings=SETTINGS)
@click.version_option(__version__, prog_name="orch")
def orch() -> None:
    """Start TensorFlow clusters, watch them, and explain failures.

    \b
    Examples:
      orch up train.py --workers 2      start a cluster of two workers
      orch ps                           show its tasks
      orch up --help                    show the options and examples of a command
      orch help topics                  list what orch help explains
    """


def main(args: list[str] | None = None) -> None:
    """Runs the command line, and exits with a code of docs/exit-codes.md.

    `args` None: those of this process, which then ends at once, without Python's clean-up.
    """
    if args is None:
        gc.set_threshold(COLLECTED_AFTER)
    _open_missing_streams()
    early = _ask_warm_process() if args is None else None
    try:
        if args is None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))  # which `orchestrator.__main__` holds back
        code = orch.main(args, prog_name="orch", standalone_mode=False, obj=early)
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption) and error.ctx is not None:
            from .script_command import describe_no_option

            error = click.UsageError(describe_no_option(error.ctx, error.option_name), error.ctx)
        _name_variable(error)
        _show(error)
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except OrchError as error:
        click.echo(_complaint(str(error) or type(error).__name__), err=True)
        code = error.exit_code
    except OSError as error:  # such as a full disk under standard output
        what = str(error.filename or ("the working directory was removed" if _is_here_removed() else "standard output cannot be written"))
        with contextlib.suppress(OSError):  # or under standard error
            click.echo(f"error: {what}: {error.strerror or error}", err=True)
        sys.stdout = None
        code = BROKEN
    code = code if isinstance(code, int) else 0
    if args is None:
        end_process(code)
    sys.exit(code)


def _show(error: click.ClickException) -> None:
    """Print a mistake with the word `error` that all messages have, and where the help of the command is."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):  # it prints the help itself
        error.show()
        return
    words = _words(error)
    if isinstance(error, click.UsageError) and error.ctx is not None and "--help" not in words:
        words += f"\nmore: {error.ctx.command_path} --help"
    click.echo(_complaint(words), err=True)


def _words(error: click.ClickException) -> str:
    """Return the message of a mistake as orch writes it: the option comes first, as in the messages about settings."""
    words = error.format_message()
    if isinstance(error, click.BadOptionUsage):  # Option '--tensorboard' requires an argument.
        words = words.replace(f"Option '{error.option_name}'", error.option_name, 1).rstrip(".")
        if words.endswith(" requires an argument"):
            return f"{error.option_name} has no value\nfix: {error.option_name} VALUE"
        if words.endswith("does not take a value"):
            from .script_command import OPTIONS

            yes = error.option_name.replace("--no-", "--")
            words += f"\nfix: {yes}" + (f" or --no-{yes[2:]}" if any(option.says for option in OPTIONS if option.name == yes) else "")
        return words
    if isinstance(error, click.BadParameter) and words.startswith("Invalid value for '"):  # Invalid value for '--timeout': …
        name, _, told = words.removeprefix("Invalid value for ").partition(": ")
        return f"{name.replace(chr(39), '')}: {told}"
    ctx = getattr(error, "ctx", None)
    if ctx is not None and (wrong := re.match(r"(?:Got unexpected extra arguments?|Missing argument) [('](.*?)[)']\.?(?=$|\n)", words)):
        takes = " ".join(piece for piece in ctx.command.collect_usage_pieces(ctx) if piece != "[OPTIONS]")
        told = f"{ctx.command_path} needs {wrong[1]}" if words.startswith("M") else f"too many words: {wrong[1]}"
        return told + (words[wrong.end() :] or f"\nfix: {ctx.command_path} {takes}".rstrip())
    if ctx is not None and words.startswith("No such command '"):  # in a group: orch warm sttart
        return f"there is no command '{words.split(chr(39))[1]}'; there are {', '.join(ctx.command.list_commands(ctx))}"
    return words


def _is_here_removed() -> bool:
    try:
        os.getcwd()
    except OSError:
        return True
    return False


def _ask_warm_process() -> warm_socket.EarlyRequest | None:
    """For a run that this process is about to run: ask for its agent, if there is a warm process, while the rest of orch is imported."""
    if sys.argv[1:2] != ["up"] or {"-h", "--help", "--dry-run", "-d", "--detach"}.intersection(sys.argv):
        return None
    try:
        return warm_socket.EarlyRequest()
    except OSError:  # it is reported later, if the run has a use for the warm process
        return None


def _name_variable(error: click.ClickException) -> None:
    """Lets the message about a wrong value of a variable name the variable in place of the option."""
    if isinstance(error, click.BadParameter) and error.ctx is not None and error.param is not None:
        source = error.ctx.get_parameter_source(error.param.name or "")
        error.param_hint = f"'{error.param.envvar}'" if source is ParameterSource.ENVIRONMENT else None


def _open_missing_streams() -> None:
    """Opens the standard streams that are closed (``>&-``): the next opened file, a log or a lock, would become standard output. What their
    encoding does not have, as in the name of a file that a task has reported, they show as ``\\udNNN``."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # so it was closed when Python began
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115
        if number and hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="backslashreplace")


def _complaint(words: str) -> str:
    from ..record.text.lines import clean  # an error may have the words of a host or a task

    lines = clean(words).splitlines()
    return "error: " + "\n       ".join(lines)
