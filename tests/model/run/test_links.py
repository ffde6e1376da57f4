"""Which link is unlike the others: one at half the rate or with loss among twelve, and none where all differ by chance."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from orchestrator.model.policy import lifecycle, links
from orchestrator.model.policy.links import Link, Watch, describe, judge, links_of, watch
from orchestrator.model.state import events
from orchestrator.model.state.cluster import Cluster, Policy, TaskStatus
from worker.protocol.messages import LinkUse, Sampled

HOSTS = ("a", "b", "c", "d")
CLUSTER = Cluster(
    Policy("multi_worker_mirrored"),
    tasks={f"worker-{number}": TaskStatus(f"worker-{number}", host) for number, host in enumerate(HOSTS)}
    | {"evaluator-0": TaskStatus("evaluator-0", "a")},
    addresses={f"10.0.0.{number}": host for number, host in enumerate(HOSTS)},
)
ALIKE = LinkUse("", sent=2.4e7, rate=1.1e8, lost=0.0002, again=1)


def samples(at: float, odd: dict[tuple[str, str], LinkUse] | None = None, spread: float = 0.05, seed: int = 0) -> dict[str, Sampled]:
    """The newest sample of each of four hosts, each of which sends to the three others."""
    drawn = random.Random(f"{at} {seed}")
    found = {}
    for host in HOSTS:
        uses = []
        for address, peer in CLUSTER.addresses.items():
            if peer != host:
                use = (odd or {}).get((host, peer), ALIKE)
                uses.append(replace(use, peer=address, rate=round(use.rate * drawn.uniform(1 - spread, 1 + spread))))
        found[host] = Sampled(at, 2.0, host=host, links=tuple(uses))
    return found


def lines(odd: dict[tuple[str, str], LinkUse] | None, *, spread: float = 0.05, seed: int = 0, count: int = 5) -> list[str]:
    """What is said each time, when all hosts have told of it."""
    known, found = Watch(), []
    for turn in range(count):
        said = ""
        for sample in samples(10.0 + 2 * turn, odd, spread, seed).values():
            known, line = watch(known, sample, CLUSTER)
            said += line
        found.append(said)
    return found


def judged(odd: dict[tuple[str, str], LinkUse]) -> tuple[Sequence[Link], Sequence[Link]]:
    return judge(links_of({host: (sample,) for host, sample in samples(1.0, odd, 0.0).items()}, CLUSTER))


def test_one_link_of_twelve_at_half_the_rate_is_named_at_the_third_time() -> None:
    half = replace(ALIKE, rate=5.5e7)
    said = lines({("b", "d"): half}, spread=0.0)
    assert said == [
        "",
        "",
        "the link worker-1 -> worker-3 is unlike the others: 0.02 % lost, 55.0 MB a second; the others 0.02 % lost, 110 MB a second",
        "",
        "",
    ]
    assert all(any(lines({("b", "d"): half}, spread=0.1, seed=seed)) for seed in range(20))


def test_a_link_that_loses_is_named_although_it_is_as_fast() -> None:
    lossy = replace(ALIKE, lost=0.04, again=90)
    assert lines({("a", "c"): lossy}, spread=0.0)[2].startswith("the link worker-0 -> worker-2 is unlike the others: 4 % lost, 110 MB")
    assert not any(lines({("a", "c"): replace(lossy, again=2)})), "a few segments are no rate"


def test_healthy_links_are_not_named() -> None:
    assert not any(line for seed in range(50) for line in lines(None, spread=0.25, seed=seed))
    assert not any(lines(dict.fromkeys([("a", "b"), ("b", "c"), ("c", "d")], replace(ALIKE, rate=4e7)))), "they have no host in common"
    five = [(one, other) for one in HOSTS[:2] for other in HOSTS if one != other][:5]
    assert not any(lines(dict.fromkeys(five, replace(ALIKE, rate=4e7)))), "too many for others to be the rule"
    assert not any(lines({("a", "b"): replace(ALIKE, rate=9e5, sent=4e5)})), "single messages"
    assert not any(lines({("a", "b"): replace(ALIKE, rate=5e7, sent=4e6)})), "a link that rests"


def test_all_links_of_a_host_are_named_together() -> None:
    slow = {("c", other): replace(ALIKE, rate=3e7) for other in HOSTS if other != "c"}
    assert "the links worker-2 -> worker-0..1, worker-3 are unlike the others: 0.02 % lost, 30.0 MB" in lines(slow, spread=0.0)[2]
    found = judged({(other, "c"): replace(ALIKE, rate=3e7) for other in HOSTS if other != "c"})
    assert describe(*found, CLUSTER).startswith("the links worker-0..1, worker-3 -> worker-2 are unlike")


def test_a_slow_link_delays_the_acknowledgements_of_the_other_direction() -> None:
    """The link back seems slow as well, and is left out; where both lose, the one that loses more is named."""
    slow, back = replace(ALIKE, rate=5e7), replace(ALIKE, rate=6e7)
    (found,), _ = judged({("b", "d"): slow, ("d", "b"): back})
    assert (found.sender, found.receiver) == ("b", "d")
    lossy, less = replace(ALIKE, lost=0.04, again=90), replace(ALIKE, lost=0.01, again=20)
    (found,), _ = judged({("b", "d"): less, ("d", "b"): lossy})
    assert (found.sender, found.receiver) == ("d", "b")


def test_a_time_is_judged_once_all_hosts_have_told_of_it() -> None:
    """And no more by the samples of a host that is gone."""
    odd = {("b", "d"): replace(ALIKE, rate=5e7)}
    known, said = Watch(), list[tuple[int, str]]()
    for turn in range(4):
        for host, sample in samples(10.0 + 2 * turn, odd).items():
            known, line = watch(known, sample, CLUSTER)
            said += [(turn, host)] if line else []
    assert said == [(2, "d")]
    for sample in samples(40.0).values():
        known, line = watch(known, sample, CLUSTER)
        assert line == ""
    assert (known.suspected, {len(found) for found in known.recent.values()}) == ((), {1})
    for at in (42.0, 44.0):
        for host in ("a", "b", "c"):
            known, _ = watch(known, samples(at)[host], CLUSTER)
    assert known.fresh == {"a", "b", "c"}, "host d is still to tell"
    for at in (52.0, 54.0):
        for host in ("a", "b", "c"):
            known, _ = watch(known, samples(at)[host], CLUSTER)
    assert set(known.recent) == {"a", "b", "c"}
    assert known.fresh < {"a", "b", "c"}, "they alone were judged"


@pytest.mark.parametrize("count", [1, 2])
def test_two_links_cannot_be_compared(count: int) -> None:
    few = {host: (replace(sample, links=sample.links[:1]),) for host, sample in samples(1.0).items() if host in HOSTS[:count]}
    assert judge(links_of(few, CLUSTER)) == ((), ())
    assert links.FEWEST == 3


def test_what_goes_to_other_machines_is_no_link() -> None:
    """As the checkpoints of a worker that go to a store of files; and where two addresses are those of one host, they are one link."""
    store = replace(ALIKE, peer="192.168.0.9")
    sample = Sampled(
        1.0, 2.0, host="a", links=(store, *(replace(ALIKE, peer=peer, rate=rate) for peer, rate in (("10.0.0.1", 1e8), ("10.1.0.1", 3e8))))
    )
    (link,) = links_of({"a": (sample,)}, replace(CLUSTER, addresses={**CLUSTER.addresses, "10.1.0.1": "b"}))
    assert (link.sender, link.receiver, round(link.use.rate)) == ("a", "b", 150_000_000)


def test_the_line_stays_for_orch_top_until_the_next_attempt() -> None:
    line = describe(*judged({("b", "d"): replace(ALIKE, rate=5e7)}), CLUSTER)
    cluster, _ = lifecycle.step(CLUSTER, events.RunNoted(line, 12.0))
    cluster, _ = lifecycle.step(cluster, events.RunNoted("another line", 13.0))
    assert cluster.odd_link == line
    cluster, _ = lifecycle.step(cluster, events.Planned(1, {"worker-0": "a"}, 14.0))
    assert cluster.odd_link == ""


def test_links_of_parameter_servers_are_not_compared() -> None:
    servers = replace(CLUSTER, policy=Policy("parameter_server"))
    known = Watch()
    for turn in range(5):
        for sample in samples(10.0 + 2 * turn, {("b", "d"): replace(ALIKE, rate=5e7)}).values():
            known, line = watch(known, sample, servers)
            assert line == ""
