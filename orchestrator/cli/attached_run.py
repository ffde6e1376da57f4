"""`orch up` with a spec: makes the run's directory, runs the run or starts its controller, and shows the run."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from worker.host.forkserver.warm_socket import EarlyRequest
from worker.protocol.task_id import PREPARE, TENSORBOARD

from .. import import_asyncio
from ..backends import Request
from ..backends.connection.agent_process import start_ahead
from ..control.signals import hold_signals
from ..control.starting import create, request_for, submit
from ..errors import OrchError, UsageError
from ..model.settings import ClusterSpec
from ..model.slots import behind_the_chief, task_ids
from ..model.strategies import named
from ..record.run_directory import RunDir
from ..record.run_store import discard
from .options import ViewOptions, only_tasks

if TYPE_CHECKING:
    from .viewers import JsonLines, Terminal


def start(home: Path, spec: ClusterSpec, shown: ViewOptions, *, detached: bool, as_json: bool, early: EarlyRequest | None = None) -> int:
    """Runs `spec` once. Returns the exit code. `early`: a request to the warm process."""
    only = only_tasks(shown.only, [str(task) for task in task_ids(spec.counts)])
    # Before there is a controller or a second thread, which would get the signals.
    blocked = hold_signals()
    try:
        run = create(home, spec)
    except OrchError:
        with contextlib.suppress(KeyboardInterrupt):  # a Ctrl-C that was held back; the error says more
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        raise
    request = request_for(run, spec)
    if (submitted := submit(run, request)) is not None:
        from . import submitted_run

        show = None if detached else _viewer(run, request, shown, only, as_json=as_json)
        return submitted_run.start(run, submitted, show, as_json=as_json)
    if detached:
        from . import detached_run  # imported only where it is needed: imports take time

        return detached_run.start(run, quiet=shown.quiet, as_json=as_json)
    started = start_ahead(request.hosts, run.agent_log, early)  # after `create`: a spec that is refused starts nothing
    import_asyncio()
    from .. import controller

    try:
        show = _viewer(run, request, shown, only, as_json=as_json)
    except OrchError:
        discard(run)
        raise
    ended = controller.run(run, request, show, handles_signals=True, started=started)
    show.end(ended)
    if isinstance(ended.error, UsageError):
        discard(run)
    if ended.error is not None:
        raise ended.error
    return ended.verdict.exit_code


def _viewer(run: RunDir, request: Request, shown: ViewOptions, only: set[str] | None, *, as_json: bool) -> JsonLines | Terminal:
    """Return what shows an attached run. Raises `OrchError`."""
    from ..record.text.log_view import LogView, wants_color
    from .viewers import JsonLines, Terminal

    if as_json:
        return JsonLines(run)
    spec = request.run.spec
    prepares = [f"{PREPARE}-{number}" for number, _ in enumerate(request.hosts)] if spec.prepare.run else []
    view = LogView(
        [*map(str, task_ids(spec.counts)), *prepares, *([f"{TENSORBOARD}-0"] if spec.tensorboard else [])],
        color=wants_color(shown.color),
        timestamps=shown.timestamps,
        fold=not shown.everything,
        shorten=not shown.everything,
        only=only,
        behind=behind_the_chief(spec.counts, named(spec.strategy)),
    )
    return Terminal(run, view, quiet=shown.quiet, verbose=shown.verbose)
