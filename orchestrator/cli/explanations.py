"""``orch help``: the help text of a command, or what docs/why.md says about the remedy that a report has named."""

from __future__ import annotations

import re
from pathlib import Path

import click

from ..model.cause.exit_status import describe_code
from ..model.spec import BACKENDS
from ..model.spec.findings import nearest

# The page comes with an installed package; in the source tree it is among the other pages.
PLACES = (Path(__file__).with_name("why.md"), Path(__file__).parents[2] / "docs/why.md")

TOPICS = "topics"
_WORDS = {"oom": "memory", "killed": "sigkill", "137": "sigkill", "139": "crash", "134": "crash", "127": "program"} | {
    "hang": "stalls",
    "stdin": "keyboard",
    "shape": "shapes",
}
"""Words of users for words of the headings."""
PAGES = {
    **dict.fromkeys(("torchrun", "horovod", "horovodrun", "mpirun", "accelerate", "ray", "torchx", "sbatch", "srun"), "coming-from"),
    **dict.fromkeys(("docker", "compose", "kubectl", "tfjob"), "coming-from"),
    **{place: place for place in [*BACKENDS][1:]},  # not this machine
    **{page: page for page in ("keras", "input", "testing", "python", "security", "resume", "restarts", "exit-codes", "files", "limits")},
    **{page: page for page in ("devices", "prepare", "seeing", "spec", "commands", "tutorial", "strategies", "tensorboard", "reference")},
    **dict.fromkeys(("sweep", "tune", "json", "logging"), "commands"),
    **dict.fromkeys(("yaml", "orch.yaml", "settings", "options", "config"), "spec"),
    "exit-code": "exit-codes",
    "gpus": "devices",
    "install": "tutorial",
    "pytest": "testing",
    "launch": "python",
}
"""Subjects of other pages of the documentation."""


_CODES = {
    0: "the cluster succeeded",
    2: "the command line, the spec or the script is wrong, and nothing was started; or the code of a task, if there is a report",
    42: "the training has saved itself because the run was to end; the report has the command that continues it",
    124: "a deadline passed, which the report names",
    125: "orch or the place failed: a lost host, a full disk, a task that could not be started",
    130: "Ctrl-C",
    143: "SIGTERM, or orch down",
}


def _exit_code(number: int) -> str:
    how = _CODES.get(number, "the code of the first task that failed")
    if number > 128 and number not in _CODES:
        how = f"128 + {number - 128}: {describe_code(number, killed=True)}"
    return f"exit code {number}: {how}; docs/exit-codes.md has all exit codes"


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub and the site make it: ``No cluster was formed`` is ``no-cluster-was-formed``."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def explanations() -> dict[str, str]:
    """The text below each heading of the page, by the anchor of the heading. Empty if the page is not there."""
    page = next((place.read_text(encoding="utf-8") for place in PLACES if place.is_file()), "")
    _, *parts = re.split(r"^## ", page, flags=re.MULTILINE)
    return {anchor(part.partition("\n")[0]): _plain(part) for part in parts}


def _plain(part: str) -> str:
    """The part without the links, of which a terminal shows the names alone."""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", part).strip()


def _words(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """What the shell offers: the commands, and the failures that are explained."""
    group = ctx.find_root().command
    names = group.list_commands(ctx) if isinstance(group, click.Group) else []
    return [word for word in (*names, TOPICS, *explanations()) if word.startswith(begun)]


@click.command("help")
@click.argument("name", metavar="[COMMAND|TOPIC]", shell_complete=_words)
@click.pass_context
def help_command(ctx: click.Context, /, name: str) -> int:
    """Explain a command, as its --help does, or a failure that a report has named.

    \b
    Examples:
      orch help up
      orch help topics              list the failures that are explained
      orch help the-disk-is-full    what docs/why.md says about one
    """
    root, topics = ctx.find_root(), explanations()
    page = f"docs/{PAGES[name]}.md is about {name}" if name in PAGES else ""
    is_code = name.isdecimal() and int(name) < 256
    page = _exit_code(int(name)) if is_code else page
    if name == TOPICS:
        click.echo("\n".join(["orch help TOPIC prints what docs/why.md says about one of these:", "", *topics]))
    elif named := [topic for topic in topics if _WORDS.get(name, "" if is_code else name) in (topic, *topic.split("-"))]:
        click.echo("\n\n".join([*(topics[topic] for topic in named), *([page] if page else [])]))
    elif page:
        click.echo(page)
    else:
        near = nearest(name, [*root.command.list_commands(ctx), *topics] if isinstance(root.command, click.Group) else topics, cutoff=0.75)
        hint = f"did you mean {near!r}?" if near else "orch help topics lists the topics, orch --help the commands"
        raise click.UsageError(f"there is no command or topic {name!r}; {hint}", root)
    return 0
