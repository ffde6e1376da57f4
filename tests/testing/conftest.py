"""Clusters of `orchestrator.testing` stay between tests, as a user's do: what is left behind is looked for after the last."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psutil
import pytest

from orchestrator.testing.pool import runs_of
from orchestrator.testing.session import Session
from tests import conftest


@pytest.fixture(scope="session")
def _shared_processes(_clean_environment: None) -> Iterator[None]:
    mark, before = uuid.uuid4().hex, {*psutil.pids()}
    files = conftest._open_files()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(conftest.TEST_ID, mark)
        yield
        if Session._current is not None:
            Session._current.end()
    left = conftest._surviving_processes(mark, before) + conftest._leaked_files(files)
    assert not left, left


@pytest.fixture(autouse=True)
def _nothing_left(_shared_processes: None) -> Iterator[None]:
    """In place of the one for all tests: each process that was forked for a cluster ends with it, unless it is to be used again."""
    yield
    session = Session._current
    for run in runs_of(session) if session is not None else ():
        left = [child.pid for one in run.residents.values() for child in psutil.Process(one.pid).children()]
        assert run.keeps_processes or not left, f"{run.handle.run_id} still has processes of a cluster: {left}"
        assert not run.is_in_use
