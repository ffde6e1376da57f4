"""SIGTERM, which TensorFlow takes away from programs that join a cluster, under MultiWorkerMirroredStrategy.

Its preemption notifier installs a handler of its own that only takes note of the signal ("SIGTERM caught at …",
xla/tsl/distributed_runtime/preemption/preemption_notifier.cc). A task then does not end when it is told to, and a handler that the program
had set before is never called again. Who stops a cluster would wait for its whole grace period, each time.

So the program's own word, or the system's, is put back once TensorFlow's runtime has started. `PreemptionCheckpointHandler` is not
concerned: it sets a handler through Python (`_start_watching_for_signal` in failure_handling.py). `PreemptionWatcher` is: it gets
TensorFlow's handler back.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading

from . import import_hooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_theirs: list[int] = []
"""The address of TensorFlow's handler, once it was taken out."""


def keep_sigterm() -> None:
    """Have SIGTERM mean what the program says, also after TensorFlow's runtime has started."""
    import_hooks.after("tensorflow", _watch)


def _watch(tensorflow: ModuleType) -> None:
    """Look again at each start of the runtime. Where TensorFlow keeps these things elsewhere, nothing is changed."""
    context: Any = getattr(sys.modules.get("tensorflow.python.eager.context"), "Context", None)
    watcher: Any = getattr(sys.modules.get("tensorflow.python.distribute.failure_handling.preemption_watcher"), "PreemptionWatcher", None)
    if not hasattr(context, "ensure_initialized") or watcher is None:
        return
    start = context.ensure_initialized
    watch = watcher.__init__

    def ensure_initialized(self: Any) -> None:
        if getattr(self, "_initialized", False):  # each operation calls this
            return
        before = _installed()
        start(self)
        if _installed() != before:
            _put_back()

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if _theirs:
            _call("PyOS_setsig", _theirs.pop())
        watch(self, *args, **kwargs)

    context.ensure_initialized = ensure_initialized
    watcher.__init__ = init


def _put_back() -> None:
    own = signal.getsignal(signal.SIGTERM)
    if own is None or threading.current_thread() is not threading.main_thread():
        return  # not set through Python, or not to be set from here
    _theirs[:] = [_installed()]
    signal.signal(signal.SIGTERM, own)


def _installed() -> int:
    """The address of what the kernel calls at SIGTERM."""
    return _call("PyOS_getsig")


def _call(name: str, *arguments: int) -> int:
    # Python's own functions for this, part of its stable interface: they hide the differences between systems.
    function = getattr(ctypes.pythonapi, name)
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * len(arguments)]
    return function(signal.SIGTERM, *arguments) or 0
