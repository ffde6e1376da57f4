"""Explains failed comparisons in a task as pytest explains them in the test.

The code of an `assert` that pytest has rewritten asks `_pytest.assertion.util._reprcompare` (rewrite.py, `_call_reprcompare`), which pytest
sets for each test in its own process alone (`pytest_runtest_protocol` in _pytest/assertion/__init__.py). Where pytest keeps these things
elsewhere, the explanation has one line.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

from . import patches
from .patches.features import TESTS

MOST_LINES = 8
"""Lines of an explanation; pytest cuts it there without ``-vv`` (_pytest/assertion/truncate.py)."""


def explain(verbosity: int) -> None:
    """Explain comparisons from now on, as ``-v`` so many times does."""
    with contextlib.suppress(ImportError):
        from _pytest import assertion

        config = _config(verbosity)

        def compare(op: str, left: object, right: object) -> str | None:
            try:
                lines = assertion.pytest_assertrepr_compare(config=config, op=op, left=left, right=right)
            except Exception:
                return None
            if not lines:
                return None
            lines = [line.replace("\n", "\\n") for line in lines]
            if verbosity < 2 and len(lines) > MOST_LINES + 2:
                lines = [*lines[:MOST_LINES], f"...Full output truncated ({len(lines) - MOST_LINES} lines hidden), use '-vv' to show"]
            return "\n~".join(lines).replace("%", "%%")

        patches.put(TESTS, "pytest.comparisons", lambda _: compare)


def _config(verbosity: int) -> Any:
    """The part of `pytest.Config` that explanations use."""
    terminal = SimpleNamespace(_highlight=lambda source, lexer="python": source)
    return SimpleNamespace(
        pluginmanager=SimpleNamespace(has_plugin=lambda name: False),
        get_verbosity=lambda kind=None: verbosity,
        getini={"assertion_text_diff_style": "ndiff"}.get,
        get_terminal_writer=lambda: terminal,
    )
