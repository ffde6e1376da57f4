"""A part of the contract: how the tasks of a cluster wait for each other."""

from __future__ import annotations

from typing import Literal

from .declare import setting
from .records import dataclass


@dataclass(frozen=True, slots=True)
class CollectiveSettings:
    """How a task of MultiWorkerMirroredStrategy waits for its peers. None: TensorFlow's own choice."""

    # `heartbeat_timeout_in_ms` of TensorFlow's coordination service
    heartbeat_s: float | None = setting(
        None, "Seconds without a sign of life after which TensorFlow gives up a peer.", example="5", words="TensorFlow's own, 10"
    )
    # Both: `tf.distribute.experimental.CommunicationOptions`
    timeout_s: float | None = setting(
        None,
        "The longest that one collective operation waits for its peers. "
        "TensorFlow then spends 2 threads on each operation, for as long as this.",
        example="30",
        words="no limit",
    )
    implementation: Literal["auto", "ring", "nccl"] | None = setting(
        None, "What carries the operations out.", example="nccl", words="auto, TensorFlow's choice", label="the implementations"
    )
