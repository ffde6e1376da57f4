"""`orch up -d`: starts a controller in the background. The command returns when the tasks have started, or with the reason why not."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import click

from ..errors import BROKEN, USAGE, OrchError
from ..record.storage.run_directory import RunDir
from ..record.storage.run_progress import Progress
from ..record.storage.run_store import discard
from ..record.text.event_messages import OUTCOMES, Messages, headline, say
from ..signals import release_signals
from ..starting import start_controller

POLL_S = 0.01
"""How often the events of the run are read, in seconds."""


def start(run: RunDir, *, quiet: bool, as_json: bool) -> int:
    """Starts the controller of a run, and shows the events until the tasks have started (`quiet`: only the end). Returns the exit code.

    Raises `OrchError` if the run ends before. The caller blocks the signals, so that no Ctrl-C comes while the controller is being started.
    """
    try:
        process = start_controller(run)
    except OrchError:
        discard(run)
        raise
    try:
        release_signals()
        _follow(run, process, quiet=quiet)
    except KeyboardInterrupt:  # the controller has its own session, and does not get the Ctrl-C
        process.send_signal(signal.SIGTERM)
        raise
    if as_json:
        click.echo(json.dumps({"run": run.run_id, "directory": str(run.path)}))
    else:
        click.echo(run.run_id)
        say(f"started; orch logs -f {run.run_id} follows it, orch down {run.run_id} ends it")
    return 0


def _follow(run: RunDir, process: subprocess.Popen[bytes], *, quiet: bool) -> None:
    """Returns when all tasks have started. Raises `OrchError` if the run fails before."""
    progress = Progress(run, None if quiet else Messages())
    while True:
        code = process.poll()  # before the events are read: an ended controller records no more
        for _ in progress.advance():
            if progress.cluster is not None and all(task.pid is not None for task in progress.cluster.members):
                return
        if code is not None:
            _check_verdict(run, code)
            return
        time.sleep(POLL_S)


def _check_verdict(run: RunDir, code: int) -> None:
    """Raises `OrchError` if a run that is over has failed, and removes a run that was refused."""
    verdict = run.read_verdict()
    if verdict is None:
        raise OrchError(f"the controller of {run.run_id} died at once; see {run.path / 'controller.log'}")
    what = headline(verdict.cause) if verdict.cause else OUTCOMES[verdict.outcome]
    if verdict.exit_code == USAGE and run.read_plan() is None:  # the run was refused
        discard(run)
    elif verdict.exit_code:
        hint = f"; orch logs {run.run_id} shows what was written" if verdict.cause and verdict.cause.code is not None else ""
        what = f"{run.run_id}: {what}{hint}"
    else:
        return
    error = OrchError(what)
    error.exit_code = code if code > 0 else BROKEN
    raise error
