"""Runs one task of a cluster in the test's own process (`cluster(in_process=…)`), where a debugger works as in any test."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from worker.task import calls
from worker.task.calls import barriers
from worker.task.context import context
from worker.task.strategy import strategy_builder

from ..errors import UsageError


def check(name: str, env: Mapping[str, str]) -> None:
    """Raise `UsageError` if the task is only a server. `env`: the environment of the task, as in `as_task` and `call`."""
    with as_task(env):
        if strategy_builder.only_serves(context()):
            raise UsageError(f"in_process={name!r}: {name} is a server under this strategy and runs no functions; name the chief")


@contextlib.contextmanager
def as_task(env: Mapping[str, str]) -> Iterator[None]:
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
    with as_task(env):
        barriers.enter_call(directory, env["ORCH_TASK"], tasks)
        given = dict(kwargs)
        return function(*calls.fill(function, args, given), **given)


def forget() -> None:
    """Forget the strategy, which belongs to a cluster that has ended."""
    strategy_builder.forget()
