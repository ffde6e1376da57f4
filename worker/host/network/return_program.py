"""The program by which a controller comes back to an agent whose channel was cut. It is sent as text, as remote_entry.py is, and imports no
module of orch.

The program hands its own stdin, stdout and stderr to the agent, which is another process of the same user on this host. Then it has nothing
to do but to live as long as the channel: the transport takes the end of its program for the end of everything.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from typing import NoReturn


def come_back(path: str, secret: str, received: int, mark: bytes, gone: int) -> NoReturn:
    """Become the channel of the agent that listens at `path`.

    `mark` is written to stdout first. `received`: how many bytes of the agent's frames have come to the controller.
    `gone`: the exit code if there is no agent any more that waits.
    """
    with socket.socket(socket.AF_UNIX) as agent:
        try:
            agent.connect(path)
            os.write(1, mark)
            socket.send_fds(agent, [f"{secret} {received}".encode()], [0, 1, 2])
        except OSError as error:
            sys.stderr.write(f"orch: no agent waits on this host: {error.strerror}\n")
            sys.exit(gone)
        with contextlib.suppress(OSError):
            agent.recv(1)  # nothing comes but the end
    sys.exit(0)
