"""Keeps the program's handler of SIGTERM, which TensorFlow replaces under MultiWorkerMirroredStrategy.

TensorFlow's preemption notifier installs a handler that only logs the signal ("SIGTERM caught at …",
xla/tsl/distributed_runtime/preemption/preemption_notifier.cc). Then the task does not end at SIGTERM, and the handler that the program has
set is never called. To stop a cluster would always take its whole grace period.

So orch installs the earlier handler again once TensorFlow's runtime has started. `PreemptionCheckpointHandler` still works: it sets its
handler through Python (`_start_watching_for_signal` in failure_handling.py). For a `PreemptionWatcher`, orch installs TensorFlow's handler.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading

from . import patches
from .patches.features import SIGTERM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_theirs: list[int] = []
"""The address of TensorFlow's handler, after orch has replaced it."""


def keep_sigterm() -> None:
    """Keep the program's handler of SIGTERM when TensorFlow's runtime starts."""
    patches.after(SIGTERM, "tensorflow", _watch)


def _watch(tensorflow: ModuleType) -> None:
    """Compare the handlers before and after the start of the runtime. A module of the program with TensorFlow's name stays unchanged."""
    context: Any = getattr(sys.modules.get("tensorflow.python.eager.context"), "Context", None)
    watcher: Any = getattr(sys.modules.get("tensorflow.python.distribute.failure_handling.preemption_watcher"), "PreemptionWatcher", None)
    if context is None or watcher is None:
        return

    def ensure_initialized(real: Any, self: Any) -> None:
        before = _installed()
        real(self)
        patches.give_back(SIGTERM, "Context.ensure_initialized")  # each operation calls this function
        if _installed() != before:
            _restore()

    def init(real: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        if _theirs:
            _call("PyOS_setsig", _theirs.pop())
        real(self, *args, **kwargs)

    patches.replace(SIGTERM, "Context.ensure_initialized", ensure_initialized)
    patches.replace(SIGTERM, "PreemptionWatcher.__init__", init)


def _restore() -> None:
    own = signal.getsignal(signal.SIGTERM)
    if own is None or threading.current_thread() is not threading.main_thread():
        return  # the handler was not set through Python, or cannot be set in this thread
    _theirs[:] = [_installed()]
    signal.signal(signal.SIGTERM, own)


def set_default() -> None:
    """Let SIGTERM end this process. Any thread may call this, unlike the function of Python."""
    _call("PyOS_setsig", 0)


def _installed() -> int:
    """The address of the handler that the kernel calls at SIGTERM."""
    return _call("PyOS_getsig")


def _call(name: str, *arguments: int) -> int:
    # Functions of Python's stable interface, which hide the differences between systems.
    function = getattr(ctypes.pythonapi, name)
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * len(arguments)]
    return function(signal.SIGTERM, *arguments) or 0
