"""TensorFlow's own settings for how the workers of MultiWorkerMirroredStrategy wait for each other.

The strategy sets up TensorFlow's coordination service with no times of its own
(tensorflow/python/distribute/collective_all_reduce_strategy.py, `_initialize_multi_worker`), and has communication options only if
the program gives it some. Both are completed here where they are made, so that a strategy that the program builds itself has them too,
and where the program has said something, that stands. docs/tensorflow-knobs.md has what was measured, and which knobs do nothing.
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


def apply_soon(settings: dict[str, Any]) -> None:
    """Apply settings, the JSON of a `messages.CollectiveSettings`, as soon as TensorFlow's modules are there.

    A TensorFlow that keeps these things elsewhere goes by its own choice; a line on stderr says so.
    """
    if "heartbeat_s" in settings:
        _after(_CONTEXT, "heartbeat_s", lambda module: _beat(module, settings["heartbeat_s"]))
    options = {name: settings[name] for name in ("timeout_s", "implementation") if name in settings}
    if options:
        _after(_STRATEGY, " and ".join(options), lambda module: _communicate(module, **options))


def _after(name: str, what: str, apply: Callable[[ModuleType], None]) -> None:
    def then(module: ModuleType) -> None:
        try:
            apply(module)
        except AttributeError as error:
            print(f"orch: collectives: {what} cannot be set in this TensorFlow ({error}); its own choice holds", file=sys.stderr)

    import_hooks.after(name, then)


def _beat(module: Any, seconds: float) -> None:
    """Give each configuration of the coordination service that says no heartbeat this one."""
    context, configure = module.Context, module.Context.configure_coordination_service
    milliseconds = max(1, round(seconds * 1000))  # 0 would be TensorFlow's own again

    def configure_coordination_service(self: Any, *args: Any, **kwargs: Any) -> None:
        configure(self, *args, **kwargs)
        config = self.coordination_service
        if not config.heartbeat_timeout_in_ms:
            config.heartbeat_timeout_in_ms = milliseconds

    context.configure_coordination_service = import_hooks.named_like(configure, configure_coordination_service)


def _communicate(module: Any, timeout_s: float | None = None, implementation: str = "auto") -> None:
    """Lay each strategy's communication options over these: `Options.merge` keeps what is not at its default."""
    extended, init = module.CollectiveAllReduceExtended, module.CollectiveAllReduceExtended.__init__
    util = module.collective_util
    ours = util.Options(timeout_seconds=timeout_s, implementation=util.CommunicationImplementation(implementation.upper()))

    def __init__(self: Any, container_strategy: Any, cluster_resolver: Any, communication_options: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(communication_options, util.Options):  # anything else is for TensorFlow to refuse
            communication_options = ours.merge(communication_options)
        init(self, container_strategy, cluster_resolver, communication_options, *args, **kwargs)

    extended.__init__ = import_hooks.named_like(init, __init__)
