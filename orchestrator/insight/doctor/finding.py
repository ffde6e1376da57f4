"""A finding of `orch doctor`, and what it is judged for. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from worker.fast_dataclass import dataclass

from ...model.strategies import named

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """``error``: a run will fail. ``warning``: it may, or will not do what is expected. ``note``: good to know.

    `topic`: a word for programs (``keras``, ``disk``). `hosts`: where; filled in by `judge`.
    """

    severity: Severity
    topic: str
    what: str
    why: str
    remedy: str
    hosts: tuple[str, ...] = ()


def error(topic: str, what: str, why: str, remedy: str) -> Finding:
    """A finding with which a run fails."""
    return Finding("error", topic, what, why, remedy)


def warning(topic: str, what: str, why: str, remedy: str) -> Finding:
    """A finding with which a run may fail, or do what nobody expects."""
    return Finding("warning", topic, what, why, remedy)


def note(topic: str, what: str, why: str, remedy: str) -> Finding:
    """A finding that is good to know."""
    return Finding("note", topic, what, why, remedy)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the hosts are judged for. `strategy` "": no spec was given. `env`: what the spec sets for every task.

    `shares`: how many tasks each host gets, by name; `tasks_here`: the host's that is being judged, filled in by `judge`. `gpus`: it asks
    for GPUs. `needs_tensorflow`: no for a spec that runs a program which is not Python. `data_service`: it has one of tf.data.
    """

    strategy: str = ""
    tasks: int = 1
    hosts: int = 1
    shares: Mapping[str, int] = field(default_factory=dict)
    tasks_here: int = 1
    ports: tuple[int, int] | None = None
    gpus: bool = False
    needs_tensorflow: bool = True
    data_service: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    tpu: str = ""
    """The TPU of the spec; empty: it takes none."""
    falls_back: bool = False
    """It trains on the CPU where there is no TPU."""

    def share_of(self, host: str) -> int:
        """How many tasks a host gets; spread evenly unless told."""
        return self.shares.get(host, -(-self.tasks // self.hosts))

    @property
    def needs_ports(self) -> bool:
        """Whether tasks of it talk to each other."""
        return self.data_service or not self.strategy or named(self.strategy).opens_ports
