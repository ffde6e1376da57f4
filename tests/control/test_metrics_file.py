"""``--metrics-dir``: a file for a collector, as long as the run lasts, that costs nothing else and never delays the end."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.control import metrics_file
from orchestrator.record import run_metrics
from tests.conftest import Orch
from tests.live import LiveRun, wait_until
from tests.record.storage.test_run_metrics import read

Script = Callable[..., Path]
WAITS = "import os, sys, time\nwhile not os.path.exists('go'):\n    time.sleep(0.05)\n"
UP = ("up", "script.py", "--strategy", "none", "--metrics-dir", "prom")


@pytest.fixture
def prom(tmp_path: Path) -> Path:
    place = tmp_path / "prom"
    place.mkdir()
    return place


def one_file(prom: Path) -> Path:
    return wait_until(lambda: next(prom.glob("orch-*.prom"), None), "a file of metrics")


def test_the_file_is_there_until_the_run_ends(orch: Orch, script: Script, prom: Path, tmp_path: Path) -> None:
    script(WAITS)
    umask = os.umask(0o077)
    try:
        running = orch.start(*UP, env={"ORCH_TIME_SCALE": "0.01"})
    finally:
        os.umask(umask)
    path = one_file(prom)
    wait_until(lambda: 'state="running"} 1' in path.read_text(), "a later state")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644, "the collector is another user"
    text = path.read_text()
    assert "orch_task_up" in read(text)
    (tmp_path / "go").touch()
    running.wait(60, 0)
    assert os.listdir(prom) == []


def test_the_file_of_a_killed_run_is_removed_by_the_next_and_no_other(
    orch: Orch, script: Script, prom: Path, run: LiveRun, tmp_path: Path
) -> None:
    script(WAITS)
    killed = orch.start(*UP, "--name", "killed")
    left = one_file(prom)
    killed.kill()
    assert left.exists()
    lives = orch.start(*UP, "--name", "lives")
    own = wait_until(lambda: next(prom.glob("orch-lives-*.prom"), None), "a file of metrics")
    assert not left.exists()
    foreign = prom / "orch-costs.prom"
    foreign.write_text("orch_costs 1\n")
    (prom / "orch-pipe.prom").symlink_to(foreign)
    (prom / "orch-.prom").touch()
    (tmp_path / "go").touch()
    orch(*UP, "--name", "third", check=0)
    lives.wait(60, 0)
    assert {*os.listdir(prom)} == {"orch-costs.prom", "orch-pipe.prom", "orch-.prom"}
    assert own.name not in os.listdir(prom)


def test_the_file_of_a_run_that_goes_on_stays(orch: Orch, script: Script, prom: Path, tmp_path: Path) -> None:
    script(WAITS.replace("while", "while 'wait' in sys.argv and"))
    first = orch.start(*UP, "--", "wait")
    path = one_file(prom)
    orch(*UP, check=0)
    assert path.exists()
    (tmp_path / "go").touch()
    first.wait(60, 0)


def test_a_directory_that_cannot_be_written_is_one_warning(orch: Orch, script: Script, tmp_path: Path) -> None:
    script("import time\ntime.sleep(1)")
    done = orch(*UP, check=0, env={"ORCH_TIME_SCALE": "0.01"})
    assert done.err.count("--metrics-dir") == 1
    assert f"warning: --metrics-dir: {tmp_path}/prom/orch-" in done.err
    assert "cannot be written: No such file or directory; the run goes on" in done.err


def test_the_end_does_not_wait_for_a_directory_that_hangs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    supervisor: Any = SimpleNamespace(cluster=None, phases=SimpleNamespace(measure=lambda _: {}), note=print)
    start: Any = SimpleNamespace(
        run=SimpleNamespace(run_id="a", path=tmp_path), spec=SimpleNamespace(workdir=str(tmp_path), metrics_dir=".")
    )

    def hang(*_: object, **__: object) -> str:
        begun.set()
        goes_on.wait()
        return ""

    monkeypatch.setattr(run_metrics, "text", hang)

    async def run() -> float:
        file = metrics_file.MetricsFile(start, supervisor)
        begun.wait()
        since = time.monotonic()
        file.end()
        return time.monotonic() - since

    took = asyncio.run(run())
    goes_on.set()
    assert metrics_file.LAST_S <= took < metrics_file.LAST_S + 1
