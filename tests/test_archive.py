"""orch in one file, run by a Python without orch, click, PyYAML and psutil (docs/make_archive.py)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from docs import make_archive
from orchestrator import __version__
from orchestrator.backends import local
from tests.conftest import ROOT, Completed, Orch, Running
from tests.live import wait_until, write_script

MISSING = ("click", "orchestrator", "psutil", "worker", "yaml")
_LEFT_OUT = ("__editable__", "_editable", "_yaml", "orch_tf", "pyyaml", *MISSING)
SECRET_BYTES = 1 << 20
"""The most that a Secret or a ConfigMap holds."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with all packages of this one but those that the archive brings, and psutil. orch.pyz lies next to it."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, with_pip=False, symlinks=True)
    (packages,) = home.glob("lib/python3*/site-packages")
    for place in {sysconfig.get_paths()[name] for name in ("purelib", "platlib")}:
        for path in Path(place).iterdir():
            if not path.name.startswith(_LEFT_OUT) and path.suffix != ".pth" and path.name != "__pycache__":
                (packages / path.name).symlink_to(path)
    make_archive.make(home / "orch.pyz")
    return home


@dataclass(frozen=True, slots=True)
class Archive:
    """orch.pyz and its Python, whose user has the cache in `home`."""

    orch: Orch
    place: Path
    home: Path

    @property
    def python(self) -> str:
        return str(self.place / "bin" / "python")

    def start(self, *words: str, env: Mapping[str, str | None] | None = None, cwd: Path | None = None) -> Running:
        own = {"HOME": str(self.home), "PYTHONPATH": None, "XDG_CACHE_HOME": None}
        return self.orch.start(*words, env={**own, **(env or {})}, cwd=cwd)

    def run(self, *words: str, check: int | None = 0, env: Mapping[str, str | None] | None = None) -> Completed:
        return self.start(*words, env=env).wait(check=check)

    def unpacked(self) -> list[Path]:
        return [*self.home.glob(".cache/orch/archive-*")]


@pytest.fixture
def archive(orch: Orch, bare: Path, tmp_path: Path) -> Archive:
    made = Archive(orch, bare, tmp_path / "home")
    made.home.mkdir()
    orch.program = (made.python, str(bare / "orch.pyz"))
    return made


def test_it_fits_into_a_secret_and_is_the_same_each_time(bare: Path, tmp_path: Path) -> None:
    assert (bare / "orch.pyz").stat().st_size < SECRET_BYTES - 100_000
    make_archive.make(tmp_path / "again.pyz")
    assert (tmp_path / "again.pyz").read_bytes() == (bare / "orch.pyz").read_bytes()


def test_its_python_lacks_what_it_brings(archive: Archive) -> None:
    done = subprocess.run(
        [archive.python, "-I", "-c", f"import importlib.util as u; print([n for n in {MISSING} if u.find_spec(n)])"],
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "[]", done


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--version",), __version__),
        (("--help",), "orch up train.py --workers 2"),
        (("help", "kubernetes"), "orchestrator/cli/pages/kubernetes.md"),
        (("help", "keras", "EarlyStopping"), "same; last batch: differs, orch warns"),
        (("help", "out", "of", "memory"), "memory"),
        (("completion", "bash"), "complete"),
        (("plan", "script.py", "-n", "2"), "worker-1"),
        (("plan", "-f", "orch.yaml"), "worker-2"),
        (("up", "script.py", "--backend", "kubernetes", "--image", "i", "-d", "--dry-run"), "kind: Secret"),
        (("up", "script.py", "-H", "a,b", "--dry-run"), "ssh"),
        (("doctor", "--join"), "none is recognised"),
        (("warm", "status"), "no warm process"),
        (("up", "-f", "broken.yaml"), "broken.yaml:2: cannot be read as YAML"),
    ],
)
def test_each_command_finds_its_files(archive: Archive, words: Sequence[str], said: str) -> None:
    write_script(archive.orch.cwd, "")
    (archive.orch.cwd / "orch.yaml").write_text("script: script.py\ntasks: {worker: 3}\n")
    (archive.orch.cwd / "broken.yaml").write_text("script: [\n")
    done = archive.run(*words, check=None)
    assert said in done.out + done.err, done
    assert "Traceback" not in done.err


def test_a_run_is_started_looked_at_and_written_as_a_page(archive: Archive) -> None:
    """Controllers, agents, tasks and a process with imports are programs of the unpacked files. orch ends what is left of a run."""
    write_script(archive.orch.cwd, "import worker\nprint('context', worker.context().task)\nready()\nsleep()\n")

    archive.run("up", "script.py", "-n", "2", "-d")
    wait_until(lambda: (archive.orch.cwd / "worker-1.ready").exists(), "tasks")
    assert "worker-1" in archive.run("ps").out
    assert "context worker-0" in archive.run("logs").out
    archive.run("report", "-o", "page.html")
    assert "<style>" in (archive.orch.cwd / "page.html").read_text()
    archive.run("down")
    assert archive.run("wait", check=None).code == 143
    (root,) = archive.unpacked()
    assert (root.stat().st_mode & 0o777, (root / "worker" / "py.typed").is_file()) == (0o700, True)


def test_a_kept_import_is_started_and_ended(archive: Archive) -> None:
    archive.run("warm", "start", "--preload", "json")
    try:
        assert "(PSS)" in archive.run("warm", "status").out
    finally:
        archive.run("warm", "stop")


def test_two_terminals_join(archive: Archive, tmp_path: Path) -> None:
    # worker-1 fails once both are seen: its failure stops worker-0.
    seen = f"{str(tmp_path)!r} + '/worker-0'"
    script = f"import os, time\nprint('seen', TASK, flush=True)\nif TASK == 'worker-0': open({seen}, 'w').close()\n"
    script += f"while not os.path.exists({seen}): time.sleep(0.05)\nsys.exit(7 * (TASK == 'worker-1'))\n"
    write_script(tmp_path, script)
    words = ("up", "script.py", "--join", "--join-dir", str(tmp_path / "files"), "--nodes", "2", "--node-index")
    pair = [archive.start(*words, str(index)) for index in range(2)]
    assert [each.wait().code for each in pair] == [7, 7]
    assert {*re.findall(r"seen (\S+)", pair[0].out)} == {"worker-0", "worker-1"}


def test_files_that_were_changed_or_removed_are_mended(archive: Archive) -> None:
    archive.run("--version")
    (root,) = archive.unpacked()
    changed, removed = root / "orchestrator" / "cli" / "__init__.py", root / "orchestrator" / "errors.py"
    changed.write_text("raise SystemExit('not of orch')\n")
    removed.unlink()
    assert archive.run("--version").out.endswith(f"{__version__}\n")


def test_without_a_home_it_unpacks_into_a_directory_of_its_user_alone(archive: Archive, tmp_path: Path) -> None:
    env = {"HOME": "/proc", "TMPDIR": str(tmp_path)}
    place = tmp_path / f"orch-{os.geteuid()}"
    archive.run("--version", env=env)
    assert ([each.name.partition("-")[0] for each in place.iterdir()], place.stat().st_mode & 0o777) == (["archive"], 0o700)
    place.chmod(0o777)
    refused = archive.run("--version", env=env, check=1).err
    assert f"{place} is not a directory of yours that is closed to others (0700); set XDG_CACHE_HOME to one of your own" in refused


def test_an_orch_and_a_click_that_are_installed_there_do_not_count(archive: Archive, tmp_path: Path) -> None:
    """Also not for the controller, which is started by its path."""
    wrong = tmp_path / "wrong-packages"
    for name in ("click", "orchestrator", "yaml"):
        (wrong / name).mkdir(parents=True)
        (wrong / name / "__init__.py").write_text(f"raise SystemExit('the wrong {name}')\n")
    (packages,) = archive.place.glob("lib/python3*/site-packages")
    (packages / "wrong.pth").write_text(f"{wrong}\n")
    try:
        write_script(tmp_path, "print('hello')\n")
        (tmp_path / "orch.yaml").write_text("script: script.py\nstrategy: none\n")
        archive.run("up", "-d")
        archive.run("wait")
        assert "hello" in archive.run("logs").out
    finally:
        (packages / "wrong.pth").unlink()


def test_an_old_python_is_refused_in_one_line(bare: Path, tmp_path: Path) -> None:
    """Its program has words that an old Python reads, and compares its version before all else."""
    program = zipfile.ZipFile(bare / "orch.pyz").read("__main__.py").decode()
    old = program.replace("sys.version_info < (3, 10)", "True")
    assert old != program
    (tmp_path / "__main__.py").write_text(old)
    done = subprocess.run([sys.executable, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, "orch needs 3.10 or newer" in done.stderr, done.stderr.count("\n")) == (1, True, 1)


def test_what_a_run_has_left_is_killed_without_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    """`orch down` of a run whose controller was killed."""
    left = subprocess.Popen(["sleep", "300"], env={**os.environ, "ORCH_RUN_ID": "run-17"})
    other = subprocess.Popen(["sleep", "300"], env={**os.environ, "ORCH_RUN_ID": "run-170"})
    try:
        monkeypatch.setitem(sys.modules, "psutil", None)
        wait_until(lambda: b"run-17" in Path(f"/proc/{left.pid}/environ").read_bytes(), "the environment")
        assert local.kill_tasks("run-17") == 1
        assert left.wait(20) == -9
        assert other.poll() is None
        assert local.kill_tasks("run-17") == 0
    finally:
        for each in (left, other):
            each.kill()
            each.wait()


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize("joins", [False, True])
def test_two_workers_train(archive: Archive, joins: bool) -> None:
    """By one command, and by one in each of two terminals."""
    words = ("up", str(ROOT / "examples" / "keras_fit.py"))
    if joins:
        nodes = ("--join", "--join-dir", str(archive.home), "--nodes", "2", "--node-index")
        pair = [archive.start(*words, *nodes, str(index)) for index in range(2)]
    else:
        pair = [archive.start(*words, "-n", "2")]
    assert [each.wait().code for each in pair] == [0] * len(pair)
    assert "test accuracy 0.9" in pair[0].out
    assert "worker-1" in pair[0].out
