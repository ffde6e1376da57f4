"""Prints docs/reference.md, from the declarations of the settings and of the commands: python docs/make_reference.py > docs/reference.md"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import click

from orchestrator import cli
from orchestrator.cli.script_command import OPTIONS
from orchestrator.model.settings.describe import root
from orchestrator.model.settings.kinds import Struct, sentence
from worker.settings.declare import Setting

HEAD = """# Every key, option and variable

This page lists every key of `orch.yaml`, every option of every command and every variable, each with its default.
It is made from the code by `python docs/make_reference.py`.
[spec.md](spec.md) says where a setting can be given, and which way wins. Try:

```console
$ orch init                          # writes orch.yaml with every key
$ orch plan -f orch.yaml             # shows what the file means
$ orch init --schema                 # the same keys, for an editor
```

## Keys of orch.yaml

A key has its place in front of the dot:
`timeouts.run_s: 2h` is `timeouts: {run_s: 2h}` in the file, and `--set timeouts.run_s=2h` on a command line.
`orch up`, `plan`, `doctor` and `warm start` have the options. The variable in the second column stands for the option.
"""
VARIABLES = """
## Other variables

| variable | meaning |
|---|---|
| `ORCH_CEILING` | the highest directory in which orch looks for `orch.yaml` and `.orch` |
| `ORCH_WARM` | `auto` keeps an import of TensorFlow after each run ([faster starts](commands.md#faster-starts)); `off` uses none |
| `NO_COLOR` | any value: no colours, unless `--color always` is given |
| `XDG_CACHE_HOME`, `XDG_CONFIG_HOME`, `XDG_STATE_HOME`, `XDG_RUNTIME_DIR`, `TMPDIR` | places of [files that orch leaves](files.md) |
| `ORCH_TIME_SCALE` | for tests of orch: makes the waiting times that are no settings shorter, 0.1 of their length |

[spec.md](spec.md#what-a-script-can-use) has the variables that orch sets in each task.
"""


def keys() -> Iterator[str]:
    """The tables of the keys: one for the keys at the top, and one for each section."""
    plain = {name: key for name, key in root().keys.items() if not _is_section(key)}
    yield from _table("The run", "", plain)
    for name, key in root().keys.items():
        if _is_section(key):
            yield from _table(f"`{name}`", f"{name}.", key.kind.keys, sentence(key))


def _is_section(key: Setting) -> bool:
    return isinstance(key.kind, Struct) and not key.example


def _table(heading: str, around: str, found: dict[str, Setting], about: str = "") -> Iterator[str]:
    yield f"\n### {heading}\n"
    if about:
        yield f"{about}\n"
    yield "| key, with an example | option, variable | what it does |\n|---|---|---|"
    yield from _rows(around, found)


def _rows(around: str, found: dict[str, Setting]) -> Iterator[str]:
    for name, key in found.items():
        option = next((option for option in OPTIONS if option.path == around + name), None)
        names = f"`{key.flag.replace(' ', ', ')}`<br>`{option.variable}`" if option else ""
        default = f" Default: {key.words}." if key.words else ""
        example = "" if _is_section(key) else f" {key.example}"
        yield f"| `{around}{name}:{_cell(example)}` | {names} | {_cell(sentence(key) + default)} |"
        if _is_section(key):
            yield from _rows(f"{around}{name}.", key.kind.keys)


def options(group: click.Group, words: str = "orch") -> Iterator[str]:
    """A table for each command: the options that are no settings of a run."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from options(command, f"{words} {name}")
        elif command is not None:
            rows = [_row(each) for each in command.params if isinstance(each, click.Option) and not _is_setting(each)]
            takes_settings = any(_is_setting(each) for each in command.params)
            yield f"\n### `{words} {name}`\n\n{command.get_short_help_str(400)}\n"
            if takes_settings:
                yield "The options of the keys above, and:\n" if rows else "The options of the keys above.\n"
            yield from ["| option | what it does |\n|---|---|", *filter(None, rows)] if any(rows) else []


def _is_setting(parameter: click.Parameter) -> bool:
    """Whether the parameter is an option of a key of orch.yaml, and in the help text of its command."""
    return isinstance(parameter, click.Option) and (parameter.name or "").startswith("spec_") and not parameter.hidden


def _row(option: click.Option) -> str:
    if option.hidden:
        return ""
    names = ", ".join([*option.opts, *option.secondary_opts])
    takes = f" {option.make_metavar(click.Context(click.Command('')))}" if not option.is_flag else ""
    variable = f"<br>`{option.envvar}`" if option.envvar else ""
    return f"| `{_cell(names + takes)}`{variable} | {_cell(option.help or '')} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def reference() -> str:
    parts = [HEAD, *keys(), "\n## Options of each command", *options(cli.orch), VARIABLES]
    return "\n".join(parts).replace("\n\n\n", "\n\n").rstrip() + "\n"


if __name__ == "__main__":
    print(reference(), end="")
