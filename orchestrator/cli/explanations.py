"""``orch help``: the help text of a command, or what docs/why.md says about the remedy that a report has named."""

from __future__ import annotations

import re
from pathlib import Path

import click

from ..model.spec.findings import nearest

# The page comes with an installed package; in the source tree it is among the other pages.
PLACES = (Path(__file__).with_name("why.md"), Path(__file__).parents[2] / "docs/why.md")

TOPICS = "topics"
_WORDS = {"oom": "memory", "killed": "sigkill", "hang": "stalls", "stdin": "keyboard"}
"""Words of users for words of the headings."""


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
    if name == TOPICS:
        click.echo("\n".join(["orch help TOPIC prints what docs/why.md says about one of these:", "", *topics]))
    elif named := [topic for topic in topics if _WORDS.get(name, name) in (topic, *topic.split("-"))]:
        click.echo("\n\n".join(topics[topic] for topic in named))
    else:
        near = nearest(name, [*root.command.list_commands(ctx), *topics] if isinstance(root.command, click.Group) else topics, cutoff=0.75)
        hint = f"did you mean {near!r}?" if near else "orch help topics lists the topics, orch --help the commands"
        raise click.UsageError(f"there is no command or topic {name!r}; {hint}", root)
    return 0
