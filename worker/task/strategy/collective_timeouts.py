"""TensorFlow's own settings for how the workers of MultiWorkerMirroredStrategy wait for each other.

The strategy starts TensorFlow's coordination service without times of its own
(tensorflow/python/distribute/collective_all_reduce_strategy.py, `_initialize_multi_worker`), and has communication options only if the
program passes them. This module completes both where TensorFlow makes them, so a strategy that the program builds itself has them, too.
The program's own settings stay. docs/tensorflow-knobs.md has measurements, and the knobs without effect.
"""

from __future__ import annotations

import sys

from .. import import_hooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_CONTEXT = "tensorflow.python.eager.context"
_STRATEGY = "tensorflow.python.distribute.collective_all_reduce_strategy"


def apply_soon(settings: dict[str, Any], log_dir: str) -> None:
    """Apply settings, a `CollectiveSettings` as JSON data, as soon as TensorFlow's modules are imported.

    A TensorFlow with other names keeps its own choice, and a line on stderr says so.
    """
    if "heartbeat_s" in settings:
        _after(_CONTEXT, "heartbeat_s", lambda module: _set_heartbeat(module, settings["heartbeat_s"]))
    options = {name: settings[name] for name in ("timeout_s", "implementation") if name in settings}
    if options:
        _after(_STRATEGY, " and ".join(options), lambda module: _set_options(module, **options))


def _after(name: str, what: str, apply: Callable[[ModuleType], None]) -> None:
    def then(module: ModuleType) -> None:
        try:
            apply(module)
        except AttributeError as error:
            print(f"orch: collectives: {what} cannot be set in this TensorFlow ({error}); its own choice holds", file=sys.stderr)

    import_hooks.after(name, then)


def _set_heartbeat(module: Any, seconds: float) -> None:
    """Set the heartbeat in each configuration of the coordination service that has none."""
    context, configure = module.Context, module.Context.configure_coordination_service
    milliseconds = max(1, round(seconds * 1000))  # 0 would mean TensorFlow's own

    def configure_coordination_service(self: Any, *args: Any, **kwargs: Any) -> None:
        configure(self, *args, **kwargs)
        config = self.coordination_service
        if not config.heartbeat_timeout_in_ms:
            config.heartbeat_timeout_in_ms = milliseconds

    context.configure_coordination_service = import_hooks.named_like(configure, configure_coordination_service)


def _set_options(module: Any, timeout_s: float | None = None, implementation: str = "auto") -> None:
    """Use these communication options as defaults of each strategy: `Options.merge` keeps what the program has set."""
    extended, init = module.CollectiveAllReduceExtended, module.CollectiveAllReduceExtended.__init__
    util = module.collective_util
    defaults = util.Options(timeout_seconds=timeout_s, implementation=util.CommunicationImplementation(implementation.upper()))

    def __init__(self: Any, container_strategy: Any, cluster_resolver: Any, communication_options: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(communication_options, util.Options):  # TensorFlow refuses anything else
            communication_options = defaults.merge(communication_options)
        init(self, container_strategy, cluster_resolver, communication_options, *args, **kwargs)

    extended.__init__ = import_hooks.named_like(init, __init__)
