"""The section `devices`: the devices of a task."""

from __future__ import annotations

from ..values.fast_dataclass import dataclass
from .declare import setting


@dataclass(frozen=True, slots=True)
class ThreadSettings:
    """The sizes of TensorFlow's thread pools, which TensorFlow reads from TF_NUM_INTRAOP_THREADS and TF_NUM_INTEROP_THREADS."""

    SHORTHAND = "intra"

    intra: int | None = setting(
        None,
        "The number of threads that one operation may use.",
        words="the cores of the host, divided by its tasks",
        flag="--threads",
        hint="write one number, or {intra: 4, inter: 2}",
        least=1,
        most=1024,
    )
    inter: int | None = setting(
        None,
        "The number of operations that may run at the same time.",
        words="TensorFlow's own; with parameter servers workers + 1, at least 4",
        flag="--inter-threads",
        least=1,
        most=1024,
    )


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """The devices of a task, set before the user's code can use TensorFlow's runtime. None: TensorFlow's own choice."""

    NAME = "devices"

    cpus: int | None = setting(
        None,
        "The number of logical CPU devices in each task. It limits no cores: see threads.",
        example="1",
        words="1",
        flag="--cpus",
        least=1,
        most=1024,
    )
    threads: ThreadSettings = setting(
        ThreadSettings(), "The sizes of TensorFlow's thread pools: the number intra, or a mapping as here.", everywhere=True
    )
    gpus: int | None = None
    """The number of GPUs that the user has requested and TensorFlow must find. CUDA_VISIBLE_DEVICES names them."""
    memory_growth: bool | None = setting(
        None,
        "Let a task take GPU memory when the task needs it, not all of it at the start: one value for all its GPUs.",
        words="false (TensorFlow's own)",
        flag="--memory-growth",
        everywhere=True,
    )
    memory_limit_mb: int | None = setting(
        None,
        "The most memory that a task takes of each of its GPUs: MB, or 4G.",
        example="null  # or 4096, without memory_growth",
        words="all memory of the GPU",
        flag="--gpu-memory",
        metavar="MB",
        least=1,
    )
    logical_gpus: tuple[int, ...] | None = setting(
        None,
        "Split each GPU of a task into logical GPUs of these sizes: MB, or 4G,4G.",
        example="null  # or [1024, 1024], without memory_growth and memory_limit_mb",
        words="one logical GPU with all memory",
        flag="--logical-gpus",
        metavar="MB,MB",
    )
    soft_placement: bool | None = setting(
        None, "Fall back to another device if the requested one does not exist.", words="true (TensorFlow's own)", flag="--soft-placement"
    )
    log_placement: bool | None = setting(
        None, "Log the device of every operation. orch placement makes a table of the log.", words="false", flag="--log-placement"
    )
    xla: bool | None = setting(
        None, "Let XLA compile operations where XLA can (autoclustering).", words="false (TensorFlow's own)", flag="--xla"
    )
    tf32: bool | None = setting(
        None,
        "Multiply float32 matrices in TensorFloat-32, which is faster and less precise.",
        words="true (TensorFlow's own)",
        flag="--tf32",
    )
    determinism: bool | None = setting(
        None,
        "Make every operation give the same result in each run. The script must set a seed.",
        words="false (TensorFlow's own)",
        flag="--determinism",
        everywhere=True,
    )
    gpus_given: int | None = None
    """As `gpus`, if the user has requested no number (auto): with fewer GPUs, the task prints a line and continues."""
    cores: tuple[int, int] | None = None
    """(k, n): the task is tied to the k-th, from 0 on, of n parts of the host's cores. None: to no core."""
