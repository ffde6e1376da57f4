"""How many workers an elastic cluster has."""

from __future__ import annotations

import pytest

from orchestrator.errors import SpecError
from orchestrator.model.planning import elastic
from orchestrator.model.settings import ClusterSpec
from orchestrator.model.settings.document import from_data
from orchestrator.model.settings.parse import parse, to_document


def spec(**more: object) -> ClusterSpec:
    data = {"script": "train.py", "tasks": {"worker": "2:6"}, "restart": 1, **more}
    return parse(from_data(data, "orch.yaml"), workdir="/")


def test_a_span_is_the_fewest_and_the_most() -> None:
    found = spec()
    assert (found.least_workers, found.counts["worker"]) == (2, 6)
    assert parse(from_data(to_document(found), "again"), workdir="/") == found
    assert spec(tasks={"worker": "3:3"}).least_workers == 0
    assert spec(tasks={"worker": 3}).least_workers == 0


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"tasks": {"worker": "6:2"}}, "6:2: at least 6 and at most 2 workers"),
        ({"tasks": {"worker": "0:2"}}, "must be at least 1"),
        ({"restart": 0}, "2:6 workers: without restarts"),
        ({"strategy": "parameter_server", "tasks": {"worker": "2:6", "ps": 1}}, "only multi_worker_mirrored continues with fewer"),
        ({"input": {"auto_shard": "file"}}, "under auto_shard: file another number of workers reads other global batches"),
        ({"input": {"global_batch_size": 10}}, "a global batch of 10 cannot be divided evenly by 6"),
        ({"tasks": {"worker": "4:6"}, "input": {"global_batch_size": 6}}, "a global batch of 6 cannot be divided evenly by 4 to 5"),
    ],
)
def test_what_cannot_be_elastic_is_refused(more: dict[str, object], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        spec(**more)


@pytest.mark.parametrize(("batch", "room", "workers"), [(None, 5, 5), (None, 9, 6), (None, 1, None), (12, 5, 4), (12, 6, 6), (12, 2, 2)])
def test_there_are_as_many_workers_as_fit_and_divide_the_batch(batch: int | None, room: int, workers: int | None) -> None:
    found = elastic.fit(spec(input={"global_batch_size": batch}), room)
    assert (found and found.counts["worker"]) == workers


def test_hosts_without_slots_take_equal_shares_of_the_largest_cluster() -> None:
    assert elastic.capacity(spec(), {"a": None, "b": None}) == {"a": 3, "b": 3}
    assert elastic.capacity(spec(), {"a": 4, "b": None}) == {"a": 4, "b": 1}


def test_a_host_that_is_back_and_of_no_use_is_tried_ever_more_seldom() -> None:
    pause_s = elastic.BACK_S
    for expected in (20.0, 40.0, 80.0):
        pause_s = elastic.pause_after(pause_s, 2, 2)
        assert pause_s == expected
    assert elastic.pause_after(3000.0, 2, 1) == elastic.BACK_MOST_S
    assert elastic.pause_after(pause_s, 2, 3) == elastic.BACK_S
