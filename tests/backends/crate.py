"""A kind of place that somebody adds, all of it: machines that an engine lends, where nothing of orch's is installed.

They are entered with a command, as with `docker exec -i` or `kubectl exec -i`: here the script `enter`, which sets $CRATE, beside the file
of the crates.
The engine is the directory of this file, in which a test writes and reads:

    queue       as long as this file is there, the hosts are waited for, and its text says why
    refusal     there will be no hosts, and its text says why
    lent        the crates that are lent, in place of those that were asked for
    until       the allocation ends so many seconds after it has begun
    engine.log  what was asked of the engine: a line for each request, and for each time that hosts were given back
With `engine: near` the controller is a job of the program in crate_engine.py, on the file system of the run; with `engine: far` it has
a file system and a network of its own.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from orchestrator import backends
from orchestrator.backends import (
    Backend,
    Cleanup,
    Diagnosis,
    Host,
    Reaching,
    Request,
    RunFacts,
    StartFailure,
    Transport,
    Workdir,
    interpreters,
    local,
    remote_worker,
)
from orchestrator.errors import OrchError, Problem
from orchestrator.model.settings import BACKENDS, BackendSpec, ClusterSpec
from tests.backends import crate_engine
from worker.settings.declare import setting
from worker.values.fast_dataclass import dataclass

NAME = "crate"


@dataclass(frozen=True, slots=True)
class CrateSettings(BackendSpec):
    crates: str = setting("", "The file that names the crates: a name and its slots on each line.", example="crates.txt")
    engine: str = setting("", "Where the engine runs the controller: near or far.", example="far", words="none")


def _list(spec: ClusterSpec) -> Path:
    assert isinstance(spec.backend, CrateSettings)
    return Path(spec.workdir, spec.backend.crates)


class Crate(Backend):
    def problems(self, spec: ClusterSpec) -> Sequence[Problem]:
        path = _list(spec)
        return () if path.is_file() else (Problem("backend.crates", f"there is no file {path.name!r}", "name one with a crate a line"),)

    def request(self, run: RunFacts) -> Request:
        crates = _list(run.spec).read_text()
        order = f"run: {run.run_id}\ndirectory: {run.directory}\n{crates}"
        job = crate_engine.order(run, _list(run.spec).parent, _engine(run.spec)) if _engine(run.spec) else {}
        return Request(run, _hosts(run.spec, crates), {"order.txt": order, **job}, Reaching(at_once=2))

    @asynccontextmanager
    async def allocate(self, request: Request, on_waiting: Callable[[str], None]) -> AsyncIterator[tuple[Host, ...]]:
        engine = _list(request.run.spec).parent
        said = ""
        try:
            _log(engine, "asked for", request.files["order.txt"])
            while (engine / "queue").exists():
                if (text := (engine / "queue").read_text()) not in ("", said):
                    on_waiting(said := text)
                await asyncio.sleep(0.05)
            if (engine / "refusal").exists():
                raise OrchError((engine / "refusal").read_text())
            lent = engine / "lent"
            hosts = _hosts(request.run.spec, lent.read_text()) if lent.exists() else request.hosts
            if (engine / "until").exists():
                until = time.time() + float((engine / "until").read_text())
                hosts = tuple(replace(host, until=until) for host in hosts)
            yield hosts
        finally:
            _log(engine, "given back", request.run.run_id)

    def engine(self, spec: ClusterSpec) -> crate_engine.CrateEngine | None:
        where = _engine(spec)
        return crate_engine.CrateEngine(_list(spec).parent, where == "far") if where and crate_engine.JOB not in os.environ else None

    def explain(self, host: Host, failure: StartFailure) -> Diagnosis:
        if failure.error is not None or failure.code == 44:
            return Diagnosis(f"the crate {host.name} is shut", "open it")
        return remote_worker.explain(host.name, failure, by="enter")

    def cancel(self, run: RunFacts) -> Cleanup:
        _log(_list(run.spec).parent, "cancelled", run.run_id)
        return Cleanup(local.kill_tasks(run.run_id), hint="the crates were emptied")


def _engine(spec: ClusterSpec) -> str:
    assert isinstance(spec.backend, CrateSettings)
    return spec.backend.engine


def _hosts(spec: ClusterSpec, crates: str) -> tuple[Host, ...]:
    return tuple(_host(spec, *line.split()) for line in crates.splitlines())


def _host(spec: ClusterSpec, name: str, slots: str) -> Host:
    python = interpreters.find(spec, is_here=False)
    transport = Transport((str(_list(spec).parent / "enter"), name, *remote_worker.argv(python)), brings_worker=True)
    found = Host(name, "127.0.0.1", sees_run_dir=False, slots=int(slots), lost_after_s=20.0, is_here=False, workdir=Workdir("unchecked"))
    return replace(found, python=python, transport=transport)


def _log(engine: Path, what: str, order: str) -> None:
    with open(engine / "engine.log", "a") as log:
        log.write(f"{what} {order.splitlines()[0]}\n")


def make() -> Backend:
    return Crate()


def register() -> None:
    """What adding the two rows to the tables does."""
    BACKENDS[NAME] = CrateSettings
    backends.MODULES[NAME] = __name__
