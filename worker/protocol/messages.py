"""All messages of a channel, in one place: `orders`, `frames`, and the values in them. `channel` makes bytes of them.

Both sides import this module. It lies in worker/, the side that is sent to hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from ..settings.collective_settings import CollectiveSettings as CollectiveSettings
from ..settings.device_settings import DeviceSettings as DeviceSettings
from ..settings.task_settings import TaskSettings as TaskSettings
from .codec import ContractError as ContractError
from .codec import ExitCode as ExitCode
from .codec import Seconds as Seconds
from .codec import Size as Size
from .codec import from_json as from_json
from .codec import to_json as to_json
from .frames import CodeWanted as CodeWanted
from .frames import Evidence as Evidence
from .frames import Failure as Failure
from .frames import Gone as Gone
from .frames import Gpu as Gpu
from .frames import GpuHolder as GpuHolder
from .frames import GpusTaken as GpusTaken
from .frames import Grew as Grew
from .frames import HostBroken as HostBroken
from .frames import HostReady as HostReady
from .frames import NetAddress as NetAddress
from .frames import Output as Output
from .frames import Pong as Pong
from .frames import ProgramEnded as ProgramEnded
from .frames import Reached as Reached
from .frames import RunNoted as RunNoted
from .frames import TaskBegan as TaskBegan
from .frames import TaskExited as TaskExited
from .frames import TaskNotStarted as TaskNotStarted
from .frames import TaskReported as TaskReported
from .frames import TaskStarted as TaskStarted
from .frames import TaskSwept as TaskSwept
from .frames import TaskUp as TaskUp
from .frames import TaskWaiting as TaskWaiting
from .frames import TemplateReady as TemplateReady
from .frames import Tried as Tried
from .orders import Ack as Ack
from .orders import BootstrapOrder as BootstrapOrder
from .orders import Bye as Bye
from .orders import Code as Code
from .orders import CodeFile as CodeFile
from .orders import CodePart as CodePart
from .orders import Examine as Examine
from .orders import Hello as Hello
from .orders import Ping as Ping
from .orders import Program as Program
from .orders import ShowStacks as ShowStacks
from .orders import SignalTasks as SignalTasks
from .orders import StartTasks as StartTasks
from .orders import StopTasks as StopTasks
from .orders import TakeGpus as TakeGpus
from .orders import Target as Target
from .orders import TaskOrder as TaskOrder
from .orders import TemplateOrder as TemplateOrder
from .orders import Try as Try
from .orders import WorkdirState as WorkdirState
from .task_id import DATA_SERVICE as DATA_SERVICE
from .task_id import PREPARE as PREPARE
from .task_id import STACKS as STACKS
from .task_id import STREAMS as STREAMS
from .task_id import TASK_TYPES as TASK_TYPES
from .task_id import TaskId as TaskId
from .task_id import file_of as file_of

PROTOCOL = 5
"""Version of the messages. Both ends must agree; `channel.Decoder` refuses another one."""

Order = Hello | StartTasks | StopTasks | ShowStacks | Ack | Bye | Ping | Try | Code | CodePart | Examine | TakeGpus | SignalTasks
HostEvent = TemplateReady | HostBroken | RunNoted
"""Events of a host, which an agent sends without a request."""
TaskEvent = TaskStarted | TaskNotStarted | TaskBegan | TaskUp | TaskWaiting | TaskReported | TaskExited | TaskSwept
"""Events of a task."""
Answer = HostReady | Tried | CodeWanted | GpusTaken | ProgramEnded
"""The answers of an agent to requests."""
Frame = HostEvent | TaskEvent | Grew | Output | Answer | Pong | Gone

ANSWERS: Mapping[type[Any], type[Any]] = {
    Hello: HostReady,
    Try: Tried,
    Code: CodeWanted,
    TakeGpus: GpusTaken,
    Examine: ProgramEnded,
}
"""The orders that are answered, each with its answer. An agent answers orders of one kind in their order."""
ORDERS: Mapping[int, type[Any]] = dict(enumerate(get_args(Order), start=1))
FRAMES: Mapping[int, type[Any]] = dict(enumerate(get_args(Frame), start=64))
