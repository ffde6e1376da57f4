"""docs/tutorial.md, typed from the first command to the last one."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.live import wait_until

NOT_TYPED = {
    "python3 -m venv": "it needs the Internet; make and the CI do the same",
    "cd orch": "it belongs to the installation",
    "pip install": "it needs the Internet; make and the CI do the same",
    "orch doctor": "tests/cli/test_doctor.py and tests/backends/test_ssh_doctor.py",
    "orch top": "it needs a terminal: tests/cli/test_top.py",
    "orch warm": "the warm process of all tests is there already, and stays: warm_tensorflow",
    "orch up train.py -H hostA,hostB  ": "tests/real/test_ssh.py: a cluster on several hosts takes a minute",
}
"""Commands that the test leaves out, and why."""
FAILS = {"orch up train.py -n 2 -- --optimizer adm": 1}
KILL = "kill -9 PID"

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="NOT TESTED: scikit-learn is not installed here"),
]


def steps() -> Iterator[tuple[str, str]]:
    """The steps of the page in their order: the name of a file and its text; or no name, and a command."""
    text = (ROOT / "docs/tutorial.md").read_text()
    for before, language, block in re.findall(r"([^\n]*)\n\n```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language == "console":
            yield from (("", line) for line in re.findall(r"^\$ (.*)$", block, re.MULTILINE))
        else:
            yield re.findall(r"`([\w.]+\.(?:py|yaml))`", before)[0], block


def saved(checkpoints: Path) -> bool:
    return any(path.is_file() for path in checkpoints.rglob("*"))


def test_the_tutorial_can_be_typed(warm_tensorflow: None, tmp_path: Path) -> None:
    shell = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def typed(line: str) -> str:
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=shell, capture_output=True, text=True, timeout=400)
        expected = next((code for start, code in FAILS.items() if line.startswith(start)), 0)
        assert done.returncode == expected, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    said, seen = {}, set()
    for name, text in steps():
        if name:
            (tmp_path / name).write_text(text)
            continue
        left_out = [start for start in NOT_TYPED if text.startswith(start)]
        seen.update(left_out)
        if not left_out:
            line = text.replace("--epochs 40", "--epochs 12")  # time enough for a test, and not for a reader
            if line.startswith((KILL, "orch checkpoints")):
                wait_until(lambda: saved(tmp_path / ".orch/latest/checkpoints"), "checkpoint of the first epoch")
            if line.startswith(KILL):
                tasks = {task["task"]: task for task in json.loads(typed("orch ps --json"))["tasks"]}
                line = line.replace("PID", str(tasks["worker-1"]["pid"]), 1)
            said[text] = typed(line)
    assert seen == NOT_TYPED.keys()
    attempts = sorted((tmp_path / ".orch/runs").glob("*/attempt-2/worker-0/stdout.log"))
    assert [re.findall(r"Epoch (\d+)/12", path.read_text())[0] != "1" for path in attempts] == [True], "it goes on after the last epoch"
    assert next(out for line, out in said.items() if line.startswith("orch wait")).endswith("exit code 0\n")
    assert "2 passed" in next(out for line, out in said.items() if line.startswith("pytest"))
