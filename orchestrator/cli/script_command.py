"""A command that takes a script, its options in groups, and the words of other launchers that mean the same."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import textwrap
from collections.abc import Sequence
from typing import Any

import click

from ..model.settings import BACKENDS
from ..model.settings.backend_sections import SAME as SAME_PLACES
from ..model.settings.describe import options
from ..model.settings.findings import nearest
from .option_lines import LINES, METAVARS, OF_JOIN, RARE, SETTINGS_ALONE
from .other_words import answers

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
    "Checkpoints": ("checkpoints",),
    "Where the tasks run": ("backend", "ports", "network", "hostfile"),
    "Output": (*("defaults.log_level", "home", "only", "quiet", "color", "everything", "as_json"), "tensorboard"),
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
"""Those of them that do not matter to the commands of `_TRIALS`, which train nothing to its end."""
_TRIALS = ("doctor", "verify", "scale")
_REFUSED = {"verify": ("spec_ps", "spec_hosts"), "scale": ("spec_ps", "spec_strategy")}
"""Options that they refuse, at least usually: their help leaves them out."""

SAME = {
    **dict.fromkeys(("-np", "--np", "--num-proc", "--num-processes", "--num-workers"), "--workers"),
    "--logical-cpus": "--cpus",
    "--task": "--only",
    "--world-size": "--workers",
    **dict.fromkeys(("-e", "-x"), "--env"),
    "-w": "--workers",
    "--num-gpus": "--gpus",
    "--replicas": "--workers",
    **dict.fromkeys(("--retries", "--max-retries", "--restarts"), "--max-restarts"),
    "--background": "--detach",
    "--continue": "--resume",
    "-N": "--nodes",
    **dict.fromkeys(("-J", "--job-name"), "--name"),
}
"""Options of mpirun, horovodrun and others, with the option of orch that means the same."""
PLACES = {f"--{word}": SAME_PLACES.get(word, word) for word in (*BACKENDS, *SAME_PLACES)}
"""Options that a user may take for --backend, with its value."""
AFTER_DASHES = "orch.after_dashes"
"""The key, among the notes of Click's context, of the command line as it should be, where the script stands after ``--``."""
INTERPRETERS = ("python", "python3")


def _heading(parameter: str) -> str:
    path = next((option.path for option in OPTIONS if option.parameter == parameter), parameter)
    found = (heading for heading, keys in GROUPS.items() for key in keys if f"{path}.".startswith(f"{key}."))
    return next(found, OTHERS)


class ScriptCommand(click.Command):
    """A command whose words after ``--`` are arguments of the script. Its help text has the most used options; `orch up --help` has all."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        eager: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "hidden": True}
        self.params.append(click.Option(["-h"], callback=_show_short, **eager))

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        return ["--help"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        has_own = ctx.command.name in ("plan", *_TRIALS)  # besides the settings of `orch up`, whose help has them all
        is_short = bool(ctx.meta.get(SHOWS_FEW)) or has_own
        first = (OTHERS, MOST_USED) if has_own else (MOST_USED, OTHERS)
        groups: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (*first, *GROUPS)}
        usual = {name: place for place, name in enumerate(_USUAL)}
        left_out = 0
        for parameter in sorted(self.get_params(ctx), key=lambda each: usual.get(each.name or "", len(usual)) if is_short else 0):
            record = parameter.get_help_record(ctx)
            if record is None or not isinstance(parameter, click.Option) or parameter.name in _REFUSED.get(ctx.command.name or "", ()):
                continue
            heading = _heading(parameter.name or "")
            if is_short and parameter.name in usual and not (ctx.command.name in _TRIALS and parameter.name in _OF_A_RUN):
                heading = MOST_USED
            elif is_short and heading != OTHERS:
                left_out += 1
                continue
            groups[heading].append(_row(parameter, record, ctx.command.name or ""))
        for heading, rows in groups.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl([(names.ljust(COLUMN), text) for names, text in rows], col_max=COLUMN)
        formatter.write_paragraph()
        if left_out:
            formatter.write_text(f"{'orch up' if has_own else ctx.command_path} --help shows {left_out} more options.")

        else:
            if ctx.command.name == "up":
                for text in (f"Also {', '.join(RARE)} (orch help OPTION).", f"Also with --join: {', '.join(OF_JOIN)} (orch help join)."):
                    formatter.write(textwrap.fill(text, formatter.width, break_on_hyphens=False) + "\n")  # Click breaks at hyphens
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
            self._check_values(ctx, args, own)
        if own and own[0].endswith(".py") and not self._parse_known(ctx, args)[0].get("script"):
            ctx.meta[AFTER_DASHES] = shlex.join([*ctx.command_path.split(), *args, own[0], *(["--", *own[1:]] if own[1:] else [])])
        try:
            left = super().parse_args(ctx, list(args))
            if (script := ctx.params.get("script")) and not _is_script(script):  # orch.yaml has the script, and this is a host
                words, why = self._with_values(ctx, args)
                line = shlex.join([*ctx.command_path.split(), *words, *(["--", *own] if own else [])])
                if why and not ctx.resilient_parsing:
                    raise click.UsageError(why if "\nfix: " in why else f"{why}\nfix: {line}", ctx)
            return left
        except click.NoSuchOption as error:
            message = describe_no_option(ctx, error.option_name)
            of_command = f"{ctx.command.name} {error.option_name.replace('_', '-')}" in answers("no option of a command")
            if error.option_name in PLACES and error.option_name not in answers("no option") and not of_command:
                words = [word for each in args for word in (("--backend", PLACES[each]) if each == error.option_name else (each,))]
                line = shlex.join([*ctx.command_path.split(), *words, *(["--", *own] if own else [])])
                raise click.UsageError(f"there is no option {error.option_name}\nfix: {line}", ctx) from None
            for option, word in itertools.pairwise(args):  # as in docker
                meant = {"-p": "--publish", "-v": "--mount"}.get(option, "")
                if meant and re.fullmatch(r"[\d.:]*\d+:\d+|\S*:\S*/\S*", word):
                    raise click.UsageError(f"there is no option {option}\nfix: {answers('no option')[meant]}", ctx) from None
            line = "" if "\nfix: " in message else self._line(ctx, args, own)
            raise click.UsageError(message + (f"\nfix: {line}    # an option of the script goes after --" if line else ""), ctx) from None
        except click.UsageError as error:
            if "unexpected extra argument" not in error.message:
                raise
            rule = "the script's own arguments go after --"
            args, why = self._with_values(ctx, args)
            if why and (line := "" if "\nfix: " in why else self._line(ctx, args, own)):
                why += f"\nfix: {line}"
            if "\nfix: " in why:
                raise click.UsageError(why, ctx) from None
            if not (line := self._line(ctx, args, own)):
                raise click.UsageError(f"{error.message.rstrip('.')}\nfix: {rule}", ctx) from None
            if self._interpreter(ctx, args) is not None:
                rule = "orch starts the script with Python"
            raise click.UsageError(f"{error.message.rstrip('.')}\nfix: {line}    # {rule}", ctx) from None

    def _check_values(self, ctx: click.Context, args: Sequence[str], own: Sequence[str]) -> None:
        """Refuse an option as the value of another one, and a --resume that names no run. Raises Click's usage error."""
        options = _by_name(ctx)
        for name, word in itertools.pairwise(args):
            if name != "--resume" and name in options and not options[name].is_flag and word in options:
                raise click.UsageError(f"{name} has no value: {word!r} is an option\nfix: {name} {options[name].metavar or 'VALUE'}", ctx)
        place = args.index("--resume") if "--resume" in args else len(args)
        value = "".join(args[place + 1 : place + 2])
        if place == len(args) or (value and not value.startswith("-") and not (value.endswith(".py") and os.path.isfile(value))):
            return
        words = [*args[: place + 1], "latest", *args[place + 1 :]]
        line = shlex.join([*ctx.command_path.split(), *words, *(["--", *own] if own else [])])
        raise click.UsageError(f"--resume needs the run that is continued\nfix: {line}    # orch ps --all lists the runs", ctx)

    def _with_values(self, ctx: click.Context, args: Sequence[str]) -> tuple[list[str], str]:
        """The words, with each word too much in the value of the option before it, as in ``-H hostA, hostB``; and what was wrong."""
        by_name, program = _by_name(ctx), self._parse_known(ctx, args)[0].get("script") if "--no-python" in args else None
        words, why, option, has_value = list[str](), "", None, True
        for word in args:
            if not has_value:
                has_value = True
            elif word.startswith("-"):
                name, equals, _ = word.partition("=")
                option = by_name.get(name.replace("_", "-"))
                has_value = option is None or option.is_flag or bool(equals)
            elif option is None or word in (program, *INTERPRETERS) or _is_script(word) or not (told := _take(option, words, word)):
                option = None
            else:
                why = why or told
                continue
            words.append(word)
        return words, why

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


def _by_name(ctx: click.Context) -> dict[str, click.Option]:
    options = (each for each in ctx.command.get_params(ctx) if isinstance(each, click.Option))
    return {name: each for each in options for name in (*each.opts, *each.secondary_opts)}


def _is_script(word: str) -> bool:
    return word.endswith(".py") or os.path.exists(word)


_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_HOST = r"[A-Za-z][\w.-]*(:\d+)?,?"
_OTHER_VALUE = {"--env": r"[A-Z_]\w*=.*", "--set": r"\w+(\.[\w-]+)+=.*"}


def _take(option: click.Option, words: list[str], word: str) -> str:
    """Add a word too much to the value of the option at the end of the words. Returns what was wrong; empty: it is no value."""
    name = option.opts[-1]
    if option.is_flag:
        told = f"{words[-1]} takes no value, and {word} is too much"
        if word.lower() in _NO:
            words[-1:] = option.secondary_opts[:1]
        if word.lower() in (*_YES, *_NO) or (word.isdecimal() and option.secondary_opts):
            return told
        return f"{told}\nfix: {hint}; the script's own arguments go after --" if (hint := answers("no value").get(name)) else ""
    has_comma = "," in (words[-1][-1:], word[:1])
    if re.fullmatch(_OTHER_VALUE.get(name, " "), word) or (has_comma and option.multiple and name != "--hosts"):
        words[-1:] = [words[-1].rstrip(","), name, word]
        return f"{name} takes one value, and {word} is too much"
    if has_comma or (name == "--hosts" and re.fullmatch(_HOST, word)):
        words[-1] = f"{words[-1].rstrip(',')},{word.lstrip(',')}"
        return f"{name} takes one word: no space may stand before {word}"
    return ""


def describe_no_option(ctx: click.Context, name: str) -> str:
    """The message about an option that the command does not have, with the option that may have been meant."""
    option = name.replace("_", "-")
    for one in OPTIONS:
        if option in (one.name, f"--no-{one.name[2:]}") and one.name in SETTINGS_ALONE:
            value = one.says[option == one.name] if one.says else one.metavar
            return f"there is no option {option}\nfix: --set {one.path}={value}"
    known = [other for parameter in ctx.command.get_params(ctx) for other in (*parameter.opts, *parameter.secondary_opts)]
    cutoff = 0.81 if isinstance(ctx.command, ScriptCommand) else 0.75  # --batch-size is rather an option of the script
    right = nearest(option, (other for other in known if other.startswith("--")), cutoff=cutoff)
    if not (hint := answers("no option of a command").get(f"{ctx.command.name} {option}")) and option in _options_of_up(ctx):
        return f"there is no option {option}\nfix: {option} is an option of orch up"
    of_any = answers("no option") | answers("no option of orch") if isinstance(ctx.command, ScriptCommand) else {}
    hint = hint or of_any.get(option)
    hint = hint or (f"did you mean {right}?" if right else "")
    return f"there is no option {option}" + (f"\nfix: {hint}" if hint else "")


def _options_of_up(ctx: click.Context) -> set[str]:
    """The options of `orch up`, for another command of orch."""
    group = ctx.find_root().command
    if not isinstance(group, click.Group) or not isinstance(ctx.command, ScriptCommand) or ctx.command.name == "up":
        return set()
    up = group.get_command(ctx, "up")
    return {name for parameter in (up.params if up else ()) for name in (*parameter.opts, *parameter.secondary_opts) if name[:1] == "-"}


SHOWS_FEW = "orch.help_short"


def _row(option: click.Option, record: tuple[str, str], command: str) -> tuple[str, str]:
    name = option.opts[-1]
    if name == "--help":
        return "-h, --help", "Show this message" if command in ("plan", *_TRIALS) else "Show the most used options (-h), or more (--help)"
    if (command, name) == ("scale", "--workers"):
        return "-n, --workers N,N,…", "Numbers of workers to measure, such as 1,2,4"
    if name not in LINES:
        return record[0], re.sub(r" ?Default: (.*)\.$", r" [default: \1]", record[1])
    names = f"--[no-]{name[2:]}" if option.secondary_opts else ", ".join(option.opts)
    takes = f" {METAVARS[name]}" if name in METAVARS else record[0].rpartition(name)[2]  # Click 8.1 makes the word by another call than 8.2
    return names + ("" if option.is_flag else takes), LINES[name]


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
