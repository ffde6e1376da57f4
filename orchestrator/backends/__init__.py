"""Places where tasks can run. A backend knows one kind of place, and no policy; docs/adding-a-backend.md says how one is added.

A backend is one module with a `make`, and its line in `MODULES`. No other module knows the name, the settings or the words of the place.
Several backends share the modules beside them: `remote_worker` brings worker/ to a host over a byte channel, `interpreters` finds the
Python of the tasks of a host.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol

from worker.values.fast_dataclass import dataclass

from ..errors import Problem, SpecError
from ..model.cause.exit_status import describe_return
from ..model.spec import ClusterSpec


@dataclass(frozen=True, slots=True)
class Workdir:
    """How a host gets the working directory of the spec."""

    way: Literal["same", "shared", "ship", "unchecked"] = "same"
    """``same``: the host is this machine. ``shared``: the host shares a disk, and compares. ``ship``: the host gets a copy. ``unchecked``:
    the host should have the directory, and does not compare."""
    limit_mb: float = 100.0
    """The most megabytes that are copied."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that a backend offers."""

    name: str
    address: str
    """The address by which other hosts reach this one; empty: `model.planning.addresses` chooses one."""
    sees_run_dir: bool
    """The host has the run directory of the controller."""
    slots: int | None = None
    """How many tasks the host takes; None: unknown. If no host of a cluster has slots, each gets equally many tasks."""
    lost_after_s: float | None = None
    """Seconds of silence after which the host is lost; None: a broken channel is always seen at once."""
    interface: str = ""
    """The network interface whose address the other hosts use; empty: any."""
    is_here: bool = True
    """The host is the machine on which orch runs."""
    workdir: Workdir = Workdir()


def slots_of(hosts: Iterable[Host]) -> dict[str, int | None]:
    """The hosts as `plan.place` takes them."""
    return {host.name: host.slots for host in hosts}


@dataclass(frozen=True, slots=True)
class Imports:
    """The imports of a run, made once for all tasks. A process of `orch warm` may have made them already."""

    preload: tuple[str, ...]
    env: Mapping[str, str]
    """The spec's variables, over those of this process."""
    cwd: str
    private_network: bool = False
    """See `Hello.private_network`."""


@dataclass(frozen=True, slots=True)
class Transport:
    """How an agent is started: a program that reads orders from stdin and writes frames to stdout."""

    argv: tuple[str, ...]
    first: bytes = b""
    """The bytes for stdin before any order."""
    mark: bytes = b""
    """The bytes on stdout before the first frame; everything before the mark is noise. Empty: stdout begins with a frame."""
    imports: Imports | None = None
    """Set if a fork of this user's warm process may be the agent, in place of the program."""


@dataclass(frozen=True, slots=True)
class StartFailure:
    """The program of a transport did not become an agent: it could not be run (`error`), or ended with `code`."""

    program: str
    code: int = 0
    said: str = ""
    """What the program wrote to stderr."""
    error: OSError | None = None

    @property
    def text(self) -> str:
        """The failure in words, for any kind of place."""
        if self.error is not None:
            return f"{self.program!r} cannot be run: {self.error.strerror or self.error}"
        last = self.said.strip().splitlines()[-1:]
        return ": ".join((f"its agent {describe_return(self.code)}", *last))


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A failure and its remedy, in words."""

    cause: str
    remedy: str = ""
    passing: bool = False
    """Another try may help."""

    @property
    def text(self) -> str:
        return f"{self.cause}; {self.remedy}" if self.remedy else self.cause


@dataclass(frozen=True, slots=True)
class Cleanup:
    """The result of `Backend.cancel`."""

    killed: int = 0
    """How many processes were killed."""
    unseen: tuple[str, ...] = ()
    """The hosts that were not examined."""
    hint: str = ""
    """For the user: how the tasks on these hosts end, and how to check this."""


class Backend(Protocol):
    """The methods of every backend."""

    def problems(self, spec: ClusterSpec) -> Sequence[Problem]:
        """The mistakes in a spec for this place that this machine can find. Called before anything starts."""
        ...

    def hosts(self, spec: ClusterSpec) -> tuple[Host, ...]:
        """The hosts for a spec without problems; tasks are placed in this order."""
        ...

    def python_for(self, spec: ClusterSpec, host: Host) -> str:
        """The interpreter of the tasks of a host: a path on this host, or a program on its PATH."""
        ...

    def transport(self, spec: ClusterSpec, host: Host) -> Transport:
        """How an agent is started on a host."""
        ...

    def explain(self, host: Host, failure: StartFailure) -> Diagnosis:
        """The cause and the remedy of a failed transport to this host."""
        ...

    def request(self, spec: ClusterSpec) -> Mapping[str, str]:
        """The commands, scripts and manifests that would be used, by file name. Starts nothing (`--dry-run` prints them)."""
        ...

    def cancel(self, spec: ClusterSpec, run_id: str) -> Cleanup:
        """End the processes that a dead controller, or a lost host, may have left of a run. May block for seconds."""
        ...


MODULES: dict[str, str] = {"local": "orchestrator.backends.local", "ssh": "orchestrator.backends.ssh"}
"""The module of each backend, by the value of `backend.type`; the module has `make`."""


def load(spec: ClusterSpec) -> Backend:
    """The backend of a spec. Only its own module is imported."""
    backend: Backend = importlib.import_module(MODULES[spec.backend.type]).make()
    return backend


def load_checked(spec: ClusterSpec) -> Backend:
    """The backend of a spec that is about to be started. Raises `SpecError` with the `problems` of the spec."""
    backend = load(spec)
    if problems := backend.problems(spec):
        raise SpecError(*problems)
    return backend
