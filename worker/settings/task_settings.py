"""What the spec says of the inside of a task: a part of the contract."""

from __future__ import annotations

from ..fast_dataclass import dataclass
from .collective_settings import CollectiveSettings
from .device_settings import DeviceSettings
from .input_settings import InputSettings
from .keras_settings import KerasSettings
from .tpu_settings import TpuSettings

VARIABLE = "ORCH_TASK_SETTINGS"
"""The environment variable that holds the settings of a task as JSON: the processes that a task starts inherit it."""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Everything that the spec says of the inside of a task, a section for each subject. It crosses the wire as one value.

    A section is a frozen dataclass whose fields have defaults. A section at its default is left out, on the wire as in `VARIABLE`; what
    puts one into effect is imported only where the section says something (`SECTIONS` in task/bootstrap.py, or `worker.strategy()`).
    """

    strategy: str = "none"
    """The spec's word for it, such as ``multi_worker_mirrored``."""
    devices: DeviceSettings = DeviceSettings()
    collectives: CollectiveSettings = CollectiveSettings()
    keras: KerasSettings = KerasSettings()
    input: InputSettings = InputSettings()
    tpu: TpuSettings = TpuSettings()
