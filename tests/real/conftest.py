"""One import of TensorFlow for all tests that are not about starting: that of `orchestrator.testing`; and a template."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from orchestrator.record.run_directory import RunDir
from orchestrator.testing.session import Session
from tests import conftest
from tests.worker.template_double import ForkedTask, TemplateProcess

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}


@pytest.fixture(scope="session")
def _session(_clean_environment: None) -> Iterator[None]:
    """What all clusters share. Their processes and files stay between tests, as a user's do: what is left is looked for after the last."""
    mark, before, files = uuid.uuid4().hex, {*psutil.pids()}, conftest._open_files()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(conftest.TEST_ID, mark)
        session = Session.get()
        session.warm_up({**os.environ, **QUIET})
    yield
    if Session.current() is session:
        session.end()
    left = conftest._surviving_processes(mark, before) + conftest._leaked_files(files)
    assert not left, left


@contextmanager
def warm_process(home: Path) -> Iterator[Path]:
    """`orch warm start`, found with this XDG_RUNTIME_DIR."""

    def warm(*words: str) -> str:
        command = [sys.executable, "-m", "orchestrator", "warm", *words]
        env = {**os.environ, **QUIET, "XDG_RUNTIME_DIR": str(home)}
        return subprocess.run(command, cwd=home, env=env, check=True, capture_output=True, text=True, timeout=250).stdout

    # "process 123 has imported tensorflow at …"
    pid = int(warm("start", "--preload", "tensorflow", "--idle-timeout", "7200").split()[1])
    conftest.FORKING.add(pid)
    yield home
    conftest.FORKING.discard(pid)
    warm("stop")


@pytest.fixture
def warm_tensorflow(_session: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """`orch up` forks its tasks from a process that has imported TensorFlow, and so does a cluster of `orchestrator.testing`."""
    for name, value in {**QUIET, "XDG_RUNTIME_DIR": str(Session.get().path)}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def uninterrupted(orch: conftest.Orch, warm_tensorflow: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunDir]:
    """``uninterrupted(text, "-n", "2", DATA="arrays")``: the run of a program that nobody kills, with these options and variables. There is
    one such run for all tests of the session, also where several processes run these."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared

    def run(text: str, *options: str, **env: str) -> RunDir:
        given = repr((text, options, sorted(env.items())))
        place = shared / f"uninterrupted-{hashlib.sha256(given.encode()).hexdigest()[:16]}"
        place.mkdir(exist_ok=True)
        with (place / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (place / "done").exists():
                (place / "script.py").write_text(text)
                orch("up", "script.py", *options, cwd=place, env=env, check=0, timeout=300)
                (place / "done").touch()
        return RunDir((place / ".orch/latest").resolve())

    return run


@pytest.fixture(scope="session")
def _template(_clean_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemplateProcess]:
    template = TemplateProcess(tmp_path_factory.mktemp("template"), ["tensorflow"], QUIET)
    try:
        template.wait_until_ready()
        yield template
    finally:
        template.close()


@pytest.fixture
def fork_task(_template: TemplateProcess) -> Callable[..., ForkedTask]:
    """`agent_double.start_task`, but for `options` and `start`: the task is forked from a process that has imported TensorFlow quietly."""
    return _template.fork
