"""Functions that stand in for those of a library (worker/task/patches/stand_in.py)."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from worker.task import failure
from worker.task.patches import guard, stand_in


def test_a_function_is_replaced_by_one_that_gets_it() -> None:
    owner: Any = ModuleType("owner")
    exec("def double(number, times=1):\n    'Twice.'\n    return 2 * number * times", owner.__dict__)
    owner.double = stand_in.make(owner.double, "double", lambda real, number, **others: real(number + 1, **others), "a feature")
    assert owner.double(3, times=2) == 16
    assert (owner.double.__name__, owner.double.__doc__) == ("double", "Twice.")


def test_a_traceback_has_the_library_s_function_and_no_frame_of_orch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "library.py"
    library.write_text("def outer(call):\n    return inner(call)\n\n\ndef inner(call):\n    return call()\n")
    owner: Any = ModuleType("library")
    exec(compile(library.read_text(), str(library), "exec"), owner.__dict__)
    monkeypatch.setattr(failure, "PACKAGE", (failure.PACKAGE, __file__))  # the functions of this file are orch's
    for name in ("outer", "inner"):
        for feature in ("one", "another"):
            setattr(owner, name, stand_in.make(getattr(owner, name), name, _through, feature))
    program = tmp_path / "program.py"
    program.write_text("def mistake():\n    return 1 / 0\n\n\nowner.outer(mistake)\n")
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile(program.read_text(), str(program), "exec"), {"owner": owner})
    frames = [(Path(one.filename).name, one.lineno, one.name) for one in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[1:] == [
        ("program.py", 5, "<module>"),
        ("library.py", 1, "outer"),
        ("library.py", 2, "outer"),
        ("library.py", 6, "inner"),
        ("program.py", 2, "mistake"),
    ]
    assert caught.value.__context__ is None


def _through(real: Any, *args: Any) -> Any:
    return real(*args)


def test_an_exception_of_orch_for_the_program_keeps_its_frames() -> None:
    owner: Any = ModuleType("owner")
    exec("def double(number):\n    return 2 * number", owner.__dict__)

    def refuse(real: Any, number: int) -> None:
        raise guard.refusal(ValueError("not this number"))

    owner.double = stand_in.make(owner.double, "double", refuse, "a feature")
    with pytest.raises(ValueError, match="not this number") as caught:
        owner.double(1)
    assert [one.name for one in traceback.extract_tb(caught.value.__traceback__)][1:] == ["double", "refuse"]
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        owner.double()


def test_the_features_of_a_function_are_known_and_its_original_is_found() -> None:
    def real() -> int:
        return 1

    inner = stand_in.make(real, "real", _through, "one")
    outer = stand_in.make(inner, "real", _through, "another")
    assert outer() == 1
    assert [stand_in.is_of(outer, feature) for feature in ("one", "another", "a third")] == [True, True, False]
    assert stand_in.original(outer) is real
