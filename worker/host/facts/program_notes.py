"""Notes on a program before it starts, from its syntax alone: what the run does not fit, and what would end it only after the training."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...protocol.frames import OWN_CLUSTER
from ...settings.releases import NEWEST_PYTHON
from .import_path import find_module
from .keras_source import Source, called_in

MOST_LOOKUPS = 20
"""At most so many modules are looked for in one file: each one that is missing costs the start of an interpreter."""

# Names from TensorFlow's guide to ParameterServerStrategy, which starts servers in threads, and from helpers of TensorFlow's tests.
_OWN_CLUSTER = {"portpicker", "create_in_process_cluster", "create_local_cluster", "multi_process_runner", "MultiProcessRunner"}
_SERVERS = re.compile(r"tf\.distribute\.(?:experimental\.)?ParameterServerStrategy")
_WORKERS = re.compile(r"tf\.distribute\.(?:experimental\.)?MultiWorkerMirroredStrategy")
_TENSORBOARD = ("tf.keras.callbacks.TensorBoard", "keras.callbacks.TensorBoard")
_BRINGS_MODULES = re.compile(rb"\bsys\.(?:path|modules)\b|\baddsitedir\b|\bmeta_path\b|\bpip\b.{0,20}\binstall\b")


def find_notes(sources: Sequence[Source], no_fit_under: str = "") -> list[str]:
    """Notes on a program that does not fit the cluster that orch makes. `no_fit_under`: of the run's strategy, see `Hello`."""
    found = [*_own_cluster(sources[:1], sources)]
    if not no_fit_under:
        found += _servers(sources)
    return found[:1]


def _own_cluster(programs: Iterable[Source], sources: Sequence[Source]) -> Iterator[str]:
    """A call that makes a cluster in the process of the program, if the program runs the call and nowhere reads orch's cluster."""
    if any(b"TF_CONFIG" in source.text or b"TFConfigClusterResolver" in source.text for source in sources):
        return
    for source in programs:
        for _, called in source.calls():
            if word := next((part for part in called.split(".") if part in _OWN_CLUSTER), ""):
                yield f"{source.path} {OWN_CLUSTER} ({word}): then start it with --strategy none"


def _servers(sources: Sequence[Source]) -> Iterator[str]:
    """A program for parameter servers, in a run without them: its tasks wait in `Server.join` for a chief that never comes."""
    uses = [(source, line, use) for source in sources for line, use in source.uses() if source.uses_keras]
    if any(_WORKERS.match(use) for _, _, use in uses):
        return
    for source, line, use in uses:
        if _SERVERS.match(use):
            how = "its tasks would wait without end: --ps 1 (or more)"
            yield f"{source.path}:{line} is for parameter servers (ParameterServerStrategy), and this run has none; {how}"


def find_other_strategy(sources: Sequence[Source]) -> list[str]:
    """A sentence, if a program makes MultiWorkerMirroredStrategy in a run with parameter servers: there, it fails or waits without end."""
    if any(b"Server" in source.text or "worker" in source.imports for source in sources):  # a script of both kinds
        return []
    for source in sources:
        if line := source.certain_strategy("MultiWorkerMirroredStrategy"):
            made = f"{source.path}:{line} makes MultiWorkerMirroredStrategy, and this run has parameter servers"
            return [f"{made}: leave out --ps (ps: in orch.yaml), or make ParameterServerStrategy in the script"]
    return []


def find_missing(sources: Sequence[Source], cwd: str, envs: Sequence[Mapping[str, str]]) -> list[str]:
    """Modules that a program imports late, after the beginning of its work, and that are not installed: a sentence for the first in a file.

    An import at the beginning of a program fails within seconds, and needs no note. One in a condition, in a ``try``, or in a function
    that is not called for certain, may never be reached.
    """
    found, called = [], called_in(sources)
    for source in sources:
        if _BRINGS_MODULES.search(source.text):
            continue
        directory = os.path.dirname(os.path.join(cwd, source.path))
        late = dict[str, int]()
        for line, name in source.late_imports(called):
            late.setdefault(name, line)
        if "TensorBoard" in called:  # Keras's callback imports this package when it writes, which is after the first epoch
            for line in (line for line, use in source.uses() if use in _TENSORBOARD):
                late.setdefault("tensorboard", line)
        for name, line in [*late.items()][:MOST_LOOKUPS]:
            if name in sys.stdlib_module_names or name == "worker":
                continue
            if all(find_module(name, env, place) == "" for env in envs for place in dict.fromkeys((directory, cwd))):
                how = f"install it with {sys.executable} -m pip, or leave the import out"
                found.append(f"{source.path}:{line}: the module {name} is not installed, so the run would fail there: {how}")
                break
    return found


def find_no_tensorflow(sources: Sequence[Source], cwd: str, envs: Sequence[Mapping[str, str]]) -> list[str]:
    """A sentence, if a program begins with an import of TensorFlow, and no task would find TensorFlow."""
    for source in sources[:1]:
        line = source.certain_import("tensorflow")
        if not line or _BRINGS_MODULES.search(source.text):
            continue
        directory = os.path.dirname(os.path.join(cwd, source.path))
        if all(find_module("tensorflow", env, place) == "" for env in envs for place in dict.fromkeys((directory, cwd))):
            how = f"{sys.executable} -m pip install tensorflow-cpu; or choose another Python with --python"
            if sys.version_info[:2] > NEWEST_PYTHON:
                version = ".".join(map(str, sys.version_info[:2]))
                how = f"there is no TensorFlow for Python {version}: choose another Python with --python"
            return [f"{sys.executable} has no TensorFlow, which {source.path}:{line} imports: {how}"]
    return []


# --- how Keras 3 saves -------------------------------------------------------------------------

_ENDINGS = {"save": (".keras", ".h5", ".hdf5"), "save_weights": (".weights.h5", ".weights.json")}
"""What Keras 3 takes as the end of a name: keras/src/saving/saving_api.py."""


def find_saves(source: Source) -> str:
    """A sentence about the first call that saves a model under a name that Keras 3 does not take; empty: the syntax shows none."""
    for line, method, name in source.saves():
        endings = _ENDINGS[method]
        if name and not name.endswith(endings):
            so = " or ".join(endings[:2] if method == "save" else endings[:1])
            other = "; for a SavedModel: model.export(path)" if method == "save" else ""
            return f"{source.path}:{line}: {method}() of Keras 3 fails for {name!r}: end the name with {so}{other}"
    return ""
