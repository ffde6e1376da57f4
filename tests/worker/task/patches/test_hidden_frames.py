"""The place of a warning, with frames of orch between the function that warns and the program."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from worker.task.patches import features, guard, hidden_frames, stand_in


def _made(warn: Any, ours: Callable[..., Any] = hidden_frames._warn) -> Any:
    return stand_in.make(warn, "warn", ours, features.TRACEBACKS, measures=True)


def _library(level: int) -> None:
    warnings.warn("a warning", stacklevel=level)


def _places(function: Callable[[int], None]) -> list[tuple[str, int]]:
    found = []
    for level in (0, 1, 2, 3, 5, 500):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            function(level)
        found.append((caught[0].filename, caught[0].lineno))
    return found


def test_a_warning_has_the_place_that_it_has_without_orch(monkeypatch: pytest.MonkeyPatch) -> None:
    through = stand_in.make(_library, "fit", guard.theirs, features.FIT)
    found = []
    for warn in (warnings.warn, _made(warnings.warn)):
        monkeypatch.setattr(warnings, "warn", warn)
        found.append([_places(function) for function in (_library, through)])
    (plain, moved), mended = found
    assert moved != plain
    assert mended == [plain, plain]


def test_what_is_no_call_of_warn_fails_as_without_orch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "off", set())
    made: Any = _made(warnings.warn)
    for given in ((), ("a", 3), ("a", None, "2"), ("a", None, None)):
        said = []
        for warn in (warnings.warn, made):
            with pytest.raises(TypeError) as raised:
                warn(*given)
            said.append(str(raised.value).rpartition("warn()")[2])
        assert given == () or said[0] == said[1]
    assert guard.off == set()


def test_a_warning_at_an_import_has_the_place_of_the_import(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "that_warns.py").write_text("import warnings\nwarnings.warn('a warning', stacklevel=2)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(warnings, "warn", _made(warnings.warn))
    with pytest.warns(UserWarning, match="a warning") as caught:
        __import__("that_warns")
    del sys.modules["that_warns"]
    assert caught[0].filename == __file__


def test_an_error_of_orch_in_it_loses_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: Any, **_kwargs: Any) -> None:
        raise KeyError("orch's own")

    monkeypatch.setattr(guard, "off", set())
    monkeypatch.setattr(warnings, "warn", _made(warnings.warn, fail))
    for _ in range(2):
        with pytest.warns(UserWarning, match="a warning"):
            _library(1)
    assert guard.off == {features.TRACEBACKS}
