"""The section `collectives`: how the tasks of a cluster wait for each other."""

from __future__ import annotations

from typing import Literal

from ..values.fast_dataclass import dataclass
from .declare import setting


@dataclass(frozen=True, slots=True)
class CollectiveSettings:
    """Tells how a task of MultiWorkerMirroredStrategy waits for its peers. None: TensorFlow's own choice."""

    # `heartbeat_timeout_in_ms` of TensorFlow's coordination service
    heartbeat_s: float | None = setting(
        None, "Seconds without a heartbeat after which TensorFlow counts another worker as lost.", example="5", words="TensorFlow's own, 10"
    )
    # `tf.distribute.experimental.CommunicationOptions`
    implementation: Literal["auto", "ring", "nccl"] | None = setting(
        None, "The implementation of collective operations.", words="auto, TensorFlow's choice"
    )
    measured: bool = setting(
        True, "Measure who waits for whom, by timestamps around each collective operation, which take some 0.02 ms of CPU time."
    )
