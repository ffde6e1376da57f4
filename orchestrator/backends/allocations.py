"""Finds whether orch was started inside of an allocation of an engine (salloc, a batch script), and the spec that uses the allocation."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from ..model.settings import BACKENDS, BackendSpec
from ..model.settings import document as documents
from ..model.settings.document import Node
from . import MODULES


def use_allocation(document: Node, env: Mapping[str, str]) -> tuple[Node, str]:
    """The document with the allocation in which a program with these variables runs, and a line for the user.

    A document that names another place stays as it is; then the line is empty. Raises `OrchError` for an allocation that cannot be used.
    """
    for name, section in BACKENDS.items():
        if section.IS_DETECTED and _chooses(document, section):
            known = importlib.import_module(MODULES[name]).known(env)
            for key, value in known.items():
                if not documents.has(document, ["backend", key]):
                    document = documents.overlay(document, f"backend.{key}", documents.from_data(value, "--join"))
            return document, ""
        # The cheap question first: most machines know no engine.
        if section.INSIDE and env.get(section.INSIDE) and _leaves_place_to(name, document):
            found: tuple[Mapping[str, Any], str] = importlib.import_module(MODULES[name]).inside(env)
            keys, line = found
            for key, value in {"type": name, **keys}.items():
                document = documents.overlay(document, f"backend.{key}", documents.from_data(value, section.INSIDE))
            return document, f"{line}; --backend {next(iter(BACKENDS))} uses this machine alone"
    return document, ""


def _given(document: Node) -> tuple[Any, Mapping[str, Node]]:
    """The type in the section `backend` of the document, or None; and the keys there."""
    given = document.value.get("backend") if isinstance(document.value, dict) else None
    keys = given.value if given is not None and isinstance(given.value, dict) else {}
    chosen = keys.get("type") if keys else given
    return None if chosen is None else chosen.value, keys


def _chooses(document: Node, section: type[BackendSpec]) -> bool:
    """True if the document names this section, by its type or by the key that implies it."""
    chosen, keys = _given(document)
    if chosen is not None:
        return BACKENDS.get(str(chosen)) is section
    return section.IMPLIED_BY in keys and keys[section.IMPLIED_BY].value is True


def _leaves_place_to(name: str, document: Node) -> bool:
    """True if the document names this backend, or none."""
    chosen, keys = _given(document)
    if chosen is not None:
        return bool(chosen == name)
    return not any(section.IMPLIED_BY and section.IMPLIED_BY in keys and keys[section.IMPLIED_BY].value for section in BACKENDS.values())
