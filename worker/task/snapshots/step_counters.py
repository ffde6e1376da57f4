"""The two counters in the graph of each step: `begun` before the first change by the optimizer, and `ended` after the last one."""

from __future__ import annotations

from typing import Any


class StepCounters:
    """Of one training. `step`: the steps that are finished. To be made and used on the device of the host's memory."""

    def __init__(self, step: int) -> None:
        self._begun, self._ended = (_variable(name, step) for name in ("begun", "ended"))

    def read(self) -> tuple[int, int]:
        """The counters `begun` and `ended`, outside of any graph."""
        import tensorflow as tf
        from tensorflow.python.ops import gen_resource_variable_ops

        read = gen_resource_variable_ops.read_variable_op
        return int(read(self._begun, tf.int64)._numpy()), int(read(self._ended, tf.int64)._numpy())

    def finished(self) -> Any:
        """A tensor with the number of the steps before the one that is traced. To be called before `begin`."""
        import tensorflow as tf

        return tf.raw_ops.ReadVariableOp(resource=self._begun, dtype=tf.int64)

    def begin(self) -> Any:
        """The operation that counts the beginning of the changes."""
        return _count(self._begun)

    def end(self) -> Any:
        """The operation that counts their end."""
        return _count(self._ended)


def _variable(name: str, step: int) -> Any:
    import tensorflow as tf

    made = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=f"orch_{name}", container="")
    tf.raw_ops.AssignVariableOp(resource=made, value=tf.constant(step, tf.int64))
    return made


def _count(variable: Any) -> Any:
    import tensorflow as tf

    return tf.raw_ops.AssignAddVariableOp(resource=variable, value=tf.constant(1, tf.int64))
