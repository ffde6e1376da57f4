"""The orders of the controller to an agent, and the order of the agent to the first code inside a task.

Pure values. Texts may hold lone surrogates (``surrogateescape``): a path, an argument or an environment value that is not UTF-8 travels
unharmed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal

from ..settings.task_settings import TaskSettings
from ..values.codec import Between, Count, OsText, Port, Positive, Seconds, Size
from ..values.fast_dataclass import dataclass

# --- what a task is ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Program:
    kind: Literal["script", "module", "command", "function", "serve", "data_service", "tensorboard"]
    """``script``: a Python file. ``module``: as ``python -m``. ``command``: any program, looked up on the PATH of the task's environment.
    ``serve``: orch's own `tf.distribute.Server`, for a worker or ps task whose script starts none. ``data_service``: a server of tf.data;
    see `task/strategy/servers.py`. ``function``: the one of `StartTasks.call`."""
    target: OsText = ""
    """The path, the module or the program; the name of a function; empty for orch's own."""
    args: tuple[OsText, ...] = ()

    @property
    def file(self) -> str:
        """The path of a script, or of a command that is no name in PATH; else empty."""
        return self.target if self.kind == "script" or (self.kind == "command" and "/" in self.target) else ""


@dataclass(frozen=True, slots=True)
class TaskOrder:
    task: str
    attempt: Positive
    program: Program
    cwd: OsText
    log_dir: OsText
    """Relative to the run directory, or to the agent's own directory."""
    env: Mapping[OsText, OsText] = field(default_factory=dict)
    env_defaults: Mapping[OsText, OsText] = field(default_factory=dict)
    """Variables of this task; those of the host's environment are stronger, and those of `StartTasks`."""
    unset: tuple[OsText, ...] = ()
    port: Annotated[int, Between(0, 65_535)] | None = None
    """0: not chosen yet, in the plan of a dry run."""
    cluster: str | None = None
    """Which of the order's clusters goes into TF_CONFIG; None: the task gets no TF_CONFIG."""
    settings: TaskSettings = TaskSettings()


@dataclass(frozen=True, slots=True)
class BootstrapOrder:
    """The order of the agent to the first code inside a task, through an inherited file descriptor."""

    task: str
    program: Program
    tf_config: str | None
    log_dir: str
    settings: TaskSettings = TaskSettings()


# --- before the start ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TemplateOrder:
    """The imports that a host makes once for all of its tasks, and their environment."""

    preload: tuple[OsText, ...]
    tasks: Count
    """How many of the tasks that the host will get compute."""
    env: Mapping[OsText, OsText] = field(default_factory=dict)
    always: bool = False
    """Import the modules even if the program does not seem to use them."""
    note: str = ""
    """A line for the user if the host needs a template: whether it comes from a process of `orch warm`."""


@dataclass(frozen=True, slots=True)
class WorkdirState:
    program: OsText = ""
    """The program's file: relative to the directory, or absolute if it lies outside; empty: the program has no file there."""
    digest: str = ""
    """SHA-256 of that file, in hex; empty: there is none."""
    inode: int = 0
    mtime_ns: int = 0
    """Of the program's file, or of the directory. Two machines that see the same of both have one disk."""
    commit: str = ""
    """What ``git rev-parse HEAD`` prints; empty: git does not know the directory."""
    has_changes: bool = False
    """Files that git tracks differ from the commit."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first order. The agent finds the facts of its host, holds ports, and answers with `HostReady`."""

    run_id: OsText
    ports: Annotated[int, Between(0, 65_535)] = 0
    """How many ports the agent holds for the tasks."""
    port_range: tuple[Port, Port] | None = None
    """The range in which these ports must lie, both ends included; None: the kernel chooses."""
    programs: tuple[Program, ...] = ()
    """The programs of the tasks. Their mistakes on this host come back in `HostReady.problems`, before anything starts."""
    cwd: OsText = "."
    """The working directory of the tasks; checked as `programs` are."""
    shared_dir: OsText | None = None
    """The run directory, if this host sees it: the tasks' output goes there, and the agent sends `Output` without bytes."""
    run_dir: OsText = ""
    """Where the controller has the run directory; a host with a shared file system may see it there."""
    template: TemplateOrder | None = None
    """None: the tasks are not forked."""
    owner_grace_s: Seconds = 1.0
    """How long tasks may tidy up when the channel closes without a `Bye`."""
    term_grace_s: Seconds = 1.0
    """How long tasks may tidy up when the agent gets SIGTERM, as from an engine that ends its job."""
    lost_after_s: Seconds | None = None
    """Seconds of silence after which the controller counts as lost; None: a broken channel is always seen at once."""
    compare: WorkdirState | None = None
    """The state that `cwd` must have; None: nothing is compared."""
    word: str = ""
    """The word that the agent sends to other hosts that connect to its ports, until tasks start; empty: none connects."""
    search_envs: tuple[Mapping[OsText, OsText], ...] = ({},)
    """The variables of the spec that decide where a task looks for programs, and its Python for modules; each set of them once."""
    has_servers: bool = False
    """Whether the run has parameter servers."""
    has_replicas: bool = False
    """Whether several replicas may train in step, and orch may change Keras for them."""
    saves: bool = False
    """Whether Keras's `fit` must save, as the section `checkpoints` says."""
    saves_to: OsText = ""
    """The directory that the user has named for checkpoints; checked as `programs` are. Empty: none, or one that is no file system's."""
    private_network: bool = False
    """Whether the agent and its tasks get a network of their own, which nothing outside reaches."""
    escapes: bool = False
    """Whether the agent sends output without newlines, for a transport that takes time for each line."""
    secret: str = ""
    """The word by which the agent knows its controller again, which may come back after a cut of the channel; empty: a cut channel is the
    end of the controller."""


@dataclass(frozen=True, slots=True)
class CodeFile:
    path: OsText
    """Relative to the working directory, with ``/``."""
    digest: OsText
    """SHA-256 of the file's content, in hex."""
    size: Size
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Code:
    """Keep a copy of the working directory, under a name made from its content; the answer is `CodeWanted`. `Hello` comes later."""

    digest: OsText
    files: tuple[CodeFile, ...]


@dataclass(frozen=True, slots=True)
class CodePart:
    """The next piece of the file with this digest; the bytes follow the order's JSON."""

    digest: OsText
    last: bool
    """The file is complete with this piece."""


@dataclass(frozen=True, slots=True)
class Target:
    """Ports of a host, which another host tries to reach at each address of this host."""

    host: OsText
    ports: tuple[Port, ...]
    word: str
    """The text that must come over the connection."""
    addresses: tuple[OsText, ...]


@dataclass(frozen=True, slots=True)
class Try:
    """Try to reach these. The agent answers with `Tried`."""

    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class TakeGpus:
    """Hold these GPUs until the run is over, in place of all that were held before. The agent answers with `GpusTaken`."""

    alone: tuple[str, ...] = ()
    """The UUIDs of GPUs that no other run may use."""
    shared: tuple[str, ...] = ()
    """The UUIDs of GPUs that other runs may hold as shared, too."""


# --- tasks ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartTasks:
    orders: tuple[TaskOrder, ...]
    clusters: Mapping[str, str] = field(default_factory=dict)
    """The clusters of TF_CONFIG, as JSON, by the name that `TaskOrder.cluster` gives."""
    env: Mapping[OsText, OsText] = field(default_factory=dict)
    """Variables of all tasks; those of a task's own order are stronger."""
    env_defaults: Mapping[OsText, OsText] = field(default_factory=dict)
    """Variables of all tasks; those of the host's environment are stronger."""
    peers: tuple[str, ...] = ()
    """Host names that must be reached without a proxy."""
    call: str = ""
    """The packed function that the tasks run whose program is one; see `task/sent_function.py`."""
    may_restart: bool = False
    """Whether the spec lets restarts follow: then the agent keeps memory for snapshots of the training (host/snapshot_keeper.py)."""


@dataclass(frozen=True, slots=True)
class StopTasks:
    """SIGTERM to the process groups of these tasks, SIGKILL after `grace_s`. Zero: SIGKILL at once."""

    tasks: tuple[str, ...]
    grace_s: Seconds


@dataclass(frozen=True, slots=True)
class ShowStacks:
    """Have these tasks write the Python stacks of all their threads to their `stacks.txt` (SIGQUIT; see task/bootstrap.py)."""

    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """Have these tasks profile themselves with TensorFlow's profiler, all at one moment; see task/observe/profiling.py."""

    tasks: tuple[str, ...]
    id: str
    """Stands in the answers of the tasks."""
    after_s: Seconds
    """When to begin, counted from now. A task looks for requests once a second."""
    seconds: Seconds
    at_risk: bool = False
    """Also the tasks in which TensorFlow's profiler is known to crash."""


@dataclass(frozen=True, slots=True)
class SignalTasks:
    """Send a signal to the process groups of these tasks. A task that ends by the signal counts as failed, and not as stopped."""

    tasks: tuple[str, ...]
    signal: Annotated[int, Between(1, 64)]


@dataclass(frozen=True, slots=True)
class SaveTasks:
    """Have the trainings of these tasks save after one and the same step, and end with exit code 42. Answers are `TaskSaves`."""

    tasks: tuple[str, ...]
    step: Count | None = None
    """The step after which all save; None: each waits at the end of its step, and says which step this is."""


# --- orch doctor ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Examine:
    """Examine the machine (host/facts/machine_survey), or an interpreter and its TensorFlow (task/examine.py), in a process of its own."""

    what: Literal["machine", "python"]
    run_dir: OsText = ""
    """``machine``: the directory whose disk is examined; empty: the one for temporary files."""
    ports: tuple[Port, Port] | None = None
    """``machine``: the range of ports that are tried, both ends included."""
    program: OsText = ""
    """``python``: the interpreter; empty: the one that runs the agent."""
    env: Mapping[OsText, OsText] = field(default_factory=dict)
    """``python``: the variables of the spec."""
    import_s: Seconds = 120.0
    """``python``: how long the import of TensorFlow may take."""


# --- the connection ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ack:
    """The controller has stored this many bytes of `Output`: the agent may send as many more."""

    size: Size
    received: Size = 0
    """How many bytes of frames have come to the controller, since the first channel began (replay.py)."""


@dataclass(frozen=True, slots=True)
class Ping:
    """A sign of life of the controller. The agent answers with `Pong`."""

    received: Size = 0


@dataclass(frozen=True, slots=True)
class Bye:
    """No more orders. The agent ends what is left, sends the rest of the output, and exits."""

    keeps_state: bool = False
    """Another attempt follows, with other agents: the agent writes the snapshots of its tasks before it exits."""
