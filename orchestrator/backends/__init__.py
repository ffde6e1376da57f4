"""Places where tasks can run. A backend knows one kind of place, and no policy; docs/backends.md says how one is added.

A backend is one module with a `make`, and its line in `MODULES`. Nothing outside of that module knows the place's name, its settings
or its words. What several backends need is beside them: `remote_worker` brings worker/ to a host over a byte channel, `interpreters`
finds the Python of a host's tasks.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from worker.fast_dataclass import dataclass

from ..errors import Problem, SpecError
from ..model.cause.exit_status import describe_return
from ..model.spec import ClusterSpec


@dataclass(frozen=True, slots=True)
class Workdir:
    """How a host gets at the spec's working directory.

    ``same``: it is this machine's own · ``shared``: it should be there, and is compared · ``ship``: the host gets a copy · ``unchecked``:
    it should be there, and nobody looks.
    """

    way: Literal["same", "shared", "ship", "unchecked"] = "same"
    limit_mb: float = 100.0
    """The most that is copied, in megabytes."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that a backend offers."""

    name: str
    address: str
    """How the other hosts reach it; empty: to be found out (see `model.planning.addresses`)."""
    sees_run_dir: bool
    """It has the controller's run directory."""
    slots: int | None = None
    """How many tasks it takes; None: the place does not say. If no host of a cluster has slots, the tasks are shared out evenly."""
    lost_after_s: float | None = None
    """Seconds of silence after which the host is lost; None: its channel cannot break without a word."""
    interface: str = ""
    """The network interface whose address the other hosts are to use."""
    is_here: bool = True
    """It is the machine that orch runs on."""
    workdir: Workdir = Workdir()


def slots_of(hosts: Iterable[Host]) -> dict[str, int | None]:
    """What `plan.place` wants to know of hosts."""
    return {host.name: host.slots for host in hosts}


@dataclass(frozen=True, slots=True)
class Imports:
    """What the tasks of a run import before they start. A process that has done so already may be there (`orch warm`)."""

    preload: tuple[str, ...]
    env: Mapping[str, str]
    """The spec's variables, over those of this process."""
    cwd: str


@dataclass(frozen=True, slots=True)
class Transport:
    """How an agent is started: a program whose stdin takes orders and whose stdout gives frames."""

    argv: tuple[str, ...]
    first: bytes = b""
    """What goes to the program's stdin before any order."""
    mark: bytes = b""
    """What comes from its stdout before its first frame; all before the mark is noise. Empty: the first byte is a frame's."""
    imports: Imports | None = None
    """Set if a fork of this user's warm process may be the agent, in place of the program."""


@dataclass(frozen=True, slots=True)
class StartFailure:
    """A transport's program that did not become an agent: it could not be run (`error`), or it ended with `code`."""

    program: str
    code: int = 0
    said: str = ""
    """What it wrote on stderr."""
    error: OSError | None = None

    @property
    def text(self) -> str:
        """The failure in words, as far as it can be told anywhere."""
        if self.error is not None:
            return f"{self.program!r} cannot be run: {self.error.strerror or self.error}"
        last = self.said.strip().splitlines()[-1:]
        return ": ".join((f"its agent {describe_return(self.code)}", *last))


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What went wrong and what to do about it, in words. `passing`: another try may help."""

    cause: str
    remedy: str = ""
    passing: bool = False

    @property
    def text(self) -> str:
        return f"{self.cause}; {self.remedy}" if self.remedy else self.cause


@dataclass(frozen=True, slots=True)
class Cleanup:
    """What `Backend.cancel` has done about a run whose controller is gone."""

    killed: int = 0
    """How many processes it has ended."""
    unseen: tuple[str, ...] = ()
    """The hosts that it could not look at."""
    hint: str = ""
    """For the user: what becomes of what is left on those, and how to make sure."""


class Backend(Protocol):
    """What every kind of place answers."""

    def problems(self, spec: ClusterSpec) -> Sequence[Problem]:
        """What is wrong with a spec for this place, as far as this machine can tell. Asked before anything starts."""
        ...

    def hosts(self, spec: ClusterSpec) -> tuple[Host, ...]:
        """The hosts that there are for a spec without problems, with their slots; tasks are placed in this order."""
        ...

    def python_for(self, spec: ClusterSpec, host: Host) -> str:
        """The interpreter of a host's agent and tasks: a path there, or a word for its PATH."""
        ...

    def transport(self, spec: ClusterSpec, host: Host) -> Transport:
        """How an agent is started on a host."""
        ...

    def explain(self, host: Host, failure: StartFailure) -> Diagnosis:
        """What it means that a transport has failed here, and what to do."""
        ...

    def request(self, spec: ClusterSpec) -> Mapping[str, str]:
        """File names and texts of what would be run: commands, scripts, manifests. Starts nothing (`--dry-run` prints it)."""
        ...

    def cancel(self, spec: ClusterSpec, run_id: str) -> Cleanup:
        """End what a dead controller, or a lost host, may have left of a run. May block for seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Submission:
    """A run whose controller was started elsewhere: a job of a scheduler, a pod."""

    id: str
    """The place's own name for it, such as a job's number."""
    follow: tuple[str, ...] = ()
    """A command whose stdout is the run's output as it comes, and which ends with the run. Empty: this machine sees the run directory,
    which is followed as any other run's."""
    cancel: tuple[str, ...] = ()
    """A command that ends the run, whatever state it is in. Empty: `orch down` asks the controller."""


@runtime_checkable
class Submitting(Protocol):
    """What a backend answers besides, if its controller may have to run elsewhere than `orch up`: on a login node, on a laptop."""

    def must_submit(self, spec: ClusterSpec) -> bool:
        """Whether the controller has to be started elsewhere; False where `orch up` is in the right place already, such as within an
        allocation."""
        ...

    def submit(self, spec: ClusterSpec, run_dir: Path) -> Submission:
        """Have the controller of `run_dir`, in which the spec lies, started (``python -m orchestrator.controller RUN_DIR``). Does not
        wait for its start. Raises `OrchError` if the place refuses."""
        ...


MODULES: dict[str, str] = {"local": "orchestrator.backends.local", "ssh": "orchestrator.backends.ssh"}
"""The backends by the name that `backend.type` gives them: the module that has `make`."""


def load(spec: ClusterSpec) -> Backend:
    """The backend of a spec, imported only now: a local run needs no cluster's tools."""
    backend: Backend = importlib.import_module(MODULES[spec.backend.type]).make()
    return backend


def load_checked(spec: ClusterSpec) -> Backend:
    """The same, for whoever is about to start something. Raises `SpecError` with the spec's `problems` for the place."""
    backend = load(spec)
    if problems := backend.problems(spec):
        raise SpecError(*problems)
    return backend
