"""The second program of a controller's pod: keeps the record of the run after the end of the controller, until somebody has fetched it.

It is sent as text. As soon as the controller has ended, however it did, the pods of the run that still dial are told that the run is over,
by the `Listener` of the orch that the controller has unpacked.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import sys

ALIVE = "alive"
LOOK_S = 0.5
LEAVING_S = 5.0
"""How long the pods are told that the run is over, at least."""


def has_ended(path: str, *, is_ending: bool) -> bool:
    """True if there was a controller, and no one holds the lock of its file any more; or if there was none, and this pod is to end."""
    try:
        with open(path, "rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return is_ending
    except OSError:
        return False
    return True


async def keep(home: str, token_file: str, port: int, keep_s: float) -> None:
    """Return when the record need not be kept any more."""
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    while not has_ended(os.path.join(home, ALIVE), is_ending=ending.is_set()):
        await asyncio.sleep(LOOK_S)
    sys.path.insert(0, os.path.join(home, "orch"))
    with contextlib.suppress(ImportError):  # a controller that has unpacked nothing has no pods either
        from orchestrator.backends.connection.listener import Listener

        with open(token_file, "rb") as file:
            listener = Listener(file.read().strip(), lambda *_: {"over": 0})
        await listener.open(port)
    await asyncio.sleep(LEAVING_S)
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(ending.wait(), keep_s)


def main(home: str, token_file: str, port: str, keep_s: str) -> None:
    asyncio.run(keep(home, token_file, int(port), float(keep_s)))


if __name__ == "__main__":
    main(*sys.argv[1:])
