"""`orch report`: the file that it writes, and what it says when it cannot."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from orchestrator.cli.commands.profile_command import _show
from orchestrator.record.run_files import SAME_TRAINING
from orchestrator.record.samples import read_latest
from orchestrator.views.answers import ProfileAnswer
from tests.conftest import Orch
from tests.live import LiveRun, held_run, kill, wait_until, wait_until_gone, wait_until_ready, write_script
from tests.made_up_run import MadeUpRun


def test_it_writes_the_page_here_and_prints_its_name(orch: Orch, tmp_path: Path) -> None:
    MadeUpRun(tmp_path / ".orch", seconds=60.0).run.make_latest()
    assert orch.in_process("report", check=0).out == "made-up-2.html\n"
    assert "<title>made-up-2: succeeded</title>" in (tmp_path / "made-up-2.html").read_text()
    assert orch.in_process("report", "--bundle", "-o", "mine.zip", check=0).out == "mine.zip\n"
    assert (tmp_path / "mine.zip").read_bytes().startswith(b"PK")
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in ("made-up-2.html", "mine.zip")} == {0o600}


def test_the_page_has_the_differences_that_orch_verify_has_found(orch: Orch, tmp_path: Path) -> None:
    run = MadeUpRun(tmp_path / ".orch", seconds=60.0).run
    run.make_latest()
    first = {"kind": "loss", "step": 1, "what": "the loss counts <2> times", "place": "train.py:9", "remedy": "divide it", "ratio": 2.0}
    run.write(SAME_TRAINING, json.dumps({"same": False, "findings": [first], "text": ["not the same training"]}))
    orch.in_process("report", "-o", "page.html", check=0)
    text = (tmp_path / "page.html").read_text()
    assert "<p>not the same training</p>" in text
    for cell in ("1", "the loss counts &lt;2&gt; times", "divide it", "train.py:9"):
        assert f">{cell}</td>" in text
    run.write(SAME_TRAINING, "[]")  # not what orch has written
    orch.in_process("report", "-o", "page.html", check=0)
    assert "The same training" not in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("lives", [False, True])
def test_a_run_of_which_nothing_has_happened_yet_has_a_page(orch: Orch, tmp_path: Path, lives: bool) -> None:
    with held_run(tmp_path / ".orch", workers=0) as (_, holder):
        if not lives:
            holder.kill()
            holder.wait()
        orch.in_process("report", "one", check=0)
        orch.in_process("ps", "one", "--trace", "trace.json", check=0)
    assert "<title>one: " in (tmp_path / "one.html").read_text()


def test_a_run_whose_controller_was_killed_is_told_to_the_end_of_its_record(orch: Orch, run: LiveRun, tmp_path: Path) -> None:
    write_script(tmp_path, 'print("the last words", flush=True)\nready()\nsleep()')
    running = orch.start("up", "script.py", "-n", "2")
    left = wait_until_ready(tmp_path, "worker-0", "worker-1")
    wait_until(lambda: read_latest(run.path), "samples")
    kill(run.controller())
    running.wait(check=-signal.SIGKILL)
    wait_until_gone(left.values())
    page = Path(orch("report", check=0).out.strip())
    text = (tmp_path / page).read_text()
    assert "The controller died before it could say how the run ended." in text
    assert "<strong>was cut off</strong> after" in text
    assert text.count("worker-1") > 3
    assert f"{run.path.name}: lost (its controller died), " in orch("top", check=0).out
    top = json.loads(orch("top", "--json", check=0).out)
    assert top["phase"] == "lost (its controller died)"
    recorded = [event["at"] for event in run.events()]
    assert top["took_s"] >= round(recorded[-1] - recorded[0], 3) - 0.01 > 0


def test_paths_as_json(orch: Orch, tmp_path: Path) -> None:
    MadeUpRun(tmp_path / ".orch", seconds=60.0).run.make_latest()
    told = json.loads(orch.in_process("report", "--json", check=0).out)
    assert told == {"path": str(tmp_path / "made-up-2.html"), "left_out": 0}
    done = orch.in_process("report", "--bundle", "--json", check=0)
    told = json.loads(done.out)
    assert told["path"] == str(tmp_path / "made-up-2.zip")
    assert f"orch: {told['left_out']} value" in done.err
    assert "left out that may be passwords or keys; look at the archive before you give it away" in done.err
    assert json.loads(orch.in_process("report", "--bundle", "--json", check=0).out) == told, "its own archive is replaced"
    told = json.loads(orch.in_process("ps", "--json", check=0).out)["timeline"]
    assert told["worker-0"]["formed"] > 0
    assert json.loads(orch.in_process("ps", "--trace", "t.json", "--json", check=0).out) == {"path": str(tmp_path / "t.json")}


def test_a_place_that_cannot_be_written_is_said(orch: Orch, tmp_path: Path) -> None:
    MadeUpRun(tmp_path / ".orch", seconds=60.0).run.make_latest()
    told = orch.in_process("report", "-o", "no/such/place.html")
    assert told.code == 125
    assert "no/such/place.html cannot be written: No such file or directory" in told.err


def test_what_cannot_be_profiled_is_said_with_the_reason(orch: Orch, run: LiveRun) -> None:
    running = orch.start("up", "--no-python", "sleep", "--strategy", "none", "--quiet", "--", "1000")
    run.event("task_started", task="worker-0")
    refused = orch("profile", check=2).err
    assert refused.endswith(f"{run.path.name} cannot be profiled: its program is no Python program\n")
    orch("down", check=0)
    running.wait()


def test_the_paths_of_profiles_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = MadeUpRun(tmp_path / ".orch", seconds=60.0).run
    found = {"worker-0": ProfileAnswer(b"profile", 1.0, 2.0), "worker-1": ProfileAnswer(refused="no")}
    assert _show(run, "now", found, True) == 0
    told = json.loads(capsys.readouterr().out)
    assert {name: Path(path).read_bytes() for name, path in told.items()} == {"worker-0": b"profile"}
