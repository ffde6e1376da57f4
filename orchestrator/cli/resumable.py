"""The runs that ``orch up --resume`` can continue, for the message where no run is named."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import OrchError
from ..record import saves_of_run
from ..record.run_store import list_runs
from ..sources import home_of_new_run

_MOST = 50
"""So many of the newest runs are looked at."""


def newest_runs(home: str, file: str) -> list[str]:
    """The ids of the runs that have ended and have a save, the newest first. `home`, `file`: the values of --run-dir and -f, or empty."""
    return [*_newest(Path(home or os.environ.get("ORCH_HOME") or home_of_new_run(file)))]


def _newest(home: Path) -> Iterator[str]:
    with contextlib.suppress(OrchError, OSError):
        for run in reversed(list_runs(home)[-_MOST:]):
            with contextlib.suppress(OrchError, OSError):  # such as a run without a spec
                base = saves_of_run.directory(run)
                if not run.is_alive() and (saves_of_run.is_remote(base) or saves_of_run.newest(base) is not None):
                    yield run.run_id
