"""Waiting for a module to be imported (worker/task/patches/import_hooks.py)."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from worker.task import patches
from worker.task.patches import features, guard, import_hooks


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


class Loader:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in ("waited_for", "another") else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "waited_for":
            import another  # type: ignore[import-not-found]  # noqa: F401


class LoaderWithoutAttributes(Loader):
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


@pytest.mark.parametrize(("loader", "expected"), [(Loader(), ["waited_for"]), (LoaderWithoutAttributes(), [])])
def test_a_loader_may_serve_several_modules_and_refuse_attributes(
    monkeypatch: pytest.MonkeyPatch, loader: Loader, expected: list[str]
) -> None:
    monkeypatch.setattr(sys, "meta_path", [loader, *sys.meta_path])
    for name in ("waited_for", "another"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    seen: list[str] = []
    import_hooks.after("waited_for", lambda module: seen.append(module.__name__))
    assert importlib.util.find_spec("waited_for") is not None  # found, and not imported yet
    importlib.import_module("another")
    assert seen == []
    importlib.import_module("waited_for")
    assert seen == expected


def test_a_hook_that_fails_turns_off_what_measures_and_ends_what_changes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(import_hooks, "_printed", set())
    monkeypatch.setattr(guard, "off", set())
    patches.after(features.SERVING, "json", lambda module: module.no_such_function)
    said = f"orch: warning: {features.SERVING}: off from here on, because orch's own code has failed (AttributeError: module 'json' has no "
    assert capfd.readouterr().err.startswith(said)
    assert guard.off == {features.SERVING}
    with pytest.raises(guard.Fault, match=f"{features.FILES}: orch's own code has failed: AttributeError: module 'json'"):
        patches.after(features.FILES, "json", lambda module: module.no_such_function)


def test_a_line_is_printed_once_though_a_program_imports_the_modules_of_orch_a_second_time(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ORCH_TASK", raising=False)
    spec = importlib.util.spec_from_file_location("worker.task.patches.second", import_hooks.__file__)
    assert spec is not None
    assert spec.loader is not None
    second = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(second)
    for module in (import_hooks, second):
        module.print_once("a line of which there is one")
    assert capfd.readouterr().err == "orch: warning: a line of which there is one\n"
