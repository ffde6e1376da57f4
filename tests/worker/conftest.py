"""Agents for the tests of an agent alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.worker.controller_double import AgentProcess


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[Callable[..., AgentProcess]]:
    """``start_agent(directory=tmp_path, patch="")``, see `patched_agent`; they are ended with the test."""
    started: list[AgentProcess] = []

    def start(directory: Path = tmp_path, patch: str = "") -> AgentProcess:
        started.append(AgentProcess(directory, patch))
        return started[-1]

    yield start
    for agent in started:
        agent.close()


@pytest.fixture
def agent(start_agent: Callable[..., AgentProcess]) -> AgentProcess:
    return start_agent()
