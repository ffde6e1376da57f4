"""Notes on a program before it starts, from its syntax alone: what the run does not fit, and what would end it only after the training.

The syntax is read roughly: `orch verify` runs the program and finds more.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence

from ...protocol.frames import OWN_CLUSTER
from ...settings.releases import NEWEST_PYTHON
from .import_path import find_module
from .program_files import Source, imported

MOST_LOOKUPS = 20
"""At most so many modules are looked for in one file: each one that is missing costs the start of an interpreter."""

# Names from TensorFlow's guide to ParameterServerStrategy, which starts servers in threads, and from helpers of TensorFlow's tests.
_OWN_CLUSTER = {"portpicker", "create_in_process_cluster", "create_local_cluster", "multi_process_runner", "MultiProcessRunner"}
_SERVERS, _WORKERS = "ParameterServerStrategy", "MultiWorkerMirroredStrategy"
_BRINGS_MODULES = re.compile(rb"\bsys\.(?:path|modules)\b|\baddsitedir\b|\bmeta_path\b|\bpip\b.{0,20}\binstall\b")
_ENDING = re.compile(r"\b(?:raise|exit|_exit|quit|abort)\b")
_ENDINGS = {"save": (".keras", ".h5", ".hdf5"), "save_weights": (".weights.h5", ".weights.json")}
"""What Keras 3 takes as the end of a name: keras/src/saving/saving_api.py."""


def find_notes(sources: Sequence[Source], has_servers: bool = False) -> list[str]:
    """Notes on a program that does not fit the cluster that orch makes. `has_servers`: it has parameter servers."""
    return [*_own_cluster(sources), *_other_strategy(sources, has_servers)][:1]


def _own_cluster(sources: Sequence[Source]) -> Iterator[str]:
    """A call that makes a cluster in the process of the program, if the program nowhere reads orch's cluster."""
    if any(b"TF_CONFIG" in source.text or b"TFConfigClusterResolver" in source.text for source in sources):
        return
    for source in sources[:1]:
        words = (word for call in source.calls for word in ast.unparse(call.func).split("."))
        if word := next((word for word in words if word in _OWN_CLUSTER), ""):
            yield f"{source.path} {OWN_CLUSTER} ({word}): then start it with --strategy none"


def _other_strategy(sources: Sequence[Source], has_servers: bool) -> Iterator[str]:
    """A program for the other kind of cluster: its tasks fail, or wait without end for tasks that never come."""
    made = {called: f"{source.path}:{call.lineno}" for source in sources for call, _, called in source.method_calls()}
    servers, workers = made.get(_SERVERS), made.get(_WORKERS)
    if servers and not workers and not has_servers:
        how = "its tasks would wait without end: --ps 1 (or more)"
        yield f"{servers} is for parameter servers ({_SERVERS}), and this run has none; {how}"
    may_serve = any(b"Server" in source.text or "worker" in source.imports for source in sources)
    if workers and has_servers and not may_serve:
        how = f"leave out --ps (ps: in orch.yaml), or make {_SERVERS} in the script"
        yield f"{workers} makes {_WORKERS}, and this run has parameter servers: {how}"


def find_missing(sources: Sequence[Source], cwd: str, envs: Sequence[Mapping[str, str]]) -> list[str]:
    """Modules that a program imports after the beginning of its work, and that are not installed: a sentence for the first in a file.

    An import at the beginning of a program fails within seconds, and needs no note. One in a condition, in a ``try``, or in a function
    may never be reached.
    """
    found = []
    for source in sources:
        if _BRINGS_MODULES.search(source.text):
            continue
        directory = os.path.dirname(os.path.join(cwd, source.path))
        for line, name in _late_imports(source)[:MOST_LOOKUPS]:
            if name in sys.stdlib_module_names or name == "worker":
                continue
            if all(find_module(name, env, place) == "" for env in envs for place in dict.fromkeys((directory, cwd))):
                how = f"install it with {sys.executable} -m pip, or leave the import out"
                found.append(f"{source.path}:{line}: the module {name} is not installed, so the run would fail there: {how}")
                break
    return found


def _late_imports(source: Source) -> list[tuple[int, str]]:
    """The line and module of each import behind a statement that does something, up to the first statement that may end the program."""
    is_late, found = False, []
    for node in source.tree.body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) and _ENDING.search(ast.unparse(node)):
            break
        if is_late:
            found += [(node.lineno, name) for name in imported(node)]
        is_late = is_late or isinstance(node, (ast.With, ast.For, ast.While)) or (isinstance(node, ast.Expr) and not _is_text(node))
    return found


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def find_no_tensorflow(sources: Sequence[Source], cwd: str, envs: Sequence[Mapping[str, str]]) -> list[str]:
    """A sentence, if a program begins with an import of TensorFlow, and no task would find TensorFlow."""
    for source in sources[:1]:
        line = _first_import(source, "tensorflow")
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


def _first_import(source: Source, module: str) -> int:
    """The line of an import of this module in no condition and before the program does anything; 0: the syntax shows none."""
    for node in source.tree.body:
        if module in imported(node):
            return node.lineno
        if not (imported(node) or _is_text(node) or isinstance(node, (ast.ImportFrom, ast.FunctionDef, ast.ClassDef))):
            return 0
    return 0


def find_saves(source: Source) -> str:
    """A sentence about the first call that saves a model under a name that Keras 3 does not take; empty: the syntax shows none."""
    calls = list(source.method_calls()) if source.uses_keras else []
    models = {owner for _, owner, method in calls if method in ("compile", "fit")}
    for call, owner, method in calls:
        endings = _ENDINGS.get(method, ())
        name = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
        if owner in models and endings and isinstance(name, str) and not name.endswith(endings):
            so = " or ".join(endings[:2] if method == "save" else endings[:1])
            other = "; for a SavedModel: model.export(path)" if method == "save" else ""
            return f"{source.path}:{call.lineno}: {method}() of Keras 3 fails for {name!r}: end the name with {so}{other}"
    return ""
