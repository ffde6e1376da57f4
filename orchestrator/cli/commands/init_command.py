"""``orch init``: a commented orch.yaml to start from."""

from __future__ import annotations

import click

from ...errors import UsageError
from ...model.spec.describe import template


@click.command("init")
@click.argument("file", default="orch.yaml")
def init_command(file: str) -> int:
    """Write a commented settings file (default: orch.yaml). A file that exists is not changed.

    \b
    Examples:
      orch init
      orch init digits.yaml
    """
    try:
        with open(file, "x", encoding="utf-8") as output:
            output.write(template())
    except FileExistsError:
        raise UsageError(f"{file} exists already; name another file, or remove it first") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None
    click.echo(f"wrote {file}; orch plan -f {file} shows what it means")
    return 0
