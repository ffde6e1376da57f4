"""What is checked in an environment: each check raises `Wrong`, or returns.

All commands of a cell are those of its environment, started as its user. The tasks are forked from a warm process, as a check says.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

from .cells import Cell
from .environments import ROOT, user_of

PATIENCE_S, TESTS_S = 600.0, 3600.0
"""For one command of orch, and for pytest: a hang is ended, and slowness is no matter."""
TESTS = (
    "tests/real/test_placement.py",
    "tests/real/test_causes.py",
    "tests/real/installed_keras.py",
    "tests/real/test_snapshots.py::test_a_killed_worker_costs_about_a_second",
    "tests/real/test_snapshots.py::test_fit_that_is_killed_costs_about_a_second",
    "tests/real/test_keras.py::test_fit_reports_to_whoever_asks",
    "tests/real/test_keras.py::test_fit_of_a_keras_that_orch_does_not_know_ends_all_workers_with_the_remedy",
)
"""The real tests of placement, causes, Keras and the snapshots in memory that ask what another release may change."""
JUDGE = (
    "tests/real/test_keras.py::test_the_judge_finds_again_what_the_table_says",
    "tests/real/test_judge.py::test_every_optimizer_loss_metric_callback_and_family_of_layers_of_keras_has_a_case",
)
"""The judge's cut, and what has no case, for releases that the judge has not seen as a whole."""
CORNER_TESTS = ("tests/real/test_placement.py", "tests/test_added_setting.py")
"""Those that have found something in another version, and take little time."""
_STEP = """
    import os, signal, sys, time
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    @tf.function
    def step():
        return strategy.reduce("SUM", strategy.run(lambda: tf.ones([])), axis=None)

    assert float(step()) == 2
    if os.environ["ORCH_TASK"] == sys.argv[1]:
        {fault}
    while True:
        step()
        time.sleep(0.05)
"""
_COMPARE = "import sys, numpy; a, b = map(numpy.load, sys.argv[1:]); print(max(float(abs(a[k] - b[k]).max()) for k in a.files))"


class Wrong(Exception):
    """A check has failed. The message says how."""


class Bench:
    """A directory of the cell's user, with a warm process."""

    def __init__(self, cell: Cell, python: Path, place: Path) -> None:
        self.cell, self.python, self.place = cell, python, place
        self._user = user_of(cell)
        kept = ("PATH", "LANG", "LC_ALL", "SSL_CERT_FILE")
        self._env = {name: os.environ[name] for name in kept if name in os.environ}
        self._env |= {name: str(place) for name in ("HOME", "TMPDIR", "XDG_RUNTIME_DIR", "KERAS_HOME")}
        self._env["TF_CPP_MIN_LOG_LEVEL"] = "2"

    def run(self, *words: str, cwd: Path | None = None, patience_s: float = PATIENCE_S) -> tuple[int, str]:
        """The exit code of a Python program of the environment, and what it printed."""
        command = [*self._user, str(self.python), *words]
        with tempfile.TemporaryFile("w+") as out:
            process = subprocess.Popen(
                command, cwd=cwd or self.place, env=self._env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
            try:
                process.wait(patience_s)
            except subprocess.TimeoutExpired:
                pass  # the code of SIGKILL is never the one that is wanted
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # an agent and its tasks end with their controller
                code = process.wait()
            out.seek(0)
            return code, out.read()

    def orch(self, *words: str, code: int = 0, said: tuple[str, ...] = ()) -> str:
        """What a command of orch printed. It must end with this code, and say this."""
        found, text = self.run("-m", "orchestrator", *words)
        missing = [part for part in said if part not in text]
        if found != code or missing:
            wanted = f"exit code {found}, not {code}" if found != code else f"it does not say {missing[0]!r}"
            raise Wrong(f"orch {' '.join(words)}: {wanted}\n{textwrap.indent(text[-4000:], '    ')}")
        return text

    def script(self, fault: str) -> str:
        """A training in which a worker, named by its argument, does this in its second step."""
        path = self.place / "fault.py"
        path.write_text(textwrap.dedent(_STEP).format(fault=fault))
        path.chmod(0o644)
        return str(path)


@contextlib.contextmanager
def bench(cell: Cell, python: Path) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="orch-matrix-") as directory:
        os.chmod(directory, 0o700)
        if user_of(cell):
            os.chown(directory, 65534, 65534)
        yield Bench(cell, python, Path(directory))


def patches(bench: Bench) -> None:
    """Every row of the table of patches fits what is installed."""
    code, text = bench.run("-m", "worker.task.patches", "--check")
    if code:
        raise Wrong(f"python -m worker.task.patches --check: exit code {code}\n{textwrap.indent(text[-4000:], '    ')}")


def warm(bench: Bench) -> None:
    bench.orch("warm", "start", said=("has imported tensorflow at",))
    (bench.place / "hello.py").write_text("import tensorflow\nprint('hello')\n")
    bench.orch("up", "hello.py", "-n", "2", said=("tasks are forked from the warm process", "worker-1 | hello"))


def loop(bench: Bench) -> None:
    """Two workers and one process have the same weights after 30 steps."""
    script = (str(ROOT / "examples/mwms_custom_loop.py"), "--steps", "30", "--dump-weights")
    bench.orch("up", script[0], "-n", "2", "--", *script[1:], "two.npz")
    bench.orch("up", script[0], "--strategy", "one_device", "--", *script[1:], "one.npz")
    code, difference = bench.run("-c", _COMPARE, "one.npz", "two.npz")
    if code:
        raise Wrong(difference)
    if float(difference) > 1e-5:
        raise Wrong(f"after 30 steps the weights differ by {difference.strip()} from those of one process")


def fit(bench: Bench) -> None:
    bench.orch("up", str(ROOT / "examples/keras_fit.py"), "-n", "2", said=("test accuracy 0.9",))


def fit_of_keras_2(bench: Bench) -> None:
    bench.orch("up", str(ROOT / "examples/keras_fit.py"), "-n", "2", "--keras", "legacy", said=("test accuracy 0.9",))


def servers(bench: Bench) -> None:
    bench.orch("up", str(ROOT / "examples/parameter_server.py"), "-n", "2", "--ps", "1", said=("test accuracy 0.9",))


def failure(bench: Bench) -> None:
    said = ("first failure: worker-1 on local: exit code 1", "ValueError: on purpose", "stopped because of it: worker-0")
    bench.orch("up", bench.script('raise ValueError("on purpose")'), "-n", "2", "--", "worker-1", code=1, said=said)


def killed(bench: Bench) -> None:
    script = bench.script("os.kill(os.getpid(), signal.SIGKILL)")
    for worker in ("worker-1", "worker-0"):
        bench.orch("up", script, "-n", "2", "--", worker, code=137, said=(f"first failure: {worker} on local: killed by SIGKILL",))


def stalled(bench: Bench) -> None:
    """A worker, and the leader: the task that runs TensorFlow's coordination service."""
    script = bench.script("os.kill(os.getpid(), signal.SIGSTOP)")
    for worker in ("worker-1", "worker-0"):
        said = ("is stopped (SIGSTOP)", f"fix: look at where {worker} was")
        bench.orch("up", script, "-n", "2", "--set", "collectives.heartbeat_s=5", "--", worker, code=1, said=said)


def fixture(bench: Bench) -> None:
    _pytest(bench, ("-c", "examples/testing/pytest.ini", "--rootdir", "examples/testing", "examples/testing"))


def tests(bench: Bench) -> None:
    _pytest(bench, (*TESTS, *JUDGE) if bench.cell.is_next else TESTS)


def corner_tests(bench: Bench) -> None:
    _pytest(bench, CORNER_TESTS)


def _pytest(bench: Bench, words: tuple[str, ...]) -> None:
    code, text = bench.run("-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider", *words, cwd=ROOT, patience_s=TESTS_S)
    if code or " passed" not in text:
        raise Wrong(f"pytest {' '.join(words)}: exit code {code}\n{textwrap.indent(text[-4000:], '    ')}")
    skipped = [line for line in text.splitlines() if "NOT TESTED" in line]
    print(*(f"orch: {line}" for line in skipped), sep="\n", end="\n" if skipped else "")


Check = Callable[[Bench], None]
CHECKS: dict[str, Check] = {
    "patches": patches,
    "warm start": warm,
    "a loop of one's own": loop,
    "fit": fit,
    "fit of Keras 2": fit_of_keras_2,
    "parameter servers": servers,
    "a failure": failure,
    "killed": killed,
    "stalled": stalled,
    "the fixture": fixture,
}
"""The checks of every cell, with the heads of their columns in the table."""
LONG = (fixture,)
"""Those that a corner does without: its real tests use the same fixture."""
REAL_TESTS = "real tests"
