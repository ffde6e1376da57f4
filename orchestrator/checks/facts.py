"""The facts about a host: the answers of worker/host/facts/machine_survey.py and worker/task/examine.py. Values only.

An unknown fact has its default, which never means "bad". The names end in the units: `_bytes`, `_s`, `_mb` (MiB).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from worker.values.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Disk:
    path: str
    writable: bool = True
    free_bytes: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Ports:
    problem: str = ""
    """Why no port can be bound."""
    tried: int = 0
    """How many ports of the spec's range were tried."""
    busy: Mapping[str, str] = field(default_factory=dict)
    """Those that cannot be bound, with the reason."""


@dataclass(frozen=True, slots=True)
class DriverGpu:
    index: int
    name: str
    memory_mb: int = 0


@dataclass(frozen=True, slots=True)
class Nvidia:
    driver: str = ""
    gpus: tuple[DriverGpu, ...] = ()
    problem: str = ""
    """Why the driver did not answer, or the error of nvidia-smi."""


@dataclass(frozen=True, slots=True)
class Machine:
    hostname: str
    system: str
    cores: int
    run_dir: Disk
    ports: Ports
    nvidia: Nvidia = Nvidia()
    private_network_problem: str = ""
    """Why no private network can be made, and what helps."""
    memory_bytes: int = 0
    memory_free_bytes: int = 0
    shm: Disk | None = None
    open_files: tuple[int | None, int | None] = (None, None)
    """The limit of open files of a process, soft and hard; None: no limit."""
    environment: Mapping[str, str] = field(default_factory=dict)
    tpu_chips: int = 0


@dataclass(frozen=True, slots=True)
class Python:
    executable: str
    version: str
    tensorflow_tpu: str = ""
    libtpu: str = ""
    """The versions of the packages tensorflow-tpu and libtpu; empty: not installed."""


@dataclass(frozen=True, slots=True)
class TensorFlow:
    """The result of ``import tensorflow`` on the host."""

    version: str = ""
    seconds: float = 0.0
    """The time of the import."""
    missing: bool = False
    """Whether TensorFlow is not installed."""
    problem: str = ""
    """Why the import failed, or gave only a part of TensorFlow."""
    build: Mapping[str, str] = field(default_factory=dict)
    is_cuda_build: bool = False
    gpus: tuple[str, ...] = ()
    has_tpu: bool = False
    """Whether TensorFlow is built with support for TPUs."""
    keras: str = ""
    """The version of the Keras that is `tf.keras`."""
    keras_problem: str = ""
    tf_keras: str = ""
    fork_problem: str = ""
    """Why no task can be forked from a process that has imported TensorFlow."""
    off: Mapping[str, str] = field(default_factory=dict)
    """The features of orch that are off with these releases, each with the first reason (worker/task/patches)."""


@dataclass(frozen=True, slots=True)
class HostReport:
    name: str
    program: str
    """The interpreter that the spec names."""
    machine: Machine | None = None
    machine_problem: str = ""
    python: Python | None = None
    python_problem: str = ""
    tensorflow: TensorFlow | None = None
    import_problem: str = ""
    """Why there is no `tensorflow` although there is a `python`: the import crashed, or took too long, and then the lines of its stack."""
    complaints: tuple[str, ...] = ()
    """TensorFlow's messages on stderr."""
    is_here: bool = True
    """Whether this is the machine that orch runs on."""
    unreached: str = ""
    """Why the host gave no answer, or only a part of its answers."""
    unreached_remedy: str = ""
    clock_ahead_s: float | None = None
    """The least number of seconds by which the host's clock is ahead of this machine's; negative: behind. None: unknown."""
