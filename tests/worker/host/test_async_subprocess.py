"""Helper programs of the agent (worker/host/processes/async_subprocess.py)."""

from __future__ import annotations

import subprocess
import sys

import pytest

_ASK = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
from worker.host.processes.async_subprocess import Question
from worker.host.processes.loop import Loop
loop, ends = Loop(), []
Question(loop, ["sh", "-c", "ulimit -H -f; ulimit -S -f"], {{}}, 60, ends.append)
loop.run(lambda: bool(ends))
print(ends[0].out, end="")
"""


@pytest.mark.parametrize(("limit", "blocks"), [(1 << 20, 2048), (1 << 30, 32768), (-1, 32768)])
def test_a_helper_program_keeps_a_lower_limit_of_files(limit: int, blocks: int) -> None:
    asked = subprocess.run([sys.executable, "-c", _ASK.format(limit=limit)], capture_output=True, text=True, timeout=60)
    assert (asked.stdout, asked.stderr) == (f"{blocks}\n{blocks}\n", "")
