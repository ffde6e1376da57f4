"""Environments of the tests' own, for programs that orch works with and does not need: Jupyter, MLflow, W&B.

uv makes each one once, from the package index, in ``~/.cache/orch-tests`` (XDG_CACHE_HOME).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def python_with(name: str, *packages: str, sees_ours: bool = False) -> str:
    """The interpreter of the environment NAME. `sees_ours`: it also has orch, and what this interpreter has.

    Skips the test, and says why, if the environment cannot be made.
    """
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "orch-tests", name)
    place.parent.mkdir(parents=True, exist_ok=True)
    python, stamp, wanted = place / "bin/python", place / "ready.json", [sys.version, *packages]
    with open(place.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes of a session may want it
        if not stamp.exists() or json.loads(stamp.read_text()) != wanted:
            shutil.rmtree(place, ignore_errors=True)
            uv = [sys.executable, "-m", "uv", "--quiet"]
            for command in (["venv", "--python", sys.executable, str(place)], ["pip", "install", "--python", str(python), *packages]):
                done = subprocess.run([*uv, *command], capture_output=True, text=True, check=False)
                if done.returncode:
                    pytest.skip(f"NOT TESTED: {name}: uv could not make the environment: {' '.join(done.stderr.split())[-300:]}")
            stamp.write_text(json.dumps(wanted))
    if sees_ours:
        (found,) = place.glob("lib/python*/site-packages")
        (found / "ours.pth").write_text("\n".join([str(ROOT), *site.getsitepackages()]))
    return str(python)
