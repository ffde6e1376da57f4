"""Tests that stay in one process of pytest-xdist, because what they use is made once in each process that runs one of them.

pytest-xdist has groups of its own (``--dist loadgroup``). They have no effect with pytest 9.2, where a test cannot be given another name.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import pytest

BEDS = {
    "kubernetes": {*(f"test_kubernetes_{name}" for name in ("bed", "detached", "failures", "jobs", "runs")), "test_kubernetes"},
    "slurm": {
        *(f"test_slurm_{name}" for name in ("inside", "submitted", "unasked", "users")),
        "test_slurm",
        "test_join_engines",
        "test_functions",
        "real/test_join",
    },
}
"""A folder before a name tells two modules of one name apart."""
MADE_ONCE = {"test_checkpoints", "test_remedies", "test_by_hand", "test_report_page", "test_trace_file", "test_added_setting"}
"""Modules with a fixture that takes seconds, once for all of its tests."""


def group_of(nodeid: str) -> str:
    """Tests with the same answer run in one process."""
    path = PurePath(nodeid.partition("::")[0])
    names = {path.stem, f"{path.parent.name}/{path.stem}"}
    return next((bed for bed, modules in BEDS.items() if names & modules), path.stem if path.stem in MADE_ONCE else nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One test after the other is handed out, in the order of the collection, and a group as a whole. `--dist` has no effect."""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class Groups(LoadScopeScheduling):  # type: ignore[misc,unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

        def remove_node(self, node: Any) -> str | None:
            """A process has crashed. The test that it ran has failed; pytest-xdist would run it again."""
            work = self.assigned_work.pop(node)
            crashed: str | None = next((test for unit in work.values() for test, is_over in unit.items() if not is_over), None)
            if crashed is None:  # such as a process that has died before it had any test
                return None
            for unit in work.values():
                if crashed in unit:
                    unit[crashed] = True
            self.workqueue.update({scope: unit for scope, unit in work.items() if not all(unit.values())})
            for other in self.assigned_work:
                self._reschedule(other)
            return crashed

    config.option.loadscopereorder = False
    return Groups(config, log)
