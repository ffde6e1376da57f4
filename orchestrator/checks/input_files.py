"""The files of a dataset: patterns -> names in TensorFlow's order, with the kind and the number of elements of each file.

Elements are counted but not decoded.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterable, Iterator, Sequence

import worker.formats.element_counts
from worker.formats.data_files import matching
from worker.formats.element_counts import Damaged
from worker.values.fast_dataclass import dataclass

from ..errors import UsageError
from ..model.planning.sharding import File


@dataclass(frozen=True, slots=True)
class Found:
    file: File
    kind: str
    """One of `worker.formats.element_counts.KINDS`."""
    problem: str = ""
    """Why the file cannot be read, with its name."""


def find(patterns: Sequence[str], directory: str = "") -> list[str]:
    """The files that fit the patterns, sorted, each once: those that `worker.files` reads.

    `directory`: the patterns are relative to it. A directory is in the result only if a pattern is its name. Raises `UsageError` for a
    pattern without a file.
    """
    names: set[str] = set()
    for pattern in patterns:
        if is_remote(pattern):
            raise UsageError(f"{pattern}: only files of this machine can be looked at: mount the store, or name a copy")
        path = os.path.join(directory, pattern)
        fitting = [name for name in matching(pattern, directory) if name == path or not os.path.isdir(name)]
        if not fitting:
            hint = "" if glob.has_magic(pattern) else "; a pattern such as 'data/*.tfrecord' names several"
            raise UsageError(f"no file fits {pattern!r} (looked in {os.path.dirname(path) or os.getcwd()}){hint}")
        names.update(fitting)
    return sorted(names, key=os.fsencode)


def is_remote(pattern: str) -> bool:
    return "://" in pattern


def inspect(names: Iterable[str], kind: str = "", elements: int | None = None, *, counts: bool = True) -> Iterator[Found]:
    """Each file with its size and elements. `kind`: of all files; empty: by name and content. `elements`: of each; None: count."""
    for name in names:
        try:
            yield _inspect(name, kind, elements, counts=counts)
        except IsADirectoryError:
            yield Found(File(name, 0), "other", f"{name}: is a directory; name its files: {os.path.join(name, '*')!r}")
        except OSError as error:
            yield Found(File(name, 0), kind or "other", f"{name}: {error.strerror or error}")


def _inspect(name: str, kind: str, elements: int | None, *, counts: bool) -> Found:
    kind = kind or worker.formats.element_counts.kind_by_name(name)
    mode = os.stat(name).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # reading a pipe would wait for a writer
        return Found(File(name, 0), kind or "other", f"{name}: is no regular file, so it cannot be read twice; write the data to a file")
    with open(name, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not kind:
            kind = "tfrecord" if worker.formats.element_counts.looks_like_tfrecord(file.read(16)) else "other"
            file.seek(0)
        if elements is None and counts:
            try:
                elements = worker.formats.element_counts.count(file, size, kind)
            except Damaged as damage:
                return Found(File(name, size), kind, f"{name}: {damage}")
    return Found(File(name, size, elements), kind)
