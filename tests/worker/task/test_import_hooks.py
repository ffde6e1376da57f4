"""Waiting for a module to be imported (worker/task/import_hooks.py)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from worker.task import import_hooks


def test_several_may_wait_for_one_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "waited_for.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "waited_for", raising=False)
    seen: list[tuple[str, int]] = []
    for who in ("first", "second", "third"):
        import_hooks.after("waited_for", lambda module, who=who: seen.append((who, module.VALUE)))
    import waited_for  # type: ignore[import-not-found]

    assert seen == [("first", 1), ("second", 1), ("third", 1)]
    assert type(waited_for.__loader__).__name__ == "SourceFileLoader"
    assert waited_for.__spec__.loader is waited_for.__loader__
