"""What a failing program prints is, byte for byte, what plain Python prints; `error.json` says the same. Executed or forked."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.worker.agent_double import Outcome, run_plainly, run_task
from tests.worker.template_double import TemplateProcess, template
from worker.protocol import task_files
from worker.protocol.messages import Failure, Program
from worker.protocol.task_environment import tf_config_text
from worker.protocol.task_id import TaskId
from worker.task import failure

FAILURES: dict[str, tuple[Any, str | None, str | None]] = {
    "plain": ("def f(x):\n    return 1 / x\nf(0)\n", "ZeroDivisionError", "division by zero"),
    "own": ("class Mine(Exception): pass\nraise Mine('a', 1)\n", "Mine", "('a', 1)"),
    "nested name": ("import json\njson.loads('{')\n", "json.decoder.JSONDecodeError", None),
    "cause": ("try:\n    {}['a']\nexcept KeyError as e:\n    raise RuntimeError('second') from e\n", "RuntimeError", "second"),
    "context": ("try:\n    {}['a']\nexcept KeyError:\n    int('x')\n", "ValueError", None),
    "suppressed": ("try:\n    {}['a']\nexcept KeyError:\n    raise ValueError('v') from None\n", "ValueError", "v"),
    "surrogates": ("raise ValueError('a\\udcff\\ud800b')\n", "ValueError", "a\udcff\ud800b"),
    "broken str": ("class E(Exception):\n    def __str__(self): raise OSError\nraise E\n", "E", "<exception str() failed>"),
    "str of another type": ("class E(Exception):\n    def __str__(self): return 3\nraise E\n", "E", "<exception str() failed>"),
    "memory": ("def f(): return bytearray(1 << 62)\nf()\n", "MemoryError", ""),
    "assertion": ("assert False, 'no\\nreally'\n", "AssertionError", "no\nreally"),
    "base": ("class B(BaseException): pass\nraise B('b')\n", "B", "b"),
    "generator exit": ("raise GeneratorExit\n", "GeneratorExit", ""),
    "syntax": ("print('never')\ndef f(:\n", "SyntaxError", None),
    "indentation": ("if 1:\nx\n", "IndentationError", None),
    "unclosed": ("x = (1,\n", "SyntaxError", None),
    "syntax, later": ("exec('a b')\n", "SyntaxError", None),
    "import": ("import there_is_no_such_module\n", "ModuleNotFoundError", "No module named 'there_is_no_such_module'"),
    "several lines": ("def f(a,\n      b): return a + b\nf(1,\n  f(2,\n    'x'))\n", "TypeError", None),
    "own hook": (
        "import sys, traceback\nsys.excepthook = lambda *e: (print('mine', file=sys.stderr), traceback.print_exception(*e))\n1 / 0\n",
        "ZeroDivisionError",
        None,
    ),
    "hook sees no more": (
        "import sys\ndef hook(k, e, t):\n    sys.stderr.write(f'{t is e.__traceback__ is sys.last_traceback}')\n"
        "    sys.stderr.write(f'{t.tb_frame.f_code.co_name} {sys.excepthook is hook}')\n"
        "sys.excepthook = hook\n1 / 0\n",
        "ZeroDivisionError",
        None,
    ),
    "hook exits": ("import sys\nsys.excepthook = lambda *e: sys.exit(7)\n1 / 0\n", "ZeroDivisionError", None),
    "no stderr": ("import sys\nsys.stderr = None\n1 / 0\n", "ZeroDivisionError", None),
    "after output": ("import atexit\natexit.register(print, 'atexit')\nprint('before')\n1 / 0\n", "ZeroDivisionError", None),
    "cookie": ("# -*- coding: latin-1 -*-\nraise ValueError('\xe4')\n".encode("latin-1"), "ValueError", "\xe4"),
    "with BOM": (b"\xef\xbb\xbfraise ValueError('bom')\n", "ValueError", "bom"),
    "CRLF": (b"def f():\r\n    raise ValueError('crlf')\r\nf()\r\n", "ValueError", "crlf"),
}
if sys.version_info >= (3, 11):
    FAILURES["group"] = (
        "try:\n    1 / 0\nexcept Exception as e:\n    raise ExceptionGroup('many', [e, ValueError('v')])\n",
        "ExceptionGroup",
        "many (2 sub-exceptions)",
    )
    FAILURES["note"] = ("e = ValueError('v')\ne.add_note('a note')\nraise e\n", "ValueError", "v")


_template: TemplateProcess


@pytest.fixture(scope="module", autouse=True)
def _forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    global _template
    with template(tmp_path_factory.mktemp("template"), "decimal") as _template:
        yield


def test_the_traceback_has_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 prints colours where FORCE_COLOR is set; a coloured message does the same with any Python."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    try:
        raise ValueError("\x1b[1;35mviolet\x1b[0m")
    except ValueError as error:
        text = failure.describe(error, 0.0)["traceback"]
    assert text.endswith("\nValueError: violet\n")
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("name", "text", "hides"),
    [
        ("calendar", "import calendar; calendar.month_name", "calendar"),
        ("calendar", "from calendar import month_name", "calendar"),
        ("json", "import json.decoder", "json"),
        ("colorsys", "try:\n    import colorsys.x\nexcept ImportError:\n    raise ValueError('caught')", "colorsys"),
        ("helpers", "import helpers; helpers.month_name", ""),
        ("calendar", "import calendar; 1 / 0", ""),
        ("helpers", "import calendar; calendar.no_such_name", ""),
    ],
)
def test_a_file_with_the_name_of_a_module_is_found_where_a_name_is_not(tmp_path: Path, name: str, text: str, hides: str) -> None:
    (tmp_path / f"{name}.py").write_text("mine = 1")
    (tmp_path / "s.py").write_text(text)
    found = run_task(Program("script", "s.py"), tmp_path).failure
    assert found is not None
    assert found.hides == hides


NOT_FOUND = "class NotFoundError(Exception): pass\nraise NotFoundError('Could not find directory {}')"


@pytest.mark.parametrize(
    ("text", "is_near"),
    [
        ("open('{}')", True),
        ("import os; os.listdir('{}')", True),
        (NOT_FOUND, True),
        ("open('{}/other')", False),
        ("raise FileNotFoundError(3, 'odd', 4)", False),
        ("raise ValueError('{}')", False),
    ],
)
def test_a_file_that_lies_one_directory_deeper_is_found(tmp_path: Path, text: str, is_near: bool) -> None:
    (tmp_path / "data/pets_extracted/pets/cats").mkdir(parents=True)
    (tmp_path / "s.py").write_text(text.format(tmp_path / "data/pets/cats"))
    found = run_task(Program("script", "s.py"), tmp_path).failure
    assert found is not None
    assert found.near == (str(tmp_path / "data/pets_extracted/pets/cats") if is_near else "")


def compare(tmp_path: Path, text: str | bytes, *args: str, kind: Any = "script") -> Outcome:
    (tmp_path / "s.py").write_bytes(text if isinstance(text, bytes) else text.encode())
    target = "s.py" if kind == "script" else "s"
    plain = run_plainly([*(["-m"] if kind == "module" else []), target, *args], tmp_path)
    task = run_task(Program(kind, target, args), tmp_path)
    assert task.told() == plain.told()
    forked = _template.fork(Program(kind, target, args), tmp_path).wait()
    assert forked.told() == plain.told()
    assert undated(forked.failure) == undated(task.failure)
    return task


def undated(failure: Failure | None) -> Failure | None:
    return failure and replace(failure, at=0)


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_looks_as_under_plain_python(tmp_path: Path, name: str) -> None:
    text, kind, message = FAILURES[name]
    before = time.time()
    task = compare(tmp_path, text)
    assert task.code != 0
    assert task.failure is not None
    assert before <= task.failure.at <= time.time()
    if kind is not None:
        assert task.failure.type == kind
    if message is not None:
        assert task.failure.message == message
    if "hook" not in name and "stderr" not in name:
        assert task.failure.traceback.encode("utf-8", "backslashreplace") == task.err.encode("utf-8", "surrogateescape")
    assert "worker" not in task.failure.traceback
    written = {path.name for path in task.log_dir.iterdir()}
    assert written == {"begun", "ended", "error.json", "stacks.txt", "stderr.log", "stdout.log"}
    assert (task.log_dir / "error.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["plain", "cause", "own hook", "syntax, later"])
def test_a_failing_module_looks_as_under_plain_python(tmp_path: Path, name: str) -> None:
    task = compare(tmp_path, FAILURES[name][0], kind="module")
    assert task.failure is not None
    assert task.failure.type == FAILURES[name][1]


ENDS = {
    "nothing": "raise SystemExit",
    "none": "import sys; sys.exit(None)",
    "zero": "import sys; sys.exit(0)",
    "three": "import sys; sys.exit(3)",
    "300": "import sys; sys.exit(300)",
    "minus one": "import sys; sys.exit(-1)",
    "text": "import sys; sys.exit('that is all')",
    "object": "import sys; sys.exit([1, 'a'])",
    "true": "import sys; sys.exit(True)",
    "subclass": "class Done(SystemExit): pass\nraise Done(4)",
    "os._exit": "import os; os._exit(9)",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "abort": "import os, signal, faulthandler; faulthandler.disable(); os.abort()",
    "interrupt": "def f():\n    raise KeyboardInterrupt\nf()",
    "interrupt by signal": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhile True: pass",
    "failing atexit": "import atexit\natexit.register(lambda: 1 / 0)",
    "failing thread": "import threading\nthreading.Thread(target=lambda: 1 / 0).start()",
    "exit in a finally": "import sys\ntry:\n    1 / 0\nfinally:\n    sys.exit(5)",
}


@pytest.mark.parametrize("name", ENDS)
def test_an_end_that_is_no_failure_leaves_no_error_json(tmp_path: Path, name: str) -> None:
    task = compare(tmp_path, ENDS[name])
    assert task.failure is None
    if "interrupt" in name:
        assert task.code == -signal.SIGINT


# Where plain Python's own words depend on how deep it stands, or on its reading the file by itself.
NEARLY = {
    "recursion": ("def f(): f()\nf()\n", "RecursionError: maximum recursion depth exceeded\n"),
    "recursion in C": (
        "import sys\nsys.setrecursionlimit(90)\ndef f(x): return [f(y) for y in [x]]\nf(1)\n",
        "RecursionError: maximum recursion",
    ),
    "unknown cookie": (b"# coding: nonsense\n", "SyntaxError: "),
    "null byte": (b"x = 1\n\0", "source code string cannot contain null bytes\n"),
    "not UTF-8": (b"x = 1\ny = '\xff'\n", "SyntaxError: "),
    "closed stderr": ("import sys\nsys.stderr.close()\n1 / 0\n", ""),
    "deleted hook": ("import sys\ndel sys.excepthook\n1 / 0\n", "ZeroDivisionError: division by zero\n"),
}


@pytest.mark.parametrize("name", NEARLY)
def test_a_failure_looks_nearly_as_under_plain_python(tmp_path: Path, name: str) -> None:
    text: Any
    text, says = NEARLY[name]
    (tmp_path / "s.py").write_bytes(text if isinstance(text, bytes) else text.encode())
    for task in (run_task(Program("script", "s.py"), tmp_path), _template.fork(Program("script", "s.py"), tmp_path).wait()):
        task.check(1)
        assert says in task.err
        assert "worker" not in task.err
        assert task.failure is not None


@pytest.mark.parametrize(("hook", "error"), [("lambda *_: {}['k']", "KeyError: 'k'"), ("3", "TypeError: 'int' object is not callable")])
def test_a_broken_hook_of_the_programs_hides_nothing(tmp_path: Path, hook: str, error: str) -> None:
    (tmp_path / "s.py").write_text(f"import sys\nsys.excepthook = {hook}\n1 / 0\n")
    task = run_task(Program("script", "s.py"), tmp_path).check(1)
    assert f"\n{error}\n\nOriginal exception was:\n" in task.err
    assert task.err.endswith("ZeroDivisionError: division by zero\n")
    assert task.failure is not None


def test_a_very_long_message_is_kept_in_part(tmp_path: Path) -> None:
    task = compare(tmp_path, "raise ValueError('<' + 'x' * 5_000_000 + '>')\n")
    assert task.failure is not None
    for text in (task.failure.message, task.failure.traceback):
        assert len(text) < 17_000
        assert "characters: stderr.log has it all ...]" in text
    assert task.failure.message.startswith("<xxx")
    assert task.failure.message.endswith("xxx>")
    assert task.failure.traceback.endswith("xxx>\n")


def test_a_failing_child_that_the_user_forked_is_not_the_tasks_failure(tmp_path: Path) -> None:
    text = "import os\nif os.fork() == 0:\n    raise ValueError('child')\nprint(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    task = compare(tmp_path, text)
    assert task.out == "1\n"
    assert task.failure is None


@pytest.mark.parametrize("how", ["full", "taken"])
def test_an_error_json_that_cannot_be_written_hides_nothing(tmp_path: Path, how: str) -> None:
    log_dir = tmp_path / "logs"
    prepare = {
        "full": "from resource import *; import signal; signal.signal(25, signal.SIG_IGN); setrlimit(RLIMIT_FSIZE, (700, 700))",
        "taken": f"import os; os.mkdir({str(log_dir / 'error.json')!r})",
    }[how]
    (tmp_path / "s.py").write_text(f"{prepare}\nraise ValueError('x' * 300)\n")
    outcome = run_task(Program("script", "s.py"), tmp_path, log_dir=log_dir).check(1)
    assert "raise ValueError('x' * 300)" in outcome.err
    assert outcome.err.endswith(f"ValueError: {'x' * 300}\n")
    assert not (log_dir / "error.json").is_file()
    assert not [name for name in os.listdir(log_dir) if name.startswith("error.json.")]


def test_named_pipes_that_nobody_reads_keep_no_task_waiting(tmp_path: Path) -> None:
    """The program has put them in the place of the files that it writes for its agent."""
    names = f"({task_files.ERROR!r}, {task_files.ENDED!r}, {task_files.REPORTS!r}, {task_files.OTHER_TF_CONFIG!r})"
    make = f"import os, worker\nfor name in {names}: os.mkfifo(os.environ['ORCH_LOG_DIR'] + '/' + name)\n"
    (tmp_path / "s.py").write_text(f"{make}os.environ['TF_CONFIG'] = 'mine'\nworker.report(step=1)\n1 / 0\n")
    config = tf_config_text('{"worker": ["localhost:1"]}', TaskId("worker", 0))
    outcome = run_task(Program("script", "s.py"), tmp_path, tf_config=config).check(1)
    assert "reports.jsonl: No such device or address; training goes on without reports" in outcome.err
    assert outcome.err.endswith("ZeroDivisionError: division by zero\n")
    assert outcome.failure is not None
    assert outcome.failure.type == "ZeroDivisionError"
    assert (outcome.log_dir / task_files.ENDED).read_text().startswith("1 ")


def test_error_json_is_plain_ascii_json(tmp_path: Path) -> None:
    task = compare(tmp_path, "raise ValueError('\\udcff \\x1b[31m \\u2028 \\0')\n")
    data = (task.log_dir / "error.json").read_bytes()
    assert data.isascii()
    assert json.loads(data)["message"] == "\udcff \x1b[31m \u2028 \0"


# --- frames of ours ----------------------------------------------------------------------------


def _frames(error: BaseException) -> list[str]:
    found, trace = [], failure.strip(error.__traceback__)
    while trace is not None:
        found.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return found


def test_frames_of_ours_between_those_of_others_are_left_out_and_those_at_the_end_stay() -> None:
    """Such as those of functions that stand in Keras's place."""
    ours: dict[str, Any] = {}
    source = "def around(f): f()\ndef start(f): around(f)\ndef refuse(): raise ValueError\ndef check(): refuse()"
    exec(compile(source, os.path.join(os.path.dirname(failure.__file__), "made_up.py"), "exec"), ours)

    def fit() -> None:
        ours["around"](step)

    def step() -> None:
        raise KeyError("x")

    def refused() -> None:
        ours["check"]()

    def caught(call: Callable[[], None]) -> BaseException:
        with pytest.raises((KeyError, ValueError)) as found:
            call()
        return found.value.with_traceback(found.tb.tb_next)  # but for `caught` itself

    assert _frames(caught(lambda: ours["start"](fit))) == ["<lambda>", "fit", "step"]
    assert _frames(caught(refused)) == ["refused", "check", "refuse"]
    assert _frames(caught(ours["check"])) == []
