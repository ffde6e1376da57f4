"""Which Keras a program needs, found before the program runs: whether Keras 2 is installed if the run uses it, and calls of `fit` that no
installed Keras can do. The source is parsed and never run, so orch refuses only certain uses.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...settings.keras_settings import LEGACY, install_keras_2, is_legacy, minor_release
from ...tensorflow_facts import keras_3
from ...tensorflow_facts.releases import INSTALL_KERAS, KNOWN_KERAS
from .. import host_facts
from . import program_notes
from .import_path import find_module
from .keras_source import Source

WORKERS = "MultiWorkerMirroredStrategy"


def find_problems(sources: Iterable[Source], cwd: str, envs: Iterable[Mapping[str, str]]) -> list[str]:
    """Why no task can use the Keras 2 that it asks for, a sentence for each reason; empty: a task can, or uses another Keras or none."""
    if not any(source.uses_keras for source in sources):
        return []
    found: dict[str, None] = {}
    for env in envs:
        why = _why_no_keras_2(env, cwd) if is_legacy(env) else ""
        if not why:
            return []
        found[f"Keras 2 is asked for ({LEGACY}={env[LEGACY]}), and {why}; or leave that out, which is Keras 3"] = None
    return list(found)


def _why_no_keras_2(env: Mapping[str, str], cwd: str) -> str:
    """Why a task finds no tf-keras for its TensorFlow, with a remedy; empty: it may find one."""
    keras_2, tensorflow = host_facts.find_keras("tf_keras", env, cwd), host_facts.find_tensorflow([env], cwd) or ""
    install = install_keras_2(sys.executable, tensorflow)
    if keras_2 == "":
        return f"tf-keras is not installed for {sys.executable}: {install}"
    fits, wanted = minor_release(keras_2 or ""), minor_release(tensorflow)
    if fits and wanted and fits != wanted:
        return f"tf-keras {keras_2} is made for TensorFlow {fits}, and {sys.executable} has TensorFlow {tensorflow}: {install}"
    return ""


def find_uses(
    sources: Sequence[Source], cwd: str, envs: Sequence[Mapping[str, str]], no_fit_under: str = "", replicas_under: str = ""
) -> tuple[list[str], list[str], bool]:
    """How a program uses Keras, if it may run with Keras 3: the uses that certainly fail and those that are likely to, a sentence for each.

    The last value: whether the program itself sets the variable that chooses Keras. `no_fit_under`, `replicas_under`: see `Hello`.
    """
    legacy = [is_legacy({**os.environ, **env}) for env in envs]
    if all(legacy):
        return [], [], False
    problems: list[str] = []
    notes: list[str] = []
    with_keras_3: list[Source] = []
    for source in sources:
        if source.sets_keras:
            note = f"{source.path} sets {LEGACY}, so each task imports TensorFlow by itself; with --keras legacy they start faster"
            return [], [note], True
        if "tf_keras" in source.imports:
            continue
        with_keras_3.append(source)
        if no_fit_under:
            sentence, is_certain = find_loop(source, no_fit_under, lambda itself: _describe_keras_2(envs[0], cwd, itself))
            (problems if is_certain and not any(legacy) else notes).append(sentence)
        notes.append(program_notes.find_saves(source))
    if replicas_under and not any(legacy):
        refused, note = find_old_keras(with_keras_3, replicas_under, [host_facts.find_keras("keras", env, cwd) or "" for env in envs])
        problems.append(refused)
        notes.append(note)
    return list(filter(None, problems)), list(filter(None, notes)), False


def find_old_keras(sources: Iterable[Source], strategy: str, versions: Sequence[str]) -> tuple[str, str]:
    """A sentence about a Keras 3 that is too old for several replicas: a problem, or else a note. Both empty: these sources have no need.

    It is a problem if the program certainly calls `fit` under `WORKERS`, where `fit` of an old Keras fails. `versions`: of the tasks.
    """
    users = [source for source in sources if b"keras" in source.text]
    if not users or not all(map(keras_3.is_old, versions)):
        return "", ""
    remedy = f"{sys.executable} -m {INSTALL_KERAS}"
    for source in users if strategy == WORKERS else ():
        if certain := source.certain_loop(strategy, ("fit",)):
            what = f"fit() of Keras {versions[0]} cannot work on several workers, and orch mends {KNOWN_KERAS}"
            return f"{source.path}:{certain[0]}: {what}: {remedy}", ""
    return "", f"{keras_3.describe_old(versions[0])}: {remedy}"


def find_loop(source: Source, strategy: str, remedy: Callable[[bool], str]) -> tuple[str, bool]:
    """A sentence about the first call of a model's fit that cannot work under this strategy, and whether that is certain; empty: none.

    `remedy` describes how to run with Keras 2. Its argument: the file imports ``keras`` itself, which stays Keras 3.
    """
    certain = source.certain_loop(strategy)
    found = certain or min(source.loops(), default=None)
    if found is None:
        return "", False
    line, name = found
    how = remedy("keras" in source.imports)
    problem = f"{source.path}:{line}: {name}() of Keras 3 cannot work under {strategy}: {how}; or write the training loop yourself"
    return problem, certain is not None


def _describe_keras_2(env: Mapping[str, str], cwd: str, itself: bool) -> str:
    install = "" if find_module("tf_keras", env, cwd) else install_keras_2(sys.executable, host_facts.find_tensorflow([env], cwd) or "")
    how = "import tf_keras in place of keras, which" if itself else "--keras legacy"
    return f"{how} runs with Keras 2 (tf-keras{install and ': '}{install})"
