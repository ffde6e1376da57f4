"""Which task is said to be slow or missing, from what the tasks measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.model.policy import stragglers
from orchestrator.model.policy.stragglers import Standstill, Watch
from worker.protocol.messages import HostUse, Sampled, TaskUse

NOTHING = HostUse()
TASKS = {f"worker-{number}": 1 for number in range(4)}


def use(number: int, work: float, peers: float, *, window: int = 1, read: float = 0.002, rate: float = 5.0, **more: Any) -> TaskUse:
    return TaskUse(f"worker-{number}", 1, "S", step=20.0, rate=rate, work=work, peers=peers, input=read, window=window, came=60, **more)


def even(window: int, **more: Any) -> list[TaskUse]:
    return [use(number, 0.120 + number / 1000, 0.008, window=window, **more) for number in range(4)]


def uneven(window: int, **more: Any) -> list[TaskUse]:
    return [*even(window)[:3], use(3, 0.182, 0.001, window=window, **more)]


def of_one_host(uses: list[TaskUse], host: HostUse = NOTHING) -> dict[str, Sampled]:
    found = [one if one.task == "worker-3" else use(int(one.task[-1]), one.work, 0.060, window=one.window) for one in uses]
    return {"a": Sampled(1.0, 2.0, tuple(found), host, host="a")}


def told(*samples: dict[str, Sampled], tasks: dict[str, int] = TASKS) -> list[str]:
    before = Watch()
    lines: list[str] = []
    for latest in samples:
        before, found = stragglers.watch(before, latest, tasks)
        lines += found
    return lines


def test_the_task_that_works_longer_and_waits_least_is_named_once() -> None:
    (line,) = told(*(of_one_host(uneven(window)) for window in range(1, 9)))
    assert line == "worker-3 is slower: 182 ms of work per step, the others 120-122 ms; they wait 60 ms of each step for worker-3"


@pytest.mark.parametrize(
    "samples",
    [
        [even(window) for window in range(1, 9)],
        [uneven(1), uneven(2)],
        [uneven(2)] * 8,
        [uneven(1), uneven(2), even(3), uneven(4), uneven(5), even(6)],
        [[*even(window)[:3], use(3, 0.182, 0.058, window=window)] for window in range(1, 9)],
    ],
    ids=["even", "two windows", "the same window again and again", "not one after the other", "it waits as long as the others"],
)
def test_no_task_is_named_without_three_windows_one_after_the_other(samples: list[list[TaskUse]]) -> None:
    assert told(*map(of_one_host, samples)) == []


def test_on_a_host_without_a_free_core_a_task_must_be_slow_for_longer() -> None:
    full = HostUse(cpu=195.0, cores=2)
    assert told(*(of_one_host(uneven(window), full) for window in range(1, 6))) == []
    assert len(told(*(of_one_host(uneven(window), full) for window in range(1, 9)))) == 1


@pytest.mark.parametrize(
    ("work", "peers", "slow_work", "slow_peers", "is_named"),
    [
        (0.0012, 0.0045, 0.0042, 0.0015, True),
        (0.0012, 0.0145, 0.0042, 0.0115, False),
        (0.0003, 0.0012, 0.0012, 0.0003, False),
        (0.0012, 0.0045, 0.0042, 0.0044, False),
        (0.0012, 0.0041, 0.0025, 0.0028, True),
        (0.0012, 0.0041, 0.0025, 0.0036, False),
        (0.0020, 0.0041, 0.0028, 0.0033, False),
    ],
    ids=[
        "half of the step",
        "less than a fifth of the step",
        "less than a millisecond",
        "it waits as long as the others",
        "a worker's callbacks for which the others wait",
        "longer work, and less than half of it is waited for",
        "a worker's callbacks of less than a millisecond",
    ],
)
def test_of_small_steps_most_is_the_exchange(work: float, peers: float, slow_work: float, slow_peers: float, is_named: bool) -> None:
    """Then also the slow task waits: 1.5 ms of 5.7 ms."""
    uses = [*(use(n, work, peers, read=0.0) for n in range(3)), use(3, slow_work, slow_peers, read=0.0)]
    assert stragglers.is_slow(uses[3], uses[:3]) == is_named
    assert not any(stragglers.is_slow(uses[n], [*uses[:n], *uses[n + 1 :]]) for n in range(3))


def test_nothing_is_said_before_all_tasks_have_made_steps() -> None:
    late = [[*uneven(window)[1:], TaskUse("worker-0", 1, "S")] for window in range(1, 9)]
    assert told(*map(of_one_host, late)) == []
    assert told(*(of_one_host(uneven(window)[1:]) for window in range(1, 9))) == []


def test_a_task_of_another_attempt_is_another_one() -> None:
    again = [{"a": Sampled(1.0, 2.0, tuple(uneven(window)), host="a")} for window in range(1, 9)]
    assert told(*again, tasks=dict.fromkeys(TASKS, 2)) == []


def test_slow_input_of_one_task_is_named_as_such() -> None:
    samples = [of_one_host([*even(window)[:3], use(3, 0.121, 0.001, window=window, read=0.082)]) for window in (1, 2, 3)]
    assert told(*samples) == [
        "worker-3 waits for its input: 82 ms of each step, the others 2.0 ms; they wait 60 ms of each step for worker-3, and read ahead "
        "meanwhile: their input may be as slow"
    ]


IDLE = "it uses no more CPU time than they do: it sleeps, or waits for a lock, a disk or a network (orch stacks)"
LIMIT = "on host b a CPU limit is reached in 41 % of its periods (cpu.stat)"
OTHERS = "other programs use 1.6 of the 2 cores of host b"
SWAPS = "its pages come from a disk (90 faults per second): host b swaps, or has too little memory"


@pytest.mark.parametrize(
    ("slow", "host", "expected"),
    [
        ({}, HostUse(), ""),
        ({"cpu": 30.0}, HostUse(throttled=41.0, cores=2), LIMIT),
        ({"cpu": 30.0}, HostUse(cpu=190.0, cores=2), OTHERS),
        ({"cpu": 30.0}, HostUse(cpu=150.0, cores=2), IDLE),
        ({"cpu": 100.0}, HostUse(), ""),
        ({"faults": 90.0}, HostUse(throttled=41.0), f"{SWAPS}; {LIMIT}"),
    ],
)
def test_a_cause_is_named_where_it_is_known(slow: dict[str, Any], host: HostUse, expected: str) -> None:
    others = [use(number, 0.12, 0.06, cpu=30.0 if slow else 0.0) for number in range(3)]
    odd = use(3, 0.182, 0.0, **({"cpu": 100.0} | slow))
    latest = {"a": Sampled(1.0, 2.0, tuple(others), host="a"), "b": Sampled(1.0, 2.0, (odd,), host, host="b")}
    assert "; ".join(stragglers.causes(odd, others, latest)) == expected


def test_what_is_true_of_a_host_explains_no_difference_between_its_tasks() -> None:
    uses = uneven(1, cpu=100.0)
    latest = of_one_host(uses, HostUse(throttled=41.0))
    assert stragglers.causes(uses[3], uses[:3], latest) == []


@pytest.mark.parametrize(
    ("third", "expected"),
    [
        (("T", 141, 141, 0.0), "worker-2 (stopped by SIGSTOP) did not come: worker-0..1 wait for it after step 47"),
        (("S", 141, 141, 0.0), "worker-2 did not come: worker-0..1 wait for it after step 47"),
        (("S", 142, 141, 3.0), ""),
        (("S", 142, 142, 0.0), ""),
    ],
    ids=["stopped", "elsewhere", "all are there", "the meeting is over"],
)
def test_the_task_that_did_not_come_is_named(third: tuple[str, int, int, float], expected: str) -> None:
    uses = [TaskUse(f"worker-{number}", 1, "S", step=47, came=142, met=141, waits=9.0) for number in range(2)]
    state, came, met, waits = third
    odd = TaskUse("worker-2", 1, state, step=47, came=came, met=met, waits=waits)
    latest = {"a": Sampled(1.0, 2.0, (*uses, odd), host="a")}
    tasks = {f"worker-{number}": 1 for number in range(3)}
    assert stragglers.describe_absent(latest, tasks) == expected
    assert stragglers.describe_absent({}, tasks) == ""
    for rate, enough in ((0.0, 5.0), (10.0, 5.0), (2.0, 10.0)):
        for waits, is_enough in ((enough - 0.1, state == "T"), (enough, True)):
            busy = {"a": Sampled(1.0, 2.0, (*(replace(one, waits=waits, rate=rate) for one in uses), odd), host="a")}
            assert stragglers.describe_absent(busy, tasks) == (expected if is_enough else ""), "a busy machine is no hang"
            assert stragglers.describe_absent(busy, tasks, at_a_hang=True) == expected


@pytest.mark.parametrize(
    ("reads", "expected", "words"),
    [
        ((0.0, 0.0, 9.0), "worker-2 waits for its input, and worker-0..1 wait for it after step 47", ["waits", "waits", "input"]),
        ((0.0, 9.0, 9.0), "worker-1..2 wait for their input, and worker-0 waits for them after step 47", ["waits", "input", "input"]),
        ((9.0, 9.0, 9.0), "worker-0..2 wait for their input after step 47", ["input"] * 3),
        ((9.0, 9.0, 1.0), "", []),
    ],
)
def test_a_wait_for_input_is_named(reads: tuple[float, ...], expected: str, words: list[str]) -> None:
    uses = tuple(
        TaskUse(f"worker-{number}", 1, "S", step=47, came=141 if read else 142, met=141, waits=0.0 if read else 9.0, reads=read)
        for number, read in enumerate(reads)
    )
    latest, tasks = {"a": Sampled(1.0, 2.0, uses, host="a")}, {f"worker-{number}": 1 for number in range(3)}
    assert stragglers.describe_absent(latest, tasks) == expected
    assert stragglers.states_at_standstill(latest, tasks)[0] == dict(zip(tasks, words, strict=False))
    assert stragglers.describe_absent(latest, {**tasks, "worker-3": 1}) == (expected if "and" in expected else "")


def test_a_line_tells_of_a_long_wait_of_all_for_their_input_and_of_its_end() -> None:
    tasks, lines, before = {"worker-0": 1}, list[str](), Standstill()
    for reads in (3.0, 11.0, 13.0, 0.0):
        latest = {"a": Sampled(1.0, 2.0, (TaskUse("worker-0", 1, "S", reads=reads),), host="a")}
        before, found = stragglers.standstill(before, latest, tasks)
        lines += found
    assert lines == [
        "worker-0 waits for its input, for 11 s now (orch stacks shows where each task is)",
        "the input of worker-0 came after 13 s",
    ]


def waiting(waits: float, *, third: int = 141) -> dict[str, Sampled]:
    """Two workers have waited for so many seconds after step 47, and the third has come to so many meetings."""
    uses = [TaskUse(f"worker-{number}", 1, "S", step=47, came=142, met=141, waits=waits) for number in range(2)]
    return {"a": Sampled(1.0, 2.0, (*uses, TaskUse("worker-2", 1, "S", step=47, came=third, met=141)), host="a")}


def test_a_line_tells_of_a_long_wait_and_of_its_end() -> None:
    """After a wait of 14 s, only one of twice that time has another line: a save of the chief at each epoch has one."""
    before, lines, tasks = Standstill(), [], {f"worker-{number}": 1 for number in range(3)}
    for at, latest in (
        *enumerate(map(waiting, (3.0, 9.0, 12.0, 14.0))),
        (4, waiting(0.0, third=142)),
        *enumerate(map(waiting, (12.0, 27.0, 29.0)), start=5),
    ):
        before, found = stragglers.standstill(before, latest, tasks)
        lines += [(at, line) for line in found]
    missing = "worker-2 did not come: worker-0..1 wait for it after step 47, for {} s now (orch stacks shows where each task is)"
    assert lines == [(2, missing.format(12)), (4, "worker-2 came after 14 s"), (7, missing.format(29))]


def test_tasks_that_start_again_have_not_come() -> None:
    before, tasks = Standstill(), {f"worker-{number}": 1 for number in range(3)}
    before, _ = stragglers.standstill(before, waiting(14.0), tasks)
    before, lines = stragglers.standstill(before, waiting(14.0), tasks)
    assert len(lines) == 1
    assert stragglers.standstill(before, {}, dict.fromkeys(tasks, 2)) == (Standstill(dict.fromkeys(tasks, 2)), ())
