"""What a host has in devices, and what a task asks of them; a part of `contract`."""

from __future__ import annotations

from .records import dataclass


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """What a task asks of its devices, applied before the user's code can touch TensorFlow's runtime.

    None, everywhere: TensorFlow's own choice. `cpus`: how many logical CPU devices the task sees. `intra_op_threads`,
    `inter_op_threads`: TensorFlow's thread pools (``TF_NUM_INTRAOP_THREADS``, ``TF_NUM_INTEROP_THREADS``); None means the
    host's cores shared out among its tasks. `gpus`: how many GPUs TensorFlow must find, because that many were asked for;
    which ones is said by ``CUDA_VISIBLE_DEVICES``; `gpus_given`: the same where nobody asked (``auto``), so that others are only
    spoken of. `memory_limit_mb` and `logical_gpus` hold for each of them.
    """

    cpus: int | None = None
    intra_op_threads: int | None = None
    inter_op_threads: int | None = None
    gpus: int | None = None
    memory_growth: bool | None = None
    memory_limit_mb: int | None = None
    logical_gpus: tuple[int, ...] | None = None
    soft_placement: bool | None = None
    log_placement: bool | None = None
    xla: bool | None = None
    tf32: bool | None = None
    determinism: bool | None = None
    gpus_given: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a part of one (MIG), that tasks on this host may use.

    `index`: the driver's own (``nvidia-smi``). `uuid`: ``GPU-…``, or ``MIG-…`` for a part of the GPU `index`. `memory_mb`: in
    units of 2**20 bytes, as TensorFlow counts; 0 if the driver does not say. `id`: what stands for it in
    ``CUDA_VISIBLE_DEVICES`` here.
    """

    index: int
    uuid: str
    name: str
    memory_mb: int
    id: str

    @property
    def is_part(self) -> bool:
        return self.uuid.startswith("MIG-")


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """Another run of this user's that has a GPU of this host. `pid`: its agent. `shares`: it lets others have that GPU as well."""

    uuid: str
    run_id: str
    pid: int
    shares: bool = False


@dataclass(frozen=True, slots=True)
class TakeGpus:
    """An order: hold these GPUs, by UUID, until the run is over, in place of all that were held before. `shared`: as others may, too."""

    alone: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GpusTaken:
    """The agent's answer. `holders`: empty, or all other runs' GPUs: one of them was in the way, and none is held."""

    holders: tuple[GpuHolder, ...] = ()
