"""Files that a task has put in the place of those that its agent reads: the agent's loop goes on, and takes no more memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worker.controller_double import AgentProcess
from worker.protocol import messages, task_files

NAMES = ("stdout.log", "stderr.log", *(task_files.BEGUN, task_files.ENDED, task_files.ERROR, task_files.OTHER_TF_CONFIG))
READ = (*NAMES, task_files.REPORTS, task_files.STACKS)
ODD = ("mkfifo {}", "ln -s /dev/zero {}", "mkdir {}", "truncate -s 3G {}")
MOST_MEMORY_MB = 60
"""What the agent may have taken in all; a bare one takes some 15."""


def answers(agent: AgentProcess, script: str, code: int, then: Callable[[], None] = lambda: None) -> None:
    """Whether the agent, with a task that runs `script`, still answers, and sees the end of the task."""
    agent.hello()
    agent.start(f"cd attempt-1/worker-0; {script}; echo made > made; read line < ../../go; exit {code}")
    while not (agent.directory / "attempt-1/worker-0/made").exists():
        agent.order(messages.Ping())
        agent.wait_for(messages.Pong)
    then()
    (agent.directory / "go").write_text("go\n")
    assert agent.wait_for(messages.TaskExited).code == code
    agent.wait_for(messages.TaskSwept)
    peak = Path(f"/proc/{agent.process.pid}/status").read_text().partition("VmHWM:")[2].split()[0]
    assert int(peak) < MOST_MEMORY_MB * 1024
    agent.order(messages.Bye())
    assert agent.wait() == 0


@pytest.fixture
def going(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")


@pytest.mark.usefixtures("going")
@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("odd", ODD)
def test_an_agent_waits_for_no_odd_file_and_reads_none_as_a_whole(agent: AgentProcess, name: str, odd: str) -> None:
    def ask_for_stacks() -> None:
        agent.order(messages.ShowStacks(("worker-0",)))

    answers(agent, f"rm -f {name}; {odd.format(name)}", 3, ask_for_stacks)


@pytest.mark.parametrize("odd", ["mkfifo", "ln -s /dev/null", "mkdir"])
def test_a_task_whose_output_has_no_regular_file_is_not_started(agent: AgentProcess, tmp_path: Path, odd: str) -> None:
    """An earlier attempt may have made the directory of this one, and what is in there."""
    (tmp_path / "attempt-1/worker-0").mkdir(parents=True)
    subprocess.run([*odd.split(), "stderr.log"], cwd=tmp_path / "attempt-1/worker-0", check=True)
    agent.hello()
    agent.start("exit 0")
    assert agent.wait_for(messages.TaskNotStarted).reason.startswith("the log directory of ")
    agent.order(messages.Ping())
    agent.wait_for(messages.Pong)
