"""What takes long runs beside the agent's loop: a search, a disk, an interpreter. The agent answers meanwhile, and can stop it."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.worker.controller_double import AgentProcess
from worker.host.launcher import Launcher
from worker.host.log_forwarder import LogForwarder
from worker.host.network.listen_probe import Prober
from worker.host.processes import process_state
from worker.host.processes.async_subprocess import Question
from worker.host.processes.helpers import Helpers
from worker.host.processes.loop import Loop
from worker.protocol import messages
from worker.protocol.messages import Code, CodeFile, CodeWanted

Start = Callable[..., AgentProcess]
SLOW = """
import signal
def wait(*_, **__):
    open("searching", "w").write(str(os.getpid()))
    time.sleep(1000)
"""


def answers(agent: AgentProcess) -> None:
    """Whether the agent answers, while it waits for something that does not come."""
    while not (agent.directory / "searching").exists():
        agent.order(messages.Ping())
        agent.wait_for(messages.Pong)
    agent.frames.clear()
    agent.order(messages.Ping())
    agent.wait_for(messages.Pong)


@pytest.fixture
def start_slow(start_agent: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return lambda text: start_agent(patch=text)


@pytest.mark.parametrize("when", ["begin", "finish"])
def test_reading_a_working_directory_keeps_no_agent_from_answering(start_slow: Start, tmp_path: Path, when: str) -> None:
    store = "find('_orch_worker.host.code_store')"
    agent = start_slow(f"{SLOW}\n{store}.digest_of = wait\n{store}.remove_old = lambda *_: {'None' if when == 'finish' else 'wait()'}")
    agent.order(Code("a" * 64, (CodeFile("script.py", "b" * 64, 3),)))
    if when == "finish":
        assert agent.wait_for(CodeWanted).digests == ("b" * 64,)
        kept = tmp_path / "cache/orch/code" / ("a" * 16) / "script.py"
        kept.write_text("abc")
        agent.order(messages.Hello("run", cwd=str(tmp_path), shared_dir=str(tmp_path)))
    answers(agent)
    assert not agent.all(messages.HostReady)


def test_a_failing_task_does_not_wait_for_an_interpreter(start_slow: Start, tmp_path: Path) -> None:
    """Which would be asked where it finds TensorFlow, if the agent, which is isolated, does not."""
    agent = start_slow(
        f"{SLOW}\nsys.path[:] = [path for path in sys.path if 'site-packages' not in path]\nimport subprocess\nsubprocess.run = wait"
    )
    agent.hello()
    failure = '{"type": "ValueError", "message": "x", "traceback": "", "at": 1.0}'
    agent.start(f"echo '{failure}' > attempt-1/worker-0/error.json; exit 1")
    exited = agent.wait_for(messages.TaskExited)
    assert exited.failure is not None
    assert exited.evidence.tensorflow == ""
    assert not (tmp_path / "searching").exists()


def test_the_exit_code_of_a_helper_is_not_taken_with_those_of_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may end at any moment, also between a look for its end and the look for those of all children."""
    monkeypatch.setattr(process_state, "children", set)
    sent: Any = _Link()
    ends: list[messages.ProgramEnded] = []
    loop = Loop()
    helpers, limits = Helpers(loop), resource.getrlimit(resource.RLIMIT_NOFILE)
    forwarder = LogForwarder(loop, sent)
    launcher = Launcher(loop, sent, forwarder, Prober(loop, sent), helpers)
    try:
        question = Question(loop, ["sh", "-c", "exit 9"], os.environ, 60.0, ends.append)
        helpers.add(question)
        os.waitid(os.P_PID, question.pid, os.WEXITED | os.WNOWAIT)
        launcher.reap()
        assert [ending.code for ending in ends] == [9]
        assert helpers.pids == set()
    finally:
        if (inotify := forwarder._inotify.fileno()) >= 0:  # the kernel gives each user a limited number of them
            os.close(inotify)
        loop._selector.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_what_a_function_raises_or_dies_of_is_told() -> None:
    loop, answers = Loop(), []
    helpers = Helpers(loop)

    def refuse() -> None:
        raise ValueError("no")

    functions: list[Callable[[], Any]] = [lambda: ["a", 1], refuse, lambda: os._exit(3), lambda: object()]
    for function in functions:
        helpers.call(function, lambda *answer: answers.append(answer))
    loop.run(lambda: len(answers) == len(functions))
    died = "the process that does this has ended with code"
    assert {str(answer) for answer in answers} == {"(['a', 1], '')", "(None, 'no')", f"(None, '{died} 3')", f"(None, '{died} 1')"}
    loop._selector.close()


class _Link(list[Any]):
    is_full = False
    send = list.append
