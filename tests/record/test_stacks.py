"""Stacks of many tasks in a few lines."""

from __future__ import annotations

import faulthandler
import tempfile
import threading

from orchestrator.record import stacks


def dump(*lines: str, head: str = "Current thread 0x00007f0000000001 [python] (most recent call first):") -> str:
    return "\n".join([head, *(f"  File {line}" for line in lines)]) + "\n"


TRAINING = dump(
    '"/usr/lib/python3.11/site-packages/tensorflow/python/eager/execute.py", line 53 in quick_execute',
    '"/home/me/train.py", line 41 in step',
    '"/home/me/train.py", line 60 in <module>',
)
SLEEPING = dump('"/home/me/data.py", line 9 in wait', '"/home/me/train.py", line 60 in <module>')


def test_tasks_at_the_same_place_stand_together_and_the_odd_one_comes_last() -> None:
    dumps = {"worker-0": TRAINING, "worker-3": SLEEPING, "worker-1": TRAINING, "worker-2": TRAINING}
    assert stacks.summarise(dumps) == [
        "worker-0..2: train.py:41 in step, inside quick_execute (execute.py)",
        "worker-3: data.py:9 in wait",
    ]


def test_the_last_dump_counts() -> None:
    assert stacks.parse(TRAINING + SLEEPING)[0] == stacks.Frame("/home/me/data.py", "9", "wait")


def test_other_threads_are_left_out() -> None:
    other = dump('"/home/me/pool.py", line 1 in idle', head="Thread 0x00007f0000000002 (most recent call first):")
    assert stacks.place(stacks.parse(other + SLEEPING)) == "data.py:9 in wait"


def test_the_main_thread_counts_whoever_took_the_signal() -> None:
    other = dump('"/home/me/pool.py", line 1 in idle')
    main = SLEEPING.replace("Current thread", "Thread")
    assert stacks.place(stacks.parse(other + main)) == "data.py:9 in wait"


def test_a_task_without_python_is_nowhere() -> None:
    assert stacks.summarise({"worker-0": ""}) == ["worker-0: nowhere in Python"]


def test_what_faulthandler_really_writes_is_read() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read()
    done.set()
    thread.join()
    assert "Thread 0x" in text
    assert "test_what_faulthandler_really_writes_is_read" in [frame.function for frame in stacks.parse(text)]
    assert stacks.parse(text)[0].function == "test_what_faulthandler_really_writes_is_read"
