"""What orch does for programs that train with Keras 3: `fit` works with several workers, and says how far it is.

Everything here waits until the program imports Keras, and takes effect in Keras's own functions, so that a script needs no change.
docs/keras.md says what works under which strategy.
"""

from __future__ import annotations

import os

from .. import imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def apply_soon(settings: dict[str, Any]) -> None:
    """Apply settings, the JSON of a `KerasSettings`, as soon as Keras is imported."""
    if settings.get("mode") != "off":
        imports.before(("tensorflow", "keras"), lambda: _apply(settings))


def _apply(settings: dict[str, Any]) -> None:
    # Only here: a program without TensorFlow is not to pay for these imports, nor to find their modules in place of its own.
    from . import callbacks, fit, saving

    has_others = "TF_CONFIG" in os.environ
    if has_others:
        fit.mend_soon()
        saving.mend_soon()
    callbacks.mend_soon(with_others=has_others, reports=settings.get("report", True))
    imports.after("tensorflow.python.distribute.values", _let_variables_be_numbers)


def _let_variables_be_numbers(module: ModuleType) -> None:
    """`int(optimizer.iterations)` and `float(optimizer.learning_rate)`, which work without a strategy, work with one."""
    variable: Any = module.DistributedVariable
    for name, kind in (("__int__", int), ("__float__", float)):
        if not hasattr(variable, name):
            setattr(variable, name, lambda self, kind=kind: kind(self.numpy()))
