"""A backend is one module, a section and two rows: one is added here (crate.py), and real clusters run through it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live import PATIENCE_S, PRELUDE, LiveRun

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
