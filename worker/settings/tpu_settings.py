"""The section `tpu`: the TPU of the task, and how replicas and tensors are placed on its devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ..values.fast_dataclass import dataclass
from .declare import setting

AUTO = "auto"
"""The word for the TPU that the environment of the task names; see `target`."""
LOCAL = "local"
"""The word for a TPU that is part of the machine: a TPU VM's own (`TPUClusterResolver`, tpu="local")."""
ADDRESS = "grpc://"
"""The beginning of the address of a TPU's runtime: ``grpc://10.0.0.2:8470``, several with commas. Any other text is a name."""
PORT = 8470
"""The port of a TPU host's runtime (`_DEFAULT_ENDPOINT_PORT` of tensorflow/python/tpu/client/client.py)."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Tells how a tensor is split."""

    SHORTHAND = "dims"

    name: str
    dims: tuple[int, ...] = setting((), "The number of equal parts into which each dimension of the tensor is split.")
    shape: tuple[int | None, ...] | None = setting(None, "The shape of the tensor; null for a size that is unknown.", words="unknown")
    dtype: str = setting("float32", "The type of the tensor's elements.")


@dataclass(frozen=True, slots=True)
class TpuSettings:
    """The TPU of a task. docs/tpu.md has more."""

    SHORTHAND = "tpu"

    tpu: str = setting(
        "",
        "The TPU: local (the TPU of this machine), a name, the address of its runtime, or auto. auto is the TPU of the "
        "variable TPU_NAME, or else the hosts of TPU_WORKER_HOSTNAMES, or else local.",
        example="my-tpu",
        words="auto in a section tpu, else no TPU",
        flag="--tpu",
        metavar="local|auto|NAME|ADDRESS",
    )
    zone: str = setting("", "The zone of a TPU that is given by name.", example="us-central2-b", words="the answer of the metadata server")
    project: str = setting(
        "", "The project of a TPU that is given by name.", example="my-project", words="the answer of the metadata server"
    )
    topology: str = setting(
        "",
        "The expected topology of the TPU. orch checks computation_shape and partition against this topology before the start.",
        example="v3-8  # or 2x2x1x2",
        words="unknown; TensorFlow checks the shapes when the TPU starts",
        flag="--topology",
        metavar="NAME|XxYxZxC",
    )
    # DeviceAssignment.build
    computation_shape: tuple[int, ...] | None = setting(
        None,
        "The devices of one replica: a block of the topology, as sizes in x, y, z and core.",
        example="[2, 2, 1, 2]",
        words="one device for each replica, 1,1,1,1",
        flag="--computation-shape",
        metavar="X,Y,Z,C",
    )
    num_replicas: int | None = setting(
        None, "The number of replicas.", example="1", words="as many as fit", least=1, most=1 << 16, flag="--num-replicas"
    )
    spmd: bool = setting(
        False, "Let XLA partition the program as a whole (SPMD). TensorFlow suggests SPMD where tensors are split.", example="true"
    )
    partition: tuple[Partition, ...] = setting(
        (),
        "How tensors are split over the devices of a replica. Each tensor has a name for worker.split, with a list of "
        "the number of parts of each dimension, or a mapping with dims, shape and dtype.",
        example="{image: {dims: [1, 2, 4, 1], shape: [128, 224, 224, 3]}}",
        words="none",
    )
    fallback: Literal["none", "cpu"] = setting(
        "none",
        "What the task does if no TPU is named and this machine has no TPU. none: the task fails; cpu: the task trains on the CPU.",
        flag="--fallback",
    )
    timeout_s: float = setting(
        300.0,
        "The most seconds for finding the TPU, connecting and initialising. After this time, the task ends and shows the "
        "stacks of its threads.",
    )


def target(settings: TpuSettings, env: Mapping[str, str]) -> tuple[str, str]:
    """The argument `tpu` of TensorFlow's `TPUClusterResolver`, and its source in words. "": TensorFlow reads its own variables
    (`_get_tpu_name` in tensorflow/python/tpu/client/client.py).

    TPU_WORKER_HOSTNAMES names the hosts of a TPU, on GKE or if a user sets it. With several hosts, the runtime of each host listens on
    `PORT`, and one process drives all of them.
    """
    if settings.tpu not in ("", AUTO):
        return settings.tpu, "the spec"
    for name in ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME", "TPU_CONFIG"):
        if env.get(name):
            return "", name
    hosts = [host.strip() for host in env.get("TPU_WORKER_HOSTNAMES", "").split(",") if host.strip()]
    if len(hosts) > 1:
        return ADDRESS + ",".join(f"{host}:{PORT}" for host in hosts), "TPU_WORKER_HOSTNAMES"
    return LOCAL, "nothing else is named"
