"""The first program of the controller's container in a pod: unpacks what was submitted, and runs the controller. It is sent as text.

While this program lives, it holds the lock of a file in the pod's directory, by which the keeper (keeper_program.py) knows.
"""

from __future__ import annotations

import fcntl
import io
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
from typing import NoReturn

ALIVE = "alive"
LAST_BYTES = 16384
"""How much of the controller's messages becomes the output of the container."""


def unpack(files: str, home: str) -> None:
    """The parts of the archive are the files part-0 to part-7. An archive without its last part cannot be read."""
    data = b"".join(path.read_bytes() for path in sorted(pathlib.Path(files).glob("part-*")))
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:xz") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(home, filter="tar")
        else:
            archive.extractall(home)


def hold(home: str) -> None:
    """Lock the file, before others see it, until this process ends."""
    path = os.path.join(home, ALIVE)
    fd = os.open(f"{path}.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.rename(f"{path}.new", path)


def run(argv: list[str], log: str, variable: str) -> int:
    """The exit code of the controller, 128 + n for signal n. SIGTERM is passed on."""
    with open(log, "ab") as messages:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=messages, stderr=messages, env={**os.environ, variable: "1"})
    signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM))
    code = process.wait()
    return code if code >= 0 else 128 - code


def main(files: str, home: str, run_dir: str, variable: str) -> NoReturn:
    """The program. `variable` tells the controller that it is in a pod."""
    os.umask(0o077)
    hold(home)
    unpack(files, home)
    log = os.path.join(run_dir, "controller.log")
    code = run([sys.executable, os.path.join(home, "orch", "orchestrator", "controller.py"), run_dir, "--submitted"], log, variable)
    with open(log, "rb") as messages:
        messages.seek(max(0, os.path.getsize(log) - LAST_BYTES))
        os.write(2, messages.read())
    os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
