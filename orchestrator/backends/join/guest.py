"""The command on a node that does not take the run: it dials node 0, starts agents for it, and ends with the run's exit code."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from typing import Any

from worker.host.network.dialler import Dialler

from ... import __version__
from ...errors import BROKEN, OrchError
from ...model.joining import Seat
from ...model.settings import ClusterSpec, JoinSettings
from .. import interpreters
from .meeting import TELL_S, meet

AFTER_S = 10.0
"""How long node 0 may be gone before the run is taken for lost."""


def serve(spec: ClusterSpec, settings: JoinSettings, seat: Seat, home: str) -> int:
    """The exit code of the run. Raises `OrchError` if there is none: node 0 does not come, or is gone, or refuses this node."""
    meeting = meet(settings, home, say)
    node = f"w{os.urandom(8).hex()}" if seat.local_rank else str(settings.node_index)
    facts: dict[str, Any] = {
        "address": "",
        "name": socket.gethostname(),
        "session": os.urandom(8).hex(),
        "version": __version__,
        "nodes": settings.nodes,
        "job": settings.job,
        "attempt": seat.attempt,
        "slots": settings.slots,
        "python": interpreters.find(spec),
        "cwd": spec.workdir,
        "waits": bool(seat.local_rank),
    }
    who = "a further process of this node waits for the end of the run" if seat.local_rank else f"node {node} of {settings.nodes}"
    say(f"{who}{f' ({seat.engine})' if seat.engine else ''}; the nodes meet {meeting.words}")

    def find() -> tuple[list[tuple[str, int]], bytes]:
        ticket = meeting.find()
        return [(host, ticket.port) for host in ticket.hosts], ticket.secret.encode()

    began = time.monotonic()
    dialler = Dialler(find, node, facts, settings.wait_s, AFTER_S, ends_run=True, say=say, say_s=TELL_S)
    signal.signal(signal.SIGINT, signal.getsignal(signal.SIGTERM))
    dialler.run()
    if dialler.over is not None and not dialler.is_refused:
        say(f"the run has ended with exit code {dialler.over}")
        return dialler.over
    if dialler.is_refused:
        error = OrchError(f"node 0 refuses this node: {dialler.trouble}")
        error.exit_code = dialler.over or BROKEN
        raise error
    if dialler.got_signal:
        return 128 + signal.SIGTERM
    if dialler.has_reached:
        raise OrchError(f"node 0 is gone: {dialler.trouble or 'its connection has ended'}; the run is lost")
    raise OrchError(f"node 0 was not reached in {time.monotonic() - began:.0f} s (wait_s): {dialler.trouble}")


def say(text: str) -> None:
    print(f"orch: {text}", file=sys.stderr, flush=True)
