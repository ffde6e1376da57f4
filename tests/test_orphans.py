"""No orphan, ever: violent deaths of the controller, of an agent and of tasks, with tasks that resist. No TensorFlow."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from tests.conftest import Orch, Running
from tests.live import LiveRun, is_alive, kill, wait_until, wait_until_gone, wait_until_ready, write_script

RESISTING = {
    "plain": "ready(); sleep()",
    "ignores": "ignore(*{*range(1, 32)} - {signal.SIGKILL, signal.SIGSTOP}); ready(); sleep()",
    "blocks": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); ready(); sleep()",
    "stopped": "ready(); os.kill(os.getpid(), signal.SIGSTOP)",
    "busy": "ignore(); ready(); sum(range(10**15))",
    "closed": "ignore(); ready(); os.closerange(0, 4096); sleep()",
    "child": "leave_behind('ignore(); tell(\"child-of-child.ready\", os.getpid()); sleep()'); ignore(); ready(); sleep()",
    "detached": "leave_behind('ignore(); tell(\"child-of-detached.ready\", os.getpid()); sleep()', own_session=True); ready(); sleep()",
}
"""What a task does to live on, by what it is called here. Each worker takes the one of its index."""
ALL = [*(f"worker-{index}" for index in range(len(RESISTING))), "child-of-child", "child-of-detached"]

PROGRAM = f"""
ways = {list(RESISTING.values())!r}
exec(ways[int(TASK.rpartition("-")[2])])
"""


@pytest.fixture(params=["executed", "forked", "warm"])
def preload(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Tasks are children of the agent, or of a process from which they were forked; and that is a fork of one that was there before."""
    if request.param == "warm":
        request.getfixturevalue("start_warm")("json")
    return () if request.param == "executed" else ("json",)


one_way = pytest.mark.parametrize("preload", ["forked"], indirect=True)
"""For what is about the controller or the agent: how its tasks were started plays no part in that."""


def start_resisting(orch: Orch, directory: Path, preload: Sequence[str] = (), *options: str) -> tuple[Running, dict[str, psutil.Process]]:
    """All of them as one run; returns it, and the processes by name."""
    write_script(directory, PROGRAM, preload)
    running = orch.start("up", "script.py", "-n", str(len(RESISTING)), *options)
    processes = wait_until_ready(directory, *ALL)
    stopped = processes[f"worker-{list(RESISTING).index('stopped')}"]
    wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED, "stopped task")
    return running, processes


def test_no_task_survives_the_controller(orch: Orch, tmp_path: Path, run: LiveRun, preload: tuple[str, ...]) -> None:
    running, processes = start_resisting(orch, tmp_path, preload)
    agent = run.agent()
    kill(run.controller())
    wait_until_gone([*processes.values(), agent])
    assert running.wait().code == -signal.SIGKILL
    assert orch("wait").code == 125


def test_no_task_survives_its_agent_and_the_verdict_says_so(orch: Orch, tmp_path: Path, run: LiveRun, preload: tuple[str, ...]) -> None:
    running, processes = start_resisting(orch, tmp_path, preload)
    kill(run.agent())
    done = running.wait(check=125)
    wait_until_gone(processes.values())
    assert "lost host local: its agent was killed by SIGKILL" in done.err
    assert "first failure" not in done.err
    assert run.result()["outcome"] == "broken"


def test_no_task_survives_the_death_of_both_at_once(orch: Orch, tmp_path: Path, run: LiveRun, preload: tuple[str, ...]) -> None:
    """Nobody is left to clear up: what the kernel was told beforehand has to do.

    That does not reach a session of its own, nor a forked task that has closed every descriptor; `orch down` does.
    """
    running, processes = start_resisting(orch, tmp_path, preload)
    beyond = {"child-of-detached", *([f"worker-{list(RESISTING).index('closed')}"] if preload else [])}
    # Stopped first, so that neither can act on the other's death.
    pair = [run.controller(), run.agent()]
    for process in pair:
        process.suspend()
    others = pair[1].children(recursive=True)  # such as the process from which the tasks are forked
    kill(*pair)
    wait_until_gone({*others, *processes.values()} - {processes[name] for name in beyond})
    running.wait()
    assert f"killed {len(beyond)} processes that its dead controller had left" in orch("down", check=0).out
    wait_until_gone(processes[name] for name in beyond)


@one_way
def test_an_agent_that_is_told_to_end_takes_its_tasks_with_it(orch: Orch, tmp_path: Path, run: LiveRun, preload: tuple[str, ...]) -> None:
    running, processes = start_resisting(orch, tmp_path, preload)
    run.agent().terminate()
    done = running.wait(check=125)
    assert not [name for name, process in processes.items() if is_alive(process)]
    assert "the agent received SIGTERM" in done.err
    assert "lost host local" in done.err
    assert "first failure" not in done.err


@one_way
def test_a_stopped_agent_goes_on_with_the_run(orch: Orch, tmp_path: Path, run: LiveRun, preload: tuple[str, ...]) -> None:
    """Whoever stops it, and however often: the kernel continues it when anything is asked of it."""
    write_script(tmp_path, "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); ready(); sleep()", preload)
    running = orch.start("up", "script.py", "-n", "1")
    tasks = wait_until_ready(tmp_path, "worker-0")
    agent = run.agent()
    agent.suspend()
    wait_until(lambda: agent.status() == psutil.STATUS_STOPPED, "stopped agent")
    running.signal(signal.SIGINT)
    running.wait(check=130)
    wait_until_gone([agent, *tasks.values()])


@one_way
def test_a_stopped_agent_does_not_survive_its_controller(orch: Orch, tmp_path: Path, run: LiveRun, preload: tuple[str, ...]) -> None:
    running, processes = start_resisting(orch, tmp_path, preload)
    agent = run.agent()
    agent.suspend()
    wait_until(lambda: agent.status() == psutil.STATUS_STOPPED, "stopped agent")
    kill(run.controller())
    wait_until_gone([agent, *processes.values()])
    running.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_the_terminals_signals_do_not_reach_the_agent(orch: Orch, tmp_path: Path, run: LiveRun, number: signal.Signals) -> None:
    write_script(tmp_path, "ready(); wait_for('go')")
    running = orch.start("up", "script.py", "-n", "1")
    wait_until_ready(tmp_path, "worker-0")
    os.killpg(run.agent().pid, number)
    (tmp_path / "go").touch()
    running.wait(check=0)


@one_way
def test_a_controller_that_dies_lets_tasks_tidy_up(orch: Orch, tmp_path: Path, run: LiveRun, preload: tuple[str, ...]) -> None:
    write_script(tmp_path, "signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('tidied up', flush=True))); ready(); sleep()", preload)
    running = orch.start("up", "script.py", "-n", "1")
    tasks = wait_until_ready(tmp_path, "worker-0")
    kill(run.controller())
    wait_until_gone(tasks.values())
    running.wait()
    assert run.log("worker-0") == b"tidied up\n"


# --- what tasks leave behind -------------------------------------------------------------------

LEFT_BEHIND = {
    "holds the output": ("tell('child.ready', os.getpid()); sleep()", False),
    "holds the output and ignores SIGTERM": ("ignore(); tell('child.ready', os.getpid()); sleep()", False),
    "in a session of its own": ("tell('child.ready', os.getpid()); sleep()", True),
    "in a session of its own, ignores SIGTERM": ("ignore(); tell('child.ready', os.getpid()); sleep()", True),
    "in a session of its own, with children": (
        "leave_behind('ignore(); tell(\"child.ready\", os.getpid()); sleep()', own_session=True); sleep()",
        True,
    ),
}


@pytest.mark.parametrize(
    ("preload", "left"),
    [
        *(("forked", left) for left in LEFT_BEHIND),
        *((way, left) for way in ("executed", "warm") for left in ("holds the output", "in a session of its own, with children")),
    ],
    indirect=["preload"],
)
def test_what_a_task_leaves_behind_is_swept(orch: Orch, tmp_path: Path, run: LiveRun, preload: tuple[str, ...], left: str) -> None:
    text, own_session = LEFT_BEHIND[left]
    write_script(tmp_path, f"leave_behind({text!r}, own_session={own_session})\nwait_for('child.ready', 'go')", preload)
    running = orch.start("up", "script.py", "-n", "1")
    child = wait_until_ready(tmp_path, "child")["child"]
    (tmp_path / "go").touch()
    running.wait(check=0)
    assert not is_alive(child)
    assert run.result()["outcome"] == "succeeded"


def test_a_tasks_end_is_known_before_its_children_are_gone(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    """The exit is noticed as such, not as the end of the output that a child still holds."""
    write_script(
        tmp_path,
        """
        def live_on():
            ignore()
            while True:
                tell("child.seen", time.time())
                tell("child.ready", os.getpid())
                time.sleep(0.01)
        leave_behind("live_on()")
        wait_for("child.ready")
        sys.exit(7)
        """,
    )
    orch("up", "script.py", "-n", "1", check=7)
    assert float((tmp_path / "child.seen").read_text()) > run.event("task_exited")["at"]


def test_a_session_of_its_own_is_left_alone_until_the_last_task_of_the_host_ends(
    orch: Orch, tmp_path: Path, preload: tuple[str, ...]
) -> None:
    write_script(
        tmp_path,
        """
        if TASK == "worker-0":
            leave_behind("tell('child.ready', os.getpid()); wait_for('go'); tell('lived'); sleep()", own_session=True)
            wait_for("child.ready")
            sys.exit()
        wait_for("go", "lived")
        """,
        preload,
    )
    running = orch.start("up", "script.py", "-n", "2")
    child = wait_until_ready(tmp_path, "child")["child"]
    LiveRun(tmp_path).event("task_swept", task="worker-0")
    (tmp_path / "go").touch()
    running.wait(check=0)
    assert not is_alive(child)
