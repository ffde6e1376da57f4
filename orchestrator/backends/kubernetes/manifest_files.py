"""The files of a manifest's ConfigMap: the first code of a pod, worker/, and the working directory. Equal files give equal bytes."""

from __future__ import annotations

import functools
import io
import json
import lzma
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path

import worker
from worker.host import pod_entry
from worker.values.fast_dataclass import dataclass

from ...errors import UsageError
from ...model.settings import ClusterSpec, KubernetesSettings
from ..code_sync import collect
from .manifest import MOST_BYTES, ManifestFiles

ENTRY = "start.py"
_ROOMS = ("formats", "machine", "protocol", "settings", "task", "values")
"""The rooms of worker/ that a task needs without an agent."""
_MOST_UNPACKED_MB = 100.0
"""What is packed at all: no code of this size fits after it."""


def gather(spec: ClusterSpec, settings: KubernetesSettings, runs: Path, said: list[str]) -> ManifestFiles:
    """The files; `said` gets lines about them. `runs`: the directory of the runs.

    Raises `UsageError` if the working directory cannot be read, or is far too large.
    """
    packed = {pod_entry.WORKER: _worker()}
    if not settings.code_in_image:
        limit_mb = min(settings.code_limit_mb, _MOST_UNPACKED_MB)
        code = collect(spec.workdir, limit_mb, runs=runs, needed=needed_file(spec), secrets=settings.code_secrets)
        way = "go into the ConfigMap, which everybody reads who may read ConfigMaps of the namespace"
        said += code.describe(way, "a Secret of Kubernetes, and name that in backend.secrets")
        files = (Packed(file.path, (code.root / file.path).read_bytes(), file.executable) for file in code.files)
        packed[pod_entry.CODE] = tar(files, 8 * MOST_BYTES)
    return ManifestFiles({ENTRY: Path(pod_entry.__file__).read_text(encoding="utf-8")}, packed)


@functools.lru_cache(maxsize=1)
def _worker() -> bytes:
    root = Path(worker.__file__).parent
    paths = [path for room in _ROOMS for path in sorted((root / room).rglob("*.py"))]
    paths.append(root / "__init__.py")
    texts = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    return lzma.compress(json.dumps(texts, sort_keys=True).encode(), preset=9)


@dataclass(frozen=True, slots=True)
class Packed:
    path: str
    data: bytes
    is_executable: bool = False


def needed_file(spec: ClusterSpec) -> str:
    """The path of the program's file in the working directory; empty: it has none. Raises `UsageError` if the file lies elsewhere."""
    program = spec.program
    if program.kind != "script" and not (program.kind == "command" and "/" in program.target):
        return ""
    if os.path.isabs(program.target) or os.path.normpath(program.target).startswith(".."):
        raise UsageError(f"{program.target} is not in the working directory {spec.workdir}, which is what the pods get: set workdir")
    return program.target


def tar(files: Iterable[Packed], most: int) -> bytes:
    """The files as tar.xz, without times and owners. Raises `UsageError` for far more than `most` bytes, and for a file that is gone."""
    archive = io.BytesIO()
    try:
        with tarfile.open(fileobj=archive, mode="w:xz", format=tarfile.PAX_FORMAT) as made:
            for file in sorted(files, key=lambda file: file.path):
                info = tarfile.TarInfo(file.path)
                info.size, info.mode = len(file.data), 0o755 if file.is_executable else 0o644
                made.addfile(info, io.BytesIO(file.data))
                if archive.tell() > most:
                    raise UsageError(
                        f"the working directory is far too large for the pods' files (more than {most / 1e6:.1f} MB packed). "
                        "fix: put it into the image, and write backend.code_in_image: true"
                    )
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read, and is to be sent to the pods: {error.strerror}") from None
    return archive.getvalue()
