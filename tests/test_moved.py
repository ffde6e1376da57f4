"""Somebody moves or removes the directory of a run that goes on. No TensorFlow."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import Orch
from tests.live import LiveRun, wait_until_ready, write_script

WAITS = """
print("before", flush=True)
ready()
wait_for("go")
print("after", flush=True)
"""


@pytest.mark.parametrize("moved", [".orch", ".orch/runs", "the run"])
def test_a_run_whose_directory_is_moved_goes_on_in_the_new_place(orch: Orch, tmp_path: Path, run: LiveRun, moved: str) -> None:
    write_script(tmp_path, WAITS + "if TASK == 'worker-1': sys.exit('no luck')\nsleep()")
    running = orch.start("up", "script.py", "-n", "2", "--set", "timeouts.grace_s=1")
    wait_until_ready(tmp_path, "worker-0", "worker-1")
    running.wait_for("worker-1 | before")
    was = run.path
    source = was if moved == "the run" else tmp_path / moved
    source.rename(tmp_path / "else where")
    now = tmp_path / "else where" / was.relative_to(source)
    (tmp_path / "go").touch()
    done = running.wait(check=1)
    assert sorted(done.out.splitlines()) == [f"worker-{index} | {word}" for index in (0, 1) for word in ("after", "before")]
    assert "worker-1 | no luck\n" in done.err
    assert f"log: {(now / 'attempt-1/worker-1/stderr.log').relative_to(tmp_path)}\n" in done.err
    assert json.loads((now / "result.json").read_text())["exit_code"] == 1
    assert '"task_swept"' in (now / "events.jsonl").read_text()
    assert "worker-0.1.stdout=" in (now / "marks").read_text()
    assert not was.exists()


def test_a_run_whose_directory_is_moved_starts_again_in_the_new_place(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, WAITS + "sys.exit(os.environ['ORCH_ATTEMPT'] == '1')")
    running = orch.start("up", "script.py", "-n", "2", "--max-restarts", "1")
    wait_until_ready(tmp_path, "worker-0", "worker-1")
    run_id = run.path.name
    (tmp_path / ".orch").rename(tmp_path / "elsewhere")
    (tmp_path / "go").touch()
    assert running.wait(check=0).out.count(" | after\n") >= 3
    assert (tmp_path / "elsewhere/runs" / run_id / "attempt-2/worker-1/stdout.log").read_text() == "before\nafter\n"
    assert not (tmp_path / ".orch").exists()
    assert orch("ps", "--home", "elsewhere", check=0).out


@pytest.mark.parametrize(("end", "how"), [("", "its tasks had succeeded"), ("sys.exit(7)", "worker-0 failed (exit code 7)")])
def test_a_run_whose_directory_is_removed_says_so_and_does_not_end_with_0(
    orch: Orch, tmp_path: Path, run: LiveRun, end: str, how: str
) -> None:
    write_script(tmp_path, WAITS + end)
    running = orch.start("up", "script.py")
    wait_until_ready(tmp_path, "worker-0")
    path = run.path
    shutil.rmtree(tmp_path / ".orch")
    (tmp_path / "go").touch()
    done = running.wait(check=125)
    text = f"the run directory {path} was removed while the run went on: its record is lost; {how}"
    assert done.err.endswith(f"orch:   {text}\norch:   exit code 125\n")
    assert not (tmp_path / ".orch").exists()


@pytest.mark.parametrize("removed", ["attempt-1", "attempt-1/worker-1"])
def test_a_run_whose_output_is_removed_says_so(orch: Orch, tmp_path: Path, run: LiveRun, removed: str) -> None:
    write_script(tmp_path, "print('first', flush=True); ready(); wait_for('enough'); print('last')")
    running = orch.start("up", "script.py", "-n", "2", "--strategy", "multi_worker_mirrored")
    wait_until_ready(tmp_path, "worker-0", "worker-1")
    for name in ("worker-0", "worker-1"):
        running.wait_for(f"{name} | first")
    shutil.rmtree(run.path / removed)
    (tmp_path / "enough").touch()
    done = running.wait(check=0)
    assert f"orch:   {removed} was removed while the run went on: output of its tasks is lost\n" in done.err
    assert run.result()["remarks"][-1].startswith(removed)


def test_a_run_whose_directory_is_removed_does_not_start_again(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, WAITS + "sys.exit(7)")
    running = orch.start("up", "script.py", "--max-restarts", "3")
    wait_until_ready(tmp_path, "worker-0")
    shutil.rmtree(run.path)
    (tmp_path / "go").touch()
    assert "was removed while the run went on: its record is lost; " in running.wait(check=125).err
    assert not list((tmp_path / ".orch/runs").iterdir())
