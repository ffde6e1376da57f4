"""The program that becomes an agent: when it is started, and how its end is seen."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from orchestrator.backends.connection.agent_process import AgentProcess, open_log
from tests.conftest import Completed
from tests.live import wait_until_gone

STARTED_AND_NOT_TAKEN = """
import os, sys
from pathlib import Path
from orchestrator.backends import imagine
from orchestrator.backends.connection import agent_process
from orchestrator.model.settings import ClusterSpec, TaskSpec
from worker.protocol.orders import Program

log = Path(sys.argv[1])
spec = ClusterSpec("one", "none", Program("script", "train.py"), (TaskSpec("worker", 1),), "/", python=sys.executable)
begun = agent_process.start_ahead(imagine(spec), lambda host: log)
print(begun.hosts[0].transport.early.take().process.pid, "asyncio" in sys.modules, flush=True)
sys.stdin.readline()
os._exit(0)
"""


@pytest.fixture
def counting_python(tmp_path: Path) -> Path:
    """This Python, which adds a line to the file ``started`` each time that it runs an agent."""
    python = tmp_path / "python"
    log = tmp_path / "started"
    python.write_text(
        textwrap.dedent(f"""\
            #!/bin/sh
            case "$*" in *host/start_agent.py) echo agent >>{log};; esac
            exec {sys.executable} "$@"
            """)
    )
    python.chmod(0o700)
    return python


def test_an_agent_that_nobody_takes_ends_with_orch(tmp_path: Path) -> None:
    program = [sys.executable, "-c", STARTED_AND_NOT_TAKEN, str(tmp_path / "log")]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pid, has_asyncio = process.stdout.readline().split()
        agent = psutil.Process(int(pid))
        assert has_asyncio == "False"  # the slow import that the agent is not to wait for
        process.stdin.write("\n")
    wait_until_gone([agent])
    assert (tmp_path / "log").read_text() == ""


def test_the_agent_is_started_once_for_a_run_and_not_for_a_spec_that_is_refused(
    orch: Callable[..., Completed], counting_python: Path, tmp_path: Path
) -> None:
    orch("up", "--no-python", "true", "--python", counting_python, check=0)
    assert (tmp_path / "started").read_text() == "agent\n"
    orch("up", "--no-python", "true", "--python", counting_python, "--only", "worker-7", check=2)
    orch("up", "--no-python", "true", "--python", counting_python, "--set", "timeouts.stop=-1", check=2)
    assert (tmp_path / "started").read_text() == "agent\n"


def test_the_end_of_a_program_is_seen(tmp_path: Path) -> None:
    async def run(command: str) -> tuple[bytes, int]:
        with (tmp_path / "log").open("wb") as log:
            process = AgentProcess(("sh", "-c", command), log.fileno())
        await process.connect()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"an order\n")
        found = await process.stdout.read()
        return found, await process.wait()

    assert asyncio.run(run("read line; echo $line; exit 3")) == (b"an order\n", 3)
    assert asyncio.run(run("exec >&-; kill -9 $$")) == (b"", -9)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/null"), Path.mkdir])
def test_what_a_task_has_put_in_the_place_of_an_agents_log_is_not_waited_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """The controller opens it again for each new connection."""
    make(tmp_path / "log")
    with pytest.raises(OSError, match=r"No such device|symbolic links|s a directory"):
        open_log(tmp_path / "log")
