"""The program of a process that a resident task has forked: it runs the functions that a test sends, one after the other.

``{"function": BYTES, …}`` is answered by ``{"value": BYTES, "at": MONOTONIC}`` or ``{"error": {…}, "at": …}``; `at` is when the function
ended, for the test's process may read the answers of several processes later. The bytes are what `pickle` makes of a function, its
arguments and its value; cloudpickle, which the test's process needs as well, carries functions by value, with the code as pytest has
rewritten it.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import os
import pickle
import socket
import sys
import time
from collections.abc import Callable
from importlib import import_module
from types import ModuleType, TracebackType
from typing import Any

from . import asserts, barriers, debugger, failure, patches, resident, task_coverage
from .context import context
from .observe import reports
from .patches.features import TESTS
from .strategy import strategy_builder
from .strategy.serve import start_server

FILLED = "strategy"
"""The parameter of a function that gets the cluster's strategy."""
HIDDEN = "__tracebackhide__"
"""The variable by which a function asks pytest to leave its frame out."""


def serve(address: str) -> None:
    """Run the functions that the test sends, until the connection closes. The name of this process is the directory of its output."""
    connection = resident.connect(address, os.environ["ORCH_LOG_DIR"])
    save = task_coverage.start()
    os.environ[reports.EVERY] = "1"  # a test may wait for any one of them
    debugger.prepare(address)
    _find_modules()
    _server = start_server() if strategy_builder.only_serves(context()) else None
    while (message := resident.receive(connection)) is not None:
        _answer(connection, message, save)


def _answer(connection: socket.socket, message: dict[str, Any], save: Callable[[], object]) -> None:
    try:
        barriers.enter_call(message["directory"], os.environ["ORCH_TASK"], message["tasks"])
        if message["verbosity"] is not None:
            asserts.explain(message["verbosity"])
        function, args, kwargs = pickle.loads(message["function"])
        args = fill(function, args, kwargs)
        debugger.enter()
        value = function(*args, **kwargs)
        answer: dict[str, Any] = {"value": _pack(value)}
    except BaseException as error:  # also SystemExit: the process belongs to the test, and a function does not end it
        answer = {"error": _describe(error)}
    answer["at"] = time.monotonic()
    debugger.leave()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    save()  # before the test gets the answer, and ends this process
    resident.send(connection, answer)


def _find_modules() -> None:
    """Have the module `inspect` find an empty module for a function that was sent by value, because its own module is not imported here.

    AutoGraph converts no lambda that has no module: it warns, and leaves the lambda, and all that the lambda calls, as they are.
    """

    def getmodule(find: Callable[..., ModuleType | None], item: object, _filename: str | None = None) -> ModuleType | None:
        found = find(item, _filename)
        return ModuleType(item.__module__) if found is None and inspect.isfunction(item) and item.__module__ else found

    patches.replace(TESTS, "inspect.getmodule", getmodule)


def fill(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """`args`, and among them the strategy of the cluster, if the function has a parameter of this name that `kwargs` does not give."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return args
    if FILLED not in parameters or FILLED in kwargs:
        return args
    position = list(parameters).index(FILLED)
    if parameters[FILLED].kind is inspect.Parameter.KEYWORD_ONLY or position > len(args):
        kwargs[FILLED] = _strategy()
        return args
    return (*args[:position], _strategy(), *args[position:])


def _strategy() -> Any:
    """The object that `worker.strategy()` returns in the function, too. The user's program may have another module `worker`."""
    if strategy_builder.only_serves(context()):
        raise ValueError(f"{context().task} is a server, which has no strategy; run functions that need the strategy in the chief")
    try:
        return import_module("worker").strategy()  # not the copy that this module is part of
    except (ImportError, AttributeError):
        return strategy_builder.current()


# --- values --------------------------------------------------------------------------------------


def _pack(value: Any) -> bytes:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, item: Any) -> Any:
            plain = _plain(item)
            if plain is not item:
                return copy.copy, (plain,)
            return super().reducer_override(item)

    file = io.BytesIO()
    try:
        Pickler(file).dump(value)
    except Exception as error:
        raise TypeError(
            f"the function's value cannot be sent to the test: {type(value)}: {error}; return numbers, texts or arrays"
        ) from None
    return file.getvalue()


def _plain(item: Any) -> Any:
    """The value for the test's process, which may not have TensorFlow: arrays for tensors and variables, a tuple for values of replicas."""
    tf = sys.modules.get("tensorflow")
    if tf is None or not type(item).__module__.startswith("tensorflow"):
        return item
    if isinstance(item, (tf.Tensor, tf.Variable)) and hasattr(item, "numpy"):
        return item.numpy()
    if isinstance(item, tf.distribute.DistributedValues):
        return tuple(item.values)
    return item


def _describe(error: BaseException) -> dict[str, Any]:
    for one in failure.chain(error):
        one.__traceback__ = _without_hidden(one.__traceback__) or one.__traceback__
    found = {**failure.describe(error, time.time()), "type": type(error).__qualname__, "pickled": None}
    if not isinstance(error, Exception):  # the test is not to be interrupted or skipped by a task
        return found
    with contextlib.suppress(Exception):  # what cannot be sent is described only
        import cloudpickle

        with contextlib.suppress(ImportError):
            from tblib import pickling_support

            pickling_support.install(error)  # so that it comes with its traceback, whose source pytest shows
        found["pickled"] = cloudpickle.dumps(error)
    return found


def _without_hidden(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames that ask pytest to hide them, as those of NumPy's assertions; None if all frames do so.

    The test's process could not tell: a traceback loses the variables of its frames on the way there.
    """
    parts = []
    while trace is not None:
        parts.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for part in reversed(parts):
        wish = part.tb_frame.f_locals.get(HIDDEN) or part.tb_frame.f_globals.get(HIDDEN)
        if not wish or callable(wish):  # pytest would ask a function about its own view of the exception
            kept = type(part)(kept, part.tb_frame, part.tb_lasti, part.tb_lineno)
    return kept
