"""Stacks of many tasks in a few lines."""

from __future__ import annotations

import faulthandler
import os
import tempfile
import threading
from pathlib import Path

import pytest

import worker
from orchestrator.record import stack_report
from orchestrator.record.stack_report import StackAnswer
from orchestrator.record.text import stack_frames
from orchestrator.record.text.stack_frames import StackFrame
from tests import golden


def dump(*lines: str, head: str = "Current thread 0x00007f0000000001 [python] (most recent call first):") -> str:
    return "\n".join([head, *(f"  File {line}" for line in lines)]) + "\n"


TRAINING = dump(
    '"/usr/lib/python3.11/site-packages/tensorflow/python/eager/execute.py", line 53 in quick_execute',
    '"/usr/lib/python3.11/site-packages/tensorflow/python/distribute/distribute_lib.py", line 3400 in all_reduce',
    '"/home/me/train.py", line 41 in step',
    '"/home/me/train.py", line 60 in <module>',
)
SLEEPING = dump('"/home/me/data.py", line 9 in wait', '"/home/me/train.py", line 60 in <module>')


SOURCES = {
    ("/home/me/train.py", "41"): "    total = context.all_reduce('sum', loss)\n",
    ("/home/me/data.py", "9"): "    time.sleep(1000)\n",
}


def source(file: str, line: str) -> str:
    return SOURCES.get((file, line), "")


def place(text: str) -> str:
    return stack_report.place(stack_report.parse(text), source)


def summarise(**dumps: str) -> list[str]:
    return stack_report.summarise({name.replace("_", "-"): stack_report.parse(text) for name, text in dumps.items()}, source)


def test_tasks_at_the_same_place_stand_together_and_the_odd_one_is_named() -> None:
    assert summarise(worker_0=TRAINING, worker_3=SLEEPING, worker_1=TRAINING, worker_2=TRAINING) == [
        "worker-0..2: in all_reduce (train.py:41)",
        "worker-3: in time.sleep (data.py:9), the odd one out",
    ]


def test_of_two_nobody_is_odd_nor_is_a_task_of_another_type() -> None:
    assert summarise(worker_0=TRAINING, worker_1=SLEEPING) == [
        "worker-0: in all_reduce (train.py:41)",
        "worker-1: in time.sleep (data.py:9)",
    ]
    assert summarise(chief_0=SLEEPING, worker_0=TRAINING, worker_1=TRAINING)[-1] == "chief-0: in time.sleep (data.py:9)"


WORKER = Path(worker.__file__).parent
LIBRARY = "/usr/lib/python3.11/site-packages"


@golden.cases("places.txt")
def test_a_place_is_the_users_own_line_and_the_call_that_it_is_in(case: golden.Case) -> None:
    """The line of the source, and the frames. A call of C code has no frame of its own: the line names it, as it names an object."""
    line, *frames = case.given.split("\n")
    case.check(stack_report.place(stack_report.parse(dump(*frames)), lambda *_: line))


@pytest.mark.parametrize("ours", ["/home/me/.cache/orch/worker-0123456789abcdef", "/home/me/.local/lib/orch/worker"])
def test_a_users_own_worker_directory_is_his_own_code(ours: str) -> None:
    """Ours is the package whose start_task.py is the first call of all."""
    starting = [f'"{ours}/task/bootstrap.py", line 99 in run', f'"{ours}/task/start_task.py", line 12 in <module>']
    own = ['"/home/me/project/worker/task/model.py", line 5 in train', '"/home/me/train.py", line 9 in <module>']
    assert place(dump(*own, *starting)) == "in train (model.py:5)"
    assert place(dump(f'"{ours}/task/strategies.py", line 7 in strategy', *own, *starting)) == "in strategy (model.py:5)"
    assert place(dump(*starting)) == "in run (bootstrap.py:99)"


@pytest.mark.parametrize("start", sorted(str(path.relative_to(WORKER)) for path in WORKER.rglob("start_*.py")))
def test_wherever_a_task_begins_orchs_own_calls_are_not_the_users(start: str) -> None:
    serving = f'"{WORKER}/task/serve.py", line 31 in serve'
    waiting = f'"{LIBRARY}/tensorflow/python/training/server_lib.py", line 9 in join'
    assert place(dump(waiting, serving, f'"{WORKER}/{start}", line 3 in <module>')) == "in join (server_lib.py:9)"


@pytest.mark.timeout(60)
def test_a_source_is_read_only_if_it_is_a_file_of_some_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long.py").write_text("one()\n" * 100)
    monkeypatch.setattr(stack_report, "SOURCE_BYTES", 60)
    for name in ("/dev/zero", str(tmp_path / "pipe"), str(tmp_path), str(tmp_path / "none.py"), "\0"):
        assert stack_report.read_line(name, "1") == ""
    assert [stack_report.read_line(str(tmp_path / "long.py"), line) for line in ("0", "10", "11", "???")] == ["", "one()", "", ""]


def test_the_last_answer_counts() -> None:
    asked = "orch: asked at 2026-11-21 06:50:01\n"
    assert stack_report.parse(TRAINING + SLEEPING).frames[0] == StackFrame("/home/me/data.py", "9", "wait")
    assert stack_report.parse(f"{asked}orch: is stopped (SIGSTOP)\n{TRAINING}{asked}{SLEEPING}") == stack_report.parse(SLEEPING)
    assert stack_report.parse(f"{asked}{TRAINING}{asked}") == StackAnswer()
    assert place(f"{asked}{TRAINING}{asked}orch: is stopped (SIGSTOP)\n") == "is stopped (SIGSTOP)"


def test_one_that_answers_after_it_was_held_says_both() -> None:
    assert place(f"orch: is stopped (SIGSTOP)\n{SLEEPING}") == "in time.sleep (data.py:9); is stopped (SIGSTOP)"


def test_other_threads_are_left_out() -> None:
    other = dump('"/home/me/pool.py", line 1 in idle', head="Thread 0x00007f0000000002 (most recent call first):")
    assert place(other + SLEEPING) == "in time.sleep (data.py:9)"


def test_a_function_that_tensorflow_calls_is_named_where_the_main_thread_waits() -> None:
    """A generator of the input, or a `py_function`: their threads are TensorFlow's."""
    calls = f'"{LIBRARY}/tensorflow/python/ops/script_ops.py", line 269 in __call__'
    head = "Thread 0x00007f0000000002 (most recent call first):"
    generator = dump('"/home/me/data.py", line 9 in examples', calls, head=head)
    fetching = dump(f'"{LIBRARY}/tensorflow/python/eager/execute.py", line 53 in quick_execute', '"/home/me/train.py", line 7 in step')
    assert place(generator + fetching) == "in quick_execute (train.py:7); its generator or py_function is in time.sleep (data.py:9)"
    assert place(generator + SLEEPING) == "in time.sleep (data.py:9)", "the main thread does not wait"
    assert place(dump(calls, head=head) + fetching) == "in quick_execute (train.py:7)", "only library code"


def test_a_reader_finds_the_main_thread_first_and_orchs_own_threads_last() -> None:
    asked = "orch: asked at 2026-11-21 06:50:01\n"
    ours = dump(f'"{WORKER}/task/pace/step_times.py", line 1 in poll_forever', head="Thread 0x00007f0000000003 (most recent call first):")
    other = dump('"/home/me/pool.py", line 1 in idle', head="Thread 0x00007f0000000002 (most recent call first):")
    main = SLEEPING + f'  File "{WORKER}/task/start_task.py", line 12 in <module>\n'
    whole = f"{TRAINING}{asked}{ours}\n{other}\n{main}"
    assert "\n".join(stack_report.in_order(whole)) + "\n" == f"{asked}{main}\n{other}\n{ours}"
    brief = [line for line in stack_report.in_order(whole, is_brief=True) if not line.endswith(":")]
    calls = ["  data.py:9 in wait", "  train.py:60 in <module>", "  start_task.py:12 in <module>"]
    assert brief == [asked.strip(), *calls, "", "  pool.py:1 in idle"]
    stopped = f"{asked}orch: is stopped (SIGSTOP)\n"
    assert stack_report.in_order(stopped) == stopped.splitlines()
    assert stack_report.in_order(f"{asked}{ours}\n{other}") == [asked.strip(), *ours.splitlines(), "", *other.splitlines()], "not complete"
    assert stack_report.in_order("") == []


def test_the_main_thread_counts_whoever_took_the_signal() -> None:
    other = dump('"/home/me/pool.py", line 1 in idle')
    main = SLEEPING.replace("Current thread", "Thread")
    assert place(other + main) == "in time.sleep (data.py:9)"


def test_a_task_without_python_is_nowhere() -> None:
    assert place("") == "nowhere in Python"


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
    frames = stack_report.parse(text).frames
    assert "test_what_faulthandler_really_writes_is_read" in [frame.function for frame in frames]
    assert stack_report.place(StackAnswer(frames)) == f"in faulthandler.dump_traceback ({Path(__file__).name}:{frames[0].line})"


def test_a_stack_that_is_still_being_written_is_waited_for_and_never_taken_for_an_answer() -> None:
    """faulthandler writes in small pieces. Of a stack without its end, the frames may be those of another thread."""
    begin = f'  File "{WORKER}/task/start_task.py", line 12 in <module>\n'
    other = dump('"/usr/lib/python3.11/threading.py", line 1 in _bootstrap', head="Thread 0x00007f0000000002 (most recent call first):")
    whole = other + "\n" + SLEEPING + begin
    assert stack_report.is_complete(whole)
    assert place(whole) == "in time.sleep (data.py:9)"
    ends = [end for end in range(1, len(whole)) if stack_report.is_complete(whole[:end])]
    assert ends == [], "no beginning of a stack is a stack"
    head = whole.index("Current thread")
    for end in (head + 40, whole.index("  File", head), whole.index("data.py"), len(whole) - 1):
        assert place(whole[:end]) == "its stack is not complete"
    for last in ("  <no Python frame>\n", "  ...\n", "...\n", "orch: is stopped (SIGSTOP)\n"):
        assert stack_report.is_complete(dump() + last)
    assert place(dump() + "  <no Python frame>\n") == "nowhere in Python"


CRASH = """before
Fatal Python error: Segmentation fault

Thread 0x01 (most recent call first):
  File "/w/task/looking/profiling.py", line 71 in _look_forever

Current thread 0x02 (most recent call first):
{frames}
Thread 0x03 (most recent call first):
  File "/home/me/train.py", line 9 in <module>
  File "/w/task/program.py", line 25 in <lambda>
  File "/w/task/start_task.py", line 23 in <module>

Extension modules: numpy, h5py"""


@pytest.mark.parametrize("frames", ['  File "/home/me/reader.py", line 4 in read', "  <no Python frame>"])
def test_of_a_crash_the_thread_that_crashed_is_shown(frames: str) -> None:
    lines = CRASH.format(frames=f"{frames}\n").splitlines()
    assert stack_frames.of_crash(lines) == ["before", "Fatal Python error: Segmentation fault", frames]


def test_of_a_crash_in_the_main_thread_the_program_s_frames_are_shown() -> None:
    main = CRASH.partition("Thread 0x03 (most recent call first):\n")[2].partition("\n\n")[0]
    lines = CRASH.format(frames=f"{main}\n").splitlines()
    assert stack_frames.of_crash(lines)[2:] == ['  File "/home/me/train.py", line 9 in <module>']
    assert stack_frames.of_crash(["no", "crash"]) == ["no", "crash"]
