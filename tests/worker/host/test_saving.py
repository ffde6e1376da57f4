"""Saves on order, between an agent and the training of its task."""

from __future__ import annotations

import shlex
import signal
import sys

from tests.conftest import ROOT
from tests.worker.controller_double import AgentProcess
from worker.protocol import messages

TRAINING = """
import os, signal, sys, time
directory = os.environ["ORCH_LOG_DIR"]
sys.path.append({root!r})
from worker.protocol import task_files

def say(text):
    with open(os.path.join(directory, task_files.SAVING), "a") as file:
        file.write(text + "\\n")

def order():
    try:
        with open(os.path.join(directory, task_files.SAVE_ORDER)) as file:
            return file.read().split()
    except OSError:
        return None

def end(*_):
    print("SIGTERM after", order(), flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, end)
say("ready 0")
say("nonsense")
while order() != ["ask", "0"]:
    time.sleep(0.01)
say("waits 7")
while order() != ["save", "8"]:
    time.sleep(0.01)
say("saved 8")
time.sleep(1000)
"""


def training() -> str:
    return f"exec {shlex.join([sys.executable, '-c', TRAINING.format(root=str(ROOT))])}"


def hear(agent: AgentProcess, state: str) -> messages.TaskSaves:
    return agent.wait_for(messages.TaskSaves, lambda said: said.state == state)


def test_orders_and_answers_reach_each_other_and_a_stop_is_told_from_other_signals(agent: AgentProcess) -> None:
    agent.hello()
    agent.start(training())
    assert hear(agent, "ready").task == "worker-0"
    agent.order(messages.SaveTasks(("worker-0",)))
    assert hear(agent, "waits").step == 7
    agent.order(messages.SaveTasks(("worker-0",), 8))
    assert hear(agent, "saved").step == 8
    agent.order(messages.StopTasks(("worker-0",), 60.0))
    agent.wait_for(messages.TaskSwept)
    assert (agent.directory / "attempt-1/worker-0/stdout.log").read_text() == "SIGTERM after ['stop', '0']\n"


def test_an_agent_that_gets_sigterm_leaves_its_trainings_the_time_to_save(agent: AgentProcess) -> None:
    agent.hello(term_grace_s=60.0)
    agent.start(training())
    hear(agent, "ready")
    agent.process.send_signal(signal.SIGTERM)
    assert agent.wait_for(messages.RunNoted, lambda note: note.ends).ends
    agent.order(messages.SaveTasks(("worker-0",)))
    assert hear(agent, "waits").step == 7
    agent.order(messages.StopTasks(("worker-0",), 60.0))
    agent.wait_for(messages.TaskSwept)
    agent.order(messages.Bye())
    assert agent.wait() == 0


def test_of_a_flood_of_lines_the_newest_of_each_state_is_told(agent: AgentProcess) -> None:
    """Each is an event, which the controller records: a program that writes there without end must not keep the run from Ctrl-C."""
    agent.hello()
    flood = "for n in $(seq 20); do seq 1 20000 | sed 's/.*/waits &\\nready &/'; done >> $ORCH_LOG_DIR/saving; exit 3"
    agent.start(flood)
    assert agent.wait_for(messages.TaskExited).code == 3
    said = [(frame.state, frame.step) for frame in agent.all(messages.TaskSaves)]
    assert len(said) < 1000
    assert {state for state, _ in said} == {"waits", "ready"}
