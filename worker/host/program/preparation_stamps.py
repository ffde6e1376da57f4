"""Stamps of the commands of ``prepare:`` that have succeeded on this host, for each command and directory, in the user's cache.

A stamp holds the sizes and times of the files of `once_for` after the command has succeeded: of those that the command reads and of those
that it makes. While they stay the same, the command is not run again. Another command, another working directory and other variables of
the spec have stamps of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import time

from ...data_files import matching
from ...protocol.messages import TaskOrder


class NotThereError(Exception):
    """A name or pattern of `once_for` fits no file."""


def find(order: TaskOrder) -> str:
    """When the task of this order succeeded here with its files as they are now, in words; empty: the task must run."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, NotThereError):
        path = _path(order)
        with open(path, encoding="ascii") as file:
            kept = json.load(file)
        if kept["files"] == _describe_files(order):
            return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(os.stat(path).st_mtime))
    return ""


def keep(order: TaskOrder) -> str:
    """Write the stamp of a task that has succeeded. Returns why the stamp cannot be written; empty: it is written."""
    path = ""
    try:
        path = _path(order)
        text = json.dumps({"files": _describe_files(order)})
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        aside = f"{path}.{os.uname().nodename}.{os.getpid()}"
        with open(aside, "w", encoding="ascii") as file:
            file.write(text)
        os.replace(aside, path)
    except NotThereError as error:
        with contextlib.suppress(OSError):
            os.unlink(path)
        return f"prepare.once_for names {error}, which is not there though the command has succeeded; the next run runs it again"
    except OSError as error:
        return f"that the command of prepare has succeeded cannot be noted ({error.strerror or error}); the next run runs it again"
    return ""


def _path(order: TaskOrder) -> str:
    """Where the order's stamp is kept. Raises `OSError` if this user has no cache here."""
    import hashlib  # a slow import that few runs need

    from ..remote_entry import cache_directory

    if (cache := cache_directory()) is None:
        raise OSError("there is no directory for the user's cache that is the user's alone")
    words = [os.uname().nodename, os.path.realpath(order.cwd), order.program.target, *order.program.args, *(order.once_for or ())]
    variables = sorted(item for item in order.env.items() if item[0] != "ORCH_TASK")  # a host may have another number in each run
    digest = hashlib.sha256(json.dumps([words, variables]).encode("ascii")).hexdigest()
    return os.path.join(cache, "prepared", digest)


def _describe_files(order: TaskOrder) -> list[list[str | int]]:
    """Name, size and time of the last change (ns) of every file. Raises `NotThereError`, `OSError`."""
    found: list[list[str | int]] = []
    for pattern in order.once_for or ():
        names = matching(pattern, order.cwd)
        if not names:
            raise NotThereError(repr(pattern))
        found += [[json.dumps(name), stat.st_size, stat.st_mtime_ns] for name, stat in zip(names, map(os.stat, names), strict=True)]
    return found
