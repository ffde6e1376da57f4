"""The words that cross a channel: what the controller orders, what an agent answers, what a task is told.

Pure values and nothing else: no I/O, no clock, no environment. Both sides import this module, so it lives with the side that has to stay
small and shippable. `channel.py` puts these values on a wire.

Times are seconds since the epoch, by the clock of the agent that sends them (`clock.py`). The controller's end of the connection moves them
to its own clock. Texts may hold lone surrogates (``surrogateescape``): a path, an argument or an environment value that is
not UTF-8 travels unharmed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal, get_args

from ..fast_dataclass import dataclass
from ..settings.collective_settings import CollectiveSettings as CollectiveSettings
from ..settings.device_settings import DeviceSettings as DeviceSettings
from ..settings.device_settings import Gpu as Gpu
from ..settings.device_settings import GpuHolder as GpuHolder
from ..settings.device_settings import GpusTaken as GpusTaken
from ..settings.device_settings import TakeGpus as TakeGpus
from ..settings.task_settings import TaskSettings as TaskSettings
from ..words import few as few
from .code_manifest import Code as Code
from .code_manifest import CodeFile as CodeFile
from .code_manifest import CodePart as CodePart
from .code_manifest import CodeWanted as CodeWanted
from .code_manifest import WorkdirState as WorkdirState
from .codec import Between, Count, Moment, OsText, Port, Positive
from .codec import ContractError as ContractError
from .codec import ExitCode as ExitCode
from .codec import Seconds as Seconds
from .codec import Size as Size
from .codec import from_json as from_json
from .codec import to_json as to_json
from .questions import Examine as Examine
from .questions import ProgramEnded as ProgramEnded
from .reachability import NetAddress as NetAddress
from .reachability import Ping as Ping
from .reachability import Pong as Pong
from .reachability import Reached as Reached
from .reachability import Target as Target
from .reachability import Tried as Tried
from .reachability import Try as Try
from .task_id import DATA_SERVICE as DATA_SERVICE
from .task_id import PREPARE as PREPARE
from .task_id import STACKS as STACKS
from .task_id import STREAMS as STREAMS
from .task_id import TASK_TYPES as TASK_TYPES
from .task_id import TaskId as TaskId
from .task_id import file_of as file_of

PROTOCOL = 5
"""Version of the frames below. Both ends must agree; `channel.Decoder` refuses another one."""

# --- tasks -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Program:
    """What a task runs.

    `kind`: ``script`` (a Python file), ``module`` (as ``python -m``), ``command`` (any program, looked up on the PATH of the task's own
    environment), ``serve`` (orch's own `tf.distribute.Server`, for a worker or ps task whose script starts none) or ``data_service`` (a
    server of the tf.data service; see `task/strategy/data_service_server.py`). `target` is the path, the module or the program; empty for
    orch's own.
    """

    kind: Literal["script", "module", "command", "serve", "data_service"]
    target: OsText = ""
    args: tuple[OsText, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskOrder:
    """One task to be started on one host. `log_dir` is relative to the run directory, or to the agent's own.

    `cores` (k, n): the task is tied to the k-th, from 0 on, of n parts of the host's cores; None: to none.
    """

    task: str
    attempt: Positive
    program: Program
    cwd: OsText
    log_dir: OsText
    env: Mapping[OsText, OsText] = field(default_factory=dict)
    unset: tuple[OsText, ...] = ()
    port: Port | None = None
    cluster: str | None = None
    """Which of the order's clusters goes into TF_CONFIG; None: the task gets no TF_CONFIG."""
    settings: TaskSettings = TaskSettings()
    cores: tuple[Count, Positive] | None = None
    once_for: tuple[OsText, ...] | None = None
    """Skip the task if it has succeeded here before and these files are what they were then; None: never.
    See host/program/preparation_stamps.py."""


@dataclass(frozen=True, slots=True)
class BootstrapOrder:
    """What the agent tells the first code inside a task, through an inherited file descriptor."""

    task: str
    program: Program
    tf_config: str | None
    log_dir: str
    settings: TaskSettings = TaskSettings()


# --- orders: controller -> agent ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TemplateOrder:
    """What to import once on a host for all of its tasks, and under which environment.

    `always`: even if the program does not seem to use it. `tasks`: how many of those that the host will get compute.
    """

    preload: tuple[OsText, ...]
    tasks: Count
    env: Mapping[OsText, OsText] = field(default_factory=dict)
    always: bool = False
    note: str = ""
    """A line for the user if the host needs a template: whether it comes from a process of `orch warm`."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first order. The agent looks around, holds `ports` ports, and answers with `HostReady`.

    `programs` and `cwd` are looked at on the host, before anything starts, and what is wrong with
    them comes back in `HostReady.problems`. `shared_dir`: the run directory, if this host sees it; the
    agent then writes the tasks' output there itself and sends `Grew` instead of `Output`.
    """

    run_id: OsText
    ports: Annotated[int, Between(0, 65_535)] = 0
    port_range: tuple[Port, Port] | None = None
    programs: tuple[Program, ...] = ()
    cwd: OsText = "."
    shared_dir: OsText | None = None
    run_dir: OsText = ""
    """Where the controller has the run directory; a host with a shared file system may see it there."""
    template: TemplateOrder | None = None
    owner_grace_s: Seconds = 1.0
    """How long tasks may tidy up when the channel closes without a `Bye`."""
    lost_after_s: Seconds | None = None
    """Seconds of silence after which the controller counts as gone; None: its channel cannot break without a word."""
    compare: WorkdirState | None = None
    """What `cwd` must be like; None: nothing is compared."""
    word: str = ""
    """What to say to other hosts that try the first of the ports, until tasks start; empty: nobody will."""
    search_envs: tuple[Mapping[OsText, OsText], ...] = ({},)
    """What of the spec's variables decides where a task looks for programs, and its Python for modules; each set of them once."""
    no_fit_under: str = ""
    """The class of the run's strategy, if `Model.fit` of Keras 3 cannot work under it."""


@dataclass(frozen=True, slots=True)
class StartTasks:
    """Start these tasks.

    `clusters`: JSON texts by name, shared by the orders. `env` is under each order's own, `env_defaults` under
    what the host's environment says. `peers`: host names that must be reached without a proxy.
    """

    orders: tuple[TaskOrder, ...]
    clusters: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[OsText, OsText] = field(default_factory=dict)
    env_defaults: Mapping[OsText, OsText] = field(default_factory=dict)
    peers: tuple[str, ...] = ()


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
class SignalTasks:
    """Send a signal to the process groups of these tasks. What it does to them counts as their own doing."""

    tasks: tuple[str, ...]
    signal: Annotated[int, Between(1, 64)]


@dataclass(frozen=True, slots=True)
class Ack:
    """The controller has stored this many bytes of `Output`: the agent may send as many more."""

    size: Size


@dataclass(frozen=True, slots=True)
class Bye:
    """No more orders. The agent ends what is left, sends the rest of the output and `Gone`, and exits."""


# --- frames: agent -> controller ---------------------------------------------------------------
#
# Most frames are events: the controller records them in `events.jsonl` as they are, under the names of their classes, and steps the
# run's state with them (`orchestrator/model/run/lifecycle.py`). A frame does not name its host: `host` is empty on the wire, and the
# controller's end of the connection fills it in, and moves the times to its own clock.


@dataclass(frozen=True, slots=True)
class HostReady:
    """The answer to `Hello`: the facts that the agent found on its host, and the ports that it holds from now on."""

    pid: Positive
    """The agent's own."""
    python: str
    """The path of the interpreter that runs the agent and the tasks."""
    python_version: str
    cores: Positive
    ports: tuple[Port, ...] = ()
    problems: tuple[str, ...] = ()
    """Why the programs cannot run here: a missing script, a syntax error, a missing command."""
    lacks_workdir: bool = False
    """One of these problems: there is no such working directory."""
    notes: tuple[str, ...] = ()
    """What is odd here, and may be right."""
    gpus: tuple[Gpu, ...] = ()
    """Those that may be used here: all, or those that the agent's own ``CUDA_VISIBLE_DEVICES`` names, in its order."""
    taken: tuple[GpuHolder, ...] = ()
    """The GPUs that other runs held when the agent looked."""
    trouble: str | None = None
    """Why this host cannot be used at all, such as a port range that is used up."""
    at: Moment = 0.0
    """When the agent sent this."""
    addresses: tuple[NetAddress, ...] = ()
    sees_run_dir: bool = False
    """`Hello.run_dir` is there, and may be written to."""
    workdir: str | None = None
    """Where the working directory lies that was sent here; None if none was."""
    tensorflow: str = ""
    """The version that is installed for this Python; empty where there is none, or where the agent has not looked."""
    arrived_at: str = ""
    """The address by which the controller has come in, if it came over a network."""
    host: str = ""


@dataclass(frozen=True, slots=True)
class TemplateReady:
    """A host has imported `modules`, in `seconds`, and can fork tasks."""

    modules: tuple[str, ...]
    seconds: Seconds
    at: Moment
    host: str = ""


@dataclass(frozen=True, slots=True)
class HostBroken:
    """A host can no longer do its work, such as for a full disk. Its agent still answers. The run ends."""

    reason: str
    at: Moment
    host: str = ""
    """Empty: the host is the controller's own."""


@dataclass(frozen=True, slots=True)
class RunNoted:
    """A text worth keeping that changes nothing. `host`: the host whose agent noted it; empty: the controller did."""

    text: str
    at: Moment
    host: str = ""

    @property
    def line(self) -> str:
        """The text for people: ``host a: …``, or the controller's own text as it is."""
        return f"host {self.host}: {self.text}" if self.host else self.text


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """The process of a task runs."""

    task: str
    attempt: Positive
    pid: Positive
    at: Moment


@dataclass(frozen=True, slots=True)
class TaskNotStarted:
    """A task could not be started."""

    task: str
    attempt: Positive
    reason: str
    at: Moment


@dataclass(frozen=True, slots=True)
class TaskBegan:
    """A task's program, which is Python, has come to its first line."""

    task: str
    attempt: Positive
    at: Moment


@dataclass(frozen=True, slots=True)
class TaskUp:
    """The task's runtime listens on its port.

    The agent of its own host sends this when it sees the port open. The controller records it once the other hosts have reached the port.
    """

    task: str
    attempt: Positive
    at: Moment


@dataclass(frozen=True, slots=True)
class TaskWaiting:
    """Why a task's port does not answer yet, in words; sent when the reason changes."""

    task: str
    attempt: Positive
    reason: str
    at: Moment


@dataclass(frozen=True, slots=True)
class TaskReported:
    """The newest of a task's `worker.report()` calls."""

    task: str
    attempt: Positive
    values: Mapping[str, Any]
    at: Moment


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception that ended a task, as `error.json` keeps it."""

    type: str
    message: str
    traceback: str
    at: Moment


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an agent has seen of a task's end beyond its code. All of it is fact; what does not hold is empty."""

    failed_first: bool = False
    """The exception came before the task was told to stop, by the one clock that saw both."""
    condition: str = ""
    """Why the task could not act when it was told to stop, such as ``stopped (SIGSTOP)``; see host/tasks/process_state.py."""
    out_of_memory: str = ""
    """That the kernel killed the task for want of memory, in words; see host/tasks/oom_kills.py."""
    last_words: str = ""
    """The end of the task's stderr, if the task left no exception."""
    python: str = ""
    """The task's interpreter, if an exception was left."""
    tensorflow: str = ""
    """The version of that interpreter's TensorFlow, if it can be found."""
    alone: bool = False
    """The task was in no cluster; see task/membership.py."""
    tf_config: str = ""
    """Where the program set a TF_CONFIG of its own."""


@dataclass(frozen=True, slots=True)
class TaskExited:
    """A task's process has ended."""

    task: str
    attempt: Positive
    code: ExitCode
    """As a shell says it: 128 + n for signal n."""
    stopped: bool
    """The agent had already been told to stop the task, or had lost its owner."""
    at: Moment
    failure: Failure | None = None
    killed: bool = False
    """By a signal. A program may also exit with such a code by itself, as a shell does whose command was killed."""
    evidence: Evidence = Evidence()


@dataclass(frozen=True, slots=True)
class TaskSwept:
    """Nothing of the task is left: its process group is empty and its output will not grow any more."""

    task: str
    attempt: Positive
    at: Moment
    left: str = ""
    """The processes, in words, which not even SIGKILL has ended. The task's own may be among them; then there was no `TaskExited`."""


@dataclass(frozen=True, slots=True)
class Grew:
    """A stream's file in the shared run directory has reached `size` bytes."""

    task: str
    attempt: Positive
    stream: str
    size: Size


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes of a stream, from `offset` on; the bytes follow the frame's JSON as they are."""

    task: str
    attempt: Positive
    stream: str
    offset: Size


@dataclass(frozen=True, slots=True)
class Gone:
    """The agent's last frame: it holds nothing any more."""


Order = Hello | StartTasks | StopTasks | ShowStacks | Ack | Bye | Ping | Try | Code | CodePart | Examine | TakeGpus | SignalTasks
HostEvent = TemplateReady | HostBroken | RunNoted
"""What an agent tells of its host without having been asked."""
TaskEvent = TaskStarted | TaskNotStarted | TaskBegan | TaskUp | TaskWaiting | TaskReported | TaskExited | TaskSwept
"""What an agent tells of a task."""
Answer = HostReady | Tried | CodeWanted | GpusTaken | ProgramEnded
"""What an agent answers to an order."""
Frame = HostEvent | TaskEvent | Grew | Output | Answer | Pong | Gone

ANSWERS: Mapping[type[Any], type[Any]] = {
    Hello: HostReady,
    Try: Tried,
    Code: CodeWanted,
    TakeGpus: GpusTaken,
    Examine: ProgramEnded,
}
"""The orders that are answered, each with its answer. An agent answers orders of one kind in their order."""
ORDERS: Mapping[int, type[Any]] = dict(enumerate(get_args(Order), start=1))
FRAMES: Mapping[int, type[Any]] = dict(enumerate(get_args(Frame), start=64))
