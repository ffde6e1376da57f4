"""A kind of place that somebody adds, all of it: machines that a file names, entered with a command, where nothing of orch's is installed.

The command is what `docker exec -i` or `kubectl exec -i` would be, here the script `enter` beside the file, which sets $CRATE.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator import backends
from orchestrator.backends import (
    Backend,
    Cleanup,
    Diagnosis,
    Host,
    StartFailure,
    Transport,
    Workdir,
    interpreters,
    local,
    remote_worker,
)
from orchestrator.errors import Problem
from orchestrator.model.spec import BACKENDS, BackendSpec, ClusterSpec
from worker.settings.declare import setting
from worker.values.fast_dataclass import dataclass

NAME = "crate"


@dataclass(frozen=True, slots=True)
class CrateSettings(BackendSpec):
    """The section `backend:` with `type: crate`."""

    crates: str = setting("", "The file that names the crates: a name and its slots on each line.", example="crates.txt")


def _list(spec: ClusterSpec) -> Path:
    assert isinstance(spec.backend, CrateSettings)
    return Path(spec.workdir, spec.backend.crates)


class Crate:
    """See `Backend`."""

    def problems(self, spec: ClusterSpec) -> Sequence[Problem]:
        path = _list(spec)
        return () if path.is_file() else (Problem("backend.crates", f"there is no file {path.name!r}", "name one with a crate a line"),)

    def hosts(self, spec: ClusterSpec) -> tuple[Host, ...]:
        lines = _list(spec).read_text().splitlines()
        return tuple(
            Host(name, "127.0.0.1", sees_run_dir=False, slots=int(slots), lost_after_s=20.0, is_here=False, workdir=Workdir("unchecked"))
            for name, slots in (line.split() for line in lines)
        )

    def python_for(self, spec: ClusterSpec, host: Host) -> str:
        return interpreters.find(spec, is_here=False)

    def transport(self, spec: ClusterSpec, host: Host) -> Transport:
        return remote_worker.transport(self._command(spec, host))

    def explain(self, host: Host, failure: StartFailure) -> Diagnosis:
        if failure.error is not None or failure.code == 44:
            return Diagnosis(f"the crate {host.name} is shut", "open it")
        return remote_worker.explain(host.name, failure, by="enter")

    def request(self, spec: ClusterSpec) -> Mapping[str, str]:
        return {f"enter-{host.name}.txt": shlex.join(self._command(spec, host)) + "\n" for host in self.hosts(spec)}

    def cancel(self, spec: ClusterSpec, run_id: str) -> Cleanup:
        return Cleanup(local.kill_tasks(run_id), hint="the crates were emptied")

    def _command(self, spec: ClusterSpec, host: Host) -> tuple[str, ...]:
        enter = _list(spec).parent / "enter"
        return (str(enter), host.name, *remote_worker.argv(self.python_for(spec, host)))


def make() -> Backend:
    return Crate()


def register() -> None:
    """What adding the two rows to the tables does."""
    BACKENDS[NAME] = CrateSettings
    backends.MODULES[NAME] = __name__
