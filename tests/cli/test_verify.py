"""What `orch verify` refuses, each in one sentence that names the way out. tests/real/test_verify.py compares trainings."""

from __future__ import annotations

import pytest

from orchestrator.errors import USAGE
from tests.conftest import Orch


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-n", "1"], "say how many, as in -n 2"),
        (["-n", "2", "-H", "a:1,b:1"], "orch verify compares tasks on this machine; leave out the hosts"),
        (["-n", "2", "--ps", "1"], "leave out --ps, if the program takes its strategy from worker.strategy()"),
        (["--strategy", "mirrored"], "as in --cpus 2"),
        (["--strategy", "none"], "leave out --strategy"),
        (["-n", "2", "--no-python"], "orch verify compares Python programs"),
    ],
)
def test_a_cluster_that_cannot_be_compared_is_refused(words: list[str], told: str, orch: Orch) -> None:
    (orch.cwd / "train.py").write_text("raise SystemExit('must not run')")
    error = orch.in_process("verify", *words, "train.py", check=USAGE).err
    assert told in error
    assert "Traceback" not in error
