"""The archive of `orch report --bundle`: the page, the record and the logs of a run, for a bug report."""

from __future__ import annotations

import errno
import os
import zipfile
from pathlib import Path

from worker.protocol import task_files
from worker.values.redact import redact, redact_json

from ..record.run_directory import RunDir
from ..record.run_files import open_whole

MOST_OF_A_FILE = 4 << 20
"""Of a larger file, the archive has the beginning and the end, half of this each."""
SPEC = "spec.yaml"
"""JSON, although its name is that of YAML, of which JSON is a part."""
_LEFT_OUT = frozenset({"lock", "control", "reserve", "checkpoints", "data_service", "profile", "submission.json", "call.seal"})
_DATA = (task_files.PROFILE, task_files.VALUE)
"""Files of tasks that are no texts: a profile, and the values of a function, which run where they are read."""


def write_bundle(run: RunDir, path: Path, page: str) -> int:
    """Write the archive, in place of an older one. Returns how many values were left out as secrets (see `redact`). Raises OSError."""
    if is_device(path):
        raise OSError(errno.EINVAL, "an archive is written to a file")
    count = 0
    with open_whole(path, is_shared=True) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{run.run_id}/report.html", page.encode("utf-8", "backslashreplace"))
        for folder, folders, names in os.walk(run.path):
            if Path(folder) == run.path:
                folders[:] = [name for name in folders if name not in _LEFT_OUT]
            for name in sorted(names):
                place = Path(folder, name)
                if name in _DATA or (place.parent == run.path and name in _LEFT_OUT):
                    continue
                is_json = place.suffix in (".json", ".jsonl") or (place.parent == run.path and name == SPEC)
                text, found = (redact_json if is_json else redact)(_read(place).decode("utf-8", "backslashreplace"))
                count += found
                archive.writestr(_shown(f"{run.run_id}/{place.relative_to(run.path)}"), text.encode("utf-8", "backslashreplace"))
    return count


def write_private(path: Path, data: bytes) -> None:
    """Write a file for this user alone, in place of what was there; a device or pipe just gets the bytes. Raises OSError."""
    if is_device(path):
        path.write_bytes(data)
        return
    with open_whole(path, is_shared=True) as file:
        file.write(data)


def is_device(path: Path) -> bool:
    """True if this is no file, or the name of an open one, such as ``/dev/stdout``, which no other file must replace."""
    return (path.exists() and not path.is_file()) or str(path.absolute()).startswith(("/dev/", "/proc/"))


def _shown(name: str) -> str:
    """A name that an archive can have: of one that is not UTF-8, the bytes as digits."""
    return name.encode("utf-8", "backslashreplace").decode()


def _read(path: Path) -> bytes:
    """A regular file; without its middle, if it is large."""
    size = task_files.size(str(path))
    if size <= MOST_OF_A_FILE:
        return task_files.read(str(path), most=MOST_OF_A_FILE)
    half = MOST_OF_A_FILE // 2
    note = f"\n[... {size - MOST_OF_A_FILE} bytes are left out ...]\n".encode()
    return task_files.read(str(path), most=half) + note + task_files.read(str(path), size - half, most=half)
