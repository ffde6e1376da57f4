"""Says goodbye to an agent that outlives its channel, in the name of a controller that was killed.

Such an agent waits for its controller when the channel ends (worker/host/network/door.py). It need not wait if the controller itself has
ended: a small process on the controller's machine, which holds the channel too, learns of this from the kernel and says so.
"""

from __future__ import annotations

import functools
import os
import subprocess

from worker.protocol.replay import goodbye

_PROGRAM = r"""
read -r words
read -r end <&2
until printf '\n%s\n' "$words"; do sleep 1; done
"""
"""The words come over a pipe, because others can read arguments. Then the program waits for the end of another pipe, which the controller
alone can write to. A channel that is full is tried again; one that has ended ends this program (SIGPIPE)."""


@functools.lru_cache(maxsize=1)
def _lifeline() -> int:
    """The read end of a pipe that ends with this process: nothing is written to it."""
    return os.pipe()[0]


class Farewell:
    def __init__(self, secret: str, orders: int) -> None:
        """`orders`: the descriptor of the channel, of which the program gets a copy. Raises OSError."""
        read, write = os.pipe()
        with os.fdopen(read, "rb") as words, os.fdopen(write, "wb") as to_program:
            self._process = subprocess.Popen(
                ("/bin/sh", "-c", _PROGRAM), stdin=words, stdout=orders, stderr=_lifeline(), start_new_session=True
            )
            to_program.write(goodbye(secret).strip() + b"\n")

    def end(self) -> None:
        """The channel has ended, or is given up: nothing is said."""
        self._process.kill()
        self._process.wait()
