"""The rows of a batch of Keras's data: how many there are, and what stands in for a part without rows."""

from __future__ import annotations

from typing import Any

UNKNOWN = 32
"""The length of a row of zeros along a dimension that the data leaves open (such as the tokens of a sentence)."""


def count(data: Any) -> Any:
    """The number of rows of a batch: that of its first tensor which is no single number. None if there is no tensor."""
    import tensorflow as tf
    from keras.src import tree

    for leaf in tree.flatten(data):
        if isinstance(leaf, tf.RaggedTensor):
            return leaf.nrows(out_type=tf.int64)
        if isinstance(leaf, tf.SparseTensor):
            return leaf.dense_shape[0]
        if tf.is_tensor(leaf) and leaf.shape.rank != 0:
            # With drop_remainder TensorFlow takes the size for known, also where the data of a worker has ended.
            hidden = (
                leaf if tf.executing_eagerly() else tf.raw_ops.PlaceholderWithDefault(input=leaf, shape=[None] * (leaf.shape.rank or 1))
            )
            return tf.shape(hidden, out_type=tf.int64)[0]
    return None


def known(data: Any) -> int | None:
    """The number of rows of a batch, if its graph knows it."""
    import tensorflow as tf

    tensors = tf.nest.flatten(data, expand_composites=True)
    sizes = [leaf.shape[0] for leaf in tensors if tf.is_tensor(leaf) and leaf.shape.rank]
    return sizes[0] if sizes else None


class StandingRow:
    """Holds what stands in for a part without rows: the first row of the last part that had rows, or, if none had any, a row of
    zeros.

    A program may check its rows, or have a matrix inverted, where zeros fail.
    """

    def __init__(self) -> None:
        self._known: dict[str, list[Any]] = {}
        self._kept: list[Any] = []
        """A variable for each tensor of a batch, or None: sparse and ragged tensors are not kept."""
        self._spec: Any = None

    def prepare(self, spec: Any) -> None:
        """Make the variables for batches of this form, of one replica. Call this outside of graphs."""
        if spec is self._spec:  # as in nearly each step
            return
        specs, self._spec = _flat(spec), spec
        self._kept = self._known.setdefault(str(specs), [])
        self._kept.extend(_variable(each) for each in specs[len(self._kept) :])

    def or_row(self, data: Any, has_rows: Any) -> Any:
        """The data, or, if it has no rows, one row of the same form (as many rows as are said where their number is fixed)."""
        import tensorflow as tf
        from keras.src import tree

        leaves = tree.flatten(data)
        places = [place for place, leaf in enumerate(leaves) if tf.is_tensor(leaf) and leaf.shape.rank != 0]
        kept = self._kept if len(self._kept) == len(leaves) else [None] * len(leaves)

        def given() -> tuple[Any, ...]:
            for variable, place in ((kept[place], place) for place in places):
                if variable is not None:
                    variable.assign(leaves[place][:1])
            return tuple(leaves[place] for place in places)

        def rows() -> tuple[Any, ...]:
            return tuple(_standing(leaves[place], kept[place]) for place in places)

        found = tf.cond(has_rows, given, rows)
        for place, leaf in zip(places, found, strict=True):
            leaves[place] = leaf
        return tree.pack_sequence_as(data, leaves)


def _flat(data: Any) -> list[Any]:
    from keras.src import tree

    return list(tree.flatten(data))


def _variable(spec: Any) -> Any:
    """A variable of this worker alone, also inside of the scope of a strategy: a row of zeros, or none if the length of a row is open."""
    import tensorflow as tf
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable

    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank in (0, None):
        return None
    sizes = spec.shape.as_list()[1:]
    with tf.init_scope(), tf.device("CPU:0"):
        zeros = tf.zeros([0 if None in sizes else 1, *(size or 0 for size in sizes)], spec.dtype)
        return ResourceVariable(zeros, shape=[None, *sizes], trainable=False)


def _standing(leaf: Any, kept: Any) -> Any:
    import tensorflow as tf

    if kept is None:
        return _zeros(leaf)
    row, (rows, *sizes) = kept.read_value(), leaf.shape.as_list()
    found = tf.tile(row, [rows or 1, *(1 for _ in sizes)])
    if None in sizes:
        # By its elements, of which TensorFlow does not know the number: it takes a shape on which a later step relies, or an assignment,
        # for the shape in front of a condition, too, and leaves out a condition about it.
        zeros, repeated = _zeros(leaf), found
        found = tf.cond(tf.size(row) > 0, lambda: repeated, lambda: zeros)
    return tf.ensure_shape(found, [rows or 1, *sizes])


def _zeros(leaf: Any) -> Any:
    import tensorflow as tf

    rows, *fixed = leaf.shape.as_list()
    if isinstance(leaf, tf.RaggedTensor):
        inner = [size or 1 for size in leaf.flat_values.shape.as_list()[1:]]
        lengths = [tf.ones([1], leaf.row_splits.dtype)] * leaf.ragged_rank
        return tf.RaggedTensor.from_nested_row_lengths(tf.zeros([1, *inner], leaf.dtype), lengths)
    is_sparse = isinstance(leaf, tf.SparseTensor)
    now = tf.unstack(leaf.dense_shape if is_sparse else tf.shape(leaf, out_type=tf.int64), num=len(fixed) + 1)
    shape = [rows or 1, *(size or tf.where(now[place] > 0, now[place], UNKNOWN) for place, size in enumerate(fixed, 1))]
    if is_sparse:
        return tf.SparseTensor(tf.zeros([0, len(shape)], tf.int64), tf.zeros([0], leaf.dtype), tf.cast(tf.stack(shape), tf.int64))
    zeros = tf.zeros(tf.stack([tf.cast(size, tf.int64) for size in shape]), leaf.dtype)
    return tf.ensure_shape(zeros, [rows or 1, *fixed])
