"""Runs a function that was sent as bytes (`orchestrator/functions.py`), and packs its value: for `orchestrator.launch` and for tests.

`serve` is the program of a task of `launch(function)`. It leaves ``value.pickle`` in the task's directory: what `pickle` makes of
``{"value": BYTES}``, or of ``{"error": BYTES}`` for an exception that can be sent.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import os
import pickle
import sys
import time
from collections.abc import Callable
from importlib import import_module
from types import ModuleType, TracebackType
from typing import Any

from ..protocol import task_files
from . import failure, patches
from .context import context
from .patches.features import TESTS
from .strategy import strategy_builder

FILLED = "strategy"
"""The parameter of a function that gets the cluster's strategy."""
HIDDEN = "__tracebackhide__"
"""The variable by which a function asks pytest to leave its frame out."""
MOST_BYTES = 16_000_000
"""The most that a value may take: it goes to the program that has called `launch` as a whole."""


def serve(call: str) -> None:
    """Run the function, and leave its value, or its exception, in the task's directory. An exception leaves this function, too."""
    import base64
    import zlib

    from .program import new_main

    packed = pickle.loads(zlib.decompress(base64.b64decode(call.partition(":")[2])))
    _provide("cloudpickle", packed["cloudpickle"])
    failure.keep_lines(packed["sources"])
    find_modules()
    new_main()
    log_dir = os.environ["ORCH_LOG_DIR"]
    try:
        function, args, kwargs = pickle.loads(packed["call"])
        data = pack(function(*fill(function, args, kwargs), **kwargs), "sent back")
        if len(data) > MOST_BYTES:
            takes = f"its value takes {len(data) / 1e6:.0f} MB, and at most {MOST_BYTES / 1e6:.0f} MB are sent back"
            raise ValueError(f"{takes}: write it to a file, and return the path")
    except Exception as error:
        task_files.write(log_dir, task_files.VALUE, pickle.dumps({"error": describe(error)["pickled"]}))
        raise
    answer = pickle.dumps({"value": data})
    task_files.write(log_dir, task_files.VALUE, answer)
    if task_files.size(os.path.join(log_dir, task_files.VALUE)) != len(answer):
        raise OSError(f"the function's value cannot be written in {log_dir}: is the disk full?")


def _provide(name: str, source: str) -> None:
    """Have this process import this source as ``NAME.NAME`` and as NAME: the other side's release, which has made what is read here."""
    module = sys.modules[name] = sys.modules[f"{name}.{name}"] = ModuleType(f"{name}.{name}")
    exec(compile(source, f"{name}/{name}.py", "exec"), vars(module))
    setattr(module, name, module)


def find_modules() -> None:
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


def pack(value: Any, where: str) -> bytes:
    """The bytes of a value. Raises TypeError, which says that it cannot be `where`."""
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
        what = f"the function's value cannot be {where}: {type(value)}: {error}"
        raise TypeError(f"{what}; return numbers, texts or arrays") from None
    return file.getvalue()


def _plain(item: Any) -> Any:
    """The value for the other process, which may not have TensorFlow: arrays for tensors and variables, a tuple for values of replicas."""
    tf = sys.modules.get("tensorflow")
    if tf is None or not type(item).__module__.startswith("tensorflow"):
        return item
    if isinstance(item, (tf.Tensor, tf.Variable)) and hasattr(item, "numpy"):
        return item.numpy()
    if isinstance(item, tf.distribute.DistributedValues):
        return tuple(item.values)
    return item


def describe(error: BaseException) -> dict[str, Any]:
    """Return what `failure.describe` says of an exception, and the exception itself, as `pickled`; None: it cannot be sent."""
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
