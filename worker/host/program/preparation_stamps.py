"""Stamps of the commands of ``prepare:`` that have succeeded on this host: empty files in the user's cache.

The name of a stamp stands for the command, its working directory, the spec's variables, and the sizes and times of the files of
`once_for` after the command has succeeded: of those that the command reads and of those that it makes. While all of them stay the same,
the command is not run again.
"""

from __future__ import annotations

import json
import os
import time

from ...data_files import matching
from ...protocol.messages import TaskOrder


class NotThereError(Exception):
    """A name or pattern of `once_for` fits no file."""


def find(order: TaskOrder) -> str:
    """When the task of this order succeeded here with its files as they are now, in words; empty: the task must run."""
    try:
        succeeded_at = os.stat(_path(order)).st_mtime
    except (OSError, NotThereError):
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(succeeded_at))


def keep(order: TaskOrder) -> str:
    """Write the stamp of a task that has succeeded. Returns why the stamp cannot be written; empty: it is written."""
    try:
        path = _path(order)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(path, "wb"):
            pass
    except NotThereError as error:
        return f"prepare.once_for names {error}, which is not there though the command has succeeded; the next run runs it again"
    except OSError as error:
        return explain_loss(error.strerror or str(error))
    return ""


def explain_loss(reason: str) -> str:
    """A note that there is no stamp of a task that has succeeded."""
    return f"cannot record that prepare succeeded ({reason}); the next run runs its command again"


def _path(order: TaskOrder) -> str:
    """The path of the order's stamp, for its files as they are now. Raises `NotThereError`; `OSError` if this user has no cache here."""
    import hashlib  # a slow import that few runs need

    from ..remote_entry import cache_directory

    if (cache := cache_directory()) is None:
        raise OSError("there is no directory for the user's cache that is the user's alone")
    words = [os.uname().nodename, os.path.realpath(order.cwd), order.program.target, *order.program.args]
    variables = sorted(item for item in order.env.items() if item[0] != "ORCH_TASK")  # a host may have another number in each run
    files: list[tuple[str, int, int]] = []
    for pattern in order.once_for or ():
        names = matching(pattern, order.cwd)
        if not names:
            raise NotThereError(repr(pattern))
        files += [(name, found.st_size, found.st_mtime_ns) for name, found in zip(names, map(os.stat, names), strict=True)]
    digest = hashlib.sha256(json.dumps([words, variables, files]).encode("ascii")).hexdigest()
    return os.path.join(cache, "prepared", digest)
