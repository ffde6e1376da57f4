"""A finding of `orch doctor`, and the requirements of a run. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import partial
from typing import Literal

from worker.values.fast_dataclass import dataclass

from ..model.strategies import named

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, or a fact that is good to know, with its reason and a remedy."""

    severity: Severity
    """``error``: a run will fail. ``warning``: a run may fail, or do something unexpected. ``note``: good to know."""
    topic: str
    """A word for programs: ``keras``, ``disk``."""
    what: str
    why: str
    remedy: str
    hosts: tuple[str, ...] = ()
    """The names of the hosts with this finding; `judge` sets them."""


error, warning, note = partial(Finding, "error"), partial(Finding, "warning"), partial(Finding, "note")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requirements of a run: the hosts are judged against them."""

    strategy: str = ""
    """Empty: no spec was given."""
    tasks: int = 1
    shares: Mapping[str, int] = field(default_factory=dict)
    """The number of tasks on each host, by name; a host that is not named has one."""
    ports: tuple[int, int] | None = None
    """The first and the last port of the spec's range."""
    private_network: bool = False
    """Whether the spec asks for ``network: private``."""
    gpus: bool = False
    """Whether the spec asks for GPUs."""
    needs_tensorflow: bool = True
    """False for a program that is not Python."""
    data_service: bool = False
    """Whether the run has a tf.data service."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The variables that the spec sets for every task."""
    tpu: str = ""
    """The TPU of the spec; empty: the run uses no TPU."""
    falls_back: bool = False
    """Whether the run trains on the CPU if there is no TPU."""

    @property
    def needs_ports(self) -> bool:
        """True if the tasks connect to each other."""
        return self.data_service or not self.strategy or named(self.strategy).opens_ports
