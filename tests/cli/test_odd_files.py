"""Things that are no files, in place of those that orch has written: one message, and nobody waits for somebody who writes into a pipe."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator import engine_jobs
from orchestrator.errors import UsageError
from orchestrator.model.run.submission import Submission
from orchestrator.record.storage import engine_files
from orchestrator.record.storage.run_directory import RunDir
from orchestrator.record.storage.run_store import create_run
from tests.conftest import Orch
from tests.live import held_run

ODD: dict[str, Callable[[Path], None]] = {"a named pipe": os.mkfifo, "a directory": Path.mkdir}


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
    said = f"Error: {run.path / name} is {kind}, not a file that orch has written; remove it\n"
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
    for command in ("placement", *(("logs",) if kind == "a directory" else ())):  # a pipe is empty
        done = orch.in_process(command, "one")
        assert (done.code, done.err.count("\n")) == (125, 1), done
        assert f"is {kind}" in done.err


LOOKING = (
    *(("ps",), ("ps", "--all"), ("ps", "one"), ("logs",), ("report",), ("report", "--bundle"), ("timeline",), ("placement",), ("stacks",)),
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
