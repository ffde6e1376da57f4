"""Things that are no files, in place of those that orch has written: one message, and nobody waits for somebody who writes into a pipe."""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import orchestrator
from orchestrator.backends.connection import agent_process
from orchestrator.control import engine_jobs
from orchestrator.errors import OrchError, UsageError
from orchestrator.model.policy.submission import Submission
from orchestrator.record import engine_files
from orchestrator.record.run_directory import RunDir
from orchestrator.record.run_store import create_run
from tests.conftest import Orch
from tests.live import held_run, plan_for
from tests.made_up_run import MadeUpRun

ODD: dict[str, Callable[[Path], None]] = {
    "a named pipe": os.mkfifo,
    "a directory": Path.mkdir,
    "a link": lambda path: path.symlink_to("/etc/passwd"),
}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """One that is over, as far as its lock says."""
    with held_run(tmp_path / ".orch") as (run, _):
        pass
    return run


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", ["plan.json", "events.jsonl", "lock"])
def test_what_is_no_file_is_said_to_be_so_at_once(orch: Orch, run: RunDir, name: str, kind: str) -> None:
    (run.path / name).unlink(missing_ok=True)
    ODD[kind](run.path / name)
    said = f"error: {run.path / name} is {kind}, not a file that orch has written; remove it\n"
    for command in ("ps", "placement", *(("wait", "down", "logs") if name != "events.jsonl" else ())):
        done = orch.in_process(command, "one")
        if (command, name) not in (("wait", "plan.json"), ("ps", "plan.json")):  # these read no plan
            assert (done.code, done.err) == (125, said), command
    assert f"{run.path / name} is {kind}" in orch.in_process("ps", "--all", check=0).out or name != "lock"
    assert [one["run"] for one in json.loads(orch.in_process("ps", "--all", "--json", check=0).out)] == ["one"]


@pytest.mark.parametrize(
    "result",
    [
        {"exit_code": 0, "cause": 5},
        {"cause": {"failure": "x"}},
        {"exit_code": 0},
        {"outcome": "won"},
        {"outcome": "succeeded", "ended_at": "noon"},
        [],
    ],
)
def test_a_result_that_orch_has_not_written_is_none(orch: Orch, run: RunDir, result: object) -> None:
    run.write("result.json", json.dumps(result))
    assert re.match(r"one .* lost ", orch.in_process("ps", "--all", check=0).out.splitlines()[1])
    assert orch.in_process("ps", "--all", "--json", check=0).out.count('"state": "lost"') == 1
    assert "died before it could say how the run ended" in orch.in_process("wait", "one", check=125).err


@pytest.mark.parametrize("kind", ODD)
def test_a_log_that_is_no_file_is_said_to_be_so_at_once(orch: Orch, run: RunDir, kind: str) -> None:
    run.task_dir("worker-0", 1).mkdir(parents=True)
    ODD[kind](run.log_path("worker-0", 1, "stderr"))
    for command in ("placement", *(("logs",) if kind != "a named pipe" else ())):  # a pipe is empty
        done = orch.in_process(command, "one")
        assert (done.code, done.err.count("\n")) == (125, 1), done
        assert f"is {kind}" in done.err


@pytest.mark.parametrize("name", ["plan.json", "events.jsonl", "marks", "samples/0.jsonl"])
def test_a_file_without_end_is_not_read_into_memory(orch: Orch, tmp_path: Path, name: str) -> None:
    run = MadeUpRun(tmp_path / ".orch", seconds=60.0).run
    (run.path / name).unlink(missing_ok=True)
    (run.path / name).touch()
    os.truncate(run.path / name, 1 << 36)
    kept = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, kept[1]))
    try:
        assert "made-up" in orch.in_process("ps", "--all", check=0).out
        for command in ("ps", "logs", "report", "placement", "down"):
            assert orch.in_process(command, run.run_id).code in (0, 1, 125), command
    finally:
        resource.setrlimit(resource.RLIMIT_AS, kept)


def test_a_page_shows_no_file_that_a_link_in_the_place_of_a_log_names(orch: Orch, tmp_path: Path) -> None:
    """A task, or another user, has put it there; and pages and archives are given away."""
    run = MadeUpRun(tmp_path / ".orch", seconds=60.0, fails_at=(0.5,)).run
    (tmp_path / "elsewhere").write_text("not for the page\n" * 50)
    for file in (path for path in run.path.rglob("*.log")):
        file.unlink()
        file.symlink_to(tmp_path / "elsewhere")
    assert [*run.path.rglob("*.log")]
    orch.in_process("report", run.run_id, "--bundle", check=0)
    with zipfile.ZipFile(tmp_path / f"{run.run_id}.zip") as archive:
        assert not [name for name in archive.namelist() if b"not for the page" in archive.read(name)]


LOOKING = (
    *(
        ("ps",),
        ("ps", "--all"),
        ("ps", "one"),
        ("logs",),
        ("report",),
        ("report", "--bundle"),
        ("ps", "--timeline"),
        ("placement",),
        ("stacks",),
    ),
    *(("down",), ("down", "--all"), ("restart",), ("profile",), ("checkpoints",), ("top", "--once"), ("prune", "--keep", "0")),
)


@pytest.mark.parametrize("how", ["unpacked", "copied", "edited"])
def test_no_command_runs_a_program_of_a_directory_that_orch_has_not_written_here(
    orch: Orch, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of a user who has sent it with a bug report: its spec, or what it says of its job, names a program."""
    evil, ran = tmp_path / "evil.sh", tmp_path / "ran"
    evil.write_text(f"#!/bin/sh\ntouch {ran}\n")
    evil.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    run = create_run(tmp_path / ".orch", "one")
    kubectl = "kubectl" if how == "edited" else str(evil)
    spec = f"{{script: a.py, tasks: {{worker: 1}}, backend: {{type: kubernetes, image: x, controller: cluster, kubectl: [{kubectl}]}}}}"
    run.write("spec.yaml", spec)
    if how == "unpacked":
        told = {"job": "1", "words": "pod x", "at": 1.0, "inode": run.path.stat().st_ino}
        run.write("submission.json", json.dumps(told))
    else:
        engine_files.keep_submission(run.path, Submission("1", "pod x", 1.0))
    if how == "edited":
        run.write("spec.yaml", spec.replace("kubectl]", f"{evil}]"))
    if how == "copied":
        shutil.copytree(run.path, tmp_path / "sent")
        shutil.rmtree(run.path)
        (tmp_path / "sent").rename(run.path)
    for words in LOOKING:
        orch.in_process(*words)
        assert not ran.exists(), words
    assert "its engine is not asked" in engine_jobs.find(tmp_path / ".orch", "one").heard().describe(2.0)
    with pytest.raises(UsageError, match="is a copy"):
        engine_jobs.deliver(run, b"{}")


def test_the_key_of_the_seal_is_no_file_that_a_directory_can_bring_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one that another user could have written, nor an empty one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", "state")  # relative: not used
    key = engine_files.seal_key()
    path = tmp_path / "home/.local/state/orch/seal"
    assert (len(key), path.read_bytes(), engine_files.seal_key()) == (32, key, key)
    assert not (tmp_path / "state").exists()
    assert os.listdir(path.parent) == ["seal"]
    for data, mode in ((b"", 0o600), (key, 0o644), (key[:31], 0o600), (key + b"x", 0o600)):
        path.write_bytes(data)
        path.chmod(mode)
        with pytest.raises(OrchError, match="is no key that only this user can read and write: remove it"):
            engine_files.seal_key()
    monkeypatch.setenv("HOME", "nowhere")
    with pytest.raises(OrchError, match="set HOME or XDG_STATE_HOME"):
        engine_files.seal_key()


def test_a_page_is_written_into_what_is_no_file_and_replaces_no_name_of_an_open_one(orch: Orch, run: RunDir, tmp_path: Path) -> None:
    before = os.readlink("/dev/stdout")
    assert "<html" in orch("report", "one", "-o", "/dev/stdout", check=0).out
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)
    orch("report", "one", "-o", "pipe", check=0)
    assert b"<html" in os.read(reader, 1 << 20)
    os.close(reader)
    assert orch("report", "one", "--bundle", "-o", "/dev/stdout").code == 125
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert os.readlink("/dev/stdout") == before


def test_a_page_takes_the_place_of_a_link_and_is_private(orch: Orch, run: RunDir, tmp_path: Path) -> None:
    plan_for(run, 1)
    (run.path / "agents").mkdir(exist_ok=True)
    os.close(os.open(os.fsencode(run.path / "agents") + b"/h\xff.log", os.O_CREAT))
    (tmp_path / "kept").write_text("mine")
    commands: dict[str, tuple[str, ...]] = {
        "one.html": ("report", "one", "-o"),
        "one.zip": ("report", "--bundle", "one", "-o"),
        "one.json": ("ps", "one", "--trace"),
    }
    for name, words in commands.items():
        (tmp_path / name).symlink_to(tmp_path / "kept")
        orch.in_process(*words, tmp_path / name, check=0)
        assert not (tmp_path / name).is_symlink()
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
        (tmp_path / name).chmod(0o666)
        orch.in_process(*words, tmp_path / name, check=0)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "kept").read_text() == "mine"
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert not [name for name in archive.namelist() if name.endswith("submission.json")]
        assert any("udcff.log" in name for name in archive.namelist())


def test_a_working_directory_that_was_removed_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    program = f"import os, sys; os.rmdir({str(gone)!r}); from orchestrator import cli; cli.main(['ps'])"
    env = {**os.environ, "PYTHONPATH": str(Path(orchestrator.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], cwd=gone, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (125, False)
    assert "error: the working directory was removed" in done.stderr


def test_the_words_of_an_agent_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_process, "MOST_LOG_BYTES", 1 << 20)
    log = tmp_path / "host.log"
    log.write_bytes(b"x" * (1 << 20))
    agent_process.limit_log(log)
    assert log.stat().st_size == 1 << 20
    with log.open("ab") as writer:
        writer.write(b"x")
        writer.flush()
        agent_process.limit_log(log)
        writer.write(b"the last words")
    assert log.read_text() == "orch: this file had more than 1 MiB, and was emptied\nthe last words"


def test_a_record_of_another_orch_or_of_a_joker_is_one_message_and_commands_no_terminal(orch: Orch, tmp_path: Path) -> None:
    """A task with another name, and a strategy that this orch does not have."""
    run = MadeUpRun(tmp_path / ".orch", seconds=60.0).run
    record = (run.path / "events.jsonl").read_text()
    (run.path / "events.jsonl").write_text(record.replace('"worker-0"', '"worker-0\\u001b]0;a title\\u0007\\u009b31m"'))
    for command in (("ps",), ("ps", "--timeline"), ("ps", "--all"), ("top", "--once")):
        out = orch.in_process(*command, *([] if "--all" in command else [run.run_id]), check=0).out
        assert "worker-0" in out or "--all" in command
        assert not re.search("[\x1b\x07\x9b]", out), command
    (run.path / "events.jsonl").write_text(record.replace('"multi_worker_mirrored"', '"hyper"'))
    assert "made-up" in orch.in_process("ps", "--all", check=0).out
    said = (
        f"error: the events of {run.run_id} do not fit this orch (KeyError: 'hyper'): another version has written them; logs: {run.path}\n"
    )
    (run.path / "plan.json").write_text((run.path / "plan.json").read_text().replace('"multi_worker_mirrored"', '"hyper"'))
    assert f"the plan of {run.run_id} cannot be read: 'hyper'; if another version" in orch.in_process("logs", run.run_id, check=125).err
    for command in (("ps",), ("report",), ("top", "--once")):
        assert orch.in_process(*command, run.run_id, check=125).err == said, command


@pytest.mark.parametrize("text", ["{}", "[]", '{"text": [], "findings": [{}]}', "[" * 100_000, '{"text": 5, "findings": []}'])
def test_a_result_of_verify_that_orch_has_not_written_is_none(orch: Orch, tmp_path: Path, text: str) -> None:
    run = MadeUpRun(tmp_path / ".orch", seconds=60.0).run
    run.write("same_training.json", text)
    run.write("scaled.json", text)
    orch.in_process("report", check=0)


@pytest.mark.parametrize("line", ['{"at": 1' + "0" * 400 + "}", "[" * 100_000, "[]", '{"at": "x"}'])
def test_a_last_event_that_orch_has_not_written_is_none(orch: Orch, tmp_path: Path, line: str) -> None:
    run = MadeUpRun(tmp_path / ".orch", seconds=60.0).run
    (run.path / "result.json").unlink()  # its controller has died
    with (run.path / "events.jsonl").open("a") as file:
        file.write(line + "\n")
    orch.in_process("top", "--once", check=0)


def test_a_text_that_no_encoding_has_is_shown_all_the_same(orch: Orch, tmp_path: Path) -> None:
    """A task may report the name of a file that is not UTF-8, as Python has it."""
    run = MadeUpRun(tmp_path / ".orch", seconds=60.0).run
    events = run.path / "events.jsonl"
    events.write_bytes(events.read_bytes().replace(b"{{ 7*7 }}", b"caf\\udce9 \\ud800"))
    for command in (("ps",), ("ps", "--all"), ("ps", "--csv"), ("ps", "--sort", "loss"), ("top", "--once")):
        assert "caf\\udce9 \\ud800" in orch(*command, check=0).out, command
