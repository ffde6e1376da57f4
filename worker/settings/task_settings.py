"""The settings of the spec for the inside of a task."""

from __future__ import annotations

from ..values.fast_dataclass import dataclass
from .checkpoint_settings import CheckpointSettings
from .collective_settings import CollectiveSettings
from .device_settings import DeviceSettings
from .input_settings import InputSettings
from .keras_settings import KerasSettings
from .tpu_settings import TpuSettings
from .verify_settings import ScaleSettings, VerifySettings

VARIABLE = "ORCH_TASK_SETTINGS"
"""The environment variable that holds the settings of a task as JSON: the processes that a task starts inherit it."""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """All settings of the spec for the inside of a task, a section for each subject. They cross the wire as one value.

    A section is a frozen dataclass whose fields have defaults. A section at its defaults is left out, on the wire as in `VARIABLE`. The
    code that applies a section is imported only if a setting is not at its default (`SECTIONS` in task/bootstrap.py, `worker.strategy()`).
    """

    strategy: str = "none"
    """The spec's name of the strategy, such as ``multi_worker_mirrored``."""
    devices: DeviceSettings = DeviceSettings()
    collectives: CollectiveSettings = CollectiveSettings()
    keras: KerasSettings = KerasSettings()
    input: InputSettings = InputSettings()
    tpu: TpuSettings = TpuSettings()
    checkpoints: CheckpointSettings = CheckpointSettings()
    verify: VerifySettings = VerifySettings()
    scale: ScaleSettings = ScaleSettings()
