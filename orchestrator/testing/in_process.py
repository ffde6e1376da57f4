"""Runs one task of a cluster in the test's own process (`cluster(in_process=…)`), where a debugger works as in any test."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from worker.task import calls
from worker.task.calls import barriers
from worker.task.strategy import strategy_builder


@contextlib.contextmanager
def _as_task(env: Mapping[str, str]) -> Iterator[None]:
    """Set the variables of the task in this process while this is entered."""
    before = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def call(
    env: Mapping[str, str], directory: str, tasks: tuple[str, ...], function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
) -> Any:
    """Run a function as the task would run it, and return its value. `directory`: of the barriers of the call; `tasks`: all its tasks."""
    with _as_task(env):
        barriers.enter_call(directory, env["ORCH_TASK"], tasks)
        given = dict(kwargs)
        return function(*calls.fill(function, args, given), **given)


def forget() -> None:
    """Forget the strategy, which belongs to a cluster that has ended."""
    strategy_builder.forget()
