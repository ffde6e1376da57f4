"""A backend is one module, a section and two rows: one is added here (crate.py), and real clusters run through it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import backends, starting
from orchestrator.backends import Submitting
from orchestrator.model.spec import BACKENDS
from orchestrator.model.spec.document import read
from orchestrator.model.spec.parse import parse
from tests.backends import crate
from tests.live import PATIENCE_S, PRELUDE, LiveRun, wait_for_file, wait_until

PROGRAM = "from tests.backends import crate; crate.register(); from orchestrator.cli import main; main()"
ENTER = '#!/bin/sh\nexport CRATE="$1"\nshift\n[ "$CRATE" = shut ] && exit 44\nexec "$@"\n'
SPEC = "{script: script.py, preload: [], backend: {type: crate, crates: crates.txt}}"


def orch(directory: Path, *words: str, check: int = 0) -> subprocess.CompletedProcess[str]:
    """The real program, with the row that names the crates' backend."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], cwd=directory, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == check, done
    return done


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
    assert {path.name for path in LiveRun(yard).path.glob("request/*")} == {"enter-red.txt", "enter-blue.txt"}
    assert json.loads(orch(yard, "plan", "--json").stdout)["tasks"][2]["host"] == "blue"


def test_the_slots_of_a_place_are_counted_before_anything_starts(yard: Path) -> None:
    done = orch(yard, "up", "-n", "4", check=2)
    assert "4 tasks do not fit into 3 slots (red:2, blue:1) (name more slots, or fewer tasks)" in done.stderr
    assert not list(yard.glob(".orch/runs/*"))


def test_what_is_wrong_there_is_said_in_the_places_own_words(yard: Path) -> None:
    (yard / "crates.txt").write_text("red 2\nshut 1\n")
    assert "host shut cannot be reached: the crate shut is shut; open it" in orch(yard, "up", check=125).stderr
    (yard / "crates.txt").unlink()
    assert "backend.crates: there is no file 'crates.txt' (name one with a crate a line)" in orch(yard, "up", check=2).stderr
    (yard / "orch.yaml").write_text(SPEC.replace("crates:", "crate:"))
    assert "unknown key 'crate' (did you mean 'crates'?)" in orch(yard, "up", check=2).stderr


@pytest.mark.parametrize(("does", "outcome"), [("", "succeeded"), ("sleep()", "cancelled")])
def test_a_place_whose_controller_runs_elsewhere_is_given_the_run(
    yard: Path, monkeypatch: pytest.MonkeyPatch, does: str, outcome: str
) -> None:
    """The optional protocol: the run's directory is handed over, followed from here, and the run is cancelled by the place's command."""
    monkeypatch.chdir(yard)
    monkeypatch.setitem(BACKENDS, crate.NAME, crate.CrateSettings)
    monkeypatch.setitem(backends.MODULES, crate.NAME, crate.__name__)
    (yard / "script.py").write_text(f"{PRELUDE}server = listen()\nready()\n{does}\n")
    spec = parse(read(SPEC, "orch.yaml"), workdir=str(yard))
    backend = backends.load_checked(spec)
    assert isinstance(backend, Submitting)
    assert backend.must_submit(spec)
    assert not isinstance(backends.load(parse(read("script: script.py", "orch.yaml"), workdir=str(yard))), Submitting)
    run = starting.create(yard / ".orch", spec)
    run.lock.release()
    submission = backend.submit(spec, run.path)
    assert submission.follow == ()  # this machine sees the run directory
    wait_for_file(yard / "worker-0.ready")
    if does:
        subprocess.run(submission.cancel, check=True)
    assert wait_until(run.read_result, "result")["outcome"] == outcome
