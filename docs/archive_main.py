"""The program of orch.pyz: unpacks orch into the user's cache, where each file is checked each time, and becomes the command `orch` there.

The files must lie on the disk, because tasks, agents and controllers are started by their paths. Nothing of orch is imported before.
"""

import sys


def main() -> None:
    if sys.version_info < (3, 10):  # noqa: UP036 - any Python can be taken
        sys.exit(f"orch: {sys.executable} is Python {sys.version_info[0]}.{sys.version_info[1]}; orch needs 3.10 or newer")
    import signal

    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))  # until `orch` acts on it
    try:
        sys.path[0] = unpack(__loader__.get_data("files.json.xz"))  # type: ignore[name-defined]
    except (ImportError, OSError) as error:
        sys.exit(f"orch: {sys.argv[0]} cannot be unpacked: {error}")
    from orchestrator.__main__ import main as run

    run()


def unpack(packed: bytes) -> str:
    """The directory in the user's cache, or else in the one for temporary files. Raises OSError."""
    import hashlib
    import json
    import lzma  # which some Pythons lack
    from typing import Any

    files = json.loads(lzma.decompress(packed))
    entry: dict[str, Any] = {"__name__": "remote_entry"}
    exec(files["worker/host/remote_entry.py"], entry)
    name = "archive-" + hashlib.sha256(packed).hexdigest()[:16]
    base = entry["cache_directory"]()
    if base is not None:
        try:
            return str(entry["settle"](base, name, files))
        except OSError:  # a full disk, or a file system without locks
            pass
    return str(entry["settle"](temporary_directory(), name, files))


def temporary_directory() -> str:
    """A directory of this user's alone, the same for all commands. Raises OSError."""
    import os
    import stat
    import tempfile

    path = os.path.join(tempfile.gettempdir(), f"orch-{os.geteuid()}")
    os.makedirs(path, 0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(path + " is not a directory of yours that is closed to others (0700); set XDG_CACHE_HOME to one of your own")
    return path


if __name__ == "__main__":
    main()
