"""What `orch doctor` knows of a host: the answers of worker/host/machine_survey.py and worker/task/examine.py. Values only.

A fact that could not be found out is at its default, which stands for "unknown" and never for "bad". Bytes, seconds and MiB as
the names say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from worker.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """`at`: seconds since the epoch when the host looked. `synchronised`: a clock service keeps it."""

    at: float
    synchronised: bool | None = None


@dataclass(frozen=True, slots=True)
class Disk:
    """A directory and the file system under it."""

    path: str
    writable: bool = True
    total_bytes: int | None = None
    free_bytes: int | None = None
    free_files: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Names:
    """What the host's own name and ``localhost`` stand for there; `seconds` that the look-up took."""

    addresses: tuple[str, ...] = ()
    problem: str = ""
    seconds: float = 0.0
    localhost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ports:
    """`problem`: why no port at all can be bound. `tried` of the spec's range, of which `busy` cannot be had, and why.
    `ephemeral`: the kernel's own range. `open_to_all`: where somebody listens on every interface."""

    problem: str = ""
    ephemeral: tuple[int, int] | None = None
    tried: int = 0
    busy: Mapping[str, str] = field(default_factory=dict)
    open_to_all: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DriverGpu:
    """One GPU, by the driver's word."""

    index: int
    name: str
    memory_mb: int = 0


@dataclass(frozen=True, slots=True)
class Nvidia:
    """NVIDIA's driver. `problem`: why it did not answer, or what nvidia-smi complained of."""

    driver: str = ""
    gpus: tuple[DriverGpu, ...] = ()
    problem: str = ""


Limit = tuple[int | None, int | None]
"""Soft and hard; None: no limit."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The host itself."""

    hostname: str
    system: str
    cores: int
    clock: Clock
    run_dir: Disk
    names: Names
    ports: Ports
    nvidia: Nvidia = Nvidia()
    memory_bytes: int = 0
    memory_free_bytes: int = 0
    cpu_flags: tuple[str, ...] | None = None
    shm: Disk | None = None
    limits: Mapping[str, Limit] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    is_root: bool = False
    tpu_chips: int = 0


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter."""

    executable: str
    version: str
    implementation: str = "CPython"
    prefix: str = ""
    tensorflow_tpu: str = ""
    libtpu: str = ""
    """The versions of these two packages there; empty: it is not installed."""


@dataclass(frozen=True, slots=True)
class TensorFlow:
    """What ``import tensorflow`` gave there. `problem`: why it gave less than it should. `keras`: what `tf.keras` stands for."""

    version: str = ""
    path: str = ""
    seconds: float = 0.0
    missing: bool = False
    problem: str = ""
    build: Mapping[str, str] = field(default_factory=dict)
    is_cuda_build: bool = False
    gpus: tuple[str, ...] = ()
    has_tpu: bool = False
    """It is built with support for TPUs."""
    keras: str = ""
    keras_problem: str = ""
    tf_keras: str = ""


@dataclass(frozen=True, slots=True)
class HostReport:
    """All of it, for one host. `program`: the interpreter as asked for.

    `python_problem`: why it gave no answer. `import_problem`: why there is no `tensorflow` although there is a `python`: it died, or
    took too long. `stack`: where the import stood then. `complaints`: TensorFlow's own words on stderr. `is_here`: the machine that
    orch runs on. `unreached`: why it could not be asked, or has not told all; `unreached_remedy`: what to do.
    """

    name: str
    program: str
    machine: Machine | None = None
    machine_problem: str = ""
    python: Python | None = None
    python_problem: str = ""
    tensorflow: TensorFlow | None = None
    import_problem: str = ""
    stack: tuple[str, ...] = ()
    complaints: tuple[str, ...] = ()
    is_here: bool = True
    unreached: str = ""
    unreached_remedy: str = ""
    clock_ahead_s: float | None = None
    """By how many seconds the host's clock is ahead of this machine's, at least; negative: behind. None: unknown."""
