"""A command that takes a script, its options in groups, and the words of other launchers that mean the same."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
from collections.abc import Sequence
from typing import Any

import click

from worker.values.words import few

from ..model.settings import BACKENDS
from ..model.settings.backend_sections import SAME as SAME_PLACES
from ..model.settings.describe import options
from ..model.settings.findings import nearest
from .option_lines import LINES, METAVARS

OPTIONS = options()

GROUPS = {
    "What runs": (
        *("script", "module", "command", "python", "workdir", "defaults.env", "prepare", "keras", "serve", "name"),
        *("file", "no_python", "variables", "assignments"),
    ),
    "The cluster": ("strategy", "tasks", "tpu"),
    "Devices": ("defaults.devices",),
    "Input": ("input",),
    "Limits and restarts": ("timeouts", "restart", "fail_on_nan"),
    "Saves of a training": ("checkpoints",),
    "Where the tasks run": ("backend", "ports", "network", "hostfile"),
    "Output": (
        *("defaults.log_level", "log_limit", "home", "only", "quiet", "verbose", "timestamps", "color", "everything", "as_json"),
        "tensorboard",
    ),
}
"""The headings of a help text. Below each: keys of orch.yaml, and parameters of options that are no settings."""
OTHERS, MOST_USED = "This command", "Most used"
COLUMN = 25
"""The width of the options in a help text; the line of each follows."""
_USUAL = (
    *("spec_workers", "spec_ps", "spec_strategy", "spec_hosts", "spec_gpus", "spec_max_restarts", "spec_timeout"),
    *("spec_checkpoint", "spec_resume", "variables", "file", "detached", "dry_run", "quiet"),
)
"""The parameters that ``-h`` shows; ``--help`` shows all. The options of a command that are no settings are always shown."""
_OF_A_RUN = {"spec_max_restarts", "spec_timeout", "spec_checkpoint", "spec_resume"}
"""Those of them that do not matter to `orch doctor`, which starts no run."""

SAME = {
    **dict.fromkeys(("-np", "--np", "--num-proc", "--num-processes", "--num-workers"), "--workers"),
    "--logical-cpus": "--cpus",
    "--task": "--only",
    "--world-size": "--workers",
    **dict.fromkeys(("-e", "-x"), "--env"),
    "-t": "--timestamps",
    "-w": "--workers",
    "--num-gpus": "--gpus",
    "--replicas": "--workers",
    **dict.fromkeys(("--retries", "--max-retries", "--restarts"), "--max-restarts"),
    "--background": "--detach",
    "--continue": "--resume",
    "-N": "--nodes",
    "-A": "--account",
    **dict.fromkeys(("-J", "--job-name"), "--name"),
}
"""Options of mpirun, horovodrun and others, with the option of orch that means the same."""
MOUNTS_NOTHING = "a task sees the files of its host, and a pod also what backend.volumes in orch.yaml mounts"
HOLDS = "orch chooses free ports and tells all tasks their addresses: leave it out"
NO_PORTS = "orch opens no port of a task to you; --tensorboard DIR prints an address, and --set ports=41000-41999 limits the tasks' own"
PLACES = {f"--{word}": SAME_PLACES.get(word, word) for word in (*BACKENDS, *SAME_PLACES)}
"""Options that a user may take for --backend, with its value."""
OTHERWISE = {
    "--nproc-per-node": "orch counts the workers of all hosts together: --workers N on this machine, -H hostA:N,hostB:N on several hosts",
    "--nnodes": "orch takes the names of the hosts: -H hostA:4,hostB:4",
    "--rdzv-backend": "orch needs no rendezvous: leave the options --rdzv-... out",
    "--rdzv-endpoint": "orch needs no rendezvous: leave the options --rdzv-... out",
    "--rdzv-id": "orch needs no rendezvous: leave the options --rdzv-... out",
    "--standalone": "a cluster on this machine is the default: leave --standalone out",
    "--node-rank": "orch starts the tasks of all hosts itself: -H hostA:4,hostB:4, on one of them",
    "--nodelist": "orch takes the names of the hosts: -H hostA:4,hostB:4",
    "--ntasks": "orch calls this --workers",
    "--ntasks-per-node": "orch takes the number of tasks with the name of the host: -H hostA:4,hostB:4",
    "--gpus-per-node": "orch takes the number of GPUs of each task: --gpus N",
    "--log-dir": "orch keeps the output of each task below the directory of the run: --run-dir DIR",
    "--redirects": "orch keeps stdout and stderr of each task in files, always; -q shows none of them",
    "--tee": "orch keeps stdout and stderr of each task in files and shows them, always; --only TASK shows one task",
    "--output-filename": "orch keeps the output of each task in files, always, below --run-dir DIR",
    "--hosts-file": "orch calls this --hostfile",
    **dict.fromkeys(("--master-addr", "--master-port", "--rdzv-conf", "--local-addr", "--main-process-port", "--main-process-ip"), HOLDS),
    **dict.fromkeys(("--monitor-interval", "--start-method", "--oversubscribe", "--allow-run-as-root", "--mca"), "orch needs none of it"),
    **dict.fromkeys(("--machine-rank", "--num-machines"), "orch takes the names of the hosts: -H hostA:4,hostB:4, on one of them"),
    "--gpus-per-task": "orch takes the number of GPUs of each task: --gpus N",
    "--map-by": "orch calls this --affinity",
    **dict.fromkeys(("--chdir", "-D", "--wdir", "-wdir"), "orch calls this --workdir DIR"),
    **dict.fromkeys(("--exclude", "--exclusive", "--reservation"), "options of sbatch: --set 'backend.options={exclusive: true}'"),
    "--array": "a loop over orch up is a sweep: orch help sweep",
    **dict.fromkeys(("--min-np", "--max-np"), "orch calls this --workers MIN:MAX"),
    "--scale": "the number of tasks has an option of its own: --workers 3, --ps 2",
    **dict.fromkeys(("--publish", "--expose"), NO_PORTS),
    **dict.fromkeys(("--ssh", "--machines", "--host"), "orch takes the names of the hosts: -H hostA:4,hostB:4"),
    "--follow": "orch up shows the output until the run ends; -d does not",
    "--slots": "orch takes the number of tasks with the name of the host: -H hostA:4,hostB:4",
    "--checkpoint-dir": "the directory of the saves is a key: --set checkpoints.dir=DIR",
    "--format": "--json prints JSON",
    "--script": "the script needs no option: orch up train.py",
    **{option: f"a key of Slurm: --set backend.{option[2:]}=VALUE" for option in ("--partition", "--qos", "--constraint")},
    "-p": "Slurm's partition is --set backend.partition=NAME",
    "--gres": "--gpus N gives each task N GPUs, and --set backend.gres=gpu:N asks Slurm for them",
    **dict.fromkeys(("--use-env", "--tty"), "leave it out"),
    **dict.fromkeys(("-c", "--cpus-per-task"), "--threads N sets TensorFlow's threads, and --set backend.cpus_per_task=N Slurm's cores"),
    **dict.fromkeys(("-o", "--output"), "orch keeps the output of each task in files, always, below --run-dir DIR"),
    **dict.fromkeys(("--bind-to", "--cpu-bind"), "orch calls this --affinity"),
    **dict.fromkeys(("--volume", "--mount"), MOUNTS_NOTHING),
    **dict.fromkeys(("--simulate", "--preview", "--validate", "--plan"), "orch plan SCRIPT, or orch up --dry-run, shows what would start"),
    **dict.fromkeys(("--rm", "-it", "-i"), "leave it out: a task has no keyboard, and orch prune removes old runs"),
    **dict.fromkeys(
        ("--memory", "--mem"),
        "the memory of a host is limited by Slurm (--set backend.mem=64G), by Kubernetes "
        "(--set backend.resources.memory=8Gi), or by a container around orch; that of a GPU by --gpu-memory MB",
    ),
}
"""Options of torchrun and srun that orch does not have, with what a user writes in their place."""
MAYBE_OF_SCRIPT = dict.fromkeys(
    ("--config", "--config-file", "--conf", "--cfg", "--settings", "--spec", "--yaml"),
    "the settings of orch stand in orch.yaml, or in the file of -f FILE; orch plan shows what they mean",
)
"""The same for options that a script may have, too."""
OTHERWISE_OF = {
    ("plan", "--output"): "--json prints JSON",
    ("plan", "--dry-run"): "orch plan starts nothing: leave it out, or write orch up --dry-run, which prints the commands, too",
    **dict.fromkeys((("down", "--dry-run"), ("restart", "--dry-run")), "orch ps shows the tasks of the run, and changes nothing"),
    ("logs", "--lines"): "-n N, or --tail N, begins with the last N lines of each stream",
    ("report", "--open"): "--serve shows the page in a browser, and -o FILE writes it",
    ("prune", "--all"): "--keep 0 keeps only the latest run",
    **dict.fromkeys((("prune", "-f"), ("prune", "--force")), "leave it out, since no question is asked: orch prune RUN removes a run"),
    **dict.fromkeys((("ps", "--csv"), ("report", "--csv")), "orch ps --all --json is for programs"),
    **dict.fromkeys((("ps", "-w"), ("ps", "--watch")), "orch top shows the tasks live, and watch -n 2 orch ps the table"),
}
"""The same for an option of one command, by the names of both."""
AFTER_DASHES = "orch.after_dashes"
"""The key, among the notes of Click's context, of the command line as it should be, where the script stands after ``--``."""
INTERPRETERS = ("python", "python3")


def _heading(parameter: str) -> str:
    """The heading of an option."""
    path = next((option.path for option in OPTIONS if option.parameter == parameter), parameter)
    found = (heading for heading, keys in GROUPS.items() for key in keys if f"{path}.".startswith(f"{key}."))
    return next(found, OTHERS)


class ScriptCommand(click.Command):
    """A command whose words after ``--`` are arguments of the script. Its help text has the most used options, or all in groups."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        eager: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "hidden": True}
        self.params.append(click.Option(["-h"], callback=_show_short, **eager))
        self.params.append(click.Option(["--help-all"], callback=_show_all, **eager))

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        return ["--help"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        is_short = bool(ctx.meta.get(SHOWS_FEW))
        groups: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (MOST_USED, OTHERS, *GROUPS)}
        usual = {name: place for place, name in enumerate(_USUAL)}
        left_out = 0
        for parameter in sorted(self.get_params(ctx), key=lambda each: usual.get(each.name or "", len(usual)) if is_short else 0):
            record = parameter.get_help_record(ctx)
            if record is None or not isinstance(parameter, click.Option):
                continue
            heading = _heading(parameter.name or "")
            if is_short and parameter.name in usual and not (ctx.command.name == "doctor" and parameter.name in _OF_A_RUN):
                heading = MOST_USED
            elif is_short and heading != OTHERS:
                left_out += 1
                continue
            groups[heading].append(_row(parameter, record))
        for heading, rows in groups.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl([(names.ljust(COLUMN), text) for names, text in rows], col_max=COLUMN)
        formatter.write_paragraph()
        if left_out:
            formatter.write_text(f"{ctx.command_path} --help shows {left_out} more options.")
        else:
            formatter.write_text("Every other setting: --set KEY=VALUE, or orch.yaml; docs/reference.md and orch help KEY have them all.")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["orch.script_args"] = None
        own = []
        if "--" in args:
            split = args.index("--")
            args, own = args[:split], args[split + 1 :]
            ctx.meta["orch.script_args"] = own
        args = [_in_our_words(word) for word in args]
        if not ctx.resilient_parsing:
            self._check_resume(ctx, args, own)
        if own and own[0].endswith(".py") and not self._parse_known(ctx, args)[0].get("script"):
            ctx.meta[AFTER_DASHES] = shlex.join([*ctx.command_path.split(), *args, own[0], *(["--", *own[1:]] if own[1:] else [])])
        try:
            return super().parse_args(ctx, list(args))
        except click.NoSuchOption as error:
            message = describe_no_option(ctx, error.option_name)
            if error.option_name in PLACES and error.option_name not in OTHERWISE:
                words = [word for each in args for word in (("--backend", PLACES[each]) if each == error.option_name else (each,))]
                line = shlex.join([*ctx.command_path.split(), *words, *(["--", *own] if own else [])])
                raise click.UsageError(f"there is no option {error.option_name}: {line}", ctx) from None
            if any(option == "-p" and re.fullmatch(r"[\d.:]*\d+:\d+", word) for option, word in itertools.pairwise(args)):  # as in docker
                raise click.UsageError(f"there is no option -p: {NO_PORTS}", ctx) from None
            is_answered = error.option_name.replace("_", "-") in OTHERWISE or "did you mean" in message or "is an option of" in message
            line = "" if is_answered else self._line(ctx, args, own)
            raise click.UsageError(f"{message}\nAn option of the script itself goes after --: {line}" if line else message, ctx) from None
        except click.UsageError as error:
            if "unexpected extra argument" not in error.message:
                raise
            if flag := self._flag_before(args, error.message):
                raise click.UsageError(flag, ctx) from None
            rule = "the script's own arguments go after --: "
            if not (line := self._line(ctx, args, own)):
                raise click.UsageError(f"{error.message.rstrip('.')}; {rule.rstrip(': ')}", ctx) from None
            if self._interpreter(ctx, args) is not None:
                rule = "orch starts the script with Python by itself: "
            raise click.UsageError(f"{error.message.rstrip('.')}; {rule}{line}", ctx) from None

    def _check_resume(self, ctx: click.Context, args: Sequence[str], own: Sequence[str]) -> None:
        """Refuse a --resume that names no run: the next option, or the script, would be its value. Raises Click's usage error."""
        place = args.index("--resume") if "--resume" in args else len(args)
        value = "".join(args[place + 1 : place + 2])
        if place == len(args) or (value and not value.startswith("-") and not (value.endswith(".py") and os.path.isfile(value))):
            return
        from .resumable import newest_runs  # the files of runs, for this mistake alone

        def with_run(name: str) -> list[str]:
            return [*args[: place + 1], name, *args[place + 1 :]]

        known = self._parse_known(ctx, with_run("latest"))[0]
        runs = newest_runs(*(given if isinstance(given := known.get(name), str) else "" for name in ("home", "file")))
        line = shlex.join([*ctx.command_path.split(), *with_run(runs[0] if runs else "RUN"), *(["--", *own] if own else [])])
        rest = f"; runs with a save: {few(runs)}" if runs else "; no run here has a save: orch up --checkpoint saves a fit (docs/resume.md)"
        raise click.UsageError(f"--resume needs the run that is continued: {line}{rest}", ctx)

    @staticmethod
    def _flag_before(args: Sequence[str], message: str) -> str:
        """Return what to say if the word that is too much follows an option to which other programs give a value.

        Empty if none is there.
        """
        for option, word in itertools.pairwise(args):
            if option == "-v" and ":" in word and "/" in word:  # as in docker; the script may be the word that is too much
                return f"-v is --verbose, and takes no value: {MOUNTS_NOTHING}"
            if option in WITHOUT_VALUE and f"({word}" in message:
                return f"{option} takes no value{WITHOUT_VALUE[option]}; {word} is too much, and the script's own arguments go after --"
        return ""

    def _line(self, ctx: click.Context, args: Sequence[str], own: Sequence[str]) -> str:
        """The command line that the user may have meant, with all words after ``--`` that orch does not know; empty if none can be made."""
        ours, theirs = list(args), list[str]()
        if (place := self._interpreter(ctx, args)) is not None:
            del ours[place]
        try:
            known, theirs = self._parse_known(ctx, ours)
        except click.UsageError:
            return ""
        if (known.get("script") or "-").startswith("-"):  # an option that orch does not know, before the script
            words = [known.get("script") or "", *theirs]
            script = next((word for word in words if word.endswith(".py")), None)
            if script is None:
                return ""
            theirs = [word for word in words if word and word != script]
        for word in reversed(theirs):
            if word not in ours:  # Click has taken it apart: -xyz
                return ""
            del ours[len(ours) - 1 - ours[::-1].index(word)]
        theirs += own
        return shlex.join([*ctx.command_path.split(), *ours, *(["--", *theirs] if theirs else [])])

    def _parse_known(self, ctx: click.Context, args: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        """The values of the options that orch knows, and the other words."""
        settings: dict[str, Any] = {"ignore_unknown_options": True, "token_normalize_func": ctx.token_normalize_func}
        with click.Context(self, **settings) as tried:
            known, others, _ = self.make_parser(tried).parse_args(list(args))
        if not isinstance(known.get("script"), str):  # a mark of Click's own
            known["script"] = None
        return known, others

    def _interpreter(self, ctx: click.Context, args: Sequence[str]) -> int | None:
        """The place of ``python`` in the words, where a user has written it in front of the script. An option may have this value, too."""
        for place, word in enumerate(args):
            if word in INTERPRETERS:
                with contextlib.suppress(click.UsageError):  # an option before the word lacks its value
                    if self._parse_known(ctx, args[: place + 1])[0].get("script") == word:
                        return place
        return None


def describe_no_option(ctx: click.Context, name: str) -> str:
    """The message about an option that the command does not have, with the option that may have been meant."""
    option = name.replace("_", "-")
    known = [other for parameter in ctx.command.get_params(ctx) for other in (*parameter.opts, *parameter.secondary_opts)]
    right = nearest(option, (other for other in known if other.startswith("--")), cutoff=0.75)
    if not (hint := OTHERWISE_OF.get((ctx.command.name or "", option))) and option in _options_of_up(ctx):
        return f"there is no option {option}: {option} is an option of orch up"
    of_any = OTHERWISE | MAYBE_OF_SCRIPT if isinstance(ctx.command, ScriptCommand) else {}
    hint = hint or of_any.get(option)
    return f"there is no option {option}: {hint or (f'did you mean {right}?' if right else f'{ctx.command_path} --help lists the options')}"


def _options_of_up(ctx: click.Context) -> set[str]:
    """The options of `orch up`, for another command of orch."""
    group = ctx.find_root().command
    if not isinstance(group, click.Group) or not isinstance(ctx.command, ScriptCommand) or ctx.command.name == "up":
        return set()
    up = group.get_command(ctx, "up")
    return {name for parameter in (up.params if up else ()) for name in (*parameter.opts, *parameter.secondary_opts) if name[:1] == "-"}


WITHOUT_VALUE = {
    "--checkpoint": ": the saves lie in the directory of the run, or where --set checkpoints.dir=DIR says",
    "--chief": ": there is one chief",
    "--evaluator": ": there is one evaluator",
}
"""Options without a value, to which a user of other programs may give one; what is said then."""
SHOWS_FEW = "orch.help_short"


def _row(option: click.Option, record: tuple[str, str]) -> tuple[str, str]:
    """The names of an option, and its line."""
    name = option.opts[-1]
    if name == "--help":
        return "-h, --help", "The most used options; all options"
    if name not in LINES:
        return record[0], re.sub(r" ?Default: (.*)\.$", r" [default: \1]", record[1])
    names = f"--[no-]{name[2:]}" if option.secondary_opts else ", ".join(option.opts)
    takes = "" if option.is_flag else f" {METAVARS.get(name) or option.make_metavar(click.Context(click.Command('')))}"
    return names + takes, LINES[name]


def _show_short(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[SHOWS_FEW] = True
    _show_all(ctx, parameter, value)


def _show_all(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def _in_our_words(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{SAME[name.replace('_', '-')]}{equals}{value}" if name.replace("_", "-") in SAME else word
