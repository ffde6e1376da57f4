"""Tracebacks that a view folds to one line each."""

from __future__ import annotations

import itertools
import json
import os
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.model.cause import graph_errors
from orchestrator.record.console import Console, Sink
from orchestrator.record.run_store import create_run
from orchestrator.record.text.log_view import LogView
from orchestrator.record.text.tracebacks import LONGEST_S, QUIET_S
from tests.conftest import Orch
from tests.live import PATIENCE_S, wait_until, write_script
from tests.record.text.test_run_table import GRAPH

TASKS = ("worker-0", "worker-1")
CRASH = (
    'Fatal Python error: Aborted\n\nCurrent thread 0x0f (most recent call first):\n  File "/a.py", line 1 in f\n\nExtension modules: a\n'
)
HEAD = "Traceback (most recent call last):\n"
RAISED = f'{HEAD}  File "/home/me/train.py", line 3, in <module>\n    f()\n    ~^^\nValueError: bad\n'
SAME = "worker-1 | the same traceback as worker-0: ValueError: bad\n"
LOST = Path(__file__).parents[2] / "model" / "cause" / "lost_peers.json"
ENDED = Path(__file__).parent / "noise" / "tf2.21-peer-ended.txt"
FIT = Path(__file__).parent / "noise" / "tf2.21-peer-failed.txt"


def headed(task: str, text: str) -> str:
    return "".join(f"{task} | {line}\n" for line in text.splitlines())


def text_of(texts: list[tuple[str, str]]) -> str:
    return "".join(text for _, text in texts)


def both(first: str, second: str) -> tuple[str, str, str]:
    """What two tasks that write these texts and end show, and the line on folded lines."""
    view = LogView(TASKS)
    shown = [
        view.render(task, "stderr", text.encode()) + text_of(view.finish(task)) for task, text in zip(TASKS, (first, second), strict=True)
    ]
    return shown[0], shown[1], view.folded_note


def test_the_same_traceback_of_a_second_task_is_one_line() -> None:
    note = "4 lines of tracebacks folded; --all shows all lines"
    assert both(RAISED, f"before\n{RAISED}after\n") == (headed("worker-0", RAISED), f"worker-1 | before\n{SAME}worker-1 | after\n", note)
    own = "I0000 00:00:1.1 2 coordination_service.cc:502] Waiting for 1/2 tasks to connect.\n"
    assert both(RAISED, own + RAISED)[2] == note.replace("4 lines", "5 lines of TensorFlow's own messages and")


def test_the_frames_of_packages_in_the_error_of_a_graph_are_folded() -> None:
    raised = RAISED.replace("ValueError: bad\n", f"errors.InvalidArgumentError: {GRAPH}\n")
    first, second, note = both(raised, raised)
    assert "train.py" in first
    assert "site-packages" not in first
    assert second == "worker-1 | the same traceback as worker-0: errors.InvalidArgumentError: a label of 1\n"
    assert note.startswith("16 lines of tracebacks folded")


def test_of_many_frames_of_packages_in_a_row_three_are_shown() -> None:
    package = "".join(f'  File "/v/site-packages/tf/{number}.py", line 1, in f\n    g()\n    ^^^\n' for number in range(20))
    user = RAISED.removeprefix(HEAD).replace("ValueError: bad\n", "")
    said = 'ValueError: in user code:\n\n    File "/home/me/train.py", line 8, in f  *\n        g()\n\n    ValueError: Cannot reshape\n'
    raised = f"{HEAD}{user}{package}{user}{said}"
    first, second, _ = both(raised, raised)
    assert re.findall(r"tf/(\d+)\.py", first) == ["0", "18", "19"]
    assert "worker-0 |     ^^^\nworker-0 |   … 17 frames of installed packages\nworker-0 |   File" in first
    assert first.count("train.py") == 3
    assert second == "worker-1 | the same traceback as worker-0: ValueError: Cannot reshape\n"
    few = f"{HEAD}{user}{''.join(package.splitlines(keepends=True)[:18])}ValueError: bad\n"
    assert both(few, "")[0] == headed("worker-0", few)


def test_the_labels_of_a_batch_make_no_other_traceback() -> None:
    first = RAISED.replace("bad", "Received a label value of 1 which is outside.  Label values: 0 1 1")
    assert both(first, first.replace("0 1 1", "1 0 -1"))[1].startswith("worker-1 | the same traceback as worker-0: ")


def test_addresses_numbers_of_tasks_and_generated_names_make_no_other_traceback() -> None:
    first = RAISED.replace("bad", "on /job:worker/replica:0/task:0/device:CPU:0: <f at 0x7f63d3ec0680>")
    second = first.replace("task:0", "task:12").replace("63d3ec0680", "12eb8a0680")
    assert both(first, second)[1] == headed("worker-1", f"the same traceback as worker-0: {second.splitlines()[-1]}")
    generated = RAISED.replace("home/me/train.py", "tmp/__autograph_generated_filet5x_.py").replace(
        "bad", "[Op:__inference_of_next_913]\n'y' sizes: 3"
    )
    second = generated.replace("t5x_", "k10").replace("913", "14")
    assert both(generated, second)[1] == headed("worker-1", "the same traceback as worker-0: ValueError: [Op:__inference_of_next_14]")
    other = first.replace("CPU:0", "CPU:1")
    assert both(first, other)[1] == headed("worker-1", other)


def test_of_a_crash_in_native_code_the_stack_of_the_program_is_shown_once() -> None:
    frames = '  File "/home/me/train.py", line 9 in f\n  File "/home/me/train.py", line 12 in <module>\n'
    ours = '  File "/w/task/program.py", line 25 in run\n  File "/w/task/start_task.py", line 23 in <module>\n'
    thread = '\nThread 0x01 (most recent call first):\n  File "/w/task/looking/profiling.py", line 71 in _look_forever\n'
    modules = f"\nExtension modules: {', '.join(map(str, range(999)))} (total: 999)\n"
    crash = f"Fatal Python error: Segmentation fault\n{thread}\nCurrent thread 0x0f (most recent call first):\n{frames}{ours}{modules}"
    shown = headed("worker-0", f"before\nFatal Python error: Segmentation fault\n{frames}after")
    first, second, note = both(f"before\n{crash}after\n", crash.replace("0x0f", "0x7f"))
    assert (first, second) == (shown, "worker-1 | the same traceback as worker-0: Fatal Python error: Segmentation fault\n")
    lines = f"before\n{crash}after\n{crash}".splitlines()
    assert note.startswith(f"{len(lines) - 6} lines of tracebacks folded")
    begun = crash.partition("Extension")[0]
    assert both(begun, "")[0] == headed("worker-0", f"Fatal Python error: Segmentation fault\n{frames}"), "its end was lost"
    native = crash.replace("Current thread", "Thread")
    assert both(native, "")[0] == headed(
        "worker-0", f"Fatal Python error: Segmentation fault\nThread 0x0f (most recent call first):\n{frames}"
    )
    view = LogView(TASKS)
    assert view.render("worker-0", "stderr", crash.encode()) == ""
    assert text_of(view.complete("worker-0")) == both(crash, "")[0], "before the line about its end"


@pytest.mark.parametrize("other", [RAISED.replace("line 3", "line 4"), RAISED.replace("bad", "worse"), RAISED.replace("/me/", "/you/")])
def test_a_traceback_that_differs_is_shown(other: str) -> None:
    assert both(RAISED, other) == (headed("worker-0", RAISED), headed("worker-1", other), "")


def test_the_same_traceback_of_the_same_task_is_shown_again() -> None:
    view = LogView(TASKS)
    assert view.render("worker-0", "stderr", (RAISED * 2 + "end\n").encode()) == headed("worker-0", RAISED * 2 + "end\n")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_view_that_folds_nothing_shows_all_lines_at_once(as_json: bool) -> None:
    view = LogView(TASKS, fold=False, as_json=as_json)
    for task in TASKS:
        text = view.render(task, "stderr", RAISED.encode())
        assert [json.loads(line)["line"] if as_json else line.partition(" | ")[2] for line in text.splitlines()] == RAISED.splitlines()


@pytest.mark.parametrize(
    ("program", "lines"),
    [
        ("try:\n  {}['a']\nexcept KeyError as e:\n  raise ValueError('bad') from e", ["ValueError: bad"]),
        ("try:\n  {}['a']\nexcept KeyError:\n  raise ValueError('bad')", ["ValueError: bad"]),
        ("raise ValueError('bad\\n\\nArguments:\\n  x=1\\n\\n\\ty')", ["ValueError: bad"]),
        ("raise ValueError('bad\\nso bad')", ["ValueError: bad", None]),
        ("def f():\n  f()\nf()", ["RecursionError: maximum recursion depth exceeded"]),
        ("eval('1 +')", ["SyntaxError: invalid syntax"]),
        (
            "import traceback\ntry:\n  1/0\nexcept ZeroDivisionError:\n  traceback.print_exc()\nraise ValueError('bad')",
            ["ZeroDivisionError: division by zero", "ValueError: bad"],
        ),
    ],
    ids=["from", "during", "paragraphs", "lines", "recursion", "syntax", "two"],
)
def test_of_python_s_own_tracebacks_each_is_one_line_the_second_time(program: str, lines: list[str | None]) -> None:
    text = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S).stderr
    first, second, note = both(text, text)
    assert first == headed("worker-0", text)
    assert second == headed("worker-1", "\n".join(f"the same traceback as worker-0: {line}" if line else "so bad" for line in lines))
    assert note.startswith(f"{len(text.splitlines()) - len(lines)} lines ")


def test_after_the_loss_of_a_peer_a_traceback_is_one_line() -> None:
    folded = set()
    for case in json.loads(LOST.read_text()).values():
        for task, ended in case["ended"].items():
            if (failure := ended.get("failure")) is None:
                continue
            text = f'{HEAD}  File "/home/me/train.py", line 44, in <module>\n    step()\n{failure["type"]}: {failure["message"]}\n'
            view = LogView([task])
            shown = (view.render(task, "stderr", text.encode()) + text_of(view.finish())).splitlines()
            if task == case["victim"] or "has timed out" in text or "grpc_status:3" in text:
                whole = "\n".join(graph_errors.without_frames(text.splitlines()))
                assert shown == headed(task, whole).splitlines(), "this is no loss, or nobody knows of which peer"
            else:
                assert len(shown) == 1, text
                folded.add(shown[0].partition("): ")[0].partition("the traceback after ")[2])
    assert {"the loss of worker-1 (it stopped sending heartbeats", "the loss of ps-0 (it refuses connections"} < folded
    assert "the loss of the leader (its coordination service did not answer" in folded


def test_after_the_end_of_a_peer_nothing_of_tensorflow_s_message_is_left() -> None:
    view = LogView(["worker-0"])
    shown = view.render("worker-0", "stderr", ENDED.read_bytes()) + text_of(view.finish())
    assert shown.startswith("worker-0 | the traceback after the loss of worker-1 (it stopped sending heartbeats): tensorflow.python.")
    assert len(shown.splitlines()) == 1


def test_after_a_failure_inside_fit_the_other_worker_s_traceback_is_one_line() -> None:
    text = FIT.read_text()
    assert text.count("Socket closed") >= 2
    view = LogView(["worker-0"])
    shown = (view.render("worker-0", "stderr", text.encode()) + text_of(view.finish())).splitlines()
    assert [line for line in shown if "Socket closed" in line or "File " in line] == []
    start = "worker-0 | the traceback after the loss of worker-1 (its connection was closed): "
    assert shown[-1] == f"{start}tensorflow.python.framework.errors_impl.UnavailableError: Graph execution error:"


# --- nothing waits, nothing is lost ------------------------------------------------------------


def test_a_traceback_is_shown_once_the_task_is_quiet_also_in_its_middle() -> None:
    view = LogView(TASKS)
    for text in (RAISED, "".join(RAISED.splitlines(keepends=True)[:2])):
        assert view.render("worker-0", "stderr", text.encode(), 10.0) == ""
        assert view.idle(10.0 + QUIET_S - 0.1) == view.overdue(10.0 + QUIET_S - 0.1) == []
        assert view.overdue(10.0 + QUIET_S) == [("stderr", headed("worker-0", text))]
    assert view.folded_note == ""
    assert (
        view.render("worker-0", "stderr", b"    rest\nValueError: bad\n", 30.0) == "worker-0 | " + "    rest\nworker-0 | ValueError: bad\n"
    )


def test_a_traceback_without_end_is_held_for_some_seconds_or_a_thousand_lines() -> None:
    view = LogView(TASKS)
    view.render("worker-0", "stderr", RAISED.encode(), 0.0)
    at = 0.0
    while not (texts := view.idle(at)) and at < 2 * LONGEST_S:
        at += QUIET_S / 2
        view.render("worker-0", "stderr", b" row\n", at)
    assert at == LONGEST_S
    assert text_of(texts).startswith(headed("worker-0", RAISED) + "worker-0 |  row\n")
    shown = view.render("worker-0", "stderr", (RAISED + " row\n" * 2000).encode())
    assert shown == headed("worker-0", RAISED + " row\n" * 2000)


def test_a_traceback_whose_exception_has_come_is_shown_before_what_comes_after() -> None:
    view = LogView(TASKS)
    view.render("worker-0", "stderr", RAISED.encode())
    view.render("worker-1", "stderr", HEAD.encode())
    assert view.complete("worker-1") == []
    assert view.complete() == [("stderr", headed("worker-0", RAISED))]
    assert view.finish("worker-1") == [("stderr", headed("worker-1", HEAD))]


def test_the_console_shows_a_held_traceback_while_another_task_writes_without_pause(tmp_path: Path) -> None:
    run = create_run(tmp_path / "home", "one")
    read_fd, write_fd = os.pipe()
    with os.fdopen(read_fd, "rb", buffering=0) as shown, os.fdopen(write_fd, "wb"):
        console = Console(run, Sink(write_fd, write_fd), LogView(TASKS))
        run.append_output("worker-0", 1, "stderr", 0, RAISED.encode())
        console.on_output("worker-0", 1, "stderr")
        wanted = headed("worker-0", RAISED).encode().splitlines()
        lines: list[bytes] = []
        sizes = itertools.count(0, 5)

        def is_shown() -> bool:
            run.append_output("worker-1", 1, "stdout", next(sizes), b"step\n")
            console.on_output("worker-1", 1, "stdout")
            assert select.select((shown,), (), (), PATIENCE_S)[0], "the console shows nothing"
            lines.extend(shown.read(65536).splitlines())
            return wanted[-1] in lines

        wait_until(is_shown, "traceback on the console")
        assert [line for line in lines if line.startswith(b"worker-0")] == wanted
        console.finish()


@given(
    st.lists(
        st.tuples(st.sampled_from(TASKS), st.sampled_from(["text\n", " row\n", "\n", HEAD, RAISED, RAISED[:70], "E: bad\n", CRASH])),
        max_size=20,
    )
)
def test_every_line_is_shown_in_order_or_counted(writes: list[tuple[str, str]]) -> None:
    view = LogView(TASKS)
    shown = "".join(
        view.render(task, "stderr", text.encode(), float(at)) + text_of(view.overdue(float(at))) for at, (task, text) in enumerate(writes)
    )
    shown += text_of(view.finish())
    folded = int(view.folded_note.split()[0]) if view.folded_note else 0
    for task in TASKS:
        written = "".join(text for one, text in writes if one == task).splitlines()
        lines = [line.partition(" | ")[2] for line in shown.splitlines() if line.startswith(task)]
        folded -= len(written) - len(lines)
        left = iter(written)
        assert all(line in left for line in lines if not line.startswith("the same traceback as ")), "the order is kept"
    assert folded == 0


def test_two_programs_that_raise_the_same_show_it_once(orch: Orch, tmp_path: Path) -> None:
    # Each has written its traceback when the first one ends, or the other would be stopped before.
    end = "ready(); wait_for('worker-0.ready', 'worker-1.ready'); sys.exit(1)"
    raising = "try:\n    raise ValueError('bad')\nexcept ValueError:\n    traceback.print_exc()\n"
    write_script(tmp_path, f"import traceback\n{raising}{end}\n")
    done = orch("up", "script.py", "-n", "2", check=1)
    frames = [line for line in done.err.splitlines() if "| ValueError: bad" in line]
    assert len(frames) == 1, done.err
    shown, other = ("worker-0", "worker-1") if frames[0].startswith("worker-0") else ("worker-1", "worker-0")
    assert f"{other} | the same traceback as {shown}: ValueError: bad\n" in done.err
    logs = orch("logs")
    assert logs.out.startswith("worker-0 | Traceback")
    assert SAME in logs.out
    assert orch("logs", "--all").out.count("| Traceback (most recent call last):\n") == 2
