"""`orch placement` on runs without TensorFlow: what it refuses, and what it says when there is nothing to count."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Orch

Script = Callable[..., Path]

LINE = "a: (Add): /job:worker/replica:0/task:{index}/device:CPU:0"
WRITES = f"""
    import os
    if os.environ.get("WRITES"):
        print({LINE!r}.format(index=os.environ["RANK"]))
    print("end")
"""


@pytest.fixture(autouse=True)
def program(script: Script) -> Path:
    return script(WRITES, "program.py")


def test_a_run_that_logged_nothing_is_told_how_to_log(orch: Orch) -> None:
    orch("up", "program.py", check=0)
    done = orch("placement", check=0)
    assert done.out == ""
    assert "--log-placement" in done.err
    assert "tf.debugging.set_log_device_placement(True)" in done.err
    assert json.loads(orch("placement", "--json", check=0).out)["operations"] == []


def test_each_task_s_own_device_is_written_without_its_name(orch: Orch) -> None:
    done = orch("up", "program.py", "-n", "3", env={"WRITES": "1"}, check=0)
    assert "(Add)" not in done.out
    assert "3 lines of TensorFlow's own messages folded" in done.err
    assert "Add        CPU:0     -       1  worker-0..2" in orch("placement", check=0).out
    only = json.loads(orch("placement", "--json", "--task", "worker-1", check=0).out)
    assert [(row["task"], row["placed"]) for row in only["operations"]] == [("worker-1", 1)]


COMES_BACK = f"""
    import os, pathlib, sys, time
    if os.environ["ORCH_TASK"] == "evaluator-0" and os.environ["ORCH_ATTEMPT"] == "1":
        sys.exit(9)
    print({LINE!r}.format(index=os.environ["RANK"]), flush=True)
    if os.environ["ORCH_TASK"] == "evaluator-0":
        pathlib.Path("evaluated").touch()
    while not pathlib.Path("evaluated").exists():
        time.sleep(0.01)
"""


def test_a_task_that_came_back_alone_does_not_hide_the_others(orch: Orch, script: Script) -> None:
    script(COMES_BACK, "program.py")
    again = ("--evaluator", "--max-restarts", "1")
    orch("up", "program.py", "-n", "2", *again, check=0)
    found = json.loads(orch("placement", "--json", check=0).out)
    assert {task["task"]: task["attempt"] for task in found["tasks"]} == {"worker-0": 1, "worker-1": 1, "evaluator-0": 2}
    assert [row["task"] for row in found["operations"]] == ["worker-0", "worker-1", "evaluator-0"]
    assert found["attempt"] == 2
    first = json.loads(orch("placement", "--json", "--attempt", "1", check=0).out)
    assert [row["task"] for row in first["operations"]] == ["worker-0", "worker-1"]


def test_mistakes_are_named_with_the_right_word(orch: Orch) -> None:
    assert "there is no run" in orch("placement", check=2).err
    orch("up", "program.py", check=0)
    assert "did you mean 'worker-0'" in orch("placement", "--task", "workr-0", check=2).err
    assert "has no attempt 7; it has 1" in orch("placement", "--attempt", "7", check=2).err
