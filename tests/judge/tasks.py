"""What runs in each task of a world: the units, one after the other, each with its result and its output in a file."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .case import find
from .place import Place

Unit = tuple[str, str]
WAIT_S = 180.0
"""How long a task waits for the results of the others, which had the same to compute."""


def patience(seconds: float) -> float:
    """So many seconds, and up to ten times as many where more processes want to run than there are cores."""
    return seconds * min(10, max(1, os.getloadavg()[0] / (os.cpu_count() or 1)))


class UnitFailed(Exception):
    """A case has raised an exception: the collectives of the tasks may no longer fit together, so their processes end."""


def run_units(units: list[Unit], directory: str, replicas: int) -> None:
    """Run these units. Each begins and ends with a line in the file of this task."""
    import tensorflow as tf
    from tensorflow.python.distribute import collective_all_reduce_strategy

    import worker

    if replicas > 1:
        collective_all_reduce_strategy.CollectiveAllReduceExtended._initialize_local_devices = lambda self, resolver, worker: (
            tuple(f"{worker}/device:CPU:{index}" for index in range(replicas)),
            "CPU",
        )
    strategy = worker.strategy()

    from . import cases  # noqa: F401 - the list is complete from here on

    task = os.environ.get("ORCH_TASK", "worker-0")
    kept: dict[str, Any] = {}
    before = ""  # the model of the unit before
    with (Path(directory) / f"{task}.jsonl").open("a") as file:
        for number, (name, form) in enumerate(units):
            if (model := find(name).model or name) != before:
                kept.clear()
                if number % 10 == 0:
                    _forget()
            before = model
            # TensorFlow's optimizer of graphs takes much of the time here, and graphs as small as these gain nothing by it. Users have it,
            # so it is on for the last form of each case, the hardest one, which every world judges.
            tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": form != find(name).forms[-1]})
            print(json.dumps({"begins": number}), file=file, flush=True)
            found = _run_one(Place(strategy, Path(directory), kept, form), name)
            print(json.dumps({"ends": number, **found}), file=file, flush=True)
            if "error" in found and os.environ.get("WORLD_SIZE", "1") != "1":
                raise UnitFailed(f"{name}, {form}: {found['error']}")
            _wait_for_all(Path(directory), task, number)


def _forget() -> None:
    """Free the models of the cases before."""
    for name in ("keras", "tf_keras"):
        if name in sys.modules:
            with contextlib.suppress(AttributeError):
                sys.modules[name].backend.clear_session()
    gc.collect()


def _run_one(place: Place, name: str) -> dict[str, Any]:
    for known, module in list(sys.modules.items()):
        if known.endswith(".task.patches.import_hooks"):  # what is said once in a process is said once in a case
            module._printed.clear()
    path = place.shared / f"{place.task}.output"
    began, used = time.monotonic(), time.process_time()
    error: dict[str, Any] = {}
    result: dict[str, Any] = {}
    with _output_in(path):
        try:
            place.keras.utils.set_random_seed(1)
            result = find(name).run(place)
        except BaseException as raised:
            traceback.print_exc()
            error = _described(raised)
    output = path.read_text(errors="replace")
    lines = [line for line in output.splitlines() if line.startswith("orch: ")]
    return {
        **({"result": result} if not error else {**error, "output": output[-3000:]}),
        "lines": list(dict.fromkeys(lines)),
        "seconds": round(time.monotonic() - began, 2),
        "core_seconds": round(time.process_time() - used, 2),
    }


def _described(error: BaseException) -> dict[str, Any]:
    kinds = [kind.__module__.partition(".")[0] + "." + kind.__name__ for kind in type(error).__mro__]
    return {"error": f"{type(error).__name__}: {error}"[:1500], "kinds": kinds}


@contextlib.contextmanager
def _output_in(path: Path) -> Iterator[None]:
    """While this is entered, standard output and error of this process are a file, for Python and for TensorFlow's own code."""
    streams = (sys.stdout, sys.stderr)
    for stream in streams:
        stream.flush()
    before = [os.dup(number) for number in (1, 2)]
    with path.open("wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        for stream in streams:
            stream.flush()
        for number, copy in zip((1, 2), before, strict=True):
            os.dup2(copy, number)
            os.close(copy)


def _wait_for_all(directory: Path, task: str, number: int) -> None:
    """Wait until all tasks have come to the end of this unit."""
    (directory / f"{task}.{number}").touch()
    (directory / f"{task}.{number - 1}").unlink(missing_ok=True)  # all have seen it: they are at this unit or have ended it
    ends = [directory / f"worker-{index}.{number}" for index in range(int(os.environ.get("WORLD_SIZE", "1")))]
    later = [path.with_suffix(f".{number + 1}") for path in ends]
    since = time.monotonic()
    while not all(end.exists() or after.exists() for end, after in zip(ends, later, strict=True)):
        if time.monotonic() - since > patience(WAIT_S):
            raise UnitFailed("the other tasks did not come to the end of the unit")
        # A task that waits for long sleeps for long, so that the judge sees a hang (see `worlds`).
        time.sleep(0.005 if time.monotonic() - since < 2 else 1)
