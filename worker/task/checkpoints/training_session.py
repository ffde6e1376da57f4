"""One training with saves, of `worker.checkpoints` or of `fit`: its series on the disk, its snapshots in memory, its saves on order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...formats import saves
from ..shared import shared
from . import restoring, save_orders, variables
from .series import Series
from .snapshots import TrainingSnapshots

Document = tuple[dict[str, Any], dict[str, Any]]
"""What a manifest says of the place of the training, and the arrays of `Series.write`."""


class TrainingSession:
    """`restore`, then `begin`, then `reach` and `after_step` for each step, then `end`. All workers make the same calls."""

    def __init__(
        self, series: Series, every: int | None, named: Callable[[Any], list[variables.NamedVariable]], document: Callable[[], Document]
    ) -> None:
        """`every`: steps between two saves; None: other calls save. `named`: finds the variables, with what a save has, or nothing, as its
        argument. `document`: of a step in the middle of an epoch."""
        self.series = series
        self._every, self._named, self._document = every, named, document
        self._snapshots: TrainingSnapshots | None = None
        self._can_save = False
        """The controller was told that this training can save on order."""

    def find(self) -> restoring.FoundSave | None:
        """The save with which the training begins; None: at step 0."""
        found = self.series.choose()
        if found is None and self.series.is_expected:
            lost = restoring.lost(self.series, 0)
            self.series.tell(f"{self.series.name} begins at step 0, for there is no complete checkpoint; {lost}")
        return found

    def restore(self, found: restoring.FoundSave) -> None:
        self.series.restore(found, self._named(found.tensors))

    def tell_of_restart(self, found: restoring.FoundSave, where: str) -> None:
        """Print the step at which the training continues. `where`: its place in the epoch, or that the training is over."""
        step, age, lost = found.document["step"], saves.age(found.document), restoring.lost(self.series, found.document["step"])
        attempt = restoring.attempt_of(found.document)
        self.series.tell(f"{self.series.name} continues at step {step}{where}, saved {age:.0f} s ago by {attempt}; {lost}")

    def begin(self, step: int, *, in_memory: bool = True) -> None:
        """The variables exist, and are restored: the next step is the one after this. `in_memory`: with snapshots."""
        if in_memory:
            self._snapshots = TrainingSnapshots(self.series, lambda: self._named(()), step)
        self._can_save = True
        save_orders.begin(step)

    def reach(self, step: int) -> None:
        """A step is over: note it, for the line of a restart."""
        is_kept = self._snapshots is not None and self._snapshots.reach(step)
        if not shared("scale", list):
            self.series.reach(step, is_kept=is_kept)

    def after_step(self, before: int, step: int, save: Callable[[], None], *, is_saved_soon: bool = False) -> None:
        """After a step, or several since `before`: save if a save is due, or asked for. `is_saved_soon`: without this, if not asked for."""
        is_due = self._snapshots is not None and self._snapshots.after_step(step, self._document)
        is_ordered = save_orders.is_due(before, step, self.series)
        is_due = is_due or bool(self._every and step // self._every > before // self._every)
        if is_ordered or (is_due and not is_saved_soon):
            save()
        if is_ordered:
            save_orders.leave(self.series, step)

    def write(self, step: int, kind: str, document: dict[str, Any], arrays: dict[str, Any] | None = None) -> None:
        if not shared("scale", list):  # orch scale measures the training alone
            self.series.write(step, self._named(()), document, kind=kind, arrays=arrays)
        if self._snapshots is not None:
            self._snapshots.saved()

    def end(self) -> None:
        """The training is over: wait until its last save is on the disk."""
        self.series.wait()
        self._end_snapshots()

    def give_up(self) -> None:
        """The training goes on, and is not saved any more."""
        self._end_snapshots()
        if self._can_save:
            self._can_save = False
            save_orders.end()

    def _end_snapshots(self) -> None:
        if self._snapshots is not None:
            self._snapshots.end()
