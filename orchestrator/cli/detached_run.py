"""`orch up -d`: a controller that goes on alone. The command returns when its tasks are started, or says why they are not."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time

import click

from ..errors import BROKEN, USAGE, OrchError
from ..model.run.cluster import Cluster
from ..record.output.lines import clean
from ..record.storage.run_directory import RunDir
from ..record.storage.run_progress import Progress
from ..record.storage.run_store import discard
from ..record.text.event_messages import OUTCOMES, headline
from ..signals import release_signals
from ..starting import start_controller

LOOK_S = 0.01
"""How often the run's events are read until its tasks are started."""


def start(run: RunDir, *, quiet: bool, as_json: bool) -> int:
    """Start the controller of a run and show what happens until its tasks are started; `quiet`: only how that ended. Returns the exit code.

    Raises `OrchError` if the run ended before. The caller holds the signals back, so that a Ctrl-C meets a controller or none.
    """
    try:
        process = start_controller(run)
    except OrchError:
        discard(run)
        raise
    try:
        release_signals()
        _follow(run, process, quiet=quiet)
    except KeyboardInterrupt:  # the controller leads its own session and has not heard the Ctrl-C
        process.send_signal(signal.SIGTERM)
        raise
    if as_json:
        click.echo(json.dumps({"run": run.run_id, "directory": str(run.path)}))
    else:
        click.echo(run.run_id)
        _say(f"started; orch logs -f {run.run_id} follows it, orch down {run.run_id} ends it")
    return 0


def _follow(run: RunDir, process: subprocess.Popen[bytes], *, quiet: bool) -> None:
    """Return once all tasks are started. Raises `OrchError` if the run ends without that."""
    progress = Progress(run)
    while True:
        code = process.poll()  # asked first: all that it has recorded is then there
        for _ in progress.advance():
            is_started = progress.cluster is not None and _are_started(progress.cluster)
            for text in [] if quiet else progress.messages:
                _say(clean(text))
            progress.messages.clear()
            if is_started:
                return
        if code is not None:
            _look_at_end(run, code)
            return
        time.sleep(LOOK_S)


def _are_started(cluster: Cluster) -> bool:
    return all(task.pid is not None for task in cluster.members)


def _look_at_end(run: RunDir, code: int) -> None:
    """Raise what has kept a run that is over from starting all of its tasks; nothing has, if it needed no more of them to succeed."""
    verdict = run.read_verdict()
    if verdict is None:
        raise OrchError(f"the controller of {run.run_id} died at once; see {run.path / 'controller.log'}")
    what = headline(verdict.cause) if verdict.cause else OUTCOMES[verdict.outcome]
    if verdict.exit_code == USAGE and run.read_plan() is None:  # it was refused
        discard(run)
    elif verdict.exit_code:
        hint = f"; orch logs {run.run_id} shows what was written" if verdict.cause and verdict.cause.code is not None else ""
        what = f"{run.run_id}: {what}{hint}"
    else:
        return
    error = OrchError(what)
    error.exit_code = code if code > 0 else BROKEN
    raise error


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the run goes on, and its id is still to be told
        click.echo(f"orch: {text}", err=True)
