"""The section `checkpoints`: the saves from which a training continues after a restart."""

from __future__ import annotations

from ..values.fast_dataclass import dataclass
from .declare import setting


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """The saves of a task. docs/resume.md has more."""

    SHORTHAND = "every"

    fit: bool = setting(
        False,
        "Let Keras's fit save checkpoints, and continue after a restart with the step after the newest one.",
        example="true",
        flag="--checkpoint",
    )
    every: int | None = setting(
        None,
        "The number of steps between two checkpoints.",
        words="in fit the end of each epoch; worker.checkpoints 100 steps",
        example="100",
        least=1,
        flag="--checkpoint-every",
    )
    snapshots: bool = setting(
        True,
        "Where a restart may follow, keep a snapshot of the training in the memory of each host: about once a second, or after a hundred "
        "times what a copy takes.",
        example="false",
    )
    keep: int = setting(3, "The number of checkpoints to keep, in addition to the last one of a training.", least=1)
    dir: str = setting(
        "",
        "The directory of the checkpoints, which all hosts see; each run has a directory of its own in it. "
        "TensorFlow's file systems are possible: gs://bucket/saves.",
        example="gs://bucket/saves",
        words="checkpoints in the run directory",
        metavar="DIR",
    )
    resume: str = setting(
        "",
        "Continue with the newest checkpoint of this run (latest: of the latest run), or of this directory of checkpoints, in a new run.",
        example="train-20260101-120000-0123abcd",
        words="none",
        flag="--resume",
        metavar="RUN",
    )
    resume_older: tuple[str, ...] = setting(
        (),
        "Directories with checkpoints of the runs that the resumed run has itself continued, the newest first. orch up --resume sets them.",
        example="[saves/train-20260101-110000-0123abcd]",
        is_own=True,
    )
    order: str = setting(
        "",
        "The word from which orch draws the order of shuffles without a seed. Runs with the same word have the same order.",
        words="the id of the run, or that of the run that is resumed",
    )
