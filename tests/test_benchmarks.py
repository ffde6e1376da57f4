"""What the benchmarks name of orch's source is there."""

from __future__ import annotations

import functools
import importlib

import pytest

from benchmarks.programs.trace_start import POINTS


@pytest.mark.parametrize(("module", "function"), [(module, function) for module, found in POINTS.items() for function in found])
def test_the_functions_that_a_start_is_cut_at_exist(module: str, function: str) -> None:
    assert callable(functools.reduce(getattr, function.split("."), importlib.import_module(module)))
