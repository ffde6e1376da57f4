"""What `orch doctor` asks a host, and what it is told: `worker/host/inquiry.py` answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal

from .codec import Between, Moment, OsText, Port, Seconds
from .records import dataclass


@dataclass(frozen=True, slots=True)
class Inquiry:
    """The order. It is answered with a `Told` for the clock at once, then one for the machine, then one for the interpreter.

    `program`: the interpreter that is looked at, with `env`, and whose import of TensorFlow may take `import_s` seconds; empty: the one
    that answers. `run_dir`: the directory whose disk is looked at; empty: the one for temporary files.
    """

    program: OsText = ""
    run_dir: OsText = ""
    ports: tuple[Port, Port] | None = None
    env: Mapping[OsText, OsText] = field(default_factory=dict)
    import_s: Seconds = 120.0


@dataclass(frozen=True, slots=True)
class Told:
    """An answer: how a program that was asked has ended, and its `out` and `err`. `at`: the host's own clock, seconds since the epoch.

    `code`: -n for signal n; None: it was stopped, or could not be started, for the `reason`.
    """

    what: Literal["clock", "machine", "python"]
    at: Moment
    out: str = ""
    err: str = ""
    code: Annotated[int, Between(-255, 255)] | None = 0
    reason: str = ""
