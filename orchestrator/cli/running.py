"""What `orch up` does once it knows its spec: make the run's directory, supervise, show, and say how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from worker.clock import now

from ..backends import load
from ..errors import OrchError, UsageError
from ..model.cluster import Cluster, Verdict
from ..model.slots import task_ids
from ..model.spec import ClusterSpec
from ..model.spec.to_document import to_document
from ..record import timeline
from ..record.console import Sink
from ..record.home import RunExists, create_run, discard
from ..record.logs import LogView, wants_color
from ..record.rundir import RunDir
from ..signals import hold_signals, release_signals, watch_children_without_threads
from ..supervisor import Supervisor, verdict_of_error
from . import detach
from .shows import Ended, JsonLines, Show, Terminal
from .views import only_tasks

DRAWS = 10
"""How often an id that is taken is drawn again: of one name there are 65,536 a second."""


def start(home: Path, spec: ClusterSpec, shown: Mapping[str, Any], *, detached: bool, as_json: bool) -> int:
    """Run `spec` once. `shown`: the options of `views.view_options`. Returns the exit code."""
    view = _log_view(spec, shown)
    # Before this process is the run's controller, and before a thread is there that shows something: it would take them.
    blocked = hold_signals()
    try:
        run = _create(home, spec)
    except OrchError:
        with contextlib.suppress(KeyboardInterrupt):  # one that was held back; the error says more
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        raise
    show: Show
    if detached:
        answer = detach.fork(run, quiet=shown["quiet"])
        if isinstance(answer, dict):
            return _print_answer(answer, run, as_json)
        show = answer
    if as_json and not detached:
        show = JsonLines(Sink())
    elif not detached:
        sink = Sink(encoding=sys.stdout.encoding)
        show = Terminal(run, sink, None if shown["quiet"] else view, quiet=shown["quiet"], verbose=shown["verbose"])
    return _run(run, spec, show)


def _create(home: Path, spec: ClusterSpec) -> RunDir:
    run = _draw(home, spec.name)
    try:
        run.lock.take()  # before anything else: a run without a controller is taken for lost
        # JSON is YAML too, and carries texts that are not UTF-8.
        run.write_spec(json.dumps(to_document(spec), indent=2) + "\n")
        for name, text in load(spec.backend.type).request(spec).items():
            run.write(f"request/{name}", text)
    except (OrchError, OSError) as error:
        discard(run)
        raise (error if isinstance(error, OrchError) else _cannot_keep(run, error)) from None
    return run


def _draw(home: Path, name: str) -> RunDir:
    """A new run under an id that no other has."""
    for _ in range(DRAWS):
        with contextlib.suppress(RunExists):
            return create_run(home, _new_id(name))
    return create_run(home, _new_id(name))


def _new_id(name: str) -> str:
    # A run is also found by its id in the environment of its processes, on hosts that many runs share.
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"


def _cannot_keep(run: RunDir, error: OSError) -> OrchError:
    reason = error.strerror or error
    return OrchError(f"cannot keep a run in {run.path}: {reason}; make room, or name another directory with --run-dir or ORCH_HOME")


def _run(run: RunDir, spec: ClusterSpec, show: Show) -> int:
    """Supervise the run to its end and say how it ended. Returns the exit code."""
    try:
        run.lock.sign()
    except OSError as error:
        refused = _cannot_keep(run, error)
        discard(run)
        _refuse(show, refused)
        raise refused from None
    supervisor = Supervisor(spec, load(spec.backend.type), run, show)
    started_at = now()
    watch_children_without_threads()
    try:
        verdict = asyncio.run(supervisor.run())
    except UsageError as error:
        discard(run)
        _refuse(show, error)
        raise
    except (OrchError, OSError) as error:
        broken = error if isinstance(error, OrchError) else _cannot_keep(run, error)
        verdict = verdict_of_error(broken, started_at)
        _write_verdict(run, verdict, supervisor.cluster)
        _refuse(show, broken, Ended(run, supervisor.cluster, verdict))
        raise broken from None
    _write_verdict(run, verdict, supervisor.cluster)
    run.lock.release()  # `orch wait` and `ps` need not wait for our console
    with contextlib.suppress(KeyboardInterrupt):  # whoever cannot be told any more still gets the exit code
        show.end(Ended(run, supervisor.cluster, verdict))
    return verdict.exit_code


def _refuse(show: Show, error: OrchError, given_up: Ended | None = None) -> None:
    with contextlib.suppress(KeyboardInterrupt):  # one that was held back; the error says more
        release_signals()
    show.refuse(error, given_up)


def _write_verdict(run: RunDir, verdict: Verdict, cluster: Cluster | None) -> None:
    try:
        durations = {} if cluster is None else timeline.durations(timeline.measure(run.read_events(), cluster))
        run.write_verdict(verdict, {"run": run.run_id, "durations": durations})
    except OSError as error:
        click.echo(f"orch: the verdict cannot be written to {run.path}: {error.strerror or error}", err=True)


def _log_view(spec: ClusterSpec, given: Mapping[str, Any]) -> LogView:
    tasks = [str(task) for task in task_ids(spec.counts)]
    return LogView(
        tasks,
        color=wants_color(given["color"], sys.stdout.isatty(), os.environ),
        timestamps=given["timestamps"],
        fold=not given["everything"],
        only=only_tasks(given["only"], tasks),
    )


def _print_answer(answer: Mapping[str, Any], run: RunDir, as_json: bool) -> int:
    if "error" in answer:
        raise _as_error(answer)
    if as_json:
        click.echo(json.dumps({"run": run.run_id, "directory": str(run.path)}))
    else:
        click.echo(run.run_id)
        click.echo(f"orch: started; orch logs -f {run.run_id} follows it, orch down {run.run_id} ends it", err=True)
    return 0


def _as_error(answer: Mapping[str, Any]) -> OrchError:
    error = OrchError(answer["error"])
    error.exit_code = answer["code"]
    return error
