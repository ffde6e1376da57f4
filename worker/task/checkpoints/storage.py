"""The file system of a directory of saves: this host's, or one of TensorFlow's (``gs://``, ``s3://``)."""

from __future__ import annotations

import contextlib
from typing import Any, BinaryIO

from ...formats.saves import LOCAL, Files


def files_of(directory: str) -> Files:
    return TensorFlowFiles() if "://" in directory else LOCAL


class TensorFlowFiles:
    """`tf.io.gfile`. An object store has no rename that is one operation, but a file there appears whole or not at all."""

    @property
    def _gfile(self) -> Any:
        import tensorflow as tf

        return tf.io.gfile

    def names(self, directory: str) -> list[str]:
        import tensorflow as tf

        try:
            return [str(name).rstrip("/") for name in self._gfile.listdir(directory)]
        except tf.errors.NotFoundError:
            return []

    def open(self, path: str, mode: str) -> BinaryIO:
        opened: BinaryIO = self._gfile.GFile(path, mode)
        return opened

    def put(self, path: str, new: str) -> None:
        self._gfile.rename(new, path, overwrite=True)

    def make(self, directory: str) -> None:
        self._gfile.makedirs(directory)

    def move(self, directory: str, to: str) -> None:
        self._gfile.rename(directory, to)

    def remove(self, path: str) -> None:
        import tensorflow as tf

        with contextlib.suppress(tf.errors.NotFoundError):
            if self._gfile.isdir(path):
                self._gfile.rmtree(path)
            else:
                self._gfile.remove(path)
