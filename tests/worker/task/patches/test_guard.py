"""Whose error it is, and what becomes of orch's own (worker/task/patches/guard.py)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from worker.task import failure, patches
from worker.task.patches import features, guard, import_hooks, stand_in
from worker.task.patches.features import COUNTS, FILES
from worker.task.patches.table import FEATURES, NAMES

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(autouse=True)
def _own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "off", set())
    monkeypatch.setattr(import_hooks, "_printed", set())


class Library:
    def __init__(self, error: Exception | None = None) -> None:
        self.calls, self._error = 0, error

    def function(self, number: int) -> int:
        self.calls += 1
        if self._error is not None:
            raise self._error
        return 2 * number


def _before(real: Any, number: int) -> int:
    raise KeyError("orch's")


def _after(real: Any, number: int) -> int:
    real(number)
    raise KeyError("orch's")


def _finally(real: Any, number: int) -> int:
    try:
        return int(real(number))
    finally:
        raise KeyError("orch's")


@pytest.mark.parametrize("ours", [_before, _after, _finally])
def test_what_measures_is_turned_off_and_the_program_gets_its_result(ours: Any, capfd: pytest.CaptureFixture[str]) -> None:
    library = Library()
    made = stand_in.make(library.function, "function", ours, COUNTS, measures=True)
    assert (made(2), library.calls) == (4, 1)
    line = capfd.readouterr().err
    assert line.startswith(f"orch: warning: {COUNTS}: off from here on, because orch's own code has failed (KeyError: \"orch's\"")
    assert "; without it, batches, rows and the wait for input are not counted. The program goes on\n" in line
    assert (made(3), library.calls, capfd.readouterr().err) == (6, 2, "")


@pytest.mark.parametrize("ours", [_before, _after, _finally])
def test_an_error_of_the_program_passes_what_measures_unchanged_after_one_call(ours: Any) -> None:
    library = Library(ValueError("the program's"))
    made = stand_in.make(library.function, "function", ours, COUNTS, measures=True)
    with pytest.raises(ValueError, match="the program's") as caught:
        made(2)
    assert library.calls == 1
    assert caught.value.__context__ is None


@pytest.mark.parametrize("ours", [_before, _after, _finally])
def test_an_error_in_what_changes_is_one_of_orch(ours: Any) -> None:
    library = Library()
    made = stand_in.make(library.function, "function", ours, FILES)
    with pytest.raises(guard.Fault, match=f"^{FILES}: orch's own code has failed: KeyError: \"orch's\"") as caught:
        made(2)
    assert library.calls == (ours is not _before)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("feature", "name"), [(feature, name) for feature, row in FEATURES.items() for name in row.names if not NAMES[name].is_read]
)
def test_an_error_in_each_row_of_the_table_is_of_its_sort(feature: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(patches, "_find", lambda *_: (library, "function"))
    patches.replace(feature, name, _after)
    if FEATURES[feature].sort == "measures":
        assert (library.function(2), guard.off) == (4, {feature})
    else:
        with pytest.raises(guard.Fault, match=f"^{re.escape(feature)}: orch's own code has failed"):
            library.function(2)
    assert library.calls == 1


def _in_library(real: Any, number: int) -> int:
    import json

    json.loads("{")  # what the program has given is wrong
    return number


def _by_mistake(real: Any, number: int) -> int:
    import json

    json.dumps(None, default=json.no_such_name)  # type: ignore[attr-defined]
    return number


def _through_library(real: Any, number: int) -> int:
    import json

    scope: dict[str, Any] = {}
    exec("def of_program(value): raise KeyError(value)", scope)
    return len(json.dumps(object(), default=scope["of_program"]))


@pytest.mark.parametrize(
    ("ours", "kind"),
    [
        (lambda real, number: guard.theirs(_before, real, number), KeyError),  # a function of the program
        (lambda real, number: next(iter(())), StopIteration),
        (lambda real, number: os.listdir("/no/such/directory"), FileNotFoundError),
        (_in_library, ValueError),
        (_by_mistake, guard.Fault),
        (_through_library, KeyError),
        (lambda real, number: (_ for _ in ()).throw(guard.refusal(RuntimeError("for the program"))), RuntimeError),
        (lambda real, number: sys.exit(3), SystemExit),
    ],
)
def test_whose_error_it_is(ours: Callable[..., Any], kind: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "PACKAGE", (failure.PACKAGE, __file__))
    made = stand_in.make(Library().function, "function", ours, FILES)
    with pytest.raises(kind) as caught:
        made(2)
    assert type(caught.value) is kind or kind is ValueError


def test_a_program_that_gives_wrong_arguments_gets_python_s_error() -> None:
    for measures in (True, False):
        made = stand_in.make(Library().function, "function", _before, COUNTS if measures else FILES, measures=measures)
        with pytest.raises(TypeError, match="unexpected keyword argument 'another'"):
            made(2, another=3)
    assert guard.off == set()


def test_a_fault_inside_of_another_place_stays_the_one_that_it_is() -> None:
    inner = stand_in.make(Library().function, "function", _before, FILES)
    outer = stand_in.make(Library().function, "function", lambda real, number: inner(number), "another")
    with pytest.raises(guard.Fault, match=f"^{FILES}: "):
        outer(2)


def test_a_callback_that_measures_does_nothing_once_it_is_off(capfd: pytest.CaptureFixture[str]) -> None:
    class Callback:
        calls = 0

        def on_step(self, number: int) -> float:
            Callback.calls += 1
            return 1 / number

    guard.guard_hooks(COUNTS, Callback)
    assert [Callback().on_step(number) for number in (1, 0, 1)] == [1.0, None, None]
    assert Callback.calls == 2
    assert capfd.readouterr().err.count("off from here on") == 1


PROGRAM = """
import sys
from worker.task.patches import guard
from worker.task.patches.features import FILES
guard.end_at_fault(sys.argv[1])
def fail():
    return [][0]
try:
    guard.guarded(FILES)(fail)()
except BaseException:
    print("caught")
"""


def test_a_fault_ends_a_task_even_if_the_program_would_catch_it(tmp_path: Path) -> None:
    done = subprocess.run((sys.executable, "-c", PROGRAM, str(tmp_path)), cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        "IndexError: list index out of range\norch: files that several workers write: orch's own code has failed: IndexError" in done.stderr
    )
    recorded = (tmp_path / "error.json").read_text()
    assert '"type": "orch.Fault"' in recorded


def test_a_line_of_orch_s_own_code_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "PACKAGE", (failure.PACKAGE, __file__))
    with pytest.raises(guard.Fault, match=r"KeyError: \"orch's\" \(test_guard\.py:\d+\)$"):
        guard.guarded(FILES)(_before)(None, 1)


STARTS = re.compile(r"(?:threading\.(?:Thread|Timer)|atexit\.register|addaudithook|register_at_fork|signal\.signal)\(")
UNGUARDED = {
    "bootstrap.py": "the end of the task itself",
    "sigterm.py": "the program's own handler",
    "checkpoints/save_orders.py": "`handle` and `leave_child` are guarded where they are made",
    "checkpoints/series.py": "`_try_to_write` judges its errors",
    "fixture/debugger.py": "a test's debugger",
    **dict.fromkeys(("observe/record_hooks.py", "observe/step_parts.py"), "`end_at_fault` waits for what is off"),
    "observe/reports.py": "`on_fork` makes two values",
    "strategy/tpu_strategy.py": "`_end_process` ends the task",
}
"""Files of worker/task that give Python or a thread a function of orch without `guarded` in the same line, and why."""


def test_each_thread_hook_and_function_at_the_end_is_guarded() -> None:
    found = set()
    for path in (ROOT / "worker" / "task").rglob("*.py"):
        lines = [line for line in path.read_text().splitlines() if STARTS.search(line) and "guarded(" not in line]
        found |= {path.relative_to(ROOT / "worker" / "task").as_posix()} if lines else set()
    assert found == UNGUARDED.keys()


AUDITED = """
import sys, time
from worker.task import failure
from worker.task.observe import record_hooks, recorder
recorder._settings["steps"] = 1
record_hooks.watch(sys.argv[1])
failure.calling_line = None
open(sys.argv[2], "w").close()
print("goes on", flush=True)
time.sleep(60)
"""


def test_a_hook_of_python_never_fails_what_the_program_does(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    program = (sys.executable, "-c", AUDITED, str(tmp_path / "logs"), str(tmp_path / "made"))
    env = {**os.environ, "TMPDIR": str(tmp_path / "logs")}  # files of the temporary directory are not noted
    done = subprocess.run(program, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "goes on\n")  # `orch verify` would compare a part as if it was all
    assert "orch verify cannot compare. The program goes on" in done.stderr


CALLED = """
import os, signal, sys, threading, time, types
from worker.task import own_tf_config
from worker.task.checkpoints import save_orders, series
from worker.task.input import input_counter
from worker.task.observe import profiling, reports, step_times
from worker.task.patches import guard

def broken(*args, **kwargs):
    return {}["orch's own"]

def counter(poll_s):
    made = object.__new__(input_counter.Counter)
    made._is_polled, made._tf = False, types.SimpleNamespace(executing_eagerly=lambda: True)
    input_counter.POLL_S = poll_s
    made._counts(None)

logs = os.environ["ORCH_LOG_DIR"]
guard.end_at_fault(logs)
exec(sys.argv[1])
until = time.monotonic() + (20 if sys.argv[2] == "now" else 0)
while not guard.off and time.monotonic() < until:
    time.sleep(0.01)
time.sleep(0.5)  # the thread prints its line: at the end of Python that would be a fatal error
print("goes on", flush=True)
"""
"""A program in which orch's own code fails where a thread, Python at its end, a signal or a change of the environment calls it."""
SIGTERM = "os.kill(os.getpid(), signal.SIGTERM)"


@pytest.mark.parametrize(
    ("feature", "when", "breaks"),
    [
        (features.PACE, "now", "step_times.POLL_S, step_times.Pace.poll = 0.01, broken; step_times.begin()"),
        (features.PACE, "now", "step_times.Pace.mark = broken; reports.report({'step': 1})"),
        (
            features.PROFILES,
            "now",
            "open(os.path.join(logs, 'profile.asked'), 'w').write('1'); profiling._answer = broken; profiling.begin(logs)",
        ),
        (features.COUNTS, "now", "input_counter.Counter._poll = broken; counter(0.01)"),
        (features.COUNTS, "at the end", "input_counter.Counter._poll = broken; counter(1000)"),
        (features.REPORTS, "at the end", "reports.report({'a': 1}); reports.report({'a': 2}); reports._Writer._write = broken"),
        (features.OTHER_TF_CONFIG, "now", "own_tf_config.watch('', logs); own_tf_config._essence = broken; os.environ['TF_CONFIG'] = '{}'"),
        (features.SAVES, "now", f"save_orders._act_on_sigterm = broken; save_orders.begin(0); {SIGTERM}"),
        (
            features.SAVES,
            "now",
            f"save_orders.begin(0); save_orders._act_on_sigterm = lambda: time.sleep(60); threading.Thread = broken; {SIGTERM}",
        ),
        (features.SAVES, "now", f"save_orders.begin(0); save_orders._act_on_sigterm = lambda: None; signal.getsignal = broken; {SIGTERM}"),
        (features.SAVES, "now", "made = object.__new__(series.Series); made._write = broken; made._try_to_write('step-1')"),
    ],
)
def test_an_error_of_a_thread_a_signal_or_at_the_end_is_of_its_sort(tmp_path: Path, feature: str, when: str, breaks: str) -> None:
    program = (sys.executable, "-c", CALLED, breaks, when)
    env = {**os.environ, "ORCH_LOG_DIR": str(tmp_path)}
    done = subprocess.run(program, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=60)
    if FEATURES[feature].sort == "measures":
        assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr
        assert done.stderr.count(f"orch: warning: {feature}: off from here on, because orch's own code has failed (KeyError: ") == 1
    else:
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
        assert f"orch: {feature}: orch's own code has failed: KeyError: " in done.stderr
        assert '"type": "orch.Fault"' in (tmp_path / "error.json").read_text()
