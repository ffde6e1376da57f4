"""`orch up -d`: starts a controller in the background. The command returns when the tasks have started, or with the reason why not."""

from __future__ import annotations

import contextlib
import signal
import subprocess

import click

from ..control.signals import release_signals
from ..control.starting import start_controller
from ..errors import BROKEN, USAGE
from ..model.state.cluster import Phase
from ..record.follower import Follower
from ..record.run_directory import RunDir
from ..record.run_progress import Progress
from ..record.run_store import discard
from ..record.run_view import RunView
from ..record.text.event_messages import say
from ..record.text.format import json_text

POLL_S = 0.01
"""How often the files of the run are read, in seconds."""


def start(run: RunDir, *, quiet: bool, as_json: bool) -> int:
    """Starts the controller of a run, and shows its messages until the tasks have started (`quiet`: only if the run ends before).

    Returns the exit code. The caller blocks the signals, so that no Ctrl-C comes while the controller is being started.
    """
    process = start_controller(run)
    try:
        release_signals()
        code = _follow(run, process, quiet=quiet)
    except KeyboardInterrupt:  # the controller has its own session, and does not get the Ctrl-C
        process.send_signal(signal.SIGTERM)
        raise
    if code == USAGE and run.read_plan() is None:  # the run was refused
        discard(run)
    if code < 0:
        say(f"the controller of {run.run_id} was killed; its messages are in {run.path / 'controller.log'}")
    if code:
        return code if code > 0 else BROKEN
    if as_json:
        click.echo(json_text({"run": run.run_id, "directory": str(run.path)}))
    else:
        click.echo(run.run_id)
        say(f"started; orch logs -f {run.run_id} follows it, orch down {run.run_id} ends it")
    return 0


def _follow(run: RunDir, process: subprocess.Popen[bytes], *, quiet: bool) -> int:
    """Returns 0 when all tasks have started or hosts are waited for, or the code of a controller that has ended before."""
    messages, progress = Follower(run.path / "controller.log"), Progress(run)
    for _ in RunView(run, POLL_S, lambda: process.poll() is None).looks():
        code, cluster = process.returncode, progress.read()
        waits_for_hosts = cluster.phase is Phase.ALLOCATING and bool(cluster.waiting)  # an engine may let the run wait for hours
        has_started = waits_for_hosts or (bool(cluster.tasks) and all(task.pid is not None for task in cluster.members))
        if not quiet or (code and not has_started):
            with contextlib.suppress(OSError):  # as in `say`
                click.echo(b"".join(messages.read_present()), nl=False, err=True)
        if has_started:
            return 0
    return process.returncode
