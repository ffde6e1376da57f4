"""What the documents and the help texts promise and a machine can check: specs and commands are valid, links lead somewhere."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from orchestrator import cli
from orchestrator.cli.explanations import about, explanations, pages, settings_of
from orchestrator.cli.other_words import answers
from orchestrator.model.cause import remedies, together
from orchestrator.model.policy import endings, not_finite
from tests import tfrecords
from tests.conftest import ROOT, Orch

DOCUMENTS = sorted(path for where in (".", "docs", "examples", "benchmarks") for path in (ROOT / where).glob("*.md"))
INDEX = ROOT / "docs/README.md"
OWN_VARIABLES = {
    *("ORCH_CALLS", "ORCH_CALLS_PRELOAD", "ORCH_CALLS_COVERAGE", "ORCH_REPORT_EVERY", "ORCH_WARM_LIFELINE", "ORCH_COMPLETE", "ORCH_ORDER")
}
TUTORIAL = ROOT / "docs/tutorial.md"
"""tests/real/test_tutorial.py types its commands."""
NOT_RUN = {
    r"make |pip (un)?install|python -m pip |python3 -m venv |\. \.venv/": "it installs, or is a target of make, which the CI runs",
    r"(\.venv/bin/)?python (-m (pytest|benchmarks)|examples/)|cd examples/testing|pytest": "a test or an example, which other tests run",
    r"tensorboard ": "it serves until it is ended",
    r"rm -rf? |orch prune RUN": "it removes the files of a user: tests/cli/test_prune.py",
    r"echo ": "a command of the shell",
    r"kubectl ": "it needs a Kubernetes: tests/real/test_kubernetes_jobs.py",
    r"salloc ": "it needs a Slurm: tests/backends/test_slurm_inside.py",
    r"python orch\.pyz ": "it needs the archive: tests/test_archive.py",
    r"srun ": "it needs a Slurm: tests/backends/test_join_engines.py",
    r"orch doctor": "it imports TensorFlow: tests/cli/test_doctor.py, tests/backends/test_ssh_doctor.py",
    r"orch (stacks|restart|profile)": "it needs a run that goes on: test_stacks.py, test_restarts.py and test_pace.py in tests/",
    r"orch up .*--resume": "it needs a run with checkpoints: tests/real/test_resume.py",
    r"orch verify": "it trains: tests/real/test_verify.py",
    r"orch scale": "it trains: tests/real/test_scale.py",
    r"orch placement": "it needs a log of TensorFlow: tests/cli/test_placement.py",
}
"""Commands of the documents that are not run here, and why. Those of orch are parsed."""
SPECS = [
    pytest.param(block, id=f"{path.relative_to(ROOT)}-{number}")
    for path in DOCUMENTS
    for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL))
    if "runs-on:" not in block  # a job of GitHub: tests/testing/test_plugin.py runs its command
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
        assert words[2] in {"topics", *COMMANDS_ALONE, *explanations(), *pages()} or settings_of(words[2]), line
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
    except (click.exceptions.Exit, click.exceptions.NoArgsIsHelpError):  # --help, and a group
        pass
    except click.ClickException as error:
        pytest.fail(f"{line}: {error.format_message()}")


@pytest.fixture(scope="module")
def a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as the documents mean it: scripts, data, the examples, and a run of two workers that has ended."""
    place = tmp_path_factory.mktemp("documents")
    for name in ("train.py", "ps_train.py", "download.py"):
        (place / name).write_text("print('loss')\n")
    (place / "hosts").write_text("hostA slots=2\nhostB:2\n")
    (place / "data").mkdir()
    for number in range(4):
        tfrecords.write(place / "data" / f"{number}.tfrecord", [b"digits"] * 256)
    (place / "examples").symlink_to(ROOT / "examples")
    command = [sys.executable, "-m", "orchestrator", "up", "train.py", "-n", "2", "-q", "--set", "preload=[]"]
    subprocess.run(command, cwd=place, check=True, capture_output=True)
    return place


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
    for name in re.findall(r"[\w./-]+\.(?:py|sh)\b", f"train.py {spec}"):  # orch plan refuses a program that is missing
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch(0o700)
    orch("plan", check=0)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_command_that_is_shown_can_be_run(path: Path, orch: Orch, tmp_path: Path, a_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the page, in a directory with a script, data and a run that has ended. Nothing is started: up is --dry-run."""
    lines = re.findall(r"^\s*\$ (.*)$", path.read_text(), re.MULTILINE)
    commands_shown = [line.strip() for shown in lines for line in re.split(r" && |; ", shown.partition(" #")[0])]
    if any(line.startswith("orch ") for line in commands_shown) and path != TUTORIAL:
        shutil.copytree(a_run, tmp_path, dirs_exist_ok=True, symlinks=True)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for line in commands_shown if path != TUTORIAL else ():
        if not any(re.match(pattern, line) for pattern in NOT_RUN):
            assert line.startswith("orch "), f"{line}: neither run nor in NOT_RUN"
            words = shlex.split(line)[1:]
            words[1:1] = ["--dry-run"] if words[0] == "up" and "--dry-run" not in words else []
            words[1:1] = ["--no-tensorflow"] if words[0] == "tpu" else []  # tests/cli/test_tpu.py has TensorFlow's own assignment
            orch.in_process(*words, check=0)
        elif line.startswith("orch "):
            check_command_line(line)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_command_in_a_sentence_can_be_typed(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # where no orch.yaml is
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for line in re.findall(r"(?<!`)`(orch [a-z][^`…]*)`", text):
        is_partial = re.search(r" \[?[A-Z]{3,}|\w\|\w| --?[a-z-]+$", line)  # a placeholder, or an option without its value
        name, *rest = line.split()[1:]
        assert name in {*COMMANDS_ALONE, *answers("command"), "help", "warm"}, line
        if rest and name not in answers("command") and not is_partial:
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


def test_the_script_of_the_readme_makes_its_model_in_the_scope_of_a_strategy() -> None:
    """Without one, each worker trains a model of its own."""
    script, *_ = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert re.search(r"strategy = tf.distribute.MultiWorkerMirroredStrategy\(\).*\nwith strategy.scope\(\):\n    model = ", script)


def test_the_man_page_has_every_command_and_option() -> None:
    page = subprocess.run([sys.executable, ROOT / "docs/make_man.py"], check=True, capture_output=True, text=True).stdout
    assert re.findall(r"^\.SS orch (\S+)", page, re.MULTILINE) == [
        name for name in cli.COMMANDS for _ in range(1 + len(getattr(cli.orch.get_command(click.Context(cli.orch), name), "commands", ())))
    ]
    assert r"\-\-max\-restarts" in page
    if shutil.which("groff") is not None:
        shown = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-P-cbou"], input=page, check=True, capture_output=True, text=True)
        assert shown.stderr == ""
        assert "orch up train.py --workers 4 -- --epochs 5" in shown.stdout


def test_the_reference_is_what_the_code_says() -> None:
    made = subprocess.run([sys.executable, ROOT / "docs/make_reference.py"], check=True, capture_output=True, text=True).stdout
    assert (ROOT / "docs/reference.md").read_text() == made, "python docs/make_reference.py > docs/reference.md"
    assert re.findall(r"^#+ .*\n+(?:\|.*\n){2}\n", made, re.MULTILINE) == [], "a table without a row"


def test_the_api_is_what_the_docstrings_say() -> None:
    made = subprocess.run([sys.executable, ROOT / "docs/make_api.py"], check=True, capture_output=True, text=True).stdout
    assert (ROOT / "docs/api.md").read_text() == made, "python docs/make_api.py > docs/api.md"


def test_each_variable_that_a_user_may_set_is_in_the_documents() -> None:
    sources = [path.read_text() for package in ("orchestrator", "worker") for path in (ROOT / package).rglob("*.py")]
    read = set(re.findall(r"""["'](ORCH_[A-Z_]*[A-Z])["']""", "".join(sources)))
    told = "".join((ROOT / "docs" / page).read_text() for page in ("commands.md", "notify.md", "reference.md", "spec.md"))
    assert sorted(name for name in read - OWN_VARIABLES if f"`{name}`" not in told) == []


def test_each_remedy_has_a_heading_and_each_heading_a_remedy() -> None:
    remedied = {remedy.about for remedy in (*remedies.every(), *together.every())} | {
        remedies.UNFORMED,
        not_finite.ABOUT,
        endings.ABOUT_APART,
    }
    assert set(explanations()) == remedied
    assert all(len(text.splitlines()) > 2 for text in explanations().values())


def test_orch_help_prints_the_part_of_the_page_that_a_report_names(orch: Orch) -> None:
    said = orch("help", "the-disk-is-full", check=0).out
    assert said.startswith("The disk is full\n")
    assert "orch prune --keep 5" in said
    assert "](" not in said
    assert "there is no command or topic 'the-disk-is-empty'" in orch("help", "the-disk-is-empty", check=2).err


def test_the_pages_that_orch_help_names_are_there() -> None:
    named = [page.partition("#") for page in pages().values()]
    assert [
        page for page, _, word in named if word and about(word, ROOT / "docs" / f"{page}.md") == about("", ROOT / "docs" / f"{page}.md")
    ] == []


def test_every_page_is_in_the_index() -> None:
    listed = {(INDEX.parent / file).resolve() for file, _ in links(INDEX) if file}
    assert sorted(path.name for path in (ROOT / "docs").glob("*.md") if path != INDEX and path not in listed) == []
    assert (INDEX.relative_to(ROOT).as_posix(), "") in links(ROOT / "README.md")
    assert (ROOT / "README.md").read_text().count("\n") <= 120


@pytest.mark.parametrize(("target", "page"), [("figures", "README.md"), ("matrix", "docs/limits.md"), ("pictures", "README.md")])
def test_a_page_has_the_place_of_what_a_command_writes(target: str, page: str) -> None:
    text = (ROOT / page).read_text()
    for mark in (f"<!-- written by `make {target}` -->\n", f"<!-- end of what `make {target}` writes -->\n"):
        assert text.count(mark) == 1
    assert f"\n{target}: " in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("words", COMMANDS)
def test_the_help_of_a_command_has_an_example_and_fits_a_terminal(words: str) -> None:
    command = COMMANDS[words]
    text = command.get_help(click.Context(command, info_name=words, terminal_width=80, **cli.orch.context_settings))
    assert [line for line in text.splitlines() if len(line) > 80] == []
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
    _, _, table = (ROOT / "docs/how-it-works.md").read_text().partition("## The folders of the code")
    named = set(re.findall(r"`(?:\w+/)*(\w+(?:\.py|/))`", table.partition("\n## ")[0]))
    rooms = {f"{path.name}/" if path.is_dir() else path.name for path in (ROOT / package).glob("[!_]*")}
    assert sorted(rooms - named - {"py.typed"}) == []
