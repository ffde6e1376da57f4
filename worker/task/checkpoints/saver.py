"""`worker.checkpoints`: saves and continues a training loop of the program's own."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
from collections.abc import Iterator
from typing import Any

from ...formats import saves
from ...values.words import count_of
from ..context import context
from ..input import distribute, input_policy, same_numbers, shuffle_order
from ..observe import recorder, reports
from ..patches import refusal
from ..patches.import_hooks import print_once
from ..strategy import strategy_builder
from . import input_check, random_state, restoring, variables, world_facts
from .series import Place, Series
from .training_session import TrainingSession

EVERY = 100
"""The number of steps between two saves, if neither the program nor the spec says one."""
_loops = itertools.count(1)
"""How many savers this process has made."""


def place_of(directory: str | None, keep: int | None, strategy: Any) -> Place:
    """Return where the saves of this task are. Raises ValueError if no directory is known.

    A task that trains alone next to others, such as an evaluator, has a directory of its own.
    """
    task = context()
    given = task.settings.checkpoints
    base = "" if recorder.is_on() else directory or ""  # the steps of `orch verify` are no training to save, or to continue
    if not base and given.dir:
        base = saves.join(given.dir, task.run_id) if task.run_id else given.dir
    if not base and task.checkpoint_dir is not None:
        base = str(task.checkpoint_dir)
    if not base:
        raise refusal(
            ValueError(
                "worker.checkpoints: no directory is known: this host does not see the run directory, or the script runs without orch. "
                "fix: give dir=, or set checkpoints.dir, to a directory that all workers see"
            )
        )
    if "://" not in base:
        base = os.path.abspath(base)
    own = "" if world_facts.is_multi_worker(strategy) or (task.world_size == 1 and task.type != "evaluator") else task.task
    resume = (given.resume, *given.resume_older) if given.resume else ()
    return Place(base, resume, max(1, keep or given.keep), task, own)


def keep_order() -> None:
    """From now on, shuffles without a seed get one that comes again after a restart."""
    os.environ.setdefault(same_numbers.ORDER, context().settings.checkpoints.order)


@dataclasses.dataclass
class _Position:
    """The place in the input: which epoch, and how many batches of it are trained on."""

    epoch: int = 0
    batch: int = 0


class Saver:
    """See `worker.checkpoints`."""

    def __init__(self, objects: dict[str, Any], *, every: int | None, keep: int | None, dir: str | None, strategy: Any) -> None:
        import tensorflow as tf

        keep_order()
        self._strategy = strategy or _strategy_of(objects)
        self._coordinator: Any = None
        """Of a training under ParameterServerStrategy, whose steps are over only after its `join`."""
        if isinstance(self._strategy, tf.distribute.ParameterServerStrategy):
            self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
            print_once(
                "checkpoints: under ParameterServerStrategy a restart is not exact: a step of a lost worker may run twice. "
                "more: orch help resume"
            )
        self._objects = objects
        _build_optimizers(objects, self._strategy)
        self._steps = 0
        self._left_out, self._at = _Position(), _Position()
        self._is_iterating, self._is_positioned = False, self._coordinator is not None
        self._facts: dict[str, Any] = {}
        """What `input_check.facts` says of the data, before the restart and now; empty: no batch was asked for."""
        series = Series(place_of(dir, keep, self._strategy), f"loop-{next(_loops)}", self._strategy)
        every = every or context().settings.checkpoints.every or EVERY
        self._session = TrainingSession(series, every, self._variables, lambda: (self._document(), {}))
        self._iterated = -1
        """The epoch whose batches the program has asked for."""
        if (found := self._session.find()) is not None:
            self._continue(found)
        # A snapshot of a coordinator's training would have to wait for all of its workers.
        self._session.begin(self._steps, in_memory=self._coordinator is None)
        random_state.watch()

    @property
    def steps(self) -> int:
        """The number of finished steps of the training, also of those before a restart."""
        return self._steps

    @property
    def epoch(self) -> int:
        """The number of the epoch, from 0."""
        return self._at.epoch

    def step(self, steps: int = 1, **values: Any) -> None:
        """Report a finished step, as `worker.report` does, and save if a checkpoint is due. All workers make this call. `steps`: how many
        steps have finished, if it is more than one.
        """
        before, self._steps = self._steps, self._steps + steps
        if not (self._is_iterating or self._is_positioned or input_policy.starts_given):
            self._is_positioned = True
            print_once(
                "checkpoints: the input of this loop begins again after a restart, in the middle of the training. "
                "fix: iterate over saver.batches(dataset), or give worker.files start=saver.steps"
            )
        self._session.reach(self._steps)
        reports.report({"step": self._steps, **({"epoch": self._at.epoch + 1} if self._is_iterating else {}), **values})
        self._session.after_step(before, self._steps, self.save)

    def save(self) -> None:
        """Save now. All workers make this call after the same step. The values are copied, and a thread writes them."""
        self._write("")

    def wait(self) -> None:
        """Wait until the last checkpoint is on the disk. The end of the program also waits for it."""
        self._session.series.wait()

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs that are left of `count`, from 0; the end of each epoch saves. The checkpoint after the last epoch
        marks the end of the training: a restart of the program does not train again.
        """
        while self._at.epoch < count:
            yield self._at.epoch
            self._left_out, self._at = _Position(), _Position(self._at.epoch + 1)
            self._write("epoch" if self._at.epoch < count else "final")
        self._session.end()

    def batches(self, data: Any) -> Iterator[Any]:
        """The batches of one epoch of the data, or those that are left of it after a restart.

        `data`: what `worker.distribute` takes, or what it has returned. Iterate in each epoch over the same object.
        """
        import tensorflow as tf

        if self._coordinator is not None:
            raise ValueError(
                "saver.batches: under ParameterServerStrategy the workers read the input: schedule steps, and call saver.step()"
            )
        if isinstance(data, tf.data.Dataset):
            data = self._distributed(data)
        if not self._is_positioned:
            self._is_positioned = True
            input_check.tell(data)
            before, self._facts = self._facts, input_check.facts(data)
            input_check.tell_of_other(before, self._facts)
        has_start = distribute.has_start(data)
        if self._iterated == self._at.epoch:
            raise ValueError("saver.batches has given this epoch already: iterate over saver.epochs(N), and once over the batches of each")
        self._iterated = self._at.epoch
        left_out, self._left_out = self._left_out, _Position()
        if not has_start:
            is_whole = left_out.epoch > 0 and input_check.is_read_whole(data)
            for _ in range(left_out.epoch):  # each epoch draws its order when it begins
                collections.deque(itertools.islice(data, None if is_whole else 1), maxlen=0)
        iterator = iter(data)
        for number in range(0 if has_start else left_out.batch):
            if next(iterator, None) is None:
                input_check.tell_of_fewer(number, left_out.batch)
                break
        self._is_iterating = True
        for batch in iterator:
            self._at.batch += 1
            yield batch

    # --- inside --------------------------------------------------------------------------------

    def _distributed(self, dataset: Any) -> Any:
        made = self.__dict__.setdefault("_made", {})
        if id(dataset) not in made:
            with shuffle_order.of_training(self._session.series.name):
                parts = distribute.distribute(dataset, batch=None, strategy=self._strategy, options=None, data_service=False)
            made[id(dataset)] = dataset, parts
        return made[id(dataset)][1]

    def _variables(self, wanted: Any = ()) -> list[variables.NamedVariable]:
        return [*variables.collect(self._objects), *random_state.generators(self._strategy, wanted)]

    def _document(self) -> dict[str, Any]:
        epoch, batch = self._at.epoch, self._at.batch
        return {"epoch": epoch, "step_in_epoch": batch, "input": {"epoch": epoch, "batch": batch, **self._facts}}

    def _write(self, kind: str) -> None:
        if self._coordinator is not None:
            self._coordinator.join()
        self._session.write(self._steps, kind, self._document())

    def _continue(self, found: restoring.FoundSave) -> None:
        document = found.document
        self._session.restore(found)
        self._steps = document["step"]
        at = document["input"]
        self._facts = {name: value for name, value in at.items() if name not in ("epoch", "batch")}
        self._left_out, self._at = _Position(at["epoch"], at["batch"]), _Position(at["epoch"], at["batch"])
        where = f"epoch {at['epoch'] + 1}, after {count_of(at['batch'], 'batch')}"
        self._session.tell_of_restart(found, "; this training was over" if document["kind"] == "final" else f" ({where})")


def _strategy_of(objects: dict[str, Any]) -> Any:
    """The strategy of the scope, of `worker.strategy`, or of the variables, where the program has made one itself."""
    import tensorflow as tf

    if tf.distribute.has_strategy():
        return tf.distribute.get_strategy()
    if (built := strategy_builder.built()) is not None:
        return built
    found = next((one for each in variables.collect(objects) if (one := getattr(each.variable, "_distribute_strategy", None))), None)
    if found is None and strategy_builder.input_pipelines(context())[0] > 1:
        print_once(
            "checkpoints: nothing was made in the scope of a strategy, so each worker trains and saves alone. "
            "fix: make the model and the optimizer inside of `with worker.strategy().scope():`"
        )
    return found or tf.distribute.get_strategy()


def _build_optimizers(objects: dict[str, Any], strategy: Any) -> None:
    """Make the variables of optimizers, as their first step would: what does not exist cannot be restored."""
    models = [one for one in objects.values() if hasattr(one, "trainable_variables") and not hasattr(one, "apply_gradients")]
    for key, one in objects.items():
        if not hasattr(one, "apply_gradients") or not hasattr(one, "build") or getattr(one, "built", getattr(one, "_built", True)):
            continue
        if len(models) != 1 or not models[0].trainable_variables:
            raise ValueError(
                f"worker.checkpoints: the optimizer {key!r} has no variables yet. "
                f"fix: build the model first, or call {key}.build(model.trainable_variables) in the scope of the strategy"
            )
        with strategy.scope():
            one.build(models[0].trainable_variables)
