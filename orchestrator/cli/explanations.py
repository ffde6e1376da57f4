"""``orch help``: the help text of a command, what docs/why.md says about a remedy, or how another page of the documentation begins."""

from __future__ import annotations

import contextlib
import csv
import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from ..model.cause.exit_status import describe_code
from ..model.settings.findings import nearest
from .other_words import answers
from .script_command import OPTIONS

# The pages come with an installed package; in the source tree they are where they are written.
PLACES = (Path(__file__).with_name("pages"), Path(__file__).parents[2] / "docs")

TOPICS = "topics"


def pages() -> dict[str, str]:
    """Subjects of other pages of the documentation: the page, and a word of the heading, where the subject is not this word."""
    return {page.stem: page.stem for place in PLACES for page in place.glob("[a-z]*.md") if page.stem != "why"} | answers("page")


_LAST_SIGNAL = 64


def _exit_code(number: int) -> str:
    how = answers("exit code").get(str(number), "")
    if not how and 128 < number <= 128 + _LAST_SIGNAL:
        how = f"128 + {number - 128}: {describe_code(number, killed=True)}"
    how = how or "the code with which the first task that failed has ended: the script, or a library, has chosen it"
    return f"exit code {number}: {how}; docs/exit-codes.md has all exit codes"


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub and the site make it: ``No cluster was formed`` is ``no-cluster-was-formed``."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _page(name: str) -> str:
    """Return what a page says about this subject, and where the whole page is."""
    page, _, word = pages()[name].partition("#")
    if (path := path_of(page)) is None:
        return f"docs/{page}.md is about {name}"
    return f"{about(word or ('' if name == page else name), path)}\n\nThe whole page: {path}"


def path_of(page: str) -> Path | None:
    """Return where this page of the documentation is: `why` is why.md. None: it is not there, as in a package without the pages."""
    return next((place / f"{page}.md" for place in PLACES if (place / f"{page}.md").is_file()), None)


def explanations() -> dict[str, str]:
    """The text below each heading of the page about failures, by the anchor of the heading. Empty if the page is not there."""
    path = path_of("why")
    found = re.split(r"^### ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:] if path else []
    parts = [_plain(re.split(r"^## ", part, flags=re.MULTILINE)[0]) for part in found]  # without the heading of the next group
    return {anchor(part.partition("\n")[0]): part for part in parts}


def meanings() -> dict[str, str]:
    """The words of the glossary, in small letters, with their meanings. Empty if the page is not there."""
    path = path_of("glossary")
    rows = re.findall(r"^\| ([^|]+) \| (.+) \|$", path.read_text(encoding="utf-8"), re.MULTILINE) if path else []
    return {word.lower().replace(" ", "-"): _plain(meaning) for word, meaning in rows if word != "word"}


def uses_of_keras(word: str) -> list[str]:
    """Return what was found of the uses of Keras with this word: `dropout` of `Dropout(0.3)`. Empty: of none."""
    path = next((place / "keras-cases.csv" for place in PLACES if (place / "keras-cases.csv").is_file()), None)
    if path is None:
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if word.lower() in re.findall(r"\w+", row["use"].lower())]
    return [_use(row) for row in rows]


def _use(row: Mapping[str, str]) -> str:
    """A use of Keras, with the worlds of each word."""
    use, why = row["use"], row["why"]
    words = {world: word for world, word in row.items() if world not in ("use", "why")}
    lines = [f"* {'; '.join(world for world in words if words[world] == word)}: {word}" for word in dict.fromkeys(words.values())]
    if len(lines) == 1:
        lines = [f"* {next(iter(words.values()))}, everywhere"]
    return "\n".join([use, *lines, *([f"* {why}"] if why else [])])


def about(word: str, path: Path) -> str:
    """The parts of a page whose headings have this word, perhaps its begin; where none has it, the page up to its second heading."""
    parts = _parts(path)
    found = [part for part in parts if word in anchor(part.partition("\n")[0]).split("-")]
    return "\n\n".join(found or parts[:2])


def _parts(path: Path) -> list[str]:
    """Return what stands before the first heading of the second level, and below each of them, as a terminal shows it."""
    return [_plain(part) for part in re.split(r"^## ", path.read_text(encoding="utf-8").removeprefix("# "), flags=re.MULTILINE)]


_NAMED = re.compile(r"`([a-z][\w.]*):? |`([a-z][\w.]*):?`|(--?[a-zA-Z][\w-]*)|`([A-Z]\w{2,})`|(ORCH_\w+)")
"""The names in a row of a table: a key with an example, an option, a variable."""


def settings_of(word: str) -> list[str]:
    """Return what the pages say about this key, option or variable, or about all keys of this section; empty: nothing."""
    plain, exact, inside, where = _as_name(word), list[str](), list[str](), ""
    for page in ("reference", "spec"):
        page_text = path.read_text(encoding="utf-8") if (path := path_of(page)) is not None else ""
        for line in _ROWS.findall(_KEYS.sub(_as_row, page_text)):
            where = line.strip("# `") if line.startswith("#") else where
            *heads, text = re.split(r" \| ", line.strip("| ")) if line.startswith("| `") else [""]
            names = [next(filter(None, found)) for head in heads for found in _NAMED.findall(head)]
            title = ", ".join(part.rstrip(":") for head in heads for part in re.findall("`([^`]+)`", head))
            said = f"{title}{f' ({where})' if where.startswith('orch ') else ''}\n* {_plain(text)}"
            said = said.replace(r"\|", "|").replace("<br>", "\n")
            if plain in map(_as_name, names) or any("." in name and plain == _as_name(name.rpartition(".")[2]) for name in names):
                exact.append(said)
            elif any(plain == _as_name(name.partition(".")[0]) for name in names if "." in name):
                inside.append(said)
    if not exact and (key := next((option.path for option in OPTIONS if _as_name(option.name) == plain), "")):
        return settings_of(key)  # a setting whose option no table has
    of_all = [said for said in exact if " (orch " not in said.partition("\n")[0]]  # one setting stands among the options of many commands
    return of_all or exact[:MOST_ROWS] or inside


_ROWS = re.compile(r"^(?:#|\| `).*", re.MULTILINE)
_KEYS = re.compile(
    r"^#### `(?P<path>[\w.]+)`\n\n(?P<names>(?:`[-A-Z][^\n·]*(?: · |\\\n))*)(?:e.g. `[\w.]+: (?P<example>[^`]*)`\\\n)?"
    r"(?P<text>.+?)\n+(?=#)",
    re.MULTILINE | re.DOTALL,
)
"""A key of the reference: a heading, the names of its option and variable, an example, and what it does."""


def _as_row(key: re.Match[str]) -> str:
    """A key of the reference as a row of a table: ``| `restart.max` | `--max-restarts` `ORCH_MAX_RESTARTS` | …<br>* example: … |``."""
    text = re.sub("`([^`]*)`", r"\1", key["text"]).replace("\n\n", "<br>").replace("\n", "<br>")
    if key["example"]:
        text += f"{'' if '[default: ' in text else ' [default: none]'}<br>* example: {key['path']}: {key['example']}"
    return f"| `{key['path']}` | {key['names'].rstrip()} | {text} |\n\n"


MOST_ROWS = 4
"""So many commands with an option of this name are shown."""


def _as_name(word: str) -> str:
    return word.lower().lstrip("-").replace("_", "-")


def _plain(part: str) -> str:
    """The part without the links, of which a terminal shows the names alone; commands are indented in place of standing in a fence."""
    text = re.sub(r"\[([^\]]+)\]\(([^)]+)\)", _link, part)
    text = re.sub(r"^```\w*\n(.*?)^```\n?", lambda block: textwrap.indent(block[1], "    "), text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^<!--.*?-->\n|^!\[.*\n", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(?:^\|.*\n?)+", _list_of, text, flags=re.MULTILINE).strip()


def _link(link: re.Match[str]) -> str:
    """A link as a terminal can show it: its text, and the section of this page, or how to read the other page."""
    text, (page, _, section) = link[1], link[2].partition("#")
    if not page:
        return f'section "{text}"' if anchor(text) == section else f'{text} [section "{section.replace("-", " ")}"]'
    name = page.removesuffix(".md")
    if name not in pages():
        return text
    return f"`orch help {name}`" if text == page else f"{text} [`orch help {name}`]"


def _list_of(table: re.Match[str]) -> str:
    """A table as a list, which any width can show: its first column, and what the others say of it."""
    rows = [
        [cell.strip().replace(r"\|", "|").replace("<br>", " ") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in table[0].splitlines()
    ]
    heads, *rest = rows
    lines = []
    for first, *others in rest[1:]:
        named = zip(heads[1:], others, strict=False)
        cells = others if len(others) == 1 else [f"{head}: {cell}" if head else cell for head, cell in named if cell not in ("", "-")]
        is_short = len(cells) == 1 and ":" not in (first if len(first) < 20 else first + cells[0])
        lines.append(f"* {first or heads[0]}" + (f": {cells[0]}" if is_short and cells[0] else ""))
        lines += [f"  - {cell}" for cell in cells if cell and not is_short]
    return "\n".join([*lines, ""])


def _filled(text: str) -> str:
    """The text with lines that fit the terminal; commands stay as they are."""
    width = min(shutil.get_terminal_size().columns, 100)
    parts = []
    for part in re.split(r"\n(?=\n|\* |\d+\. |  - |    )", text):
        begun = part.lstrip("\n")
        if begun and not begun.startswith("    "):
            inset = {"* ": "  ", "  ": "    "}.get(begun[:2], "")
            whole = re.sub(r"`[^`]{,60}`", lambda code: code[0].replace(" ", "\xa0"), " ".join(begun.split()))
            filled = textwrap.fill(
                whole, width, initial_indent=inset[2:], subsequent_indent=inset, break_long_words=False, break_on_hyphens=False
            )
            part = part[: len(part) - len(begun)] + filled.replace("\xa0", " ")
        parts.append(part)
    return "\n".join(parts)


def _words(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Return what the shell offers: the commands, and the failures that are explained."""
    group = ctx.find_root().command
    names = group.list_commands(ctx) if isinstance(group, click.Group) else []
    return [word for word in dict.fromkeys((*names, TOPICS, *explanations(), *meanings())) if word.startswith(begun)]


@click.command("help")
@click.argument("name", metavar="[COMMAND|TOPIC]", shell_complete=_words)
@click.pass_context
def help_command(ctx: click.Context, /, name: str) -> int:
    """Explain a command, a failure that a report has named, a key, an option, a variable, a word of orch, or another topic.

    \b
    Examples:
      orch help up
      orch help topics              list what is explained
      orch help the-disk-is-full    a failure and its fix
      orch help kubernetes          how a page of the documentation begins
      orch help keras Dropout       what differs from one process
      orch help restart.max         a key of orch.yaml; or --timeout, or ORCH_TASK
    """
    otherwise = answers("no command")

    if name.lower().startswith("keras "):
        word = name.split()[1]
        if uses := uses_of_keras(word):
            click.echo(_filled("\n\n".join(uses)))
            return 0
        raise click.UsageError(f"no use of Keras with the word {word!r} was compared\nfix: docs/keras-cases.csv has all", ctx.find_root())
    typed = name
    root, topics = ctx.find_root(), {topic.replace("_", "-"): text for topic, text in explanations().items()}
    name = re.sub("[ _]+", "-", name.strip().lower()).removeprefix("exit-code-")
    page = _page(name) if name in pages() else ""
    is_code = name.isdecimal() and int(name) < 256
    page = _exit_code(int(name)) if is_code else page
    glossary = meanings()
    if name in (TOPICS, "docs", "pages"):
        click.echo(_topics(topics, glossary))
    elif name in glossary:
        click.echo(_filled(f"{name.replace('-', ' ')}: {glossary[name]}" + (f"\n\n{page}" if page else "")))
    elif page and not is_code and name not in answers("failure") and name not in topics:
        click.echo(_filled(page))
    elif named := [topic for topic in topics if answers("failure").get(name, "" if is_code else name) in (topic, *topic.split("-"))]:
        click.echo(_filled("\n\n".join([*(topics[topic] for topic in named), *([page] if page else [])])))
    elif not page and (rows := settings_of(name)):
        click.echo(_filled("\n\n".join(rows)))
    elif page or name in otherwise:
        click.echo(_filled(page or f"there is no command {name!r}: {otherwise[name]}"))
    else:
        words = typed.lower().split() if " " in typed.strip() else []
        for word in (*(each for each in words if each in pages()), *reversed(words)):  # two gpus
            with contextlib.suppress(click.UsageError):
                return int(ctx.invoke(help_command, name=word))
        known = [*topics, *glossary, *pages()]
        near = nearest(name, [*root.command.list_commands(ctx), *known] if isinstance(root.command, click.Group) else known, cutoff=0.75)
        hint = f"did you mean {near!r}?" if near else "orch help topics lists the topics, orch --help the commands"
        raise click.UsageError(f"there is no command or topic {typed!r}\nfix: {hint}", root)
    return 0


def _topics(failures: Mapping[str, str], glossary: Mapping[str, str]) -> str:
    """The lists of what ``orch help`` explains."""

    def listed(names: Iterable[str]) -> str:
        return textwrap.fill(", ".join(sorted(names)), 79, break_on_hyphens=False)

    begin = "orch help WORD explains these words, and each command, option, key, variable."
    parts = [begin, "", "pages:", listed(name for name, page in pages().items() if name == page), "", "words of orch:", listed(glossary)]
    return "\n".join([*parts, "", "failures (the line more of a report names one):", listed(failures)])
