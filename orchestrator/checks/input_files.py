"""The files of a dataset: patterns -> names in TensorFlow's order, with the kind and the number of elements of each file.

Elements are counted but not decoded. For a pattern with a scheme (``gs://…``), another process uses the file systems of TensorFlow
(worker/task/input/remote_files.py).
"""

from __future__ import annotations

import glob
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

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
    """Each file with its size and its number of elements, one after the other.

    `kind`: the kind of all files; empty: by their names and first bytes. `elements`: the number in each file; None: count, if `counts`.
    """
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


def list_remote(patterns: Sequence[str], kind: str = "", elements: int | None = None) -> list[Found]:
    """As `find` and `inspect`, with the file systems of TensorFlow. Raises `UsageError`."""
    root = str(Path(worker.formats.element_counts.__file__).parents[2])
    code = "import sys; sys.path.insert(0, sys.argv[1]); from worker.task.input import remote_files; remote_files.main(sys.argv[2])"
    request = json.dumps({"patterns": list(patterns), "kind": kind, "elements": elements})
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"), "CUDA_VISIBLE_DEVICES": "-1"}
    argv = [sys.executable, "-c", code, root, request]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, env=env, text=True, check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        ended = f"the process that asks TensorFlow for {patterns[0]!r} ended with code {done.returncode}; what it said is above"
        raise UsageError(ended) from None
    if "error" in answer:
        raise UsageError(answer["error"])
    return [Found(File(one["name"], one["size"], one["elements"]), one["kind"], one["problem"]) for one in answer["files"]]
