"""Changes Keras for programs of a cluster: `fit` of Keras 3 works with several workers, and `fit` reports its progress.

The changes are made in Keras's own functions once the program has imported Keras. So scripts need no change, and a program without Keras
pays nothing. docs/keras.md says which functions work under which strategy.

May import: worker.protocol.task_files, worker.settings, worker.task.context, worker.task.failure, worker.task.input, worker.task.observe,
    worker.task.patches, worker.task.shared, worker.task.strategy.
"""

from __future__ import annotations

import os
import sys

from .. import patches
from ..patches import features
from ..strategy import further_strategies, small_types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def apply_soon(settings: dict[str, object], log_dir: str) -> None:
    """Apply settings, the JSON of a `KerasSettings`, as soon as Keras is imported; at once in a fork of a template with Keras."""
    is_reported = bool(settings.get("report", True))
    is_exact = bool(settings.get("exact", False))
    small_types.apply_soon()
    further_strategies.apply_soon()
    if settings.get("mode") != "off":
        patches.after(features.LOOPS, "keras", lambda keras: _change_keras_3(is_reported, is_exact))
        patches.after(features.WARNINGS_2, "tf_keras", lambda keras: _change_keras_2(is_reported))


def prepare_forks() -> None:
    """In a template that has imported Keras: import what each forked task would otherwise import."""
    if "keras" in sys.modules or "tf_keras" in sys.modules:
        from . import callbacks, feed, fit, lines_of_keras_2, loops, one_replica, optimizer, own_paths, parts, predictions, saving, steps  # noqa: F401

        patches.prepare_forks()


def _change_keras_2(is_reported: bool) -> None:
    from . import callbacks, lines_of_keras_2, loops

    patches.attempt(features.SAVES_2, loops.wrap_keras_2)
    if is_reported:
        patches.attempt(features.REPORTS_2, lambda: callbacks.report("tf_keras"))
    patches.attempt(features.WARNINGS_2, lines_of_keras_2.name_differences)


def _change_keras_3(is_reported: bool, is_exact: bool) -> None:
    """Change what this release of Keras has."""
    from ...settings import releases
    from . import callbacks, fit, loops, optimizer, parts, saving

    if fit.TRAINER not in sys.modules:  # Keras 2, or another backend than TensorFlow
        return
    in_cluster = "TF_CONFIG" in os.environ
    if releases.is_old(str(getattr(sys.modules["keras"], "__version__", ""))):  # what orch prints about numbers is true of later ones
        if in_cluster:
            fit.mend()  # refuses
        return
    if in_cluster:
        patches.is_on(features.FIT)  # prints a line if not
    changes: list[tuple[str, Callable[[], None]]] = [(features.LOOPS, loops.mend), (features.NUMBERS, _let_variables_be_numbers)]
    if is_reported:
        changes.append((features.REPORTS, lambda: callbacks.report("keras")))
    if in_cluster:
        changes += [(features.FIT, callbacks.share), (features.FILES, saving.mend)]
    changes.append((features.STEP, lambda: optimizer.mend(is_exact=is_exact, in_cluster=in_cluster)))
    if in_cluster:
        changes += [(features.FIT, fit.mend), (features.PARTS, parts.mend)]
    else:
        changes.append((features.WARNINGS, fit.name_parts))
    for feature, change in changes:
        patches.attempt(feature, change)


def _let_variables_be_numbers() -> None:
    """Make `int(optimizer.iterations)` and `float(optimizer.learning_rate)` work under a strategy, as they do without one."""

    patches.add(features.NUMBERS, "DistributedVariable.__int__", lambda self: int(self.numpy()))
    patches.add(features.NUMBERS, "DistributedVariable.__float__", lambda self: float(self.numpy()))
