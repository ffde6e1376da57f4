"""`orch plan --kubernetes`: gathers what a manifest is made of, and asks the cluster whether it has JobSets. Nothing is sent."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import cast

from worker.values.words import count_of

from ...model.settings import ClusterSpec, KubernetesSettings
from .. import TrainingManifest
from .kubectl import kubectl_argv
from .manifest import Form, imagine, notes, objects
from .manifest_files import gather
from .run_objects import to_text

_API = "jobsets.jobset.x-k8s.io"
_PATIENCE_S = 5
_HEAD = """\
# {name}: {tasks}, made by orch plan --kubernetes. It runs without orch:
#   kubectl apply --server-side -f FILE
"""


def make(spec: ClusterSpec, workload: str | None) -> TrainingManifest:
    """The manifest of a spec. `workload`: ``jobset`` or ``job``; None: what the cluster has. Raises `SpecError`, `UsageError`."""
    settings = cast(KubernetesSettings, spec.backend)
    said: list[str] = []
    form = cast(Form, workload or _form(settings, said))
    planned = imagine(spec, form)
    made = objects(planned, settings, gather(spec, settings, Path(spec.workdir, ".orch"), said), form)
    head = _HEAD.format(name=planned.run_id, tasks=count_of(spec.size, "task"))
    return TrainingManifest(head + to_text(made), made, (*said, *planned.notes, *notes(spec, form)))


def _form(settings: KubernetesSettings, said: list[str]) -> str:
    """Return what the cluster has. If it cannot be asked, a JobSet: the manifest may be for another one."""
    argv = kubectl_argv(settings, "api-resources", "--api-group=jobset.x-k8s.io", "--output=name")
    try:
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired):
        return "jobset"
    if done.returncode == 0 and _API not in done.stdout:
        said.append("this cluster has no JobSet (jobset.sigs.k8s.io), so these are Jobs; --workload jobset prints one all the same")
        return "job"
    return "jobset"
