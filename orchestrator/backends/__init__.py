"""Places where tasks can run. A backend knows one kind of place, and no policy; docs/adding.md says how one is added.

A backend is one module with a `make`, and its line in `MODULES`. No other module knows the name, the settings or the words of the place.
Several backends share the other modules of this folder: `remote_worker` brings worker/ to a host over a byte channel, `interpreters` finds
the Python of the tasks of a host.

May import: orchestrator.backends.connection, orchestrator.errors, orchestrator.model, worker, worker.host.forkserver.caller_state,
    worker.host.forkserver.warm_socket, worker.host.processes.proc_files, worker.machine, worker.protocol.
"""

from __future__ import annotations

import importlib
import shlex
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from worker.values.fast_dataclass import dataclass

from ..errors import Problem, SpecError
from ..model.cause.exit_status import describe_return
from ..model.settings import ClusterSpec

if TYPE_CHECKING:  # most runs have no engine
    from ..model.policy.submission import Submission, Word
    from .connection.agent_pipes import AgentProgram, EarlyAgent
    from .engines import Channel


@dataclass(frozen=True, slots=True)
class Workdir:
    """Tells how a host gets the working directory of the spec."""

    way: Literal["same", "shared", "ship", "unchecked"] = "same"
    """``same``: the host is this machine. ``shared``: the host shares a disk, and compares. ``ship``: the host gets a copy. ``unchecked``:
    the host should have the directory, and does not compare."""
    limit_mb: float = 100.0
    """The most megabytes that are copied."""
    secrets: bool = False
    """Also files whose names are those of secrets are copied."""


@dataclass(frozen=True, slots=True)
class Imports:
    """The imports of a run, made once for all tasks. A process of `orch warm` may have made them already."""

    preload: tuple[str, ...]
    env: Mapping[str, str]
    """The spec's variables, over those of this process."""
    cwd: str
    private_network: bool = False


@dataclass(frozen=True, slots=True)
class Transport:
    """Tells how an agent is started: a program that reads orders from stdin and writes frames to stdout."""

    argv: tuple[str, ...]
    brings_worker: bool = False
    """The program starts `remote_worker.argv` on a host without orch: worker/ is sent there first, and what comes until then is noise."""
    forwards_lines: bool = False
    """The program forwards stdout line by line, and takes time for each: the agent sends output without newlines."""
    limit_s: float = 60.0
    """How long the program may take to become an agent."""
    explains_end: bool = False
    """`Backend.explain` knows why an agent ended that had answered. It may block for seconds then, and is called in a thread."""
    returns: bool = False
    """The program may end while the host and the agent go on, as ssh over a bad line does: then the agent waits for its controller, which
    runs the program again and goes on where the channel was cut, for `Host.lost_after_s` in all. Not set: a cut channel is a lost host, and
    the agent ends at once."""
    way_back: tuple[str, ...] = ()
    """The program for every second try to return, the first included; empty: `argv`."""
    imports: Imports | None = None
    """Set if a fork of this user's warm process may be the agent, in place of the program."""
    begin: Callable[[int], AgentProgram] | None = None
    """Starts the agent in place of `argv`, where the host itself has made the connection. Gets the descriptor of a file for its stderr."""
    early: EarlyAgent | None = None
    """The agent, if it was started ahead (`agent_process.start_ahead`)."""


@dataclass(frozen=True, slots=True)
class Host:
    name: str
    address: str
    """The address by which other hosts reach this one; empty: `model.planning.addresses` chooses one."""
    sees_run_dir: bool
    slots: int | None = None
    """How many tasks the host takes; None: unknown. If no host of a cluster has slots, each gets equally many tasks."""
    lost_after_s: float | None = None
    """Seconds of silence after which the host is lost; None: a broken channel is always seen at once."""
    until: float | None = None
    """When the run has to end so that its tasks have ended before the allocation does, in seconds since the epoch; None: at no time."""
    spare_s: float = 0.0
    """How long a training may then take to save itself; the grace of the user, if that is longer."""
    interface: str = ""
    """The network interface whose address the other hosts use; empty: any."""
    is_here: bool = True
    """The host is the machine on which orch runs."""
    workdir: Workdir = Workdir()
    python: str = ""
    """The interpreter of the tasks: a path on this host, or a program on its PATH."""
    cwd: str = ""
    """The working directory there, if it differs from that of the spec."""
    transport: Transport = Transport(())
    """How the agent is started."""


def slots_of(hosts: Iterable[Host]) -> dict[str, int | None]:
    """The hosts as `plan.place` takes them."""
    return {host.name: host.slots for host in hosts}


@dataclass(frozen=True, slots=True)
class RunFacts:
    spec: ClusterSpec
    run_id: str
    directory: str
    """The directory of the run, on the machine of its controller."""


@dataclass(frozen=True, slots=True)
class Reaching:
    """Tells how the agents of a place are started, all together."""

    at_once: int = 8
    """Connections that are made at the same time."""
    tries: int = 6
    first_wait_s: float = 0.3
    """The pause after the first try. Each further pause is twice as long."""
    answer_s: float = 60.0
    """How long an agent that has started may take to send its facts."""


@dataclass(frozen=True, slots=True)
class Request:
    """Holds what a backend does for a run, as a value: `--dry-run` prints the value, and `Backend.allocate` carries the same value out."""

    run: RunFacts
    hosts: tuple[Host, ...] = ()
    """The hosts, as far as they are known before the allocation; tasks are placed in this order. An engine that chooses the hosts names
    stand-ins."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The scripts and manifests for an engine, by file name."""
    reaching: Reaching = Reaching()

    def texts(self) -> dict[str, str]:
        """Return what is printed, and kept in `request/` of the run: the files, and the command of each agent."""
        commands = {f"agent-{host.name}.txt": shlex.join(host.transport.argv) + "\n" for host in self.hosts if host.transport.argv}
        return {**self.files, **commands}


@dataclass(frozen=True, slots=True)
class StartFailure:
    """The program of a transport did not become or stay an agent: it could not be run (`error`), or ended with `code`."""

    program: str
    code: int = 0
    said: str = ""
    error: OSError | None = None
    had_answered: bool = False
    """It was an agent before. Only for a transport with `explains_end`."""

    @property
    def text(self) -> str:
        """The failure in words, for any kind of place."""
        if self.error is not None:
            return f"{self.program!r} cannot be run: {self.error.strerror or self.error}"
        last = self.said.strip().splitlines()[-1:]
        return ": ".join((f"its agent {describe_return(self.code)}", *last))


@dataclass(frozen=True, slots=True)
class Diagnosis:
    cause: str
    remedy: str = ""
    passing: bool = False
    """Another try may help."""
    is_mistake: bool = False
    """The host answers, and a setting of the spec does not fit it."""
    about: str = ""
    """The topic of `orch help`."""


@dataclass(frozen=True, slots=True)
class Cleanup:
    killed: int = 0
    """How many processes were killed."""
    unseen: tuple[str, ...] = ()
    """The hosts that were not examined."""
    hint: str = ""
    """For the user: how the tasks on these hosts end, and how to check this."""


class Engine(Protocol):
    """A place that runs the controller of a run in a job of its own: a batch system, a cluster of pods.

    `orch up` there makes the run's directory, and submits. The job runs `engines.controller_argv`. What others want to know of the run,
    they read in its directory; `ask` says whether there is a controller. Engines of one place are equal, and can be hashed.
    """

    def submit(self, request: Request) -> Submission:
        """Carry a request out (sbatch, kubectl apply). Takes seconds. Raises `OrchError`; then there is no job."""
        ...

    def ask(self, jobs: Mapping[str, Submission]) -> Mapping[str, Word]:
        """The state of many jobs, with one question. None of a job that is unknown. Raises `OrchError` if it cannot be asked now."""
        ...

    def withdraw(self, run: RunFacts, job: str) -> None:
        """End a job, whether it waits or runs (scancel, kubectl delete). Raises `OrchError`."""
        ...

    def channel(self, run: RunFacts, job: str) -> Channel | None:
        """The way to the controller of a job; None: this machine and the controller share the file system of the run's directory."""
        ...

    def forget(self, run: RunFacts, job: str) -> bool:
        """Remove what is left of the job of a run that is over and fetched. Returns whether anything was. Raises `OrchError`."""
        ...


class Backend(Protocol):
    """A kind of place where tasks can run, such as ssh: what a run asks of the place. `load` makes the backend of a spec.

    Nothing is started before `allocate`, or before `Engine.submit` where the controller is a job. docs/adding.md shows one. Most
    places have no engine, and no one else waits there for the end of a run: a backend inherits these two methods.
    """

    def problems(self, spec: ClusterSpec) -> Sequence[Problem]:
        """The mistakes in a spec for this place that this machine can find. Called before anything starts."""
        ...

    def request(self, run: RunFacts) -> Request:
        """Return what would be done for a run whose spec has no problems. Starts nothing."""
        ...

    def allocate(self, request: Request, on_waiting: Callable[[str], None]) -> AbstractAsyncContextManager[tuple[Host, ...]]:
        """Carry a request out: get the hosts of a run, and give them back at the exit, which also comes after a success.

        This may take hours; `on_waiting` gets what is waited for, in the words of the place, whenever this changes. A caller that does not
        want the hosts any more cancels the wait, which must withdraw the request. Raises `OrchError` if there will be no hosts.
        """
        ...

    def engine(self, spec: ClusterSpec) -> Engine | None:
        """The engine that runs the controller in a job; None: it is a process of this machine, or inside of such a job."""
        return None

    async def end(self, code: int) -> None:
        """The run has ended, with this exit code: tell those who wait for it. The last thing that a run asks of its place."""
        return

    def explain(self, host: Host, failure: StartFailure) -> Diagnosis:
        """The cause and the remedy of a failed transport to this host; and of an agent's end, if the transport `explains_end`.

        Such an agent may say that it is about to end: then this is called at once, and again when the agent is gone.
        """
        ...

    def cancel(self, run: RunFacts) -> Cleanup:
        """End what a dead controller, or a lost host, may have left of a run: processes, and the allocation. May block for seconds."""
        ...


class NamedHosts(Backend):
    """A place whose hosts are known from the spec: there is nothing to ask for, and nothing to give back."""

    @asynccontextmanager
    async def allocate(self, request: Request, on_waiting: Callable[[str], None]) -> AsyncIterator[tuple[Host, ...]]:
        yield request.hosts


MODULES: dict[str, str] = {
    "local": "orchestrator.backends.local",
    "ssh": "orchestrator.backends.ssh",
    "slurm": "orchestrator.backends.slurm",
    "kubernetes": "orchestrator.backends.kubernetes",
    "join": "orchestrator.backends.join",
}
"""The module of each backend, by the value of `backend.type`; the module has `make`."""


def module_of(spec: ClusterSpec) -> Any:
    """The module of the backend of a spec; no other is imported. If the backend `IS_EVERYWHERE`, it also has `serve` and `describe`."""
    return importlib.import_module(MODULES[spec.backend.type])


def load(spec: ClusterSpec) -> Backend:
    backend: Backend = module_of(spec).make()
    return backend


def load_checked(spec: ClusterSpec) -> Backend:
    """The backend of a spec that is about to be started. Raises `SpecError` with the `problems` of the spec."""
    backend = load(spec)
    if problems := backend.problems(spec):
        raise SpecError(*problems)
    return backend


def imagine(spec: ClusterSpec) -> Request:
    """The request of a run that is not started: for `orch plan` and other questions about a spec."""
    return load(spec).request(RunFacts(spec, "<run>", "<run directory>"))
