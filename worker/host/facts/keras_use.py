"""Finds which Keras a program needs, found before the program runs: whether Keras 2 is installed if the run uses it, and calls of `fit`
that no installed Keras can do. The source is parsed and never run, so orch refuses only certain uses.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...protocol.messages import Hello
from ...settings import keras_3, releases
from ...settings.keras_settings import LEGACY, install_keras_2, is_legacy, minor_release
from . import host_facts, program_notes
from .import_path import find_module
from .keras_source import Source

WORKERS = "MultiWorkerMirroredStrategy"
_SAVES = {"keras": "SAVES", "tf_keras": "SAVES_2"}
"""The feature that saves, by the package."""


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


def find_uses(sources: Sequence[Source], hello: Hello) -> tuple[list[str], list[str], bool]:
    """Return how a program uses Keras: the uses that certainly fail and those that are likely to, a sentence for each.

    The last value: whether the program itself sets the variable that chooses Keras.
    """
    cwd, envs = hello.cwd, hello.search_envs
    legacy = [is_legacy({**os.environ, **env}) for env in envs]
    if all(legacy):
        return find_unfit_saves(sources, hello, "tf_keras"), [], False
    problems: list[str] = []
    notes: list[str] = []
    with_keras_3: list[Source] = []
    for source in sources:
        if source.sets_keras:
            note = f"{source.path} names {LEGACY}, so each task imports TensorFlow by itself; with --keras legacy they start faster"
            return [], [note], True
        if "tf_keras" in source.imports:
            continue
        with_keras_3.append(source)
        if hello.no_fit_under:
            sentence, is_certain = find_loop(source, hello.no_fit_under, lambda itself: _describe_keras_2(envs[0], cwd, itself))
            (problems if is_certain and not any(legacy) else notes).append(sentence)
        notes.append(program_notes.find_saves(source))
    if not any(legacy):
        problems += find_unfit_saves(with_keras_3, hello, "keras")
        refused, note = find_unfit_fit(with_keras_3, hello)
        problems.append(refused)
        notes.append(note)
    return list(filter(None, problems)), list(filter(None, notes)), False


def find_unfit_saves(sources: Iterable[Source], hello: Hello, package: str) -> list[str]:
    """Why `fit` cannot save as the run asks, because the installed Keras has other functions than orch knows; a sentence, or nothing."""
    if not hello.saves or not any(_names_keras(source) for source in sources) or not (why := _why_off(_SAVES[package], hello)):
        return []
    version = host_facts.find_keras(package, hello.search_envs[0], hello.cwd) or host_facts.UNKNOWN_VERSION
    what = f"fit of {package} {version} cannot save (--checkpoint), because orch does not know this release ({why})"
    return [f"{what}. {releases.KNOWN}: {sys.executable} -m {releases.INSTALL_KERAS}; or run without --checkpoint"]


def find_unfit_fit(sources: Iterable[Source], hello: Hello) -> tuple[str, str]:
    """A sentence about a Keras 3 whose `fit` orch does not mend: a problem, or else a note. Both empty: these sources have no need.

    It is a problem if the program certainly calls `fit` under `WORKERS`. A note is about releases before the first that orch knows; a task
    prints the one about a newer release when it imports Keras.
    """
    users = [source for source in sources if _names_keras(source)]
    if not users or not hello.replicas_under:
        return "", ""
    version = host_facts.find_keras("keras", hello.search_envs[0], hello.cwd) or ""
    remedy = f"{sys.executable} -m {releases.INSTALL_KERAS}"
    if hello.replicas_under == WORKERS and (why := _why_off("FIT", hello)):
        for source in users:
            if certain := source.certain_loop(WORKERS, ("fit",)):
                what = f"fit() of Keras {version or host_facts.UNKNOWN_VERSION} cannot work on several workers"
                return (
                    f"{source.path}:{certain[0]}: {what}, because orch does not know this release ({why}). {releases.KNOWN}: {remedy}",
                    "",
                )
    return "", f"{keras_3.describe_old(version)}: {remedy}" if keras_3.is_old(version) else ""


def _names_keras(source: Source) -> bool:
    return b"keras" in source.text


def _why_off(feature: str, hello: Hello) -> str:
    """Why a feature is off with the packages that the tasks would import; empty: it is on. `feature`: its name in `patches.table`."""
    from ...task.patches import table  # most runs need neither saves nor several workers
    from ...task.patches.package_sources import Sources, problems_of

    def directory_of(package: str) -> str:
        path = find_module(package, hello.search_envs[0], hello.cwd, asks=False) or ""
        return os.path.dirname(path) if os.path.basename(path) == "__init__.py" else ""

    return next(iter(problems_of(getattr(table, feature), Sources(directory_of))), "")


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
