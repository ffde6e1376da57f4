"""What the documents and the help texts promise and a machine can check: specs and commands are valid, links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from orchestrator import cli
from orchestrator.cli.explanations import explanations
from orchestrator.model.cause import remedies
from orchestrator.model.run import not_finite
from orchestrator.record.text import report
from tests.conftest import ROOT, Orch

DOCUMENTS = sorted(path for where in (".", "docs", "examples", "benchmarks") for path in (ROOT / where).glob("*.md"))
INDEX = ROOT / "docs/README.md"
OWN_VARIABLES = {
    *("ORCH_CALLS", "ORCH_CALLS_PRELOAD", "ORCH_CALLS_COVERAGE", "ORCH_REPORT_EVERY", "ORCH_WARM_LIFELINE", "ORCH_COMPLETE"),
}
"""What one process of orch tells another one by."""
SPECS = [
    pytest.param(block, id=f"{path.relative_to(ROOT)}-{number}")
    for path in DOCUMENTS
    for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL))
]


def commands(group: click.Group = cli.orch, words: str = "orch") -> Iterator[tuple[str, click.Command]]:
    """Every command of orch with its words, groups included: ("orch warm start", …)."""
    yield words, group
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{words} {name}")
        else:
            yield f"{words} {name}", command


COMMANDS = dict(commands())
COMMANDS_ALONE = {words.split()[-1] for words in COMMANDS}


def check_command_line(line: str) -> None:
    """Parse a command line of orch as Click does; fail for an unknown command, option or argument. Nothing is run."""
    words = shlex.split(line, comments=True)
    if words[:2] == ["orch", "help"]:
        assert words[2] in COMMANDS_ALONE or words[2] in explanations(), line
        return
    command: click.Command = cli.orch
    while isinstance(command, click.Group) and len(words) > 1 and not words[1].startswith("-"):
        words = words[1:]
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, line
        command = found
    try:
        # orch's own settings: Click keeps the help option that a command's first context gives it, for all tests of this process.
        command.make_context(words[0], words[1:], **cli.orch.context_settings)
    except click.exceptions.Exit:  # --help
        pass
    except click.ClickException as error:
        pytest.fail(f"{line}: {error.format_message()}")


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(path: Path) -> Iterator[tuple[str, str]]:
    """The relative links of a document: file (empty for the document itself) and anchor."""
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" not in target:
            file, _, anchor = target.partition("#")
            yield file, anchor


@pytest.mark.parametrize("spec", SPECS)
def test_a_spec_that_is_shown_is_one(orch: Orch, tmp_path: Path, spec: str) -> None:
    (tmp_path / "orch.yaml").write_text(spec if "script:" in spec else f"script: train.py\n{spec}")
    orch("plan", check=0)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_command_that_is_shown_can_be_typed(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # where no orch.yaml is
    for lines in re.findall(r"^\s*\$ (.*)$", path.read_text(), re.MULTILINE):
        for line in re.split(r" && |; ", lines):
            if line.startswith("orch "):
                check_command_line(line)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for file, anchor in links(path):
        target = path.parent / file if file else path
        assert target.exists(), file
        assert not anchor or anchor in anchors(target), f"{file}#{anchor}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_are_named_exist(path: Path) -> None:
    named = re.findall(r"`((?:orchestrator|worker|tests|benchmarks|examples)/[\w/-]+\.\w+)`", path.read_text())
    assert [file for file in named if not (ROOT / file).exists()] == []


def test_the_reference_is_what_the_code_says() -> None:
    made = subprocess.run([sys.executable, ROOT / "docs/make_reference.py"], check=True, capture_output=True, text=True).stdout
    assert (ROOT / "docs/reference.md").read_text() == made, "python docs/make_reference.py > docs/reference.md"


def test_each_variable_that_a_user_may_set_is_in_the_documents() -> None:
    sources = [path.read_text() for package in ("orchestrator", "worker") for path in (ROOT / package).rglob("*.py")]
    read = set(re.findall(r"""["'](ORCH_[A-Z_]*[A-Z])["']""", "".join(sources)))
    told = "".join(path.read_text() for path in DOCUMENTS)
    assert sorted(name for name in read - OWN_VARIABLES if f"`{name}`" not in told) == []


def test_each_remedy_has_a_heading_and_each_heading_a_remedy() -> None:
    remedied = {remedy.about for remedy in remedies.every()} | {report.ABOUT_UNFORMED, not_finite.ABOUT}
    assert set(explanations()) == remedied
    assert all(len(text.splitlines()) > 2 for text in explanations().values())


def test_orch_help_prints_the_part_of_the_page_that_a_report_names(orch: Orch) -> None:
    said = orch("help", "the-disk-is-full", check=0).out
    assert said.startswith("The disk is full\n")
    assert "orch prune --keep 5" in said
    assert "](" not in said
    assert "there is no command 'the-disk-is-empty'" in orch("help", "the-disk-is-empty", check=2).err


def test_every_page_is_in_the_index() -> None:
    listed = {(INDEX.parent / file).resolve() for file, _ in links(INDEX) if file}
    assert sorted(path.name for path in (ROOT / "docs").glob("*.md") if path != INDEX and path not in listed) == []
    assert (INDEX.relative_to(ROOT).as_posix(), "") in links(ROOT / "README.md")


@pytest.mark.parametrize("target", ["figures", "matrix", "pictures"])
def test_the_readme_has_the_place_of_what_a_command_writes(target: str) -> None:
    text = (ROOT / "README.md").read_text()
    for mark in (f"<!-- written by `make {target}` -->\n", f"<!-- end of what `make {target}` writes -->\n"):
        assert text.count(mark) == 1
    assert f"\n{target}: " in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("words", COMMANDS)
def test_the_help_of_a_command_has_an_example(words: str) -> None:
    command = COMMANDS[words]
    text = command.get_help(click.Context(command, info_name=words, **cli.orch.context_settings))
    _, heading, rest = re.sub(r"\x08", "", text).partition("Example")
    examples = re.findall(r"^\s+(orch .*?)(?:  .*)?$", rest.partition("\n\n")[0], re.MULTILINE)
    assert heading, text
    assert any(line.startswith(words) for line in examples), text
    for line in examples:
        check_command_line(line)


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.py") if path.name != "digits.py"))
def test_every_example_is_in_their_table(example: str) -> None:
    assert f"({example})" in (ROOT / "examples/README.md").read_text()


@pytest.mark.parametrize("package", ["orchestrator", "worker"])
def test_every_room_is_in_the_table_of_rooms(package: str) -> None:
    _, _, table = (ROOT / "docs/how-it-works.md").read_text().partition("## The rooms")
    named = set(re.findall(r"`(?:\w+/)*(\w+(?:\.py|/))`", table.partition("\n## ")[0]))
    rooms = {f"{path.name}/" if path.is_dir() else path.name for path in (ROOT / package).glob("[!_]*")}
    assert sorted(rooms - named - {"py.typed"}) == []
