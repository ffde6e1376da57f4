"""Words that users know from other programs, and files that stand in a directory above: what people type first is understood."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator import sources
from orchestrator.cli.explanations import explanations, meanings, pages
from tests.cli.test_bad_input import complaint
from tests.conftest import ROOT, Orch
from worker.host.facts import machine_survey
from worker.machine.cpu_cores import count_cores
from worker.values.words import count_of

Script = Callable[..., Path]


@pytest.fixture(autouse=True)
def hello(script: Script) -> Path:
    return script("import os, sys\nprint('hello', os.getcwd(), *sys.argv[1:])\n", "hello.py")


def test_words_of_other_launchers_mean_their_command(orch: Orch) -> None:
    orch("run", "hello.py", "--strategy", "none", check=0)
    for word in ("status", "ls", "list"):
        assert "succeeded" in orch.in_process(word, check=0).out
    assert orch.in_process("ps", "--all", "--sort", "los", check=0).err == (
        "orch: note: no run has reported a number los; there are run, started, took, state\n"
    )
    for without in (("-n", "1"), ("--sort", "started")):
        assert orch.in_process("ps", *without, check=0).out == orch.in_process("ps", "--all", *without, check=0).out
    assert orch.in_process("ps", "--all", "--sort", "took", check=0).err == ""
    assert "hello-" in orch.in_process("ps", "--all", "hello", check=0).out
    assert "hello-" in orch.in_process("ps", "--all", "latest", check=0).out
    assert orch.in_process("ps", "hello", "latest", check=0).out == orch.in_process("ps", "--all", "hello", check=0).out
    complaint(orch.in_process("ps", "hello", "hallo"), 2, "has a name that begins with 'hallo'")
    complaint(orch.in_process("ps", "--all", "hallo"), 2, "has a name that begins with 'hallo'")
    complaint(orch.in_process("delete", "hello"), 2, "orch down RUN ends a run, and orch prune RUN removes the directory")
    assert "was not running" in orch.in_process("stop", check=0).out
    assert "hello" in orch.in_process("tail", check=0).out
    assert "worker-1" in orch.in_process("describe", "hello.py", "-np", "2", check=0).out
    for words in (["describe"], ["describe", "hello"], ["get"], ["events"]):
        assert re.search("^worker-0 ", orch.in_process(*words, check=0).out, re.M)
    for word in ("watch", "stats"):
        assert "succeeded" in orch.in_process(word, "--once", check=0).out
    assert "worker-2" in orch.in_process("plan", "hello.py", "--num_workers=3", check=0).out
    assert "  A=1" in orch.in_process("plan", "hello.py", "-e", "A=1", "--world-size", "2", check=0).out
    assert "worker-1" in orch.in_process("plan", "hello.py", "-w", "2", "-J", "job", "-x", "A=1", check=0).out
    noted = "checkpoints.every alone saves nothing"
    assert noted in orch.in_process("plan", "hello.py", "--set", "checkpoints.every=5", check=0).err
    assert noted not in orch.in_process("plan", "hello.py", "--set", "checkpoints.every=5", "--checkpoint", check=0).err
    assert "devices.cpus: 2" in orch.in_process("plan", "hello.py", "--logical-cpus", "2", check=0).out


def test_a_task_in_the_place_of_a_run_is_explained(orch: Orch) -> None:
    orch("up", "hello.py", "--strategy", "none", check=0)
    for command in ("ps", "stacks", "top", "down"):
        complaint(orch.in_process(command, "worker-0"), 2, "worker-0 is a task, and a run is named here", "orch stacks --task worker-0")


def test_a_word_after_an_option_is_not_the_script_where_orch_yaml_has_one(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "orch.yaml").write_text("script: hello.py\n")
    for words, right in (
        ("-H hostA, hostB", "-H hostA,hostB"),
        ("--hosts hostA hostB -- --lr 3", "--hosts hostA,hostB -- --lr 3"),
        ("--env A=1 B=2", "--env A=1 --env B=2"),
        ("--only worker-0, worker-1", "--only worker-0 --only worker-1"),
        ("--chief 1", "--chief"),
        ("--chief no", "--no-chief"),
    ):
        complaint(orch.in_process("up", *words.split()), 2, f"\n       fix: orch up {right}\n")
    for line in ("-H localhost hello.py", "-H localhost --no-python true"):
        orch.in_process("plan", *line.split(), check=0)


def test_help_is_a_command_too(orch: Orch) -> None:
    assert orch.in_process("help", check=0).out == orch.in_process("--help", check=0).out
    said = orch.in_process("help", "ps", check=0).out
    assert said == f"ps: {meanings()['ps']}\n\n{orch.in_process('ps', '--help', check=0).out}", "the word, and then the command"
    for word, meaning in meanings().items():
        said = " ".join(orch.in_process("help", *word.split("-"), check=0).out.split())
        assert said.startswith(f"{word.replace('-', ' ')}: {' '.join(meaning.split())}"), word
    assert orch.in_process("help", "warm", "start", check=0).out == orch.in_process("warm", "start", "--help", check=0).out
    topics = orch.in_process("help", "topics", check=0).out
    assert {"out-of-memory", "controller", "coming-from"} <= {*re.split(r"[\s,]+", topics)}
    assert max(map(len, topics.splitlines())) < 80
    for topic in explanations():
        assert orch.in_process("help", topic, check=0).out
    complaint(
        orch.in_process("help", "out-of-memry"), 2, "there is no command or topic 'out-of-memry'\n       fix: did you mean 'out-of-memory'?"
    )
    assert "`orch up train.py -n 4 -- --lr 0.1`" in orch.in_process("help", "torchrun", check=0).out
    assert orch.in_process("help", "notebook", check=0).out.startswith("In a notebook\n\n")
    resume = orch.in_process("help", "resume", check=0).out
    assert resume.startswith("Continue after a crash\n\n")
    assert resume.endswith(f"\n\nThe whole page: {ROOT}/docs/resume.md\n")
    assert "\n    $ orch up examples/resume_loop.py " in resume
    assert "\n* 125: orch or the backend failed" in orch.in_process("help", "exit", "codes", check=0).out
    assert orch.in_process("help", "143", check=0).out == "exit code 143: SIGTERM, or orch down; docs/exit-codes.md has all exit codes\n"
    assert orch.in_process("help", "2", check=0).out.startswith("exit code 2: the command line, the spec or the script is wrong")
    assert orch.in_process("help", "255", check=0).out.startswith("exit code 255: the code of the first task that failed, such as of sys")
    assert orch.in_process("help", "3", check=0).out.startswith("exit code 3: the code with which the first task that failed has ended")
    for word, same in (("PS", ("help", "ps")), ("Status", ("ps", "--help"))):
        assert orch.in_process("help", word, check=0).out == orch.in_process(*same, check=0).out
    for words in (["out", "of", "memory"], ["Out of memory"], ["out_of_memory"]):
        assert orch.in_process("help", *words, check=0).out == orch.in_process("help", "out-of-memory", check=0).out
    assert {"Data of other shapes"} <= {*orch.in_process("help", "shape", check=0).out.splitlines()}
    assert orch.in_process("help", "val_loss", check=0).out.startswith("A metric that fit does not report\n")
    for word, said in (
        ("--grace", "timeouts.grace_s, --grace, ORCH_GRACE\n* Seconds from"),
        (
            "restart.max",
            "restart.max, --max-restarts, ORCH_MAX_RESTARTS\n"
            "* The number of restarts after failures, in the whole run. [default: 0]\n* example: restart.max: 3\n",
        ),
        ("ORCH_CHECKPOINT_DIR", "ORCH_RUN_DIR, ORCH_CHECKPOINT_DIR, ORCH_LOG_DIR\n* directories"),
        ("network", "network, --network, ORCH_NETWORK\n* The network of the tasks."),
        ("--timeline", "--timeline (orch ps)\n* Show when each task"),
        ("timeouts", "timeouts."),
        ("two gpus", "Choose GPUs, memory and threads\n"),
        *((word, "Choose GPUs, memory and threads\n") for word in ("gpu", "cuda")),
        ("keras", "Train with Keras on several workers\n"),
        ("python", "Start runs from Python\n"),
        *((word, "Run on hosts over SSH\n") for word in ("hosts", "multi-node")),
        *((word, "Continue after a crash\n") for word in ("continue", "resume after a crash")),
        ("fewer workers", "Fewer and more workers\n"),
        ("run it in slurm", "Run in Slurm\n"),
        ("add a setting", "Add a setting,"),
        ("adding", "Add a setting"),
        ("checkpoint", "checkpoint: a copy of the training on disk, from which it can be resumed\n\nContinue after a crash\n"),
    ):
        assert orch.in_process("help", word, check=0).out.startswith(said)
    resume = orch.in_process("help", "resume", check=0).out
    assert 'four lines [section "a loop of your own"]' in resume
    assert "(exceptions [`orch help exact`])" in " ".join(resume.split())
    assert "orch help tutorial" in complaint(orch.in_process("tutorial"), 2, "there is no command 'tutorial'")
    assert orch.in_process("help", "delete", check=0).out.startswith("there is no command 'delete': orch down RUN ends a run")
    assert orch.in_process("help", "--help", check=0).out.startswith("Usage: orch help ")
    assert orch.in_process("help", "slurm", check=0).out.endswith("/docs/slurm.md\n")
    assert orch.in_process("help", "nan", check=0).out == orch.in_process("help", "a-loss-that-is-nan", check=0).out
    assert {"Out of memory", "Out of GPU memory"} <= {*orch.in_process("help", "oom", check=0).out.splitlines()}
    assert all(orch.in_process("help", page, check=0).out.count("\n") > 3 for page in pages())
    complaint(orch.in_process("help", "why"), 2, "there is no command or topic 'why'\n       fix: orch help topics lists the topics")
    assert orch.in_process("version", check=0).out == orch.in_process("--version", check=0).out


@pytest.mark.parametrize(("gpus", "words"), [(0, "no GPU"), (1, "1 GPU"), (8, "8 GPUs")])
def test_auto_tells_what_this_machine_has(orch: Orch, monkeypatch: pytest.MonkeyPatch, gpus: int, words: str) -> None:
    monkeypatch.setattr(machine_survey, "nvidia", lambda: {"gpus": [{}] * gpus})
    told = f"fix: write the number: this machine has {count_of(count_cores(), 'core')} and {words}"
    assert complaint(orch.in_process("up", "hello.py", "-n", "auto"), 2).rstrip().endswith(told)


def test_orch_yaml_and_the_runs_are_found_in_a_directory_above(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "orch.yaml").write_text("script: hello.py\nstrategy: none\n")
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    done = orch("up", cwd=below, check=0)
    assert "the settings of ../../orch.yaml" in done.err
    assert f"hello {tmp_path}" in done.out
    assert not (below / ".orch").exists()
    assert "succeeded" in orch("ps", cwd=below, check=0).out
    assert "succeeded" in orch.in_process("ps", check=0).out
    (below / ".orch").mkdir()  # the nearest one counts
    for words in (["ps"], ["ps", "--all"]):
        assert "there is no run in" in orch(*words, cwd=below, check=0).out


def test_a_file_of_another_user_is_not_found_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = tmp_path / "mine"
    below.mkdir()
    (tmp_path / "orch.yaml").touch()
    monkeypatch.chdir(below)
    assert sources.nearest("orch.yaml") == Path("../orch.yaml")
    real = Path.stat

    def of_another(path: Path, **options: bool) -> os.stat_result:
        found = list(real(path, **options))
        found[4] = os.geteuid() + 1 if path == tmp_path else found[4]
        return os.stat_result(found)

    monkeypatch.setattr(Path, "stat", of_another)
    assert sources.nearest("orch.yaml") is None


def test_what_orch_does_not_understand_is_a_note(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "orch.yaml").write_text(
        'script: hello.py\nworkdir: "${HOME}/x"\nprepare: "ls ${HOME}"\nargs: ["${A}"]\ndefaults: {env: {B: "${A}/b"}}\n'
    )
    done = orch.in_process("plan", env={"ORCH_WORKER": "5", "ORCH_RUN_ID": "x", "ORCH_LIKE_NOTHING": "1", "ORCH_WORKERS": "2"})
    assert [line for line in done.err.splitlines() if "note" in line] == [
        "orch: note: ORCH_WORKER is no variable of orch; did you mean ORCH_WORKERS?",
        "orch: note: orch.yaml:2: workdir: orch does not replace ${HOME} by a variable",
        "orch: note: orch.yaml:4: args: orch does not replace ${A} by a variable",
        "orch: note: orch.yaml:5: defaults.env.B: orch does not replace ${A} by a variable",
        f"orch: note: orch.yaml:1: there is no script {tmp_path}/${{HOME}}/x/hello.py here",
    ]
    inside = {"ORCH_TASK": "worker-0", "ORCH_IS_CHIEF": "1", "ORCH_CHECKPOINT_DIR": "/x"}  # a task starts a run of its own
    assert "is no variable" not in orch.in_process("plan", env=inside).err


def test_a_script_of_a_shell_is_told_the_option_that_it_needs(orch: Orch, script: Script) -> None:
    script("#!/bin/sh\nexec true\n", "t.sh").chmod(0o755)
    assert "'t.sh' is a program for /bin/sh, and not Python: add --no-python" in orch("up", "t.sh", check=2).err
    orch("up", "--no-python", "./t.sh", check=0)
    assert "'/bin/true' is a compiled program, and not Python: add --no-python" in orch("up", "/bin/true", check=2).err


def test_times_have_units(orch: Orch) -> None:
    orch("up", "hello.py", "--strategy", "none", "--timeout", "10m", "--set", "timeouts.grace_s=1s", check=0)
    assert '"run_s": 600.0' in next(Path(orch.cwd, ".orch", "latest").glob("spec.yaml")).read_text()
    orch.in_process("wait", "--timeout", "1h30m", check=0)


def test_each_command_prints_json_that_every_program_reads() -> None:
    """Other programs refuse Python's NaN."""
    for path in (ROOT / "orchestrator" / "cli").rglob("*.py"):
        assert "json.dumps(" not in path.read_text(), f"{path}: json_text of record/text/format.py"
