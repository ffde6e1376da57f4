"""By which address a host is reached, and what is said where there is none; versions that differ."""

from __future__ import annotations

from collections import Counter

import pytest

from orchestrator.errors import OrchError
from orchestrator.model.cause import version_mismatch
from orchestrator.model.planning import addresses
from worker.protocol.messages import HostReady, NetAddress

NETS = (
    NetAddress("lo", "127.0.0.1", 8),
    NetAddress("docker0", "172.17.0.1", 16),
    NetAddress("eth0", "10.0.0.5", 24),
    NetAddress("eth0", "fe80::1", 64),
    NetAddress("eth0", "fd00::5", 64),
)


def facts(*found: NetAddress, arrived_at: str = "", python: str = "3.11.7", tensorflow: str = "2.21.0") -> HostReady:
    return HostReady(1, "python", python, 2, addresses=found, arrived_at=arrived_at, tensorflow=tensorflow)


@pytest.mark.parametrize(
    ("wish", "arrived_at", "expected"),
    [
        ({}, "10.0.0.5", ("10.0.0.5", "172.17.0.1", "fd00::5")),
        ({}, "", ("172.17.0.1", "10.0.0.5", "fd00::5")),
        ({}, "192.0.2.7", ("172.17.0.1", "10.0.0.5", "fd00::5")),  # translated on the way: not the host's own
        ({}, "fd00::5", ("fd00::5", "172.17.0.1", "10.0.0.5")),
        ({"address": "node7.cluster"}, "10.0.0.5", ("node7.cluster",)),
        ({"interface": "eth0"}, "", ("10.0.0.5", "fd00::5")),
    ],
)
def test_candidates(wish: dict[str, str], arrived_at: str, expected: tuple[str, ...]) -> None:
    assert addresses.candidates("a", facts(*NETS, arrived_at=arrived_at), **wish) == expected


def test_a_host_without_an_address_for_others_is_named() -> None:
    with pytest.raises(OrchError, match="host a has no address that others could use; it has none at all"):
        addresses.candidates("a", facts(NETS[0]))
    with pytest.raises(OrchError, match=r"host a has no interface 'ib0' with an address; it has 10\.0\.0\.5 \(eth0\)"):
        addresses.candidates("a", facts(NETS[2]), interface="ib0")


def test_a_host_that_tells_nonsense_of_its_addresses() -> None:
    odd = facts(NetAddress("eth0", "nonsense", 8), NetAddress("eth0", "10.0.0.5", 128))
    assert addresses.candidates("a", odd, interface="eth0") == ("10.0.0.5",)
    with pytest.raises(OrchError, match=r"a cannot reach b:1: no at 10\.0\.0\.6"):
        addresses.choose({"b": ("10.0.0.6",)}, {("a", "b", 1): {"10.0.0.6": "no"}}, {"a": odd})


KNOWN = {"a": ("10.0.0.5", "192.168.7.5"), "b": ("10.0.0.6",)}
FACTS = {"a": facts(NetAddress("eth0", "10.0.0.5", 24)), "b": facts(NetAddress("eth0", "10.0.0.6", 24))}


def choose(**refusals: str) -> dict[str, str]:
    """`b_a`: what b hears at each of a's addresses."""
    of_a = {address: heard for address, heard in zip(KNOWN["a"], refusals["b_a"].split("|"), strict=True) if heard}
    of_b = {"10.0.0.6": refusals["a_b"]} if "a_b" in refusals else {}
    return addresses.choose(KNOWN, {("a", "b", 41001): of_b, ("b", "a", 41000): of_a}, FACTS)


def test_the_first_address_that_all_others_have_reached_is_chosen() -> None:
    assert choose(b_a="|") == {"a": "10.0.0.5", "b": "10.0.0.6"}
    assert choose(b_a="connection refused|") == {"a": "192.168.7.5", "b": "10.0.0.6"}


def test_who_cannot_reach_whom_and_what_to_do() -> None:
    with pytest.raises(OrchError) as caught:
        choose(b_a="timed out|no route to host", a_b="another machine answers")
    assert str(caught.value).splitlines() == [
        "b cannot reach a:41000: timed out at 10.0.0.5; no route to host at 192.168.7.5; a firewall between them? open the ports "
        "that ports: allows, or set address: for a",
        "a cannot reach b:41001: another machine answers at 10.0.0.6; set address: or interface: for b",
    ]


def test_networks_that_are_apart_are_named() -> None:
    refusals = {("b", "a", 41000): {"192.168.7.5": "timed out"}}
    with pytest.raises(OrchError) as caught:
        addresses.choose({"a": ("192.168.7.5",)}, refusals, FACTS)
    assert "a's 192.168.7.5 is on another network than b's 10.0.0.6 (eth0): set address: or interface: for a" in str(caught.value)


def test_no_address_that_all_reach_though_each_reaches_one() -> None:
    refusals = {("b", "a", 41000): {"192.168.7.5": "x"}, ("c", "a", 41000): {"10.0.0.5": "x"}}
    with pytest.raises(OrchError, match=r"no address of a is reached by all others \(10\.0\.0\.5, 192\.168\.7\.5\); set address: for a"):
        addresses.choose({"a": KNOWN["a"]}, refusals, FACTS)


def test_each_port_of_a_host_must_be_reached() -> None:
    refusals = {("b", "a", 41001): {"10.0.0.5": "timed out"}}
    with pytest.raises(OrchError, match=r"^b cannot reach a:41001: timed out at 10\.0\.0\.5; a firewall between them\? open the ports .*$"):
        addresses.choose({"a": ("10.0.0.5",)}, refusals, FACTS)


def test_many_pairs_are_counted() -> None:
    refusals = {(f"h{number}", "a", 41000): {"10.0.0.5": "timed out"} for number in range(30)}
    known = {f"h{number}": FACTS["b"] for number in range(30)}
    with pytest.raises(OrchError) as caught:
        addresses.choose({"a": ("10.0.0.5",)}, refusals, known)
    assert len(str(caught.value).splitlines()) == addresses.MOST_LINES + 1
    assert str(caught.value).endswith("and 22 more pairs")


def test_an_address_of_either_kind_with_a_port() -> None:
    assert addresses.with_port("10.0.0.1", 41000) == "10.0.0.1:41000"
    assert addresses.with_port("fd00::1", 41000) == "[fd00::1]:41000"


def test_versions_that_differ_are_said() -> None:
    same = {"a": facts(python="3.11.7"), "b": facts(python="3.11.9")}
    assert version_mismatch.compare(same) == []
    other = {**same, "c": facts(python="3.12.1", tensorflow="2.18.0"), "d": facts(tensorflow="")}
    what = "a cluster of them may hang or fail (python: and setup: choose another)"
    assert version_mismatch.compare(other) == [
        f"the hosts' Python differs: 3.11 on a, b, d; 3.12 on c; {what}",
        f"the hosts' TensorFlow differs: 2.21.0 on a, b; 2.18.0 on c; {what}",
    ]


@pytest.mark.parametrize("count", [1, 2, 9, addresses.MOST_IN_PAIRS])
def test_all_pairs_of_a_usual_cluster_are_tried(count: int) -> None:
    hosts = [f"host-{number}" for number in range(count)]
    for host, tried in addresses.partners(hosts, "run").items():
        assert sorted(tried) == sorted(set(hosts) - {host})
    assert addresses.describe_partners(count) == ""


@pytest.mark.parametrize("count", [addresses.MOST_IN_PAIRS + 1, 100, 1000])
def test_each_host_of_a_large_cluster_tries_and_is_tried_by_equally_many(count: int) -> None:
    hosts = [f"host-{number}" for number in range(count)]
    found = addresses.partners(hosts, "run")
    assert found == addresses.partners(hosts, "run")
    assert found != addresses.partners(hosts, "another run"), "runs draw other pairs"
    tried = Counter(other for others in found.values() for other in others)
    assert set(tried.values()) == {addresses.PARTNERS}
    assert all(len({host, *others}) == addresses.PARTNERS + 1 for host, others in found.items())
    assert all(found[host][0] == after for host, after in zip(hosts, [*hosts[1:], hosts[0]], strict=True)), "the ring"
    assert f"({8 * count:,} of {count * (count - 1):,} pairs)" in addresses.describe_partners(count)


@pytest.mark.parametrize(
    ("pairs", "worst"),
    [
        ([("c", "a"), ("c", "b"), ("a", "c"), ("b", "c")], ["c"]),
        ([("a", "b"), ("a", "c"), ("a", "d")], ["a"]),
        ([("a", "b")], ["b"]),
        ([("a", "a")], ["a"]),
        ([("a", "b"), ("c", "d")], ["d", "b"]),
    ],
)
def test_the_fewest_hosts_without_which_all_others_have_connections(pairs: list[tuple[str, str]], worst: list[str]) -> None:
    assert addresses.UnconnectedError("", pairs).worst() == worst


def test_an_error_about_addresses_names_its_pairs() -> None:
    with pytest.raises(addresses.UnconnectedError) as caught:
        choose(b_a="timed out|timed out")
    assert caught.value.pairs == (("b", "a"),)
    with pytest.raises(addresses.UnconnectedError) as caught:
        addresses.candidates("a", facts(NETS[0]))
    assert caught.value.worst() == ["a"]
