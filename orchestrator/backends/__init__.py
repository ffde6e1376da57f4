"""Places where tasks can run. A backend knows one kind of place, and no policy.

It answers four questions and nothing else: what hosts are there, how is an agent (or whoever answers `orch doctor`) started on
one, what is the request in full (`--dry-run` prints it), and how is what is left of a run cancelled when its controller is gone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Literal, Protocol

from worker.records import dataclass

from ..model.spec import ClusterSpec


@dataclass(frozen=True, slots=True)
class Host:
    """A machine. `address`: how the other hosts reach it; empty: to be found out (see `model.addresses`).

    `sees_run_dir`: it has the controller's run directory. `lost_after_s`: how long it may be silent before it is lost; None: its
    channel cannot break without a word. `interface`: the one whose address the others are to use.
    """

    name: str
    address: str
    sees_run_dir: bool
    lost_after_s: float | None = None
    interface: str = ""
    is_here: bool = True
    """It is the machine that orch runs on: the working directory is the same by itself."""


Errand = Literal["agent", "inquiry"]
"""What is started on a host: a module of worker/host with a `main`, which has the channel."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why an agent did not come up, and what to do, in words. `passing`: another try may help."""

    cause: str
    remedy: str = ""
    passing: bool = False

    @property
    def text(self) -> str:
        return f"{self.cause}; {self.remedy}" if self.remedy else self.cause


@dataclass(frozen=True, slots=True)
class Transport:
    """How an agent is started: a program whose stdin takes orders and whose stdout gives frames.

    `first` goes to its stdin before any order. `mark` comes from its stdout before its first frame; what comes before the mark is
    noise. `diagnose` gets the exit code of a program that gave no mark, and what it said on stderr.
    """

    argv: tuple[str, ...]
    first: bytes = b""
    mark: bytes = b""
    diagnose: Callable[[int, str], Diagnosis] | None = None


class Backend(Protocol):
    """The four questions."""

    def hosts(self, spec: ClusterSpec) -> tuple[Host, ...]: ...

    def transport(self, spec: ClusterSpec, host: Host, errand: Errand = "agent") -> Transport: ...

    def request(self, spec: ClusterSpec) -> Mapping[str, str]:
        """File names and texts of what would be run: commands, scripts, manifests. Starts nothing."""
        ...

    def cancel(self, run_id: str) -> int:
        """End what a dead controller may have left. Returns how many processes that were."""
        ...


_MODULES = {"local": "local", "ssh": "ssh"}


def load(name: str) -> Backend:
    """The backend of that name, imported only now: a local run needs no cluster's tools."""
    module = importlib.import_module(f".{_MODULES[name]}", __name__)
    backend: Backend = module.make()
    return backend
