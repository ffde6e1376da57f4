"""The look at what a test leaves behind is itself looked at: each kind of leak, left by a real test in a pytest of its own."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import golden
from tests.groups import BEDS, group_of
from tests.live import is_alive, wait_until

HERE = Path(__file__).resolve().parent

RunTests = Callable[..., tuple[int, str]]


@pytest.fixture
def run_tests(tmp_path: Path) -> RunTests:
    """Runs test modules under this conftest, as if their directory were the repository."""

    def run(source: str, **more: str) -> tuple[int, str]:
        for name, text in {"test_inner": source, **more}.items():
            path = tmp_path / "tests" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"import os, pathlib, pytest, signal, socket, subprocess, sys, tempfile\n{text}")
        for name in ("conftest.py", "bed.py", "golden.py", "groups.py", "slurm_bed.py"):
            shutil.copy(HERE / name, tmp_path / "tests")
        shutil.copytree(
            HERE / "kubernetes_bed", tmp_path / "tests/kubernetes_bed", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
        config = ["-v", "-c", str(HERE.parent / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *config, "--basetemp", str(tmp_path / "base"), str(tmp_path / "tests")],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


SLEEPER = "[sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(1000)']"

LEAKS = {
    "child": (f"open('pid-1', 'w').write(str(subprocess.Popen({SLEEPER}).pid))", "time.sleep(1000)"),
    "orphan in its own session": (
        "subprocess.run([sys.executable, '-c', 'import subprocess, sys; "
        'p = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True); '
        'open("pid-2", "w").write(str(p.pid)); p.returncode = 0\'], check=True)',
        "time.sleep(1000)",
    ),
    "open file": ("sys.kept = open('kept', 'w')", "open file: "),
    "listening socket": ("sys.kept = socket.create_server(('127.0.0.1', 0))", "open file: socket:"),
    "run directory": ("(pathlib.Path(__file__).parent.parent / '.orch').mkdir()", "stray file: "),
    "blocked signal": ("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])", "blocked signal: "),
    "temporary file": ("tempfile.mkdtemp(prefix='orch-')", "stray file: "),
}


TIDY = f"""
def test_tidy(tmp_path):
    (tmp_path / 'orch-file').write_text('x')
    with subprocess.Popen({SLEEPER}, stdout=subprocess.PIPE) as p:
        p.stdout.readline()
        p.kill()
"""


def test_a_leak_fails_the_test_and_is_named_and_a_tidy_test_passes(run_tests: RunTests, tmp_path: Path) -> None:
    leaking = [
        f"def test_{number}():\n    sys.modules['tests.conftest'].DYING_S = 0.2\n    {statement}\n"
        for number, (statement, _) in enumerate(LEAKS.values())
    ]
    code, said = run_tests("".join([TIDY, *leaking, TIDY.replace("tidy", "tidy_as_well")]))

    assert code == 1, said
    assert said.count("the test left something behind") == len(LEAKS)
    for number, (_, complaint) in enumerate(LEAKS.values()):
        assert complaint in said.partition(f" ERROR at teardown of test_{number} _")[2].partition("\n___")[0], said
    for pid in tmp_path.glob("pid-*"):
        assert f"process {pid.read_text()} (" in said
        wait_until(lambda pid=pid: not is_alive(int(pid.read_text())), "end of what was killed")
    assert len([*tmp_path.glob("pid-*")]) == 2
    assert not re.search("ERROR at teardown of test_tidy", said)


def test_what_the_tests_start_has_no_signal_ignored_or_blocked(run_tests: RunTests) -> None:
    """As under nohup, in a shell's background, or below a program that left a signal blocked."""
    ignored = (signal.SIGHUP, signal.SIGINT, signal.SIGCHLD, signal.SIGTERM)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        _, said = run_tests(  # no exit code: whoever ignores SIGCHLD learns none
            "def test_signals():\n"
            "    status = subprocess.run(['cat', '/proc/self/status'], capture_output=True, text=True, check=True).stdout\n"
            "    fields = dict(line.split(':\\t') for line in status.splitlines())\n"
            # 32 and 33 are the C library's own, and what it starts ignores them (posix_spawn, which make calls).
            "    ours = ~(1 << 31 | 1 << 32)\n"
            "    assert int(fields['SigIgn'], 16) & ours == int(fields['SigBlk'], 16) & ours == 0\n"
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in before.items():
            signal.signal(number, handler)
    assert "1 passed" in said, said


def test_all_modules_that_use_a_bed_of_which_one_is_enough_are_in_its_group() -> None:
    for name, kind in (("kubernetes", "Namespace"), ("slurm", "SlurmBed")):
        modules = [path for path in HERE.rglob("test_*.py") if re.search(rf"\b{name}(_alone)?: {kind}\b", path.read_text())]
        assert {path.stem if path.stem in BEDS[name] else f"{path.parent.name}/{path.stem}" for path in modules} == BEDS[name]
    assert group_of("tests/backends/test_slurm_users.py::test_a[x]") == "slurm"
    assert group_of("tests/real/test_by_hand.py::test_a") == group_of("tests/real/test_by_hand.py::test_b") == "test_by_hand"
    assert group_of("tests/test_clock.py::test_a") != group_of("tests/test_clock.py::test_b")


def test_an_answer_is_compared_with_that_of_the_file_or_written_there(tmp_path: Path) -> None:
    path = tmp_path / "cases.txt"
    path.write_text("# a remark\n> a\n>\n> b\nold\n\n> c\n")
    first, second = golden.read(path)
    assert [(case.given, case.answer) for case in (first, second)] == [("a\n\nb", "old"), ("c", "")]
    first.check("old\n")
    with pytest.raises(AssertionError, match="make golden"):
        second.check("new")
    golden.write_answers(True)
    try:
        first.check("new")
        second.check("x\ny")
    finally:
        golden.write_answers(False)
    assert path.read_text() == "# a remark\n> a\n>\n> b\nnew\n\n> c\nx\ny\n"
