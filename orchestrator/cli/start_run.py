"""`orch up` with a spec: makes the run's directory, runs the run or starts its controller, and shows the run."""

from __future__ import annotations

import contextlib
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from worker.host.forkserver.warm_socket import EarlyRequest
from worker.protocol.task_id import PREPARE, TENSORBOARD

from .. import import_asyncio
from ..backends.connection.agent_process import start_ahead
from ..control.signals import hold_signals
from ..control.starting import RunStart, again, create, submit
from ..errors import OrchError, UsageError
from ..model.settings import ClusterSpec
from ..model.slots import behind_the_chief, task_ids
from ..model.strategies import named
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
        begun, former = again(home, spec) or (create(home, spec), None)
    except OrchError:
        with contextlib.suppress(KeyboardInterrupt):  # a Ctrl-C that was held back; the error says more
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        raise
    if (submitted := submit(begun)) is not None:
        from . import submitted_run

        show = None if detached else _viewer(begun, shown, only, as_json=as_json)
        return submitted_run.start(begun.run, submitted, show, as_json=as_json)
    if detached:
        from . import detached_run  # imported only where it is needed: imports take time

        return detached_run.start(begun.run, quiet=shown.quiet, as_json=as_json)
    # After `create`: a spec that is refused starts nothing.
    begun = replace(begun, request=start_ahead(begun.request, begun.run.agent_log, early))
    import_asyncio()
    from .. import controller

    try:
        show = _viewer(begun, shown, only, as_json=as_json)
    except OrchError:
        discard(begun.run)
        raise
    ended = controller.run(begun, show, handles_signals=True, former=former)
    show.end(ended)
    if isinstance(ended.error, UsageError):
        discard(begun.run)
    if ended.error is not None:
        raise ended.error
    return spec.backend.exit_code(ended.verdict.exit_code)


def _viewer(begun: RunStart, shown: ViewOptions, only: set[str] | None, *, as_json: bool) -> JsonLines | Terminal:
    from ..record.text.log_view import LogView, wants_color
    from .viewers import JsonLines, Terminal

    if as_json:
        return JsonLines(begun.run)
    spec = begun.spec
    prepares = [f"{PREPARE}-{number}" for number, _ in enumerate(begun.request.hosts)] if spec.prepare.run else []
    view = LogView(
        [*map(str, task_ids(spec.counts)), *prepares, *([f"{TENSORBOARD}-0"] if spec.tensorboard else [])],
        color=wants_color(shown.color),
        timestamps=shown.timestamps,
        fold=not shown.everything,
        shorten=not shown.everything,
        only=only,
        behind=behind_the_chief(spec.counts, named(spec.strategy)),
    )
    return Terminal(begun.run, view, quiet=shown.quiet)
