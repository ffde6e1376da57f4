"""Says goodbye to an agent that outlives its channel, in the name of a controller that was killed.

Such an agent waits for its controller when the channel ends (worker/host/connection/door.py). It need not wait if the controller itself has
ended: a small process on the controller's machine, which holds the channel too, learns of this from the kernel and says so.
"""

from __future__ import annotations

import contextlib
import os
import subprocess

from worker.protocol.replay import goodbye

_PROGRAM = """
read -r words
read -r end || until printf '\\n%s\\n' "$words"; do sleep 1; done
"""
"""The words come over a pipe, because others can read arguments. A second line comes when they need not be said any more. If neither comes,
the controller has ended. A channel that is full is tried again; one that has ended ends this program (SIGPIPE)."""


class Farewell:
    """Lives as long as a channel."""

    def __init__(self, secret: str, orders: int) -> None:
        """`orders`: the descriptor of the channel, of which the program gets a copy. Raises OSError."""
        words, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                ("/bin/sh", "-c", _PROGRAM), stdin=words, stdout=orders, stderr=subprocess.DEVNULL, start_new_session=True
            )
        except OSError:
            os.close(self._lifeline)
            raise
        finally:
            os.close(words)
        os.write(self._lifeline, goodbye(secret).strip() + b"\n")

    def end(self) -> None:
        """The channel has ended, or is given up: nothing is said."""
        with contextlib.suppress(OSError):
            os.write(self._lifeline, b"\n")
        os.close(self._lifeline)
        self._process.kill()
        self._process.wait()
