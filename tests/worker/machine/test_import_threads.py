"""Which package starts a thread when it is imported (worker/machine/import_threads.py)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
THREAD = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
PROGRAM = """
import faulthandler, importlib, os, sys
if "limit" in sys.argv:
    sys.argv.remove("limit")
    faulthandler.dump_traceback_later(600)
sys.path.insert(0, sys.argv[1])
from worker.machine import import_threads
with import_threads.watched() as watch:
    for name in sys.argv[2:]:
        importlib.import_module(name)
left = [finder for finder in sys.meta_path if type(finder).__name__ == "Watch"]
print(watch.find_thread(), os.environ.get("JE_ARROW_MALLOC_CONF"), bool(left), flush=True)
os._exit(0)
"""


def find(directory: Path, *names: str, **env: str) -> str:
    command = (sys.executable, "-c", PROGRAM, str(directory), *names)
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=True).stdout


def test_the_package_is_named_whose_import_has_started_a_thread(tmp_path: Path) -> None:
    (tmp_path / "outer.py").write_text(
        "import json\nimport starts\nimport after\nseen = __import__('os').environ['JE_ARROW_MALLOC_CONF']\n"
    )
    (tmp_path / "starts").mkdir()
    (tmp_path / "starts" / "__init__.py").write_text("from . import inner\n")
    (tmp_path / "starts" / "inner.py").write_text(THREAD)
    (tmp_path / "after.py").write_text("")
    assert find(tmp_path, "outer") == "the import of starts has started a thread None False\n"
    assert find(tmp_path, "after") == "None None False\n"
    assert find(tmp_path, "after", "limit") == "None None False\n", "a thread that was there before, as in orch doctor"


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="NOT TESTED: pyarrow is not installed here (pip install pyarrow)")
def test_the_allocator_of_pyarrow_starts_no_thread_unless_the_user_has_a_word_of_their_own(tmp_path: Path) -> None:
    assert find(tmp_path, "pyarrow") == "None None False\n"
    own = "background_thread:true"
    assert find(tmp_path, "pyarrow", JE_ARROW_MALLOC_CONF=own) == f"the import of pyarrow has started a thread {own} False\n"
