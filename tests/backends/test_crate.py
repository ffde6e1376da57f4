"""A backend is one module, a section and two rows: one is added here (crate.py), and real clusters run through it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator import backends
from orchestrator.model.settings import BACKENDS
from tests.backends import crate
from tests.live import PATIENCE_S, PRELUDE, LiveRun, wait_until

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "from tests.backends import crate; crate.register(); from orchestrator.cli import main; main()"
ENTER = r"""#!/bin/sh
export CRATE="$1" TMPDIR="$(dirname "$0")/$1.tmp"
mkdir -p "$TMPDIR"
echo $$ > "$TMPDIR/pid"
shift
[ "$CRATE" = shut ] && exit 44
exec "$@"
"""
SPEC = "{script: script.py, preload: [], backend: {type: crate, crates: crates.txt}}"


def orch(directory: Path, *words: str, check: int = 0) -> subprocess.CompletedProcess[str]:
    """The real program, with the row that names the crates' backend."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], cwd=directory, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == check, done
    return done


class Up:
    def __init__(self, yard: Path, *words: str) -> None:
        self._said = yard / "said"
        with open(self._said, "wb") as said:
            self.process = subprocess.Popen([sys.executable, "-c", PROGRAM, "up", *words], cwd=yard, stdout=said, stderr=said)

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self._said.read_text() or self.process.poll() is not None, text)
        assert text in self._said.read_text()

    def end(self, code: int) -> str:
        assert self.process.wait(PATIENCE_S) == code, self._said.read_text()
        return self._said.read_text()


def asked(yard: Path) -> list[str]:
    """What was asked of the engine, without the id of the run."""
    words = ("asked for", "given back", "cancelled")
    return [word for line in (yard / "engine.log").read_text().splitlines() for word in words if line.startswith(word)]


@pytest.fixture
def yard(tmp_path: Path) -> Path:
    """A directory with two crates, of two slots and one, and a spec for as many workers as there are slots."""
    (tmp_path / "crates.txt").write_text("red 2\nblue 1\n")
    (tmp_path / "enter").write_text(ENTER)
    (tmp_path / "enter").chmod(0o700)
    (tmp_path / "script.py").write_text(PRELUDE + "server = listen()\nprint('in', os.environ['CRATE'])\nready()\n")
    (tmp_path / "orch.yaml").write_text(SPEC.replace("preload", "tasks: {worker: 3}, preload"))
    return tmp_path


def test_a_cluster_runs_in_a_place_that_was_added(yard: Path) -> None:
    done = orch(yard, "up")
    places = {line.partition(" | ")[0]: line.rpartition(" ")[2] for line in done.stdout.splitlines() if " | in " in line}
    assert places == {"worker-0": "red", "worker-1": "red", "worker-2": "blue"}, done
    assert "worker-2" in orch(yard, "ps").stdout  # the plan that is read back knows the place's settings
    assert {path.name for path in LiveRun(yard).path.glob("request/*")} == {"agent-red.txt", "agent-blue.txt", "order.txt"}
    assert json.loads(orch(yard, "plan", "--json").stdout)["tasks"][2]["host"] == "blue"


def test_an_elastic_cluster_does_without_a_host_on_which_a_task_fails_again_and_again(yard: Path) -> None:
    (yard / "script.py").write_text(f"{PRELUDE}server = listen()\nready()\nsys.exit(os.environ['CRATE'] == 'blue')\n")
    (yard / "orch.yaml").write_text(SPEC.replace("preload", 'tasks: {worker: "2:3"}, restart: {max: 3}, preload'))
    done = orch(yard, "up")
    assert "elastic: 2 of 3 workers: host blue is left out, because worker-2 was the first to fail there in attempts 1 and 2" in done.stderr
    assert "attempt 3: multi_worker_mirrored, worker-0..1 on red" in done.stderr
    assert "workers: 3, then 3, then 2, of 3 at most" in orch(yard, "ps").stdout


def test_the_slots_of_a_place_are_counted_before_anything_starts(yard: Path) -> None:
    done = orch(yard, "up", "-n", "4", check=2)
    assert "4 tasks do not fit into 3 slots (red:2, blue:1)\n       fix: name more slots, or fewer tasks" in done.stderr
    assert not list(yard.glob(".orch/runs/*"))


def test_what_is_wrong_there_is_said_in_the_places_own_words(yard: Path) -> None:
    (yard / "crates.txt").write_text("red 2\nshut 1\n")
    assert "host shut cannot be reached: the crate shut is shut\n       fix: open it\n" in orch(yard, "up", check=125).stderr
    (yard / "crates.txt").unlink()
    assert "backend.crates: there is no file 'crates.txt'\n       fix: name one with a crate a line" in orch(yard, "up", check=2).stderr
    (yard / "orch.yaml").write_text(SPEC.replace("crates:", "crate:"))
    assert "unknown key 'crate'\n       fix: did you mean 'crates'?" in orch(yard, "up", check=2).stderr


# --- an engine that lends the hosts -------------------------------------------------------------


def test_two_rows_are_all_that_the_product_knows_of_a_kind_of_place() -> None:
    """An engine that lends hosts and runs controllers is then a module, a section and these two rows: the crates are named nowhere."""
    tables: tuple[dict[str, Any], ...] = (BACKENDS, backends.MODULES)
    before = [set(table) for table in tables]
    crate.register()
    try:
        assert [set(table) - names for table, names in zip(tables, before, strict=True)] == [{crate.NAME}, {crate.NAME}]
    finally:
        for table in tables:
            table.pop(crate.NAME)
    sources = [path for room in ("orchestrator", "worker") for path in (ROOT / room).rglob("*.py")]
    assert not [path for path in sources if "crate" in path.read_text(encoding="utf-8").lower()]


QUEUE = "queued: no crate is free"


def test_a_run_that_waits_for_hosts_can_be_looked_at_and_goes_on_when_it_has_them(yard: Path) -> None:
    (yard / "queue").write_text(QUEUE)
    up = Up(yard)
    up.wait_for(f"orch: {QUEUE}\n")
    assert orch(yard, "ps").stdout.endswith(f": running; it has no tasks yet: {QUEUE}\n")
    seen = json.loads(orch(yard, "ps", "--json").stdout)
    assert (seen["state"], seen["phase"], seen["waiting"]) == ("running", "allocating", QUEUE)
    assert (seen["counts"], seen["tasks"]) == ({"worker": 3}, [])
    assert f"running: {QUEUE}" in orch(yard, "ps", "--all").stdout
    assert asked(yard) == ["asked for"]
    (yard / "queue").unlink()
    up.end(0)
    assert asked(yard) == ["asked for", "given back"]
    request = (LiveRun(yard).path / "request" / "order.txt").read_text()
    assert (yard / "engine.log").read_text().startswith("asked for " + request.splitlines()[0]), "what was kept is what was asked for"
    phases = [event["event"] for event in LiveRun(yard).events()]
    assert phases[:3] == ["run_begun", "hosts_awaited", "allocated"]


@pytest.mark.parametrize("how", ["interrupted", "down", "timeout"])
def test_a_wait_for_hosts_ends_as_a_run_does_and_withdraws_the_request(yard: Path, how: str) -> None:
    (yard / "queue").write_text(QUEUE)
    up = Up(yard, *(["--timeout", "4"] if how == "timeout" else []))
    up.wait_for(QUEUE)
    if how == "interrupted":
        up.process.send_signal(signal.SIGINT)
    elif how == "down":
        orch(yard, "down")
    said = up.end({"interrupted": 130, "down": 143, "timeout": 124}[how])
    why = f"the run took longer than 4 s (--timeout); {QUEUE}"
    assert {"interrupted": "interrupted (Ctrl-C)", "down": "stopped by orch down", "timeout": why}[how] in said
    assert asked(yard) == ["asked for", "given back"]
    ended = json.loads(orch(yard, "ps", "--json").stdout)
    assert (ended["state"], ended["phase"], ended["tasks"]) == ("timed_out" if how == "timeout" else "cancelled", "done", [])


def test_a_detached_run_waits_for_hosts_by_itself(yard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (yard / "queue").write_text(QUEUE)
    (yard / "sitecustomize.py").write_text("from tests.backends import crate\ncrate.register()\n")  # for the controller's own process
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(yard), str(ROOT))))
    assert QUEUE in orch(yard, "up", "-d").stderr
    assert f"has no tasks yet: {QUEUE}" in orch(yard, "logs", check=2).stderr
    assert "cancelled" in orch(yard, "down").stdout
    assert asked(yard) == ["asked for", "given back"]


def test_down_cancels_what_a_dead_controller_has_asked_for(yard: Path) -> None:
    (yard / "queue").write_text(QUEUE)
    up = Up(yard)
    up.wait_for(QUEUE)
    up.process.kill()
    up.end(-signal.SIGKILL)
    assert json.loads(orch(yard, "ps", "--json").stdout)["state"] == "lost"
    assert "the crates were emptied" in orch(yard, "down").stdout
    assert asked(yard) == ["asked for", "cancelled"]


def test_an_engine_that_refuses_ends_the_run_in_its_words(yard: Path) -> None:
    (yard / "refusal").write_text("the yard takes no runs of three crates on a Sunday")
    assert orch(yard, "up", check=125).stderr.endswith("error: the yard takes no runs of three crates on a Sunday\n")
    assert asked(yard) == ["asked for", "given back"]
    assert "exit code 125: the yard takes no runs of three crates on a Sunday" in orch(yard, "ps", "script").stdout


def test_hosts_that_do_not_suffice_are_given_back(yard: Path) -> None:
    (yard / "lent").write_text("red 2\n")
    done = orch(yard, "up", check=125)
    assert "the hosts that were lent do not suffice: 3 tasks do not fit into 2 slots (red:2)" in done.stderr
    assert asked(yard) == ["asked for", "given back"]


def test_a_run_goes_to_the_hosts_that_were_lent_and_ends_when_one_is_revoked(yard: Path) -> None:
    (yard / "lent").write_text("red 2\ngreen 1\n")
    (yard / "script.py").write_text(PRELUDE + "server = listen()\nready()\nsleep()\n")
    up = Up(yard)
    up.wait_for("cluster formed")
    os.kill(int((yard / "green.tmp" / "pid").read_text()), signal.SIGTERM)
    assert "lost host green" in up.end(125)
    assert asked(yard) == ["asked for", "cancelled", "given back"]
    planned = next(event for event in LiveRun(yard).events() if event["event"] == "planned")
    assert planned["tasks"] == {"worker-0": "red", "worker-1": "red", "worker-2": "green"}


def test_after_a_revoked_host_the_next_attempt_has_an_allocation_and_a_plan_of_its_own(yard: Path) -> None:
    (yard / "lent").write_text("red 2\ngreen 1\n")
    first = "server = listen()\nready()\nprint('in', os.environ['CRATE'])\nos.environ['ORCH_ATTEMPT'] == '1' and sleep()\n"
    (yard / "script.py").write_text(PRELUDE + first)
    up = Up(yard, "--max-restarts", "1", "--set", "restart.lost_host=retry")
    up.wait_for("cluster formed")
    (yard / "lent").write_text("blue 3\n")
    (yard / "queue").write_text(QUEUE)
    os.kill(int((yard / "green.tmp" / "pid").read_text()), signal.SIGTERM)
    up.wait_for(QUEUE)
    assert f"running; attempt 2 has no tasks yet: {QUEUE}" in orch(yard, "ps").stdout
    (yard / "queue").unlink()
    said = up.end(0)
    assert "lost host green" in said
    assert "starting again at once (restart 1 of 1)" in said
    assert "attempt 2: multi_worker_mirrored, worker-0..2 on blue" in said
    assert asked(yard) == ["asked for", "given back", "asked for", "cancelled", "given back"]
