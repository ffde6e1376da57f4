"""What every test gets: the real program, a clean environment, and a look at what it left behind.

Fixtures: `orch` (the program, run to its end or in the background), `script` (a file in the test's
directory), `weird_dir` (a directory with an awkward name), `bed` (hosts with ssh; see bed.py), `slurm` (nodes of a Slurm; see
slurm_bed.py), `kubernetes` (a namespace of a Kubernetes; see kubernetes_bed/bed.py).
Markers: `tensorflow`, `root`, `slow`, `soak`. After each test nothing may be left: no process, no listening port, no open
file, nothing in the repository or in the temporary directory.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import hypothesis
import psutil
import pytest

from orchestrator import cli
from tests import golden
from tests.bed import DAEMONS, _bed, bed  # noqa: F401 - fixtures
from tests.groups import BEDS, pytest_xdist_make_scheduler  # noqa: F401 - a hook
from tests.kubernetes_bed import bed as kubernetes_bed
from tests.kubernetes_bed.bed import _kubernetes, kubernetes, kubernetes_alone  # noqa: F401 - fixtures
from tests.slurm_bed import _slurm, slurm  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from tests.live import LiveRun

ROOT = Path(__file__).resolve().parent.parent
TEST_ID = "ORCH_TEST_ID"
FORKING: set[int] = set()
"""Processes that stay for the whole session and fork what tests want: their children are the running test's."""
DYING_S = 20.0
"""How long a process may take to die after the test that started it."""

# What is rewritten of the tests is kept, whatever the environment says: without it each process rewrites all of them at each start.
sys.dont_write_bytecode = False

# A busy machine is no failure, and what fails once fails again. At night each test draws many more examples, and other ones each time.
_SLOW_MACHINE = hypothesis.settings(deadline=None, database=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("orch", _SLOW_MACHINE, max_examples=60, derandomize=True)
hypothesis.settings.register_profile("night", _SLOW_MACHINE, max_examples=1000, print_blob=True)
hypothesis.settings.load_profile("orch")

IMPATIENT = {"ORCH_TIME_SCALE": "0.1"}
"""For the `env` of a test that waits for one of orch's own constants to run out; see `worker.machine.clock.patience`."""

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="NOT TESTED: git is not installed")

Argument = str | bytes | os.PathLike[str]


# --- which tests, in which order ---------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="the tests marked soak at their full length, and no others")
    parser.addoption("--golden", action="store_true", help="write the answers in the files of tests/golden.py, and do not compare them")


LONGEST = {
    *("test_keras.py", "test_snapshots.py", "test_resume.py", "test_slow_causes.py", "test_keras_optimizers.py", "test_keras_2.py"),
    *("test_elastic.py", "test_preemption.py", "test_keras_parts.py", "test_ssh.py", "test_pace.py"),
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, and put the tests that start real clusters last, slow ones at the very end.

    The tests of Kubernetes and Slurm, which mostly wait, come right before the slow ones, which compute: they run beside each other. The
    longest come first among the slow ones: at the end no process has a long test left when the others have none.
    """
    golden.write_answers(config.getoption("--golden"))
    if config.getoption("--soak"):
        config.hook.pytest_deselected(items=[item for item in items if not item.get_closest_marker("soak")])
        items[:] = [item for item in items if item.get_closest_marker("soak")]
    missing = {
        "tensorflow": importlib.util.find_spec("tensorflow") is None
        and "NOT TESTED: TensorFlow is not installed here (pip install 'orch-tf[tensorflow-cpu]')",
        "root": os.geteuid() != 0 and "NOT TESTED: only root can do this; run the tests as root, in a container for example",
    }
    for item in items:
        for marker, reason in missing.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))

    def place(item: pytest.Item) -> tuple[bool, ...]:
        is_slow, waits = item.get_closest_marker("slow") is not None, any(_uses(item, name) for name in BEDS)
        is_short = is_slow and item.path.name not in LONGEST
        return is_slow, waits != is_slow, is_short, "real" in item.path.relative_to(ROOT).parts

    items.sort(key=place)


def _uses(item: pytest.Item | None, name: str) -> bool:
    return f"_{name}" in getattr(item, "fixturenames", ())


@pytest.hookimpl(tryfirst=True)  # before the fixtures, one of which looks for connections that a test has left open
def pytest_runtest_setup(item: pytest.Item) -> None:
    if _uses(item, "kubernetes"):
        kubernetes_bed.join()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """A Kubernetes of which nobody asks anything takes a part of the machine all the same."""
    if not _uses(nextitem, "kubernetes"):
        kubernetes_bed.leave()


_SETTINGS = (
    *("ORCH_", "PYTHON", "TF_", "CUDA_", "XLA_", "KERAS_", "OMP_", "GIT_", "TZ", "MLFLOW_", "WANDB_"),
    *("SLURM_", "SBATCH_", "SALLOC_", "SRUN_", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "LANGUAGE", "LC_ALL", "PYTEST_ADDOPTS"),
)
"""Variables that begin like this change what orch, a task or a program of the tests does or says."""


# --- a clean place -----------------------------------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def _clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No setting of the developer reaches a test, and temporary files go where only this session looks."""
    temporary = tmp_path_factory.mktemp("tmp")
    umask = os.umask(0o022)
    with pytest.MonkeyPatch.context() as patch, _default_signals():
        for name in os.environ:
            if name.startswith(_SETTINGS) or name.lower().endswith("_proxy"):
                patch.delenv(name)
        time.tzset()
        patch.setenv("LC_MESSAGES", "C")
        patch.setenv("ORCH_CEILING", str(tmp_path_factory.getbasetemp()))  # a developer's run in a directory above is not found
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("TMPDIR", str(temporary))
        patch.setattr(tempfile, "tempdir", None)
        # No warm process of the developer's. The log of each one stays, as a user's does, and is no stray file.
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))  # a developer's own settings are not read
        # Keras writes ~/.keras/keras.json on its first import, and obeys the one it finds there.
        patch.setenv("KERAS_HOME", str(temporary / "keras"))
        yield
    os.umask(umask)


@contextmanager
def _default_signals() -> Iterator[None]:
    """What is executed from here has each signal's default, though some were ignored or blocked where the suite was started (nohup, cron).

    This process goes on without minding them: what has a handler here has the default after an exec.
    """
    own = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores these itself, and `subprocess` gives them back
    ignored = [number for number in signal.valid_signals() if number not in own and signal.getsignal(number) is signal.SIG_IGN]
    blocked = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in ignored:
        signal.signal(number, lambda *_: None)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@pytest.fixture
def soaks(request: pytest.FixtureRequest) -> bool:
    """A test marked `soak` runs at its full length (`make chaos`), and not at the one that every change can afford."""
    return bool(request.config.getoption("--soak"))


@pytest.fixture
def weird_dir(tmp_path: Path) -> Path:
    """A directory whose name has spaces, quotes, a dollar, a newline and a byte that is not UTF-8."""
    path = tmp_path / os.fsdecode(b'it\'s a "weird" $HOME\nd\xffr, #1')
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"NOT TESTED: this file system has no such names ({error})")
    return path


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    """``script(text, name="script.py")`` writes a program, dedented, into the directory in which `orch` runs."""

    def write(text: str, name: str = "script.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """``mounted("size=300k")`` is a file system of its own."""
    places: list[Path] = []

    def mount(options: str) -> Path:
        place = tmp_path / f"disk-{len(places)}"
        place.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(place)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"NOT TESTED: cannot mount here: {done.stderr.strip()}")
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", "--lazy", str(place)], check=True)  # a controller may be about to end there


# --- what is left behind -----------------------------------------------------------------------


def _started_here(mark: str, before: set[int]) -> set[psutil.Process]:
    """Living processes, not of those `before`, below this one or below one of `FORKING`, and those whose environment carries the mark.

    A task leads its own session and may have lost its parents, so the tree alone does not find it. All processes are asked after each of
    thousands of tests, so only new ones are.
    """
    found = set()
    roots, new = {os.getpid(), *FORKING}, {*psutil.pids()} - before
    for pid in new - DAEMONS - _of_clusters() if new else ():
        with suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            if _carries(pid, mark) or any(parent.pid in roots for parent in process.parents()):
                found.add(process)
    return {process for process in found if _lives(process)}


def _carries(pid: int, mark: str) -> bool:
    """Whether this is a process of the test with this mark."""
    if sys.platform == "linux":
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{TEST_ID}={mark}\0".encode() in file.read()
    return psutil.Process(pid).environ().get(TEST_ID) == mark


def _of_clusters() -> set[int]:
    """The processes that clusters of `orchestrator.testing` are forked from, which stay for the tests that follow, and those of one that
    was left with ``reuse=True``."""
    found: set[int] = set()
    if "orchestrator.testing.pool" not in sys.modules:
        return found
    from orchestrator.testing.pool import runs_of
    from orchestrator.testing.session import Session
    from tests.live import controller_of

    session = Session.current()
    for kept in runs_of(session) if session is not None else ():
        with suppress(psutil.NoSuchProcess):
            controller = psutil.Process(controller_of(kept.handle))
            found.update(process.pid for process in (controller, *controller.children()))
        for connection in kept.residents.values():
            with suppress(psutil.NoSuchProcess):
                resident = psutil.Process(connection.pid)
                found.update(process.pid for process in (resident, *resident.parents()))
                found.update(process.pid for process in resident.children(recursive=True) if kept.keeps_processes)
    return found


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


def _describe(process: psutil.Process) -> str:
    try:
        with process.oneshot():
            ports = sorted({c.laddr.port for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN})
            listening = f", listening on {ports}" if ports else ""
            return f"process {process.pid} ({process.status()}{listening}): {process.cmdline()}"
    except psutil.Error:
        return f"process {process.pid}"


def _surviving_processes(mark: str, before: set[int]) -> list[str]:
    """Wait until everything that the test started is gone. What is not gone in time is described and killed."""
    deadline = time.monotonic() + DYING_S
    while left := _started_here(mark, before):
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            break
        psutil.wait_procs(left, timeout=remaining)
    said = sorted(_describe(process) for process in left)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=DYING_S)
    return said


def _open_files() -> Counter[str]:
    found: Counter[str] = Counter()
    with suppress(FileNotFoundError), os.scandir("/proc/self/fd") as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                found[os.readlink(entry.path)] += 1
    # The listing itself; and what TensorFlow's and Python's runtimes keep for good once they have been used.
    own = re.compile(rf"/proc/{os.getpid()}/fd$|/dev/u?random$" + (r"|anon_inode:" if "tensorflow" in sys.modules else ""))
    return Counter({target: count for target, count in found.items() if not own.match(target)})


def _leaked_files(before: Counter[str]) -> list[str]:
    leaked = _open_files() - before
    if leaked:  # An object in a reference cycle is not a leak.
        gc.collect()
        leaked = _open_files() - before
    # The connections to the processes of clusters stay as long as these do. Files that were open before count in any case: a check whose
    # beginning left them out took the pipes of pytest's own process for a leak once the clusters had ended.
    kept = re.compile(r"socket:|pipe:|anon_inode:|.*/orch-testing-" if leaked and _of_clusters() else r"(?!)")
    return [f"open file: {target}" for target in leaked.elements() if not kept.match(target)]


def _litter() -> set[Path]:
    # The files that runs lock to hold GPUs stay on purpose.
    found = (path for path in Path(tempfile.gettempdir()).glob("orch*") if not path.name.startswith("orch-gpus-"))
    return {path for path in (ROOT / ".orch", *found) if path.exists()}


@pytest.fixture(autouse=True)
def _nothing_left(_clean_environment: None) -> Iterator[None]:
    """Fail a test that leaves a process, an open file, a stray directory or a blocked signal behind, and name it."""
    mark, blocked = uuid.uuid4().hex, signal.pthread_sigmask(signal.SIG_BLOCK, ())
    processes, files, litter = {*psutil.pids()}, _open_files(), _litter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TEST_ID, mark)
        yield
    left = _surviving_processes(mark, processes)
    left += _leaked_files(files)
    left += [f"stray file: {path}" for path in sorted(_litter() - litter)]
    # Whatever a later test starts would inherit it, and not hear its SIGTERM.
    left += [f"blocked signal: {number}" for number in signal.pthread_sigmask(signal.SIG_SETMASK, blocked) - blocked]
    if left:
        pytest.fail("the test left something behind:\n" + "\n".join(left), pytrace=False)


# --- the program -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished run of orch. `code`: negative for a signal. Bytes that are not UTF-8 are lone surrogates in the texts."""

    code: int
    out: str
    err: str
    seconds: float

    def __str__(self) -> str:
        return f"exit code {self.code} after {self.seconds:.1f} s\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


class Running:
    """orch in the background, in a session of its own; its output goes to files."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self._process = process
        self._out, self._err = out, err
        self._since = time.monotonic()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def out(self) -> str:
        """Standard output so far."""
        return _text(self._out)

    @property
    def err(self) -> str:
        """Standard error so far."""
        return _text(self._err)

    def signal(self, number: int) -> None:
        """Send a signal to orch itself, as `kill` does: not to its group."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to orch and whatever shares its process group. Its tasks do not."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def wait(self, timeout: float = 200, check: int | None = None) -> Completed:
        """Wait for the end. Fails the test after `timeout` seconds, or if the exit code is not `check`."""
        __tracebackhide__ = True
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"orch did not end within {timeout} s\n{self._so_far()}")
        done = Completed(code, self.out, self.err, time.monotonic() - self._since)
        if check is not None and code != check:
            pytest.fail(f"expected exit code {check}, got {done}")
        return done

    def wait_for(self, text: str | re.Pattern[str], timeout: float = 200) -> re.Match[str]:
        """Wait until the text, or a match of the pattern, has been printed on either stream."""
        __tracebackhide__ = True
        wanted = text if isinstance(text, re.Pattern) else re.compile(re.escape(text))
        deadline = time.monotonic() + timeout
        while True:
            ended = not self.alive  # Asked first: what it printed last is then already in the files.
            if found := wanted.search(self.out) or wanted.search(self.err):
                return found
            if ended or time.monotonic() > deadline:
                pytest.fail(f"orch {'ended' if ended else f'ran for {timeout} s'} without printing {wanted.pattern!r}\n{self._so_far()}")
            time.sleep(0.01)

    def _so_far(self) -> str:
        return f"--- stdout\n{self.out}\n--- stderr\n{self.err}"


class Orch:
    """Runs the program. `cwd` is the directory it runs in unless told otherwise."""

    def __init__(self, cwd: Path, console: Path) -> None:
        self.cwd = cwd
        self.program: Sequence[Argument] = (sys.executable, "-m", "orchestrator")
        self._console = console
        self._started: list[Running] = []

    def __call__(self, *args: Argument, timeout: float = 200, check: int | None = None, **options: Any) -> Completed:
        """Run orch to its end; the options are those of `start`. `check`: the exit code without which the test fails.

        A command that starts no process runs in this one, unless what is asked for takes a process of its own.
        """
        __tracebackhide__ = True
        of_a_process = ("PYTHON", "LC_", "ORCH_TIME_SCALE")
        if (
            self._only_reads(args)
            and options.keys() <= {"env"}
            and not any(name.startswith(of_a_process) for name in options.get("env") or {})
        ):
            return self.in_process(*args, check=check, **options)
        return self.start(*args, **options).wait(timeout, check)

    @staticmethod
    def _only_reads(args: Sequence[Argument]) -> bool:
        is_help = bool({"-h", "--help"} & {*args})
        return is_help or (args[:1] in (("ps",), ("logs",), ("plan",), ("placement",)) and not {"-f", "--follow"} & {*args})

    def start(
        self,
        *args: Argument,
        cwd: Path | None = None,
        env: Mapping[str, str | None] | None = None,
        input: str | bytes | None = None,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        by: Sequence[str] = (),
    ) -> Running:
        """Start orch. `env` goes over this process's environment, None takes a variable away; `stdout`, `stderr`: somewhere else than a
        file; `by`: a program that starts orch, such as ``salloc -N3``."""
        files = [self._console / f"{len(self._started)}.{name}" for name in ("in", "out", "err")]
        files[0].write_bytes(input.encode("utf-8", "surrogateescape") if isinstance(input, str) else input or b"")
        changes = env or {}
        environment = {**os.environ, **changes}
        with files[0].open("rb") as stdin, files[1].open("wb") as out, files[2].open("wb") as err:
            process = subprocess.Popen(
                [*by, *self.program, *args],
                cwd=cwd or self.cwd,
                env={name: value for name, value in environment.items() if value is not None},
                stdin=stdin,
                stdout=out if stdout is None else stdout,
                stderr=err if stderr is None else stderr,
                start_new_session=True,
            )
        running = Running(process, files[1], files[2])
        self._started.append(running)
        return running

    def in_process(
        self, *args: Argument, check: int | None = None, env: Mapping[str, str | None] | None = None, input: str = ""
    ) -> Completed:
        """A command that starts no process, such as one that is refused: the same program, without the third of a second of a new one."""
        __tracebackhide__ = True
        since = time.monotonic()
        stdin, out, err = (self._console / f"here.{name}" for name in ("in", "out", "err"))
        stdin.write_text(input)
        with pytest.MonkeyPatch.context() as patch, stdin.open() as given, out.open("wb") as printed, err.open("wb") as complained:
            patch.chdir(self.cwd)
            for name, value in (env or {}).items():
                patch.setenv(name, value) if value is not None else patch.delenv(name, raising=False)
            with _standard_streams(given.fileno(), printed.fileno(), complained.fileno()):
                try:
                    cli.main([os.fsdecode(word) for word in args])
                except SystemExit as end:
                    code = end.code if isinstance(end.code, int) else 0
        done = Completed(code, _text(out), _text(err), time.monotonic() - since)
        if check is not None and code != check:
            pytest.fail(f"expected exit code {check}, got {done}")
        return done

    def stop(self) -> None:
        for running in self._started:
            if running.alive:
                running.kill()


@contextmanager
def _standard_streams(*files: int) -> Iterator[None]:
    """Standard input, output and error of this process are these files, for Python and for the kernel."""
    names = ("stdin", "stdout", "stderr")
    before = [(os.dup(number), getattr(sys, name)) for number, name in enumerate(names)]
    for number, (name, file) in enumerate(zip(names, files, strict=True)):
        if number:
            getattr(sys, name).flush()
        os.dup2(file, number)
        setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115
    try:
        yield
    finally:
        for number, (name, (copy, stream)) in enumerate(zip(names, before, strict=True)):
            if getattr(sys, name) is not None:  # the program may have given it up
                getattr(sys, name).close()
            os.dup2(copy, number)
            os.close(copy)
            setattr(sys, name, stream)


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "surrogateescape")


@pytest.fixture
def orch(_nothing_left: None, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orch]:
    """The real program: ``orch("up", "train.py", check=0)``, or ``orch.start(...)`` for one in the background."""
    program = Orch(tmp_path, tmp_path_factory.mktemp("console"))
    yield program
    program.stop()


@pytest.fixture
def run(tmp_path: Path) -> LiveRun:
    """The latest run of `orch` in this test's directory, once there is one."""
    from tests.live import LiveRun

    return LiveRun(tmp_path)


@pytest.fixture
def start_warm(orch: Orch) -> Iterator[Callable[..., Completed]]:
    """``start_warm("json")``: `orch warm start` with this module; the options are those of `orch`. It is ended after the test."""

    def start(module: str, *words: str, **options: Any) -> Completed:
        return orch("warm", "start", "--preload", module, *words, **{"check": 0, **options})

    yield start
    orch("warm", "stop", check=0)
