"""What the benchmarks name of orch's source is there."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.keras import WAYS
from benchmarks.programs.trace_start import POINTS
from tests.conftest import Orch


@pytest.mark.parametrize(("module", "function"), [(module, function) for module, found in POINTS.items() for function in found])
def test_the_functions_that_a_start_is_cut_at_exist(module: str, function: str) -> None:
    assert callable(functools.reduce(getattr, function.split("."), importlib.import_module(module)))


@pytest.mark.parametrize("way", WAYS)
def test_orch_up_knows_the_options_of_each_way(way: str, script: Callable[..., Path], orch: Orch) -> None:
    script("pass")
    _, _, *options = WAYS[way]
    orch("up", "script.py", "-n", "2", "--dry-run", *options, check=0)
