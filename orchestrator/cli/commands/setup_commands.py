"""``orch init``: a commented orch.yaml, and its JSON Schema. ``orch completion``: what a shell needs to complete orch."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import get_completion_class

from ...errors import UsageError
from ...model.settings import describe
from ...record.text.format import json_text
from .. import completion

SCHEMA = ".orch.schema.json"
"""The schema next to a file of `orch init`, whose first line names the schema for editors: no path of one machine, and no address."""


@click.command("init")
@click.argument("file", default="orch.yaml", shell_complete=completion.files)
@click.option("--all", "everything", is_flag=True, help="Write every key, with its description and its default.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of orch.yaml, for editors, and write nothing.")
def init_command(file: str, everything: bool, schema: bool) -> int:
    """Write a settings file to fill in (default: orch.yaml). A file that exists is not changed.

    \b
    Examples:
      orch init
      orch init digits.yaml --all
      orch init --schema

    orch also writes .orch.schema.json, with which editors complete and check the settings. Put both files into git.
    """
    if schema:
        click.echo(_schema(), nl=False)
        return 0
    try:
        with open(file, "x", encoding="utf-8") as output:
            text = describe.template() if everything else describe.short_template(_script_here(Path(file).parent))
            output.write(f"# yaml-language-server: $schema={SCHEMA}\n{text}")
        Path(file).with_name(SCHEMA).write_text(_schema(), encoding="utf-8")
    except FileExistsError:
        raise UsageError(f"{file} exists already; name another file, or remove it first") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None
    click.echo(f"wrote {file}, and {SCHEMA} for editors; orch plan -f {file} shows what it means")
    return 0


def _script_here(directory: Path) -> str:
    """The script that the file may mean: the only one of this directory, else train.py."""
    found = [path.name for path in directory.glob("*.py") if not path.name.startswith(("_", "test_"))]
    return found[0] if len(found) == 1 else "train.py"


def _schema() -> str:
    return json_text(describe.json_schema(), indent=2) + "\n"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> int:
    """Print the completion for bash, zsh or fish. The shell then completes commands, options, files, runs and tasks.

    \b
    Example:
      orch completion bash

    In ~/.bashrc: eval "$(orch completion bash)". In ~/.zshrc: eval "$(orch completion zsh)". For fish, write the output to
    ~/.config/fish/completions/orch.fish.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "orch", "_ORCH_COMPLETE").source())
    return 0
