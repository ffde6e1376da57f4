"""The tasks of a cluster as a table: what a dict is, but for its changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.model.state.cluster import TaskState, TaskStatus
from orchestrator.model.state.task_table import PART, TaskTable, table


@pytest.mark.parametrize("count", [0, 1, PART, PART + 1, 5 * PART])
def test_a_table_is_a_mapping_in_the_order_of_its_tasks(count: int) -> None:
    tasks = {f"worker-{number}": TaskStatus(f"worker-{number}", "a") for number in range(count)}
    made = table(tasks)
    assert isinstance(made, TaskTable)
    assert table(made) is made
    assert made == tasks
    assert (list(made), list(made.values()), list(made.items())) == (list(tasks), list(tasks.values()), list(tasks.items()))
    assert list(made.last_first()) == list(tasks.values())[::-1]
    assert (len(made), bool(made), "worker-0" in made, made.get("ps-0")) == (count, count > 0, count > 0, None)


def test_a_change_makes_another_table_and_leaves_the_first() -> None:
    tasks = {f"worker-{number}": TaskStatus(f"worker-{number}", "a") for number in range(3 * PART)}
    first = second = table(tasks)
    changed = ("worker-0", f"worker-{PART}", f"worker-{3 * PART - 1}")
    for name in changed:
        second = second.changed(name, lambda task: replace(task, state=TaskState.UP))
    assert first == tasks
    assert [name for name, task in second.items() if task.state is TaskState.UP] == list(changed)
    assert list(second) == list(tasks)
    with pytest.raises(KeyError):
        second.changed("worker-1000", lambda task: task)
