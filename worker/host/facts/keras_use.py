"""Finds whether the Keras that a program needs is installed: Keras 2 if the run uses it, and a release that orch can save."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...protocol.messages import Hello
from ...settings import releases
from ...settings.keras_settings import LEGACY, install_keras_2, is_legacy, minor_release
from . import host_facts, program_notes
from .import_path import find_module
from .program_files import Source

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
    legacy = [is_legacy({**os.environ, **env}) for env in hello.search_envs]
    if all(legacy):
        return find_unfit_saves(sources, hello, "tf_keras"), [], False
    for source in sources:
        if source.sets_keras:
            note = f"{source.path} names {LEGACY}, so each task imports TensorFlow by itself; with --keras legacy they start faster"
            return [], [note], True
    with_keras_3 = [source for source in sources if "tf_keras" not in source.imports]
    notes = [program_notes.find_saves(source) for source in with_keras_3]
    problems: list[str] = []
    if not any(legacy):
        problems = [*find_unfit_saves(with_keras_3, hello, "keras"), *find_unfit_fit(with_keras_3, hello)]
        notes.append(describe_old(with_keras_3, hello))
    return problems, list(filter(None, notes)), False


def find_unfit_saves(sources: Iterable[Source], hello: Hello, package: str) -> list[str]:
    """Why `fit` cannot save as the run asks, because the installed Keras has other functions than orch knows; a sentence, or nothing."""
    if not hello.saves or not any(_names_keras(source) for source in sources) or not (why := _why_off(_SAVES[package], hello)):
        return []
    version = host_facts.find_keras(package, hello.search_envs[0], hello.cwd) or host_facts.UNKNOWN_VERSION
    what = f"fit of {package} {version} cannot save (--checkpoint), because orch does not know this release ({why})"
    return [f"{what}. {releases.KNOWN}: {sys.executable} -m {releases.INSTALL_KERAS}; or run without --checkpoint"]


def find_unfit_fit(sources: Iterable[Source], hello: Hello) -> Iterator[str]:
    """A sentence, if a program certainly calls a `fit` of Keras 3 that cannot work in this cluster: it would fail after its start."""
    line = next((f"{source.path}:{found}" for source in sources if _names_keras(source) and (found := source.certain_fit())), "")
    if not line or not hello.ports:  # a task alone
        return
    if hello.has_servers:
        install = install_keras_2(sys.executable, host_facts.find_tensorflow(hello.search_envs[:1], hello.cwd) or "")
        is_there = find_module("tf_keras", hello.search_envs[0], hello.cwd)
        how = f"--keras legacy runs with Keras 2{'' if is_there else f' (tf-keras: {install})'}; or write the training loop yourself"
        yield f"{line}: fit() of Keras 3 cannot work with parameter servers: {how}"
    elif hello.has_replicas and (why := _why_off("FIT", hello)):
        version = host_facts.find_keras("keras", hello.search_envs[0], hello.cwd) or host_facts.UNKNOWN_VERSION
        what = f"fit() of Keras {version} cannot work on several workers, because orch does not know this release ({why})"
        yield f"{line}: {what}. {releases.KNOWN}: {sys.executable} -m {releases.INSTALL_KERAS}"


def describe_old(sources: Iterable[Source], hello: Hello) -> str:
    """A sentence about a Keras 3 that is older than the first that orch mends for several replicas; empty: these sources have no need.

    A task prints the sentence about a newer release when it imports Keras.
    """
    if not hello.has_replicas or not any(_names_keras(source) for source in sources):
        return ""
    version = host_facts.find_keras("keras", hello.search_envs[0], hello.cwd) or ""
    return f"{releases.describe_old(version)}: {sys.executable} -m {releases.INSTALL_KERAS}" if releases.is_old(version) else ""


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
