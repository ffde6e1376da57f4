"""Prints the man page of orch, from the tree of its commands: python docs/make_man.py > orch.1"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import click

from orchestrator import __version__, cli


def page() -> Iterator[str]:
    """The lines of the page, in the language of man(7)."""
    yield f'.TH ORCH 1 "" "orch {__version__}" "User commands"'
    yield from (".SH NAME", r"orch \- start TensorFlow clusters, watch them, and explain failures")
    yield from (".SH SYNOPSIS", r".B orch", r"\fICOMMAND\fR [\fIOPTIONS\fR] [\fIARGUMENTS\fR]", ".SH DESCRIPTION")
    yield from _description(cli.orch)
    yield ".SH COMMANDS"
    context = click.Context(cli.orch, info_name="orch", **cli.orch.context_settings)
    for name in cli.COMMANDS:
        command = cli.orch.get_command(context, name)
        assert command is not None
        yield from _command(command, click.Context(command, info_name=name, parent=context))
    yield from (".SH FILES", r"\fIorch.yaml\fR: the settings of a cluster.")


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    usage = " ".join(command.collect_usage_pieces(context))
    yield f".SS {_escaped(f'{context.command_path} {usage}')}"
    yield from _description(command)
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is not None:
            yield from (".TP", f"\\fB{_escaped(record[0])}\\fR", _escaped(record[1]))
    for name, inner in command.commands.items() if isinstance(command, click.Group) else ():
        yield from _command(inner, click.Context(inner, info_name=name, parent=context))


def _description(command: click.Command) -> Iterator[str]:
    r"""The paragraphs of a help text. Click keeps the lines of a paragraph that begins with \b."""
    for paragraph in (command.help or "").split("\n\n"):
        lines = [_escaped(line.strip()) for line in paragraph.strip("\n").splitlines()]
        if not lines:
            continue
        if lines[:1] == [_escaped("\b")]:
            yield from (".PP", ".nf", *lines[1:], ".fi")
        else:
            yield from (".PP", *lines)


def _escaped(text: str) -> str:
    """A line that man(7) prints as it is."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    text = "".join(one if one.isascii() else f"\\[u{ord(one):04X}]" for one in text)
    return rf"\&{text}" if text[:1] in (".", "'") else text


if __name__ == "__main__":
    print("\n".join(page()))
