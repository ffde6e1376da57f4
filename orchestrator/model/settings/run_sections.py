"""The whole spec as one frozen value, complete and checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from worker.protocol.messages import Program
from worker.settings.checkpoint_settings import CheckpointSettings
from worker.settings.collective_settings import CollectiveSettings
from worker.settings.declare import setting
from worker.settings.input_settings import InputSettings
from worker.settings.keras_settings import KerasSettings
from worker.settings.tpu_settings import TpuSettings
from worker.settings.verify_settings import ScaleSettings, VerifySettings
from worker.values.fast_dataclass import dataclass

from ..strategies import DEFAULT, STRATEGIES, implied, named, with_section
from .backend_sections import BackendSpec, LocalSettings, keys_of_all
from .kinds import ANY_TEXT, NAME, WORKDIR, JsonSchema, OneOf, PortRange, Text
from .task_sections import TASKS, TaskDevices, TaskSpec, trains
from .tree import Node, refusal

PROGRAM_KINDS: tuple[Literal["script", "module", "command", "function"], ...] = ("script", "module", "command", "function")
"""The keys for the program; a spec has exactly one. Only `orchestrator.launch` writes the last."""

DEFAULT_PRELOAD = ("tensorflow",)


@dataclass(frozen=True, slots=True)
class Defaults:
    env: Mapping[str, str] = setting({}, "Environment variables of every task.", example="{NAME: value}")
    devices: TaskDevices = setting(TaskDevices(), "Devices of every task.")
    log_level: Literal["debug", "info", "warning", "error"] | None = setting(
        None, "The lowest level that TensorFlow's runtime logs.", example="warning", words="TensorFlow's own choice", flag="--log-level"
    )


@dataclass(frozen=True, slots=True)
class DefaultsKey:
    """The key `defaults`; `ClusterSpec.env` and the values of each task type are made of it."""

    defaults: Defaults = setting(Defaults(), "Settings of every task. A task type can have other ones under tasks.")


class CommandLine(Text):
    """A text for the shell, or a list of a program and its arguments. The value is always a list."""

    __slots__ = ()

    def read(self, node: Node) -> Any:
        if not isinstance(node.value, list):
            return ("/bin/sh", "-c", Text.read(self, node))
        words = tuple(ANY_TEXT.read(item) for item in node.value)
        if not words or not words[0]:
            raise refusal(node.place, "must begin with a program", "write [./fetch.sh, data], or a text for the shell")
        return words

    def json_schema(self) -> JsonSchema:
        return {"type": ["string", "number", "boolean", "array"]}


@dataclass(frozen=True, slots=True)
class Prepare:
    """The command that prepares a host. `run`: the program and its arguments; empty: no command."""

    SHORTHAND = "run"

    run: tuple[str, ...] = setting(
        (),
        "A command that each host runs once before its tasks start, such as a download: a text for the shell; in orch.yaml also a list.",
        kind=CommandLine(),
        example="python download.py",
        words="none",
        flag="--prepare",
        metavar="CMD",
    )
    hosts: Literal["all", "first"] = setting("all", "Which hosts run the command: all, or first, for a directory that all hosts share.")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits, in seconds. None: no limit."""

    prepare_s: float | None = setting(
        None, "The longest that the prepare command may take: seconds, or 10m.", example="10m", words="no limit", flag="--prepare-timeout"
    )
    start_s: float | None = setting(
        None,
        "The longest until all tasks listen on their ports: seconds, or 2m. Only with this limit, orch waits for the port of a program "
        "that is not Python.",
        example="2m",
        words="no limit",
        flag="--start-timeout",
    )
    hang_s: float | None = setting(
        None,
        "The longest time in which no task writes or reports anything: seconds, or 10m.",
        example="10m",
        words="no limit",
        flag="--hang-timeout",
    )
    run_s: float | None = setting(
        None,
        "The longest that the whole run may take, with all its attempts: seconds, or 2h30m.",
        example="1h",
        words="no limit",
        flag="--timeout",
    )
    grace_s: float = setting(
        5.0,
        "Seconds from SIGTERM to SIGKILL when orch stops a task. A last checkpoint may take as long, before SIGTERM.",
        least=0,
        flag="--grace",
    )
    save_before_s: float | None = setting(
        None,
        "How long before --timeout, or the time limit of Slurm (there at most half of the time), the training saves itself, and ends with "
        "exit code 42: seconds, or 5m. A program that cannot gets SIGTERM.",
        example="2m",
        words="2m before the limit of Slurm; not before --timeout",
        flag="--save-before",
    )


@dataclass(frozen=True, slots=True)
class Restart:
    SHORTHAND = "max"

    max: int = setting(
        0, "The number of restarts after failures, in the whole run.", example="3", flag="--max-restarts", hint="write a number; 0 is never"
    )
    backoff_s: float = setting(
        1.0,
        "Seconds before the second restart in a row without progress. The pause doubles with each further restart and "
        "varies by a quarter. The first restart comes at once.",
        least=0,
    )
    backoff_max_s: float = setting(60.0, "The longest pause, in seconds.", least=0)
    without_progress: int = setting(
        3,
        "End the run after this many attempts in a row without progress, even if restarts are left. 0: never. "
        "Progress is a higher step in worker.report(step=...), or a new file in ORCH_CHECKPOINT_DIR.",
    )
    lost_host: Literal["end", "retry"] = setting(
        "end",
        "What follows the loss of a host. end: the run ends; retry: the whole cluster starts again, on hosts that orch acquires again, "
        "as one of the restarts that max allows.",
    )
    progress_s: float = setting(
        600.0, "An attempt that neither reports nor saves counts as progress if the attempt lasts this many seconds."
    )


@dataclass(frozen=True, slots=True)
class ProgramKeys:
    """The keys for the program; `ClusterSpec.program` is made of them."""

    script: str = setting(
        "", "The Python file that every task runs. Exactly one of script, module and command is needed.", example="train.py", live=True
    )
    module: str = setting(
        "", "The Python module that every task runs, as python -m does.", example="package.train", flag="-m --module", metavar="MODULE"
    )
    command: str = setting(
        "",
        "The program that every task runs: a path, or a name that is looked up in PATH. The key args has its arguments.",
        example="./train.sh",
    )
    function: str = setting(
        "", "The name of the Python function that orchestrator.launch has sent, with call.", example="train", is_own=True
    )
    args: tuple[str, ...] = setting((), "The arguments of every task.", example='["--epochs", "5"]')


_MISPLACED = {
    **dict.fromkeys(("n", "np", "num_workers", "replicas"), "write it as tasks: {worker: ...}"),
    **dict.fromkeys(("entrypoint", "cmd", "run"), "write script: train.py, or command: PROGRAM, and the arguments as args: [...]"),
    "environment": "write it as defaults: {env: ...}",
}


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """The cluster that the user wants: the whole of orch.yaml."""

    MISPLACED = _MISPLACED

    name: str = setting(
        ...,
        "The name of the cluster. The ids of its runs begin with this name.",
        kind=NAME,
        example="train",
        words="made from script, module or command",
        flag="--name",
        metavar="NAME",
    )
    strategy: str = setting(
        ...,
        "TensorFlow's distribution strategy.",
        kind=OneOf(tuple(STRATEGIES), same={"mwms": DEFAULT.name, "multiworker": DEFAULT.name}),
        example=DEFAULT.name,
        words=f"{DEFAULT.name}; {implied({'ps': 1}).name} with ps tasks; {implied({'tpu': 1}).name} with a TPU",
        flag="--strategy",
        metavar="NAME",
    )
    program: Program = setting(..., "", inline=ProgramKeys)
    tasks: tuple[TaskSpec, ...] = setting(..., "The tasks of each type: their number, or a mapping as for worker.", kind=TASKS, live=True)
    workdir: str = setting(
        ...,
        "The working directory of the tasks. A relative path starts at the directory of orch.yaml.",
        kind=WORKDIR,
        example=".",
        words="the directory of orch.yaml; without one, where orch was started",
        flag="--workdir",
        metavar="DIR",
    )
    python: str = setting(
        "",
        "The Python of the tasks: a path, or a name that is looked up in PATH.",
        example="python3",
        words="the Python that runs orch; on hosts with code: ship or setup, python3",
        flag="--python",
        metavar="PATH",
    )
    """Also the Python of the agents. On hosts with `setup` or `code: ship` the default is a name, because the path may differ there."""
    call: str = setting("", "The function that orchestrator.launch has sent, packed.", example="3.11:eJw=", is_own=True)
    env: Mapping[str, str] = setting({}, "", inline=DefaultsKey)
    serve: bool = setting(
        False, "Let orch run the TensorFlow server in worker and ps tasks. This is for a script that starts no server.", flag="--serve"
    )
    prepare: Prepare = setting(Prepare(), "A command that each host runs once before its tasks start: the command, or a mapping as here.")
    preload: tuple[str, ...] | None = setting(
        None,
        "Modules that each host imports once. The tasks are forked from this import. [] turns that off.",
        example="[tensorflow]",
        words="tensorflow, if the program imports tensorflow, keras, tf_keras or worker",
    )
    ports: tuple[int, int] | None = setting(
        None,
        "The first and last port that the tasks may use.",
        kind=PortRange(),
        example="41000-41999",
        words="any free port",
        flag="--ports",
        metavar="A-B",
    )
    network: Literal["host", "private"] = setting(
        "host",
        "The network of the tasks. host: the machine's, where TensorFlow's ports are open to anyone who reaches the machine; "
        "private: a network of their own (Linux, backend local), which nothing outside reaches. The tasks then reach nothing outside: "
        "no download, no gs://.",
        flag="--network",
    )
    timeouts: Timeouts = setting(Timeouts(), "Limits of time.")
    collectives: CollectiveSettings = setting(
        CollectiveSettings(), f"How the workers of {with_section('collectives')} wait for each other."
    )
    keras: KerasSettings = setting(KerasSettings(), "Which Keras the tasks use: a word, or a mapping as here.")
    input: InputSettings = setting(
        InputSettings(), "How the input is divided among the tasks, and how TensorFlow reads the input: a policy, or a mapping as here."
    )
    tpu: TpuSettings = setting(
        TpuSettings(), f"The TPU of strategy {with_section('tpu')}, and its layout: local, a name or an address, or a mapping as here."
    )
    checkpoints: CheckpointSettings = setting(
        CheckpointSettings(), "The checkpoints from which a training continues: the steps between two of them, or a mapping as here."
    )
    restart: Restart = setting(Restart(), "Restarts after failures: the number, or a mapping as here.")
    fail_on_nan: bool = setting(
        False, "End the run as failed when a training task reports a value that is NaN or infinite, such as a loss.", flag="--fail-on-nan"
    )
    tensorboard: str = setting(
        "",
        "Run TensorBoard for this directory, on 127.0.0.1 of the first host, as long as the run lasts. The run continues without it.",
        example="logs",
        words="no TensorBoard",
        flag="--tensorboard",
        metavar="DIR",
    )
    notify: str = setting(
        "",
        "A shell command to run at each event of the run (started, attempt_failed, preempted, note, ended), with the event as JSON on "
        "stdin. It runs where orch runs.",
        example="./tell.sh",
        words="no command",
        flag="--notify",
        metavar="COMMAND",
    )
    metrics_dir: str = setting(
        "",
        "Keep the metrics of the run in a file of this directory, for the textfile collector of Prometheus's node_exporter.",
        example="/var/lib/prometheus/node-exporter",
        words="no file",
        flag="--metrics-dir",
        metavar="DIR",
    )
    mlflow: bool = setting(
        False,
        "Make one MLflow run of all tasks and attempts, on the server that MLFLOW_TRACKING_URI names, and close it with the result. "
        "The chief logs to it.",
        flag="--mlflow",
    )
    wandb: bool = setting(False, "Make one W&B run of all attempts: the chief logs, and W&B is turned off in the others.", flag="--wandb")
    backend: BackendSpec = setting(LocalSettings(), "Where the tasks run.", kind=keys_of_all)
    verify: VerifySettings = setting(VerifySettings(), "A run of a few steps for `orch verify`: the number of steps, or a mapping as here.")
    scale: ScaleSettings = setting(ScaleSettings(), "A run that is measured, for `orch scale`.", is_own=True)

    @property
    def counts(self) -> dict[str, int]:
        """The number of tasks of each type, in TensorFlow's order of types."""
        return {tasks.type: tasks.count for tasks in self.tasks}

    @property
    def least_workers(self) -> int:
        """The fewest workers of an elastic cluster; 0: their number does not change."""
        return next((tasks.least for tasks in self.tasks if tasks.type == "worker"), 0)

    @property
    def size(self) -> int:
        return sum(tasks.count for tasks in self.tasks)

    @property
    def imported_ahead(self) -> tuple[str, ...]:
        """The modules that each host imports once before it forks the tasks."""
        if self.preload is not None:
            return self.preload
        return DEFAULT_PRELOAD if named(self.strategy).imports_ahead else ()

    @property
    def data_workers(self) -> int:
        """The number of workers of the tf.data service; 0: there is no service."""
        return sum(tasks.count for tasks in self.tasks if tasks.type == "data_worker")


def works(task_type: str, spec: ClusterSpec) -> bool:
    """True if tasks of this type run the training. A server is different: it may write lines while the training hangs."""
    serves = task_type == "ps" or (task_type == "worker" and spec.serve)
    return trains(task_type) and not serves
