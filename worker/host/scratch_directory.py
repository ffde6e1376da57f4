"""A directory of an agent's own, on a host that does not see the run directory: the tasks' output waits there to be sent.

It goes when its agent ends. One whose agent was killed goes when the next agent comes: a lock says whether anybody is left.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile

from .remote_entry import lock, remove_unheld

_PREFIX = "orch-agent-"
_locks: list[int] = []


def make() -> str:
    """A new directory, after taking away those of the dead. Raises OSError."""
    for path in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), f"{_PREFIX}*")):
        with contextlib.suppress(OSError):  # somebody else's, or alive
            if os.stat(path).st_uid == os.geteuid() and os.path.exists(os.path.join(path, ".lock")):
                remove_unheld(path)
    aside = tempfile.mkdtemp(prefix="orch-new-")
    path = os.path.join(os.path.dirname(aside), _PREFIX + os.path.basename(aside).removeprefix("orch-new-"))
    try:
        _locks.append(lock(aside, fcntl.LOCK_EX))  # held until this process ends, and before others would look
        os.rename(aside, path)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return path
