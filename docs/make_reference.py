"""Prints docs/reference.md, from the declarations of the settings and of the commands: python docs/make_reference.py > docs/reference.md"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import click

from orchestrator import cli
from orchestrator.cli.option_lines import SETTINGS_ALONE
from orchestrator.cli.script_command import OPTIONS
from orchestrator.model.settings.describe import root
from orchestrator.model.settings.kinds import OneOf, Struct, sentence
from worker.settings.declare import Setting

HEAD = """# Every key, option and variable

[spec.md](spec.md) says where a setting can be given, and which way wins.

```console
$ orch init --all                    # writes orch.yaml with every key
$ orch plan -f orch.yaml             # shows what the file means
$ orch init --schema                 # the same keys, for an editor
```

## Keys of orch.yaml

`timeouts.run_s` with `2h` means `timeouts: {run_s: 2h}` in orch.yaml, or `--set timeouts.run_s=2h`.
Every key can be set in both ways; many also have an option and a variable.
"""
VARIABLES = """
## Other variables

| variable | meaning |
|---|---|
| `ORCH_CEILING` | a directory above the current one: orch looks for `orch.yaml` and `.orch` only below it |
| `NO_COLOR` | any value: no colours, unless `--color always` is given |
| `XDG_CACHE_HOME`, `XDG_STATE_HOME`, `XDG_RUNTIME_DIR`, `TMPDIR` | places of [files that orch leaves](files.md) |
| `ORCH_TIME_SCALE` | for tests of orch: makes the waiting times that are no settings shorter, 0.1 of their length |

[spec.md](spec.md#what-a-script-can-use) lists the variables that orch sets in each task.
"""


def keys() -> Iterator[str]:
    """The lists of the keys: one for the keys at the top, and one for each section."""
    plain = {name: key for name, key in root().keys.items() if not _is_section(key)}
    yield from _list("The run", "", plain)
    for name, key in root().keys.items():
        if _is_section(key) and any(_rows(f"{name}.", key.kind.keys)):
            yield from _list(f"`{name}`", f"{name}.", key.kind.keys, sentence(key))


def _is_section(key: Setting) -> bool:
    return isinstance(key.kind, Struct) and not key.example


def _list(heading: str, around: str, found: dict[str, Setting], about: str = "") -> Iterator[str]:
    yield f"\n### {heading}\n"
    if about:
        yield f"{about}\n"
    yield from _rows(around, found)


def _rows(around: str, found: dict[str, Setting]) -> Iterator[str]:
    """Each key with a heading of its own, for links and for the search of the site."""
    for name, key in found.items():
        if key.is_own:
            continue
        option = next((option for option in OPTIONS if option.path == around + name), None)
        flag = [key.flag.replace(" ", ", ")] if option and option.name not in SETTINGS_ALONE else []
        example = [] if _is_section(key) or key.example in ("", key.words) else [f"e.g. `{name}: {key.example}`"]
        names = " · ".join([*(f"`{each}`" for each in (*flag, *([option.variable] if option else []))), *example])
        default = f" [default: {key.words}]" if key.words not in ("", "none") else ""
        begun, *meanings = _meanings(sentence(key), key.kind.words if isinstance(key.kind, OneOf) else ())
        shown = [f"#### `{around}{name}`", "", *([f"{names}\\"] if names else []), begun + default]
        yield "\n".join([*shown, *([""] if meanings else []), *(f"* {meaning}" for meaning in meanings), ""])
        if _is_section(key):
            yield from _rows(f"{around}{name}.", key.kind.keys)


def _meanings(text: str, words: tuple[str, ...]) -> list[str]:
    """The text before the meanings of the words of a choice, and each meaning: ``A network. a: this; b: that.``"""
    begun, *rest = re.split(rf"[.;] (?=(?:{'|'.join(words)}): )", text) if words else [text]
    meanings = [re.sub(r"^(\w+): ", r"`\1`: ", part).rstrip(".") for part in rest]
    return [f"{begun.rstrip('.')}.", *meanings] if len(meanings) > 1 else [text]


def options(group: click.Group, words: str = "orch") -> Iterator[str]:
    """A table for each command: the options that are no settings of a run."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from options(command, f"{words} {name}")
        elif command is not None:
            shown = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
            settings = [each for each in shown if _is_setting(each)]
            common = [each for each in shown if each.opts[-1] in COMMON and settings]
            rows = [_row(each) for each in shown if each not in settings and each not in common and each.opts[-1] not in EVERYWHERE]
            yield f"\n### `{words} {name}`\n\n{command.get_short_help_str(400).replace(LATEST, '')}\n"
            if settings:
                taken = [each.opts[-1] for each in (*settings, *common)]
                of_up = {option for each in OF_UP.params for option in each.opts}
                is_same = of_up.issuperset(taken) and len(taken) > FEW
                all_settings = "The settings of `orch up`" if command is not OF_UP else "The options of the keys above"
                which = all_settings if is_same else ", ".join(f"`{option}`" for option in taken)
                yield f"{which}{', and:' if rows else '.'}\n"
            yield from ["| option | what it does |\n|---|---|", *filter(None, rows)] if any(rows) else []


LATEST = " (default: the latest run)"
"""Said once, above the commands."""
COMMON = ("--file", "--set", "--env", "--hostfile", "--no-python")
EVERYWHERE = ("--home", "--json", "--color")
"""Options of many commands, which the page has once."""
FEW = 20
"""A command that takes more settings takes those of ``orch up``."""
OF_UP = cli.orch.get_command(click.Context(cli.orch), "up") or click.Command("up")


def common_options() -> Iterator[str]:
    """The table of the options that all commands with settings have."""
    yield "\n| option of several commands | what it does |\n|---|---|"
    yield from (_row(each) for each in OF_UP.params if isinstance(each, click.Option) and each.opts[-1] in (*COMMON, *EVERYWHERE))
    yield "\nThe tables below leave these out; `orch COMMAND --help` names them. Without RUN, most take the latest run."


def _is_setting(option: click.Option) -> bool:
    """True for the option of a key of orch.yaml."""
    return (option.name or "").startswith("spec_") and option.name != "spec_file"


def _row(option: click.Option) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    takes = f" {option.make_metavar(click.Context(click.Command('')))}" if not option.is_flag else ""
    variable = f"<br>`{option.envvar}`" if option.envvar else ""
    about = re.sub(r" Default: (.*)\.$", r" [default: \1]", option.help or "")
    return f"| `{_cell(names + takes)}`{variable} | {_cell(about)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def reference() -> str:
    parts = [HEAD, *keys(), "\n## Options of each command", *common_options(), *options(cli.orch), VARIABLES]
    return "\n".join(parts).replace("\n\n\n", "\n\n").rstrip() + "\n"


if __name__ == "__main__":
    print(reference(), end="")
