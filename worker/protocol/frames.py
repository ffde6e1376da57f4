"""The frames that an agent sends to the controller. Pure values.

Most of them are events: the controller records them in `events.jsonl` as they are, under the names of their classes (``task_exited``), and
steps the run's state with them (`orchestrator/model/policy/lifecycle.py`). A frame does not name its host: `host` is empty on the wire. The
controller's end of the connection fills it in.

Times are seconds since the epoch, by the agent's clock (`clock.py`); the controller's end of the connection moves them to its own clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from ..values.codec import Between, Count, ExitCode, Moment, Port, Positive, Rate, Seconds, Size
from ..values.fast_dataclass import dataclass

# --- answers to orders ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NetAddress:
    interface: str
    address: str
    prefix: Annotated[int, Between(0, 128)]
    """How many bits of the address name the network."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a part of one (MIG), that tasks on this host may use."""

    index: Count
    """The driver's number of the GPU, as ``nvidia-smi`` prints it."""
    uuid: str
    """``GPU-…``, or ``MIG-…`` for a part of the GPU `index`."""
    name: str
    memory_mb: Size
    """In units of 2**20 bytes, as TensorFlow counts; 0 if the driver does not say."""
    id: str
    """The word for this GPU in ``CUDA_VISIBLE_DEVICES`` here."""

    @property
    def is_part(self) -> bool:
        return self.uuid.startswith("MIG-")


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """Another run of this user's that holds a GPU of this host."""

    uuid: str
    run_id: str
    pid: Count
    """Of the agent of that run; 0: not known."""
    shares: bool = False
    """That run lets others hold the GPU as well."""


OWN_CLUSTER = "seems to make a cluster of its own in one process"
"""Words of a note of `HostReady`, by which the controller knows the note again."""


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
    notes: tuple[str, ...] = ()
    """Unusual facts, which may be intended."""
    gpus: tuple[Gpu, ...] = ()
    """Those that may be used here: all, or those that the agent's own ``CUDA_VISIBLE_DEVICES`` names, in its order."""
    taken: tuple[GpuHolder, ...] = ()
    """The GPUs that other runs held when the agent looked."""
    trouble: str | None = None
    """Why this host cannot be used at all, such as a port range that is used up."""
    at: Moment = 0.0
    addresses: tuple[NetAddress, ...] = ()
    sees_run_dir: bool = False
    """`Hello.run_dir` is there, and may be written to."""
    workdir: str | None = None
    """Where the working directory lies that was sent here; None if none was."""
    tensorflow: str = ""
    """The version that is installed for this Python; empty where there is none, or where the agent has not looked."""
    keras: str = ""
    """That of Keras 3, likewise."""
    code: Mapping[str, str] = field(default_factory=dict)
    """The beginning of the SHA-256 of each file of the programs, by its path from the working directory."""
    arrived_at: str = ""
    """The address by which the controller has come in, if it came over a network."""
    door: str = ""
    """The socket at which the agent waits for its controller after a cut of the channel; empty: nowhere."""
    host: str = ""


@dataclass(frozen=True, slots=True)
class CodeWanted:
    digests: tuple[str, ...]
    """The contents that this host has not kept from another time."""
    trouble: str = ""
    """Why this host can keep no copy at all."""


@dataclass(frozen=True, slots=True)
class Refused:
    host: str
    port: Port
    address: str
    refusal: str
    """Why the address was not reached."""


@dataclass(frozen=True, slots=True)
class Tried:
    """The answer to `Try`, once all was tried: what was not reached. In a large cluster, the addresses that were are very many."""

    refused: tuple[Refused, ...] = ()


@dataclass(frozen=True, slots=True)
class GpusTaken:
    holders: tuple[GpuHolder, ...] = ()
    """Empty: the GPUs are held. Else all GPUs that other runs hold: one of them was in the way, and none is held for this run."""


@dataclass(frozen=True, slots=True)
class ProgramEnded:
    """Tells how a program that the agent has run has ended, and all that it wrote. The answer to `Examine`: the output is JSON then."""

    out: str = ""
    err: str = ""
    code: Annotated[int, Between(-255, 255)] | None = None
    """-n for signal n. None: the program was stopped, or could not be started, for the `reason`."""
    reason: str = ""


# --- events of a host ----------------------------------------------------------------------------


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
    """A text for the user, which changes nothing unless `ends` is set."""

    text: str
    at: Moment
    host: str = ""
    """Empty: the note is the controller's own."""
    ends: bool = False
    """The agent ends because of this, as SIGTERM has told it to: somebody takes the host away."""

    @property
    def line(self) -> str:
        """The text for people: ``host a: …``, or the controller's own text as it is."""
        return f"host {self.host}: {self.text}" if self.host else self.text


# --- events of a task ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskStarted:
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
    """The task's runtime listens on its port, as the agent of its own host sees."""

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
class TaskSaves:
    """A line of the training of a task about a save on order; see `task_files.SAVING`."""

    task: str
    attempt: Positive
    state: Literal["ready", "asks", "waits", "saved", "unable"]
    """``ready``: the training can save on order. ``asks``: the task got SIGTERM, and not from orch. ``waits``: it has finished `step`, and
    waits for an order that names the step of the save. ``saved``: the save of `step` is on the disk, and the program ends. ``unable``: it
    turns out not to be saved, until the next ``ready``."""
    step: Count
    at: Moment


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception that ended a task, as `error.json` keeps it."""

    type: str
    message: str
    traceback: str
    at: Moment
    hides: str = ""
    """The module in which a name was not found, because a file of the program has the name of this module."""
    near: str = ""
    """The path of the file that was not found in the directory above."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Facts about the end of a task besides its code; empty where a fact does not hold."""

    failed_first: bool = False
    """The exception came before the agent stopped the task, by the clock of the host."""
    condition: str = ""
    """Why the task could not act on SIGTERM, such as ``stopped (SIGSTOP)``; see host/processes/process_state.py."""
    out_of_memory: str = ""
    """The words for a task that the kernel killed because it ran out of memory; see host/oom_kills.py."""
    last_words: str = ""
    """The end of the task's stderr, if the task left no exception."""
    python: str = ""
    """The task's interpreter, if an exception was left."""
    tensorflow: str = ""
    """The version of that interpreter's TensorFlow, if it can be found."""
    unclustered: bool = False
    """The task was in no cluster; see task/observe/membership.py."""
    tf_config: str = ""
    """Where the program set a TF_CONFIG of its own."""
    has_trained: bool = False
    """The task is known to have made steps, or to have met the other workers again and again."""


@dataclass(frozen=True, slots=True)
class TaskExited:
    task: str
    attempt: Positive
    code: ExitCode
    """As in a shell: 128 + n for signal n."""
    stopped: bool
    """The agent had the order to stop the task, or had lost its controller."""
    at: Moment
    failure: Failure | None = None
    killed: bool = False
    """By a signal. A program may also exit with such a code by itself, as a shell does whose command was killed."""
    evidence: Evidence = Evidence()


@dataclass(frozen=True, slots=True)
class TaskSwept:
    """The process group of the task is empty, and its output is not watched any more."""

    task: str
    attempt: Positive
    at: Moment
    left: str = ""
    """The processes, in words, which not even SIGKILL has ended. The task's own may be among them; then there was no `TaskExited`."""
    written: Mapping[str, Size] = field(default_factory=dict)
    """How many bytes the task has written into each stream, where the controller gets them as `Output`: it misses what does not come."""


# --- the output of tasks -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes of a stream, from `offset` on; the bytes follow the frame's JSON as they are.

    Without bytes: the file of the stream, in the shared run directory, has reached this size.
    """

    task: str
    attempt: Positive
    stream: str
    offset: Size


# --- what tasks and hosts use --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskUse:
    """Holds what the processes of one attempt of a task used: rates are means since the sample before."""

    task: str
    attempt: Positive
    state: str = ""
    """The letter of the first process's state in /proc: ``R``, ``S``, ``T`` for stopped; see proc_pid_stat(5)."""
    cpu: Rate = 0.0
    """In percent of one core."""
    memory: Size = 0
    """The resident memory in bytes. Pages that several processes share, such as TensorFlow's code, count in each of them."""
    own_memory: Size = 0
    """The proportional memory (PSS) in bytes, which divides shared pages among their processes; 0: not measured this time."""
    threads: Count = 0
    faults: Rate = 0.0
    """Page faults that read from a disk, per second: the task swaps, or maps files that are not in memory."""
    read: Rate = 0.0
    written: Rate = 0.0
    """Bytes per second that its calls have read from files and pipes, or written to them, also from the page cache."""
    step: Rate = 0.0
    """The number of the newest step; 0: the task has made none, or orch does not know its steps."""
    rate: Rate = 0.0
    """Steps per second. This and the next three are about the newest window of steps (worker/task/observe/step_times.py)."""
    work: Rate = 0.0
    peers: Rate = 0.0
    input: Rate = 0.0
    """What a step took in the median, in seconds: the work, the wait for peers, the wait for input."""
    window: Count = 0
    """How many windows of steps there were."""
    came: Count = 0
    met: Count = 0
    """How often the task came to a meeting with its peers (a collective operation), and how often all had come, where both count the same
    meetings in all tasks; 0: the meetings of this task are not measured."""
    waits: Seconds = 0.0
    """How long the task has waited in the meeting where it is now; 0: it is in none, or came a moment ago."""
    reads: Seconds = 0.0
    """How long the task has waited for the batch that it gets now; 0: it gets none, or waits for its peers meanwhile."""

    @property
    def busy(self) -> float:
        """The seconds of a step in which the task did not wait for its peers, which they may have to wait for."""
        return self.work + self.input


@dataclass(frozen=True, slots=True)
class GpuUse:
    """Holds what a GPU did when the driver was asked last."""

    index: Count
    busy: Rate = 0.0
    """The percentage of the last moment in which any kernel ran: a task that only waits for its peers in a kernel counts as busy."""
    memory: Size = 0
    """In bytes."""


@dataclass(frozen=True, slots=True)
class HostUse:
    """Holds what a host used. Zero where the kernel does not tell."""

    cpu: Rate = 0.0
    """In percent of one core: all processes of the host."""
    cores: Count = 0
    """How many cores the host has; tasks may be allowed fewer."""
    memory: Size = 0
    """The memory that is in use and cannot be freed at once, in bytes."""
    memory_total: Size = 0
    swap: Size = 0
    """The swap space in use, in bytes."""
    received: Rate = 0.0
    sent: Rate = 0.0
    """Bytes per second over all network interfaces but the loopback. The kernel does not count them for each process."""
    throttled: Rate = 0.0
    """The percentage of the periods of a limit on CPU time (usually 100 ms each) in which the group reached the limit, and had to wait."""
    stalled_cpu: Rate = 0.0
    stalled_memory: Rate = 0.0
    stalled_io: Rate = 0.0
    """The percentage of the last ten seconds in which some process waited for a core, for memory or for a disk (/proc/pressure)."""


@dataclass(frozen=True, slots=True)
class LinkUse:
    """Holds what the tasks of a host have sent to another host over TCP since the last reading of their connections."""

    peer: str
    """The address of the other host."""
    sent: Rate = 0.0
    """Bytes per second that have arrived."""
    rate: Rate = 0.0
    """The same while data were on their way: what the link gives."""
    lost: Rate = 0.0
    """The share of the segments that were sent again."""
    again: Count = 0
    """How many that were."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Holds what the tasks of a host and the host used since the sample before. A sample is kept in a file of its own, and is no event."""

    at: Moment
    seconds: Seconds
    """How much time the rates are about."""
    tasks: tuple[TaskUse, ...] = ()
    use: HostUse = HostUse()
    gpus: tuple[GpuUse, ...] = ()
    host: str = ""
    links: tuple[LinkUse, ...] = ()
    """Empty where nothing was sent to other hosts, or where the connections were not read this time."""


# --- the connection ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pong:
    """A sign of life of the agent; the answer to `Ping`."""

    received: Size = 0
    """How many bytes of orders have come to the agent, since the first channel began (replay.py)."""
