"""`orchestrator.launch` of a function: what is sent, what comes back, and from which hosts. No TensorFlow but where a test says so."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import orchestrator
from orchestrator import RunFailed, UsageError, functions
from orchestrator.record.run_directory import RunDir
from tests.bed import Bed
from tests.slurm_bed import SlurmBed

QUICK: dict[str, Any] = {"preload": [], "grace": 20}
"""Each task is a fresh interpreter: these functions use no TensorFlow."""


class Odd(Exception):
    """An exception of this module, which no host can import."""


class Harm:
    """Makes the file ``harmed`` where it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harmed",)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def named(word: str, number: int = 1) -> tuple[str, str, int]:
    print("in", os.environ["ORCH_TASK"])
    return word, os.environ["ORCH_TASK"], number + 1


def fail(task: str) -> None:
    if os.environ["ORCH_TASK"] == task:
        raise Odd(f"odd in {task}")


def launched(function: Callable[..., Any], *words: Any, **settings: Any) -> orchestrator.Result:
    with orchestrator.launch(function, *words, **{"workers": 2, **QUICK, **settings}) as run:
        return run.wait(120)


def test_a_function_runs_in_each_task_and_its_values_come_back(here: Path) -> None:
    base = 40
    result = launched(lambda one, two: (*named(one, two), base), args=("a", 1))
    assert result.values == {f"worker-{number}": ("a", f"worker-{number}", 2, 40) for number in range(2)}
    assert result.run_id.startswith("function-")
    log = RunDir(result.run_dir).log_path("worker-1", 1, "stdout").read_text()
    assert log == "in worker-1\n"


def test_the_first_exception_is_raised_with_its_lines() -> None:
    result = launched(fail, "worker-1")
    with pytest.raises(Odd, match="odd in worker-1") as caught:
        _ = result.values
    assert isinstance(caught.value.__cause__, RunFailed)
    assert 'raise Odd(f"odd in {task}")' in str(caught.value.__cause__), "the line of the file, as the task has shown it"
    assert "test_functions.py" in str(caught.value.__cause__)
    assert "worker/task" not in str(caught.value.__cause__), "no frame of orch"


def test_an_end_that_is_no_exception_raises_the_run_that_failed() -> None:
    with pytest.raises(RunFailed, match="exit code 3"):
        _ = launched(lambda: os._exit(3), workers=1).values


@pytest.mark.parametrize(
    ("function", "words", "said"),
    [
        (named, (threading.Lock(),), r"argument 1 \(a lock\) cannot be sent to a task"),
        (named, (os.urandom(600_000),), "named and its arguments take 6.. KiB packed, and at most 512 are sent\nfix: load large data"),
    ],
    ids=["a lock", "much"],
)
def test_what_cannot_be_sent_is_named_before_anything_starts(here: Path, function: Any, words: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        orchestrator.launch(function, *words, workers=2, **QUICK)
    assert not (here / ".orch").exists()


def test_a_value_that_is_too_large_or_cannot_be_sent_fails_the_run() -> None:
    with pytest.raises(ValueError, match="its value takes 20 MB, and at most 16 MB are sent back: write it to a file"):
        _ = launched(lambda: os.urandom(20_000_000), workers=1).values
    with pytest.raises(TypeError, match=r"the function's value cannot be sent back: .*lock.*; return numbers, texts or arrays"):
        _ = launched(threading.Lock, workers=1).values


def test_another_python_is_refused_before_a_task_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "sys", SimpleNamespace(modules=sys.modules, base_prefix=sys.base_prefix, version_info=(3, 9)))
    result = launched(named, "a")
    assert result.exit_code == 2
    assert re.search(rf"the function is code of Python 3\.9, and \S+ is Python {sys.version_info[0]}\.{sys.version_info[1]}", result.report)


def test_a_run_of_a_script_and_a_run_of_another_user_have_no_values(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "script.py").write_text("")
    with pytest.raises(UsageError, match="has run no function, so it has no values"):
        _ = launched("script.py").values  # type: ignore[arg-type]
    result = launched(named, "a")
    assert list(result.values) == ["worker-0", "worker-1"]
    copy = here / "sent" / "runs" / Path(result.run_dir).name  # such as from a colleague's archive
    shutil.copytree(result.run_dir, copy, symlinks=True)
    for left in copy.glob("**/value.pickle"):
        left.write_bytes(pickle.dumps(Harm()))
    with pytest.raises(UsageError, match=r"this user has not made .*: its values are not read"):
        _ = orchestrator.find(copy.name, home=here / "sent").wait().values
    assert not (here / "harmed").exists()
    monkeypatch.setattr(RunDir, "is_ours", False)
    with pytest.raises(UsageError, match=r"this user has not made .*: its values are not read"):
        _ = result.values


SCRIPT = """
import helper, orchestrator

class Own:
    pass

def train(strategy):
    import tensorflow as tf

    @tf.function
    def doubled(x):
        if tf.reduce_sum(x) > 0:                        # AutoGraph needs the lines of this file
            return 2.0 * x
        return x

    got = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", doubled(tf.constant(helper.SCALE))))
    return helper.Thing(float(got)), Own(), strategy.num_replicas_in_sync

if __name__ == "__main__":
    values = orchestrator.launch(train, workers=2).wait().values
    for thing, own, replicas in values.values():
        assert isinstance(thing, helper.Thing) and isinstance(own, Own), "classes of this program"
        print(thing.x, replicas)
"""
HELPER = "import threading\nSCALE = 3.0\n\nclass Thing:\n    def __init__(self, x):\n        self.x = x\n"


@pytest.mark.slow
def test_a_function_trains_with_the_modules_beside_its_script(here: Path) -> None:
    place = here / "elsewhere"
    place.mkdir()
    (place / "program.py").write_text(SCRIPT)
    (place / "helper.py").write_text(HELPER)
    done = subprocess.run([sys.executable, "elsewhere/program.py"], capture_output=True, text=True, check=False, timeout=250)
    assert (done.returncode, done.stdout) == (0, "12.0 2\n12.0 2\n"), done.stderr


@pytest.mark.root
def test_a_function_runs_on_hosts_that_have_nothing_of_it(bed: Bed, here: Path) -> None:
    hosts = {"backend": {"type": "ssh", "ssh": list(bed.ssh)}, "hosts": "hostA,hostB", "workdir": "/", "python": sys.executable}

    def tell(word: str) -> tuple[str, str, bytes]:
        return word, os.uname().nodename, bytes(3_000_000)

    result = launched(tell, "a", **hosts)
    assert result.values == {"worker-0": ("a", "hostA", bytes(3_000_000)), "worker-1": ("a", "hostB", bytes(3_000_000))}
    with pytest.raises(Odd, match="odd in worker-1"):
        _ = launched(fail, "worker-1", **hosts).values


@pytest.mark.root
def test_a_function_runs_in_a_job_of_slurm(slurm: SlurmBed, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    with orchestrator.launch(named, "a", workers=2, backend="slurm", **QUICK) as run:
        assert run.wait(200).values == {f"worker-{number}": ("a", f"worker-{number}", 2) for number in range(2)}
