"""Every kind of fault once, on a real cluster. `make chaos` runs more of them."""

from __future__ import annotations

import pytest

from tests.real.chaos import FAULTS, Fault, try_once

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_whatever_is_done_to_a_cluster_it_ends_as_it_should(fault: Fault) -> None:
    verdict = try_once(fault, seed=7)
    assert verdict.wrong == []
