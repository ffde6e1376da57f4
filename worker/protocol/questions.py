"""The order with which `orch doctor` has a host examined, and its answer; a part of `contract`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal

from ..fast_dataclass import dataclass
from .codec import Between, OsText, Port, Seconds


@dataclass(frozen=True, slots=True)
class Examine:
    """Look at the machine (host/machine_survey.py), or at an interpreter and its TensorFlow (task/examine.py), by a program of its own."""

    what: Literal["machine", "python"]
    run_dir: OsText = ""
    """``machine``: the directory whose disk is looked at; empty: the one for temporary files."""
    ports: tuple[Port, Port] | None = None
    """``machine``: the range of ports that are tried, both ends included."""
    program: OsText = ""
    """``python``: the interpreter; empty: the one that runs the agent."""
    env: Mapping[OsText, OsText] = field(default_factory=dict)
    """``python``: what the spec sets for every task."""
    import_s: Seconds = 120.0
    """``python``: how long the import of TensorFlow may take."""


@dataclass(frozen=True, slots=True)
class ProgramEnded:
    """How a program that the agent has run has ended, and all that it wrote. The answer to `Examine`: the output is JSON then."""

    out: str = ""
    err: str = ""
    code: Annotated[int, Between(-255, 255)] | None = None
    """-n for signal n. None: the program was stopped, or could not be started, for the `reason`."""
    reason: str = ""
