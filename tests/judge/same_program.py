"""The program of `same`: runs cases of the judge one after the other, and writes down the first steps of each as `orch verify` does."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any


class Enough(BaseException):
    """A case has taken as many steps as are compared."""


def main(units: list[tuple[str, str]], directory: Path) -> None:
    import worker
    from orchestrator import testing
    from tests.judge import cases  # noqa: F401 - fills the list of cases
    from tests.judge.case import find
    from tests.judge.place import Place

    strategy = worker.strategy()
    made = _recorder()
    barriers = itertools.count()

    def barrier(timeout: float | None = None) -> None:
        number, tasks = next(barriers), range(int(os.environ.get("WORLD_SIZE", "1")))
        (directory / f"{os.environ['ORCH_TASK']}.at{number}").touch()
        while not all((directory / f"worker-{place}.at{number}").exists() for place in tasks):
            time.sleep(0.02)

    testing.barrier = barrier
    task = os.environ["ORCH_TASK"]
    for number, (name, form) in enumerate(units):
        place, error = Place(strategy, directory, {}, form), ""
        made.__init__(made.log_dir)
        place.keras.utils.set_random_seed(1)
        with open(directory / f"{task}.output", "w") as output, contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            try:
                find(name).run(place)
            except Enough:
                pass
            except Exception as raised:
                traceback.print_exc()
                error = f"{type(raised).__name__}: {raised}"
        made.here.step = None
        made.found |= {"files": list(sys.modules[type(made).__module__]._files), "error": error}
        sys.modules[type(made).__module__]._files.clear()
        aside = directory / f"{task}.{number}.new"
        aside.write_text(json.dumps(made.found))
        aside.rename(directory / f"{task}.{number}.json")
        if error and os.environ.get("WORLD_SIZE") != "1":
            sys.exit(9)  # the collectives of the workers may no longer fit together
        place.keras.backend.clear_session()


def _recorder() -> Any:
    """The recorder of this process, which ends a case in place of the process."""
    from _orch_shared import recorders  # type: ignore[import-not-found]

    made = recorders[0]

    def stop_if_done(self: Any) -> None:
        if min(self.done.values(), default=0) >= self.wanted:
            raise Enough

    type(made).stop_if_done = stop_if_done
    return made


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
