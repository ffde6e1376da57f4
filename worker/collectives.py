"""A part of the contract: how the tasks of a cluster wait for each other."""

from __future__ import annotations

from typing import Literal

from .records import dataclass


@dataclass(frozen=True, slots=True)
class CollectiveSettings:
    """How a task of MultiWorkerMirroredStrategy waits for its peers. None: TensorFlow's own choice.

    `heartbeat_s`: without a sign of life for so long, a peer is given up (``heartbeat_timeout_in_ms`` of TensorFlow's coordination
    service). `timeout_s`: the longest that one collective operation waits, `implementation`: what carries it out
    (both: `tf.distribute.experimental.CommunicationOptions`).
    """

    heartbeat_s: float | None = None
    timeout_s: float | None = None
    implementation: Literal["auto", "ring", "nccl"] | None = None
