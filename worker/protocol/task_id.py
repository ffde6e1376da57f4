"""The names of tasks and of their output."""

from __future__ import annotations

from ..values.codec import ContractError
from ..values.fast_dataclass import dataclass
from . import task_files

DATA_SERVICE = ("dispatcher", "data_worker")
"""The servers of the tf.data service, as TensorFlow calls them; the first one gives work to the others. They are in no TF_CONFIG."""
PREPARE = "prepare"
"""A task of orch's own: the command that prepares one host. Its index is the host's number among the run's hosts."""
TENSORBOARD = "tensorboard"
"""A task of orch's own: TensorBoard, on the first host. The run goes on without the task, and ends it."""
TASK_TYPES = ("chief", "worker", "ps", "evaluator", *DATA_SERVICE)
"""TensorFlow's task types, in the order in which tasks are counted and shown."""

STREAMS = ("stdout", "stderr")
STACKS = "stacks"
"""The stacks of a task, which a host without the run directory sends as a stream."""
PROFILE = "profile"
"""The answers of a task to requests for a profile, which such a host sends, too."""
VALUE = "value"
"""What the function of the run has returned in a task, which such a host sends, too."""
FETCHED = (STACKS, PROFILE, VALUE)
"""The files of a task, besides its output, that such a host sends."""


def file_of(stream: str) -> str:
    """The name of the file that holds a stream, in a task's directory."""
    return {STACKS: task_files.STACKS, PROFILE: task_files.PROFILE, VALUE: task_files.VALUE}.get(stream, f"{stream}.log")


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """A task's name: its TensorFlow type and its index among the tasks of that type."""

    type: str
    index: int

    def __str__(self) -> str:
        return f"{self.type}-{self.index}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """``"worker-3"`` -> ``TaskId("worker", 3)``. Raises `ContractError`."""
        kind, dash, index = text.rpartition("-")
        if not (dash and kind and index.isascii() and index.isdigit()):
            raise ContractError(f"{text!r} is not a task: expected TYPE-INDEX, such as worker-0")
        return cls(kind, int(index))
