"""TensorFlow's own settings for how the workers of MultiWorkerMirroredStrategy wait for each other.

The strategy starts TensorFlow's coordination service without times of its own
(tensorflow/python/distribute/collective_all_reduce_strategy.py, `_initialize_multi_worker`), and has communication options only if the
program passes them. This module completes both where TensorFlow makes them, so a strategy that the program builds itself has them, too.
The program's own settings stay. docs/design-notes.md has measurements, and the knobs without effect.
"""

from __future__ import annotations

from .. import patches
from ..patches.features import HEARTBEAT, IMPLEMENTATION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CONTEXT = "tensorflow.python.eager.context"
_STRATEGY = "tensorflow.python.distribute.collective_all_reduce_strategy"


def apply_soon(settings: dict[str, Any], log_dir: str) -> None:
    """Apply settings, a `CollectiveSettings` as JSON data, as soon as TensorFlow's modules are imported."""
    if "heartbeat_s" in settings:
        patches.after(HEARTBEAT, _CONTEXT, lambda module: _set_heartbeat(settings["heartbeat_s"]))
    if "implementation" in settings:
        patches.after(IMPLEMENTATION, _STRATEGY, lambda module: _set_implementation(module, settings["implementation"]))


def _set_heartbeat(seconds: float) -> None:
    """Set the heartbeat in each configuration of the coordination service that has none."""
    milliseconds = max(1, round(seconds * 1000))  # 0 would mean TensorFlow's own

    def configure_coordination_service(real: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        config = self.coordination_service
        if not config.heartbeat_timeout_in_ms:
            config.heartbeat_timeout_in_ms = milliseconds

    patches.replace(HEARTBEAT, "Context.configure_coordination_service", configure_coordination_service)


def _set_implementation(module: Any, implementation: str) -> None:
    """Use this communication option as the default of each strategy: `Options.merge` keeps what the program has set."""
    util = module.collective_util
    defaults = util.Options(implementation=util.CommunicationImplementation(implementation.upper()))

    def __init__(real: Any, *args: Any, communication_options: Any, **kwargs: Any) -> None:
        if isinstance(communication_options, util.Options):  # TensorFlow refuses anything else
            communication_options = defaults.merge(communication_options)
        real(*args, communication_options=communication_options, **kwargs)

    patches.replace(IMPLEMENTATION, "CollectiveAllReduceExtended.__init__", __init__)
