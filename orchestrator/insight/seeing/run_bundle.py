"""The archive of `orch report --bundle`: the page, the record and the logs of a run, for a bug report."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from worker.protocol import task_files
from worker.values.redact import hide_secrets

from ...record.storage.run_directory import RunDir

MOST_OF_A_FILE = 4 << 20
"""Of a larger file, the archive has the beginning and the end, half of this each."""
_LEFT_OUT = frozenset({"lock", "control", "reserve", "checkpoints", "data_service", "profile"})


def write_bundle(run: RunDir, path: Path, page: str) -> None:
    """Write the archive. Texts have no secrets that a name gives away. Raises OSError."""
    with open(path, "xb", opener=private) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{run.run_id}/report.html", page.encode("utf-8", "backslashreplace"))
        for folder, folders, names in os.walk(run.path):
            if Path(folder) == run.path:
                folders[:] = [name for name in folders if name not in _LEFT_OUT]
            for name in sorted(names):
                place = Path(folder, name)
                if name == task_files.PROFILE or (place.parent == run.path and name in _LEFT_OUT):
                    continue
                text = hide_secrets(_read(place).decode("utf-8", "backslashreplace"))
                archive.writestr(f"{run.run_id}/{place.relative_to(run.path)}", text.encode("utf-8", "backslashreplace"))


def private(path: str, flags: int) -> int:
    """An opener of files that nobody else can read: a page has log lines, arguments and settings."""
    return os.open(path, flags, 0o600)


def _read(path: Path) -> bytes:
    """A regular file; without its middle, if it is large."""
    size = task_files.size(str(path))
    if size <= MOST_OF_A_FILE:
        return task_files.read(str(path), most=MOST_OF_A_FILE)
    half = MOST_OF_A_FILE // 2
    note = f"\n[... {size - MOST_OF_A_FILE} bytes are left out ...]\n".encode()
    return task_files.read(str(path), most=half) + note + task_files.read(str(path), size - half, most=half)
