"""One import of TensorFlow for all tests that are not about starting: a warm process, and a template, for each session."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import conftest
from tests.worker.template_double import ForkedTask, TemplateProcess

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}


@pytest.fixture(scope="session")
def _warm_home(_clean_environment: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the warm process of this session is found."""
    home = tmp_path_factory.mktemp("warm")

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
def warm_tensorflow(_warm_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`orch up` forks its tasks from a process that has imported TensorFlow."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(_warm_home))
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)


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
