"""The agent keeps what its tasks have left in memory, and writes it only if the training goes on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.worker.controller_double import AgentProcess
from worker.formats import saves, snapshot_memory
from worker.formats.saves import LOCAL
from worker.protocol import messages
from worker.settings.checkpoint_settings import CheckpointSettings
from worker.settings.task_settings import TaskSettings

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files in memory are of Linux")

ROOT = Path(__file__).resolve().parents[3]
LEAVES = """
import json, os, signal, sys
sys.path.insert(0, sys.argv[1])
from worker.formats import saves, snapshot_memory

task, paths = os.environ["ORCH_TASK"], os.environ["ORCH_SNAPSHOTS"].split(":")
holds = task == "worker-0"
memory = snapshot_memory.Memory(paths)
for step in (6, 7):
    head = {
        "series": sys.argv[2], "task": task, "run": "run", "attempt": 1, "chief": "worker-0", "workers": ["worker-0", "worker-1"],
        "holds": holds, "name": saves.name_of(step), "random": None, "document": {
            "step": step, "at": 1.0, "kind": "", "order": "", "input": {"epoch": 0, "batch": step}, "versions": {},
            "world": {"workers": [], "replicas": 1},
        },
    }
    tensors = {"own": ("U8", [1], True), **({"weights": ("U8", [3], False)} if holds else {})}
    note = json.dumps(head).encode() + b"\\n" + json.dumps(tensors).encode()
    memory.write(note, [bytes([step]), *([b"abc"] if holds else [])])
os.kill(os.getpid(), signal.SIGKILL)
"""
READS = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from worker.formats import snapshot_memory
while snapshot_memory.is_busy(os.environ["ORCH_SNAPSHOTS"].split(":")[0]):
    time.sleep(0.01)
assert "manifest.json" in os.listdir(os.path.join(sys.argv[2], "step-0000000007"))
"""


def start(agent: AgentProcess, text: str, attempt: int = 1) -> None:
    """Two tasks that run a program of Python, and wait for their ends."""
    program = messages.Program("command", sys.executable, ("-c", text, str(ROOT), str(agent.directory / "saves/loop-1")))
    names = ("worker-0", "worker-1")
    orders = [
        messages.TaskOrder(name, attempt, program, str(agent.directory), f"attempt-{attempt}/{name}", env={"ORCH_TASK": name})
        for name in names
    ]
    agent.order(messages.StartTasks(tuple(orders), may_restart=True))
    for name in names:
        agent.wait_for(messages.TaskSwept, lambda frame, name=name: (frame.task, frame.attempt) == (name, attempt))


def saved(agent: AgentProcess) -> list[int]:
    found = list(saves.list_saves(LOCAL, str(agent.directory / "saves"), "loop-1"))
    assert [saves.check(LOCAL, save) for save in found if save.manifest] == [""] * len([save for save in found if save.manifest])
    return [save.step for save in found if save.manifest is not None]


def test_the_next_attempt_finds_what_the_killed_tasks_have_left(agent: AgentProcess) -> None:
    agent.hello()
    start(agent, LEAVES)
    assert {frame.code for frame in agent.all(messages.TaskExited)} == {137}
    assert saved(agent) == [], "no verdict waits for a save"
    start(agent, READS, attempt=2)
    assert {frame.code for frame in agent.all(messages.TaskExited) if frame.attempt == 2} == {0}
    assert saved(agent) == [7]


def test_each_attempt_that_begins_while_it_is_written_waits_for_it(agent: AgentProcess) -> None:
    """The tasks of the attempt between end before: what was meant for their memory comes to no other file."""
    agent.hello()
    # The process that writes waits for a worker of another host.
    start(agent, LEAVES.replace('["worker-0", "worker-1"]', '["worker-0", "worker-1", "worker-2"]'))
    start(agent, "", attempt=2)
    assert saved(agent) == []
    start(agent, READS, attempt=3)
    assert {frame.code for frame in agent.all(messages.TaskExited) if frame.attempt == 3} == {0}
    assert saved(agent) == [7]


@pytest.mark.parametrize(("bye", "steps"), [(messages.Bye(), []), (messages.Bye(keeps_state=True), [7]), (None, [7])])
def test_an_agent_that_ends_writes_it_if_the_training_goes_on(agent: AgentProcess, bye: messages.Bye | None, steps: list[int]) -> None:
    """Another agent takes over, or the controller is gone, and its user may continue the run: None."""
    agent.hello()
    start(agent, LEAVES)
    if bye is None:
        agent.stdin.close()
    else:
        agent.order(bye)
    agent.read_to_end()
    agent.wait()
    assert saved(agent) == steps


def test_a_disk_that_takes_nothing_is_said_and_the_next_attempt_starts(agent: AgentProcess) -> None:
    agent.hello()
    start(agent, LEAVES)
    (agent.directory / "saves").write_text("a file is in the way")
    start(agent, "import os; assert os.environ['ORCH_SNAPSHOTS']", attempt=2)
    assert "is not saved" in agent.wait_for(messages.RunNoted, lambda frame: "checkpoints:" in frame.text).text
    assert {frame.code for frame in agent.all(messages.TaskExited) if frame.attempt == 2} == {0}


@pytest.mark.parametrize(("may_restart", "snapshots", "files"), [(True, True, snapshot_memory.FILES), (False, True, 0), (True, False, 0)])
def test_without_restarts_there_is_no_memory(agent: AgentProcess, may_restart: bool, snapshots: bool, files: int) -> None:
    agent.hello()
    program = messages.Program("command", "sh", ("-c", "echo $ORCH_SNAPSHOTS"))
    settings = TaskSettings(checkpoints=CheckpointSettings(snapshots=snapshots))
    order = messages.TaskOrder("worker-0", 1, program, str(agent.directory), "log", settings=settings)
    agent.order(messages.StartTasks((order,), may_restart=may_restart))
    agent.wait_for(messages.TaskSwept)
    assert (agent.directory / "log/stdout.log").read_text().count("/fd/") == files


_HEADERS = {
    "a note longer than the memory": 'struct.pack("<8sQQQ32s", b"orchsnap", 1, 2**64 - 1, 2**64 - 1, bytes(32))',
    "a note longer than any": 'struct.pack("<8sQQQ32s", b"orchsnap", 1, 2**33, 0, bytes(32))',
    "a note that is no JSON": 'snapshot_memory._pack(1, b"no\\nnote", 0)',
    "a note of one line": 'snapshot_memory._pack(1, b"[" * 7, 0)',
}
SCRIBBLES = """
import os, struct, sys
sys.path.insert(0, sys.argv[1])
from worker.formats import snapshot_memory
for path in os.environ["ORCH_SNAPSHOTS"].split(":"):
    fd = os.open(path, os.O_RDWR)
    os.ftruncate(fd, 2**34)
    os.pwrite(fd, HEADER, 0)
    os.pwrite(fd, b"no\\nnote", snapshot_memory._NOTE_AT)
sys.exit(7)
"""


@pytest.mark.parametrize("header", _HEADERS)
def test_whatever_a_task_has_written_there_keeps_no_agent_from_its_work(agent: AgentProcess, header: str) -> None:
    agent.hello()
    start(agent, SCRIBBLES.replace("HEADER", _HEADERS[header]))
    start(agent, LEAVES, attempt=2)
    assert {(frame.attempt, frame.code) for frame in agent.all(messages.TaskExited)} == {(1, 7), (2, 137)}
    start(agent, READS, attempt=3)
    assert saved(agent) == [7]
    peak = Path(f"/proc/{agent.process.pid}/status").read_text().partition("VmHWM:")[2].split()[0]
    assert int(peak) < 60 * 1024
