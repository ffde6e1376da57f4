"""All messages of a channel, in one place: `orders`, `frames`, and the values in them. `channel` makes bytes of them.

Both sides import this module. It lies in worker/, the side that is sent to hosts.
"""

# ruff: noqa: F403, F405

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from .frames import *
from .orders import *

PROTOCOL = 16
"""Version of the messages. Both ends must agree; `channel.Decoder` refuses another one."""

Order = (
    Hello
    | StartTasks
    | StopTasks
    | ShowStacks
    | Ack
    | Bye
    | Ping
    | Try
    | Code
    | CodePart
    | Examine
    | TakeGpus
    | SignalTasks
    | Profile
    | SaveTasks
)
HostEvent = TemplateReady | HostBroken | RunNoted
"""Events of a host, which an agent sends without a request."""
TaskEvent = TaskStarted | TaskNotStarted | TaskBegan | TaskUp | TaskWaiting | TaskReported | TaskExited | TaskSwept | TaskSaves
Answer = HostReady | Tried | CodeWanted | GpusTaken | ProgramEnded
"""The answers of an agent to `Hello`, `Try`, `Code`, `TakeGpus` and `Examine`. It answers orders of one kind in their order."""
Frame = HostEvent | TaskEvent | Output | Answer | Pong | Sampled

NO_PORT = "no port is open yet"
"""The reason of `TaskWaiting` as long as nothing listens."""

ORDERS: Mapping[int, type[Any]] = dict(enumerate(get_args(Order), start=1))
FRAMES: Mapping[int, type[Any]] = dict(enumerate(get_args(Frame), start=64))
