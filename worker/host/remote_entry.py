"""The first code on a host that orch reaches over a connection: reads worker/ from stdin and becomes the agent.

This module is sent as text, so it imports no other module of orch before worker/ is there. No more than `size` bytes may be read from
stdin, because orders follow. worker/ is kept in the user's cache, under a name made from its content, and each file is checked each time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import json
import os
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping
from typing import NoReturn

KEPT_S = 14 * 86400
"""How long an unused version stays in the cache."""
BROKEN = 97


def arrive(size: int, digest: str, name: str, mark: bytes) -> NoReturn:
    """Become the agent. `mark` comes first on stdout, for the shell of the host may have printed something before."""
    payload = _receive(size)
    if hashlib.sha256(payload).hexdigest() != digest:
        _end("what arrived is not what was sent")
    try:
        root, is_temporary = _settle(name, json.loads(zlib.decompress(payload)))
    except OSError as error:
        _end(f"worker/ cannot be kept on this host: {error}")
    os.write(1, mark)
    package = type(sys)("_orch_worker")  # as `start_agent.load`
    package.__path__ = [root]
    sys.modules[package.__name__] = package
    code = importlib.import_module("_orch_worker.host.agent").main()
    if is_temporary:
        shutil.rmtree(root, ignore_errors=True)
    sys.stderr.flush()
    os._exit(code)


def _end(message: str) -> NoReturn:
    sys.stderr.write(f"orch: {message}\n")
    sys.exit(BROKEN)


def _receive(size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            sys.exit(0)  # the controller has ended
        data += part
    return data


def _settle(name: str, files: Mapping[str, str]) -> tuple[str, bool]:
    """The directory of worker/, and whether the agent removes it at its end."""
    base = cache_directory()
    if base is not None:
        with contextlib.suppress(OSError):  # a full disk, or a file system without locks
            return settle(base, name, files), False
    root = tempfile.mkdtemp(prefix="orch-worker-")
    _keep(root, files)
    return root, True


def settle(base: str, name: str, files: Mapping[str, str]) -> str:
    """Keep the files in a directory of the cache. Raises OSError."""
    root = os.path.join(base, name)
    os.makedirs(root, mode=0o700, exist_ok=True)
    lock(root, fcntl.LOCK_SH)  # held until this process ends, and from before the files are checked
    _keep(root, files)
    os.utime(root)
    remove_old(f"{name.partition('-')[0]}-", root)
    return root


def cache_directory() -> str | None:
    """The cache directory of orch for this user; None: there is no safe one."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = os.path.join(base, "orch")
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.stat(path)
    except OSError:
        return None
    return path if os.path.isabs(path) and found.st_uid == os.geteuid() and not found.st_mode & 0o022 and os.access(path, os.W_OK) else None


def _keep(root: str, files: Mapping[str, str]) -> None:
    os.makedirs(root, mode=0o700, exist_ok=True)
    for name, text in files.items():
        path, data = os.path.join(root, name), text.encode()
        try:
            with open(path, "rb") as file:
                if file.read() == data:
                    continue
        except OSError:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        aside = f"{path}.{os.uname().nodename}.{os.getpid()}"  # hosts may share a home
        with open(aside, "wb") as file:
            file.write(data)
        os.replace(aside, path)


def lock(root: str, kind: int) -> int:
    """Lock a directory until the returned descriptor is closed. Raises OSError if it is locked already, or was just removed."""
    fd = os.open(os.path.join(root, ".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
        if os.fstat(fd).st_nlink == 0:  # `remove_unheld` came between the two lines above
            raise FileNotFoundError(f"{root} has been removed")
    except OSError:
        os.close(fd)
        raise
    return fd


def remove_unheld(root: str) -> None:
    """Remove a directory; raises OSError if it is locked.

    The directory is renamed first, so a process that comes meanwhile makes a new one, and finds no half of the old one.
    """
    fd = lock(root, fcntl.LOCK_EX)
    try:
        aside = f"{root}.old"
        os.rename(root, aside)
        shutil.rmtree(aside)
    finally:
        os.close(fd)


def remove_old(prefix: str, own: str) -> None:
    """Remove the other directories next to `own` that no one has used or held for `KEPT_S`. Their names begin with `prefix`."""
    base = os.path.dirname(own)
    for path in (os.path.join(base, name) for name in os.listdir(base) if name.startswith(prefix)):
        with contextlib.suppress(OSError):
            if path != own and os.stat(path).st_mtime < time.time() - KEPT_S:
                remove_unheld(path)
