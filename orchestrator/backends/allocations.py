"""Finds whether orch was started inside of an allocation of an engine (salloc, a batch script), and the spec that uses the allocation."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from ..model.settings import BACKENDS
from ..model.settings import document as documents
from ..model.settings.document import Node
from . import MODULES


def use_allocation(document: Node, env: Mapping[str, str]) -> tuple[Node, str]:
    """The document with the allocation in which a program with these variables runs, and a line for the user.

    A document that names another place stays as it is; then the line is empty. Raises `OrchError` for an allocation that cannot be used.
    """
    chosen = _chosen(document)
    for name, section in BACKENDS.items():
        is_asked = section.IS_EVERYWHERE and chosen == name
        # The cheap question first: most machines know no engine.
        if is_asked or (section.INSIDE and env.get(section.INSIDE) and chosen in ("", name)):
            found: tuple[Mapping[str, Any], str] = importlib.import_module(MODULES[name]).inside(env)
            keys, line = found
            for key, value in {"type": name, **keys}.items():
                if not (is_asked and documents.has(document, ["backend", key])):
                    document = documents.overlay(document, f"backend.{key}", documents.from_data(value, section.INSIDE or "--join"))
            return document, line and f"{line}; --backend {next(iter(BACKENDS))} uses this machine alone"
    return document, ""


def _chosen(document: Node) -> str:
    """The backend that the document names, by its type or by the key that implies it; empty: it names none."""
    given = document.value.get("backend") if isinstance(document.value, dict) else None
    keys = given.value if given is not None and isinstance(given.value, dict) else {}
    chosen = keys.get("type") if keys else given
    if chosen is not None:
        return str(chosen.value)
    return next((name for name, section in BACKENDS.items() if section.IMPLIED_BY in keys and keys[section.IMPLIED_BY].value), "")
