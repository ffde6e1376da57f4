"""Defines what the controller's pod gets: orch itself, the spec, and the working directory, as one archive in Secrets.

Secrets, because a spec may have values that no one else should read; and no channel, so that the user who submits a run may leave while no
node has room for the pod yet. A Secret holds 1 MiB (kubernetes.io, "Secrets"), so an archive has parts.
"""

from __future__ import annotations

import functools
import io
import json
import os
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import worker
from worker.values.fast_dataclass import dataclass

from ...errors import UsageError
from ...model.settings import KubernetesSettings
from ...model.settings.parse import to_document
from .. import RunFacts
from ..code_sync import collect
from .kubectl_errors import ABOUT
from .pods import HOME

PART_BYTES = 1_000_000
MOST_PARTS = 8
"""The store of a cluster (etcd) has some gigabytes for all."""
CODE_DIR = f"{HOME}/code"


@dataclass(frozen=True, slots=True)
class Packed:
    path: str
    data: bytes
    is_executable: bool = False


def directory_of(run_id: str) -> str:
    """The directory of a run in the controller's pod."""
    return f"{HOME}/.orch/runs/{run_id}"


def pack(run: RunFacts, settings: KubernetesSettings) -> tuple[bytes, ...]:
    """The archive in parts of at most `PART_BYTES` bytes. Raises `UsageError` if the working directory cannot be read, or is too large."""
    limit = PART_BYTES * MOST_PARTS
    data = tar(_files(run, settings), limit)
    if len(data) > limit:
        raise UsageError(
            f"{run.spec.workdir} takes more than the {limit / 1e6:g} MB packed that the Secrets of a run take",
            "put it into the image (backend.code_in_image: true), name data in .gitignore, or run without -d",
            ABOUT,
        )
    return tuple(data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES))


def _files(run: RunFacts, settings: KubernetesSettings) -> Iterator[Packed]:
    there = replace(settings, kubeconfig="", context="", namespace="", kubectl=("kubectl",))  # the pod has no kubectl
    spec = replace(run.spec, workdir=run.spec.workdir if settings.code_in_image else CODE_DIR, backend=there)
    yield Packed(f".orch/runs/{run.run_id}/spec.yaml", json.dumps(to_document(spec), indent=2).encode())
    yield from _own_files()
    if not settings.code_in_image:
        runs, needed = Path(run.directory).parent.parent, run.spec.program.file
        if os.path.isabs(needed) or os.path.normpath(needed).startswith(".."):
            raise UsageError(f"{needed} is not in the working directory {run.spec.workdir}, which is what the pods get: set workdir")
        code = collect(run.spec.workdir, settings.code_limit_mb, runs=runs, needed=needed, secrets=settings.code_secrets)
        # The controller, which tells of such files elsewhere, does not see them: its messages begin with this line.
        lines = [f"orch: {line}\n" for line in code.describe("go into Secrets", "a Secret of its own, and name that in backend.secrets")]
        yield Packed(f".orch/runs/{run.run_id}/controller.log", "".join(lines).encode(errors="replace"))
        for file in code.files:
            yield Packed(f"code/{file.path}", (code.root / file.path).read_bytes(), file.executable)


@functools.lru_cache(maxsize=1)
def _own_files() -> tuple[Packed, ...]:
    root = Path(worker.__file__).parent.parent
    found = []
    for package in ("orchestrator", "worker"):
        for path in sorted((root / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                found.append(Packed(f"orch/{path.relative_to(root).as_posix()}", path.read_bytes()))
    return tuple(found)


def tar(files: Iterable[Packed], most: int) -> bytes:
    """The files as tar.xz, without times and owners; of far more than `most` bytes, the first ones. Raises `UsageError` for a file that is
    gone."""
    archive = io.BytesIO()
    try:
        with tarfile.open(fileobj=archive, mode="w:xz", format=tarfile.PAX_FORMAT) as made:
            for file in sorted(files, key=lambda file: file.path):
                info = tarfile.TarInfo(file.path)
                info.size, info.mode = len(file.data), 0o755 if file.is_executable else 0o644
                made.addfile(info, io.BytesIO(file.data))
                if archive.tell() > most:
                    break
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read, and is to be sent to the pods: {error.strerror}") from None
    return archive.getvalue()
