"""Which Keras a program needs, seen before it runs: whether Keras 2 is there if it is asked for, and what only Keras 2 has.

Source is read by syntax and never run, so that only what is sure is said: names of Keras 2 that Keras 3 does not have.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping

from ...settings.keras_settings import LEGACY, install_keras_2, is_legacy
from .. import host_facts
from .import_path import import_path
from .keras_source import UNKNOWN, Source


def find_problem(env: Mapping[str, str], cwd: str) -> str | None:
    """Why a task with this environment cannot have the Keras 2 that it asks for; None if it can, or asks for none."""
    if not is_legacy(env):
        return None
    path = import_path(env, cwd)
    try:
        if path.find("tf_keras", cwd) is not None or not path.is_all:
            return None
    except Exception:  # whatever an import hook has met; the task will say it
        return None
    install = install_keras_2(sys.executable, host_facts.find_tensorflow([env], cwd) or "")
    return f"Keras 2 is asked for ({LEGACY}={env[LEGACY]}), and tf-keras is not installed for {sys.executable}: {install}"


def find_keras_2(path: str, source: Source, remedy: Callable[[bool], str]) -> str:
    """What only Keras 2 has, the first of it in this file: a sentence; empty: nothing."""
    from ...tensorflow_facts.keras_2 import GONE

    patterns = [(re.compile(gone.use), gone) for gone in GONE]
    found = sorted(
        (line, use, gone.instead)
        for line, use in set(source.uses() if source.imports_keras else ())
        for gone in [next((gone for pattern, gone in patterns if pattern.fullmatch(use)), None)]
        if gone is not None
    )
    if not found:
        return ""
    line, use, instead = found[0]
    more = f" (and so on: {len(lines)} lines)" if len(lines := {line for line, _, _ in found}) > 1 else ""
    return f"{path}:{line}: Keras 3 has no {_show(use)}{more}: {instead}; {remedy(use.startswith('keras.') or _is_unknown(source, use))}"


def _is_unknown(source: Source, use: str) -> bool:
    return use.startswith(UNKNOWN) and source.imports_keras_itself


def _show(use: str) -> str:
    """A use as its user knows it."""
    owner, of, what = use.rpartition("().")
    return f"{what} of {owner}" if of else what.removeprefix(f"{UNKNOWN}.")


def describe_keras_2(env: Mapping[str, str], cwd: str) -> Callable[[bool], str]:
    """How to run with Keras 2, for a sentence; asked with whether the file imports ``keras`` itself, which stays Keras 3."""
    is_there = import_path(env, cwd).find("tf_keras", cwd) is not None
    after = "" if is_there else f", after {install_keras_2(sys.executable, host_facts.find_tensorflow([env], cwd) or '')}"

    def describe(itself: bool) -> str:
        how = "import tf_keras in place of keras, which" if itself else "--keras legacy"
        return f"{how} runs with Keras 2 (tf-keras){after}"

    return describe


def find_loops(path: str, source: Source, strategy: str, remedy: Callable[[bool], str]) -> tuple[str, bool]:
    """Where a model is trained by what Keras 3 cannot do under this strategy: a sentence, and whether that is certain; empty: nowhere."""
    certain = source.certain_loop(strategy)
    found = certain or min(source.loops(), default=None)
    if found is None:
        return "", False
    line, name = found
    how = remedy(source.imports_keras_itself)
    return (
        f"{path}:{line}: {name}() of Keras 3 cannot work under {strategy}: {how}; or write the training loop yourself",
        certain is not None,
    )
