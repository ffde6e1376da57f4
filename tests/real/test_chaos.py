"""The kinds of faults that need a real cluster, once each. `make chaos` runs all kinds, and more of each.

What is done to controllers, and SIGTERM to agents and templates, is tested without TensorFlow in test_stopping.py and test_orphans.py.
"""

from __future__ import annotations

import subprocess

import pytest

from tests.real.chaos import FAULTS, Fault, try_once

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(600)]


KINDS = (
    "task -9",
    "task -TERM",
    "task -STOP",
    "task stalls",
    "template -STOP",
    "agent -9",
    "agent -STOP, -CONT",
    "controller -9",
    "paused console",
    "full disk",
    "clock set",
)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.name in KINDS], ids=lambda fault: fault.name)
def test_whatever_is_done_to_a_cluster_it_ends_as_it_should(fault: Fault) -> None:
    if fault.disk and subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("NOT TESTED: this container may not mount")
    verdict = try_once(fault, seed=7)
    assert verdict.wrong == []
