"""Finds the link between two hosts that is unlike the others, judged from what the kernel counts for the tasks' connections. Pure.

In synchronous training all links carry about the same bytes in a step, and the slowest of them sets the time of the exchange. So the links
are compared by what they give while data are on their way, and by what they lose. Links that carry little are left out: their time is
that of single messages. On links of one kind, all differ a little and by chance, so a link must stand apart from each other link, again
and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace

from worker.protocol.messages import LinkUse, Sampled
from worker.values.fast_dataclass import dataclass
from worker.values.words import bytes_of, few

from ..settings import trains
from ..state.cluster import Cluster
from ..task_names import group_tasks

SLOWER = 0.7
"""A slow link gives less than this share of the median of all links, and of each link that is not slow."""
LOSSY, LOSSIER, LEAST_LOST = 0.005, 5.0, 8
"""A lossy link loses this share of its segments, so many times as much as each link that is not, and so many segments."""
FEWEST, PART = 3, 1 / 3
"""So many links can be compared; at most this part of them is unlike the others, and these begin or end at one host."""
CARRIES, LEAST_BYTES, BUSY = 1 / 4, 256 * 1024, 0.1
"""A link is compared if it carries this share of what the busiest carries, and so many bytes in the time of a sample. It is slow only if
data are on their way for this share of the time: the kernel counts that time in milliseconds, and a link that rests makes no one wait."""
OLD_S = 10.0
"""A sample that is so much older than the newest is of a host that is gone."""
TOGETHER = 3
"""So many samples of a link are judged together."""
TIMES = 3
"""So often, one time after the other, a link must be unlike the others before orch says so."""


@dataclass(frozen=True, slots=True)
class Link:
    """Holds what the tasks of a host send to another host."""

    sender: str
    receiver: str
    """The hosts."""
    use: LinkUse
    seconds: float


@dataclass(frozen=True, slots=True)
class Odd:
    """The links that are unlike the others, and those others."""

    links: tuple[Link, ...]
    others: tuple[Link, ...]

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        return tuple((link.sender, link.receiver) for link in self.links)


@dataclass(frozen=True, slots=True)
class Watch:
    """Holds what is known from earlier samples."""

    recent: Mapping[str, tuple[Sampled, ...]] = field(default_factory=dict)
    """The newest samples of each host that tell of links, at most `TOGETHER`."""
    judged: Mapping[str, float] = field(default_factory=dict)
    """The times of the samples that were judged last, by host."""
    suspected: tuple[tuple[str, str], ...] = ()
    times: int = 0
    """How often these were unlike the others, one time after the other."""
    told: frozenset[tuple[tuple[str, str], ...]] = frozenset()


def watch(before: Watch, sample: Sampled, cluster: Cluster) -> tuple[Watch, str]:
    """Return what is known after a sample, and a line where links have turned out to be unlike the others; once for each of these."""
    if not sample.links or not _trains_in_step(cluster):
        return before, ""
    kept = {host: found for host, found in before.recent.items() if found[-1].at > sample.at - OLD_S}
    recent = {**kept, sample.host: (*kept.get(sample.host, ()), sample)[-TOGETHER:]}
    known = replace(before, recent=recent)
    times = {host: found[-1].at for host, found in recent.items()}
    begins = not known.judged and len(recent) < len(set(cluster.addresses.values())) and len(recent[sample.host]) == 1
    if begins or any(known.judged.get(host) == at for host, at in times.items()):
        return known, ""  # a host is still to tell of this time
    odd = judge(links_of(recent, cluster))
    if odd is None:
        return replace(known, judged=times, suspected=(), times=0), ""
    known = replace(known, judged=times, suspected=odd.names, times=known.times + 1 if odd.names == known.suspected else 1)
    if known.times < TIMES or odd.names in known.told:
        return known, ""
    return replace(known, told=known.told | {odd.names}), describe(odd, cluster)


def links_of(recent: Mapping[str, Sequence[Sampled]], cluster: Cluster) -> list[Link]:
    """The links between the hosts of a cluster, in the order of their names. What tasks send elsewhere, as to a store of files, is none."""
    uses: dict[tuple[str, str], list[LinkUse]] = {}
    for host, samples in recent.items():
        for sample in samples:
            for use in sample.links:
                if (peer := cluster.addresses.get(use.peer, host)) != host:
                    uses.setdefault((host, peer), []).append(use)
    seconds = {host: sum(sample.seconds for sample in samples) for host, samples in recent.items()}
    return [Link(*ends, _together(found), seconds[ends[0]]) for ends, found in sorted(uses.items())]


def _trains_in_step(cluster: Cluster) -> bool:
    """True if all links carry about the same. With parameter servers, those of one server may carry more, and so give less at a time."""
    return all(cluster.policy.role(task).synchronous for task in cluster.tasks.values() if trains(task.type))


def _together(uses: Sequence[LinkUse]) -> LinkUse:
    """Add up several samples of a link: the rate is that of all times at which data were on their way."""
    sent, busy = sum(use.sent for use in uses), sum(use.sent / max(1.0, use.rate) for use in uses)
    lost = sum(use.lost * use.sent for use in uses) / max(1.0, sent)
    return replace(uses[-1], sent=sent / len(uses), rate=sent / max(1e-9, busy), lost=lost, again=sum(use.again for use in uses))


def judge(links: Sequence[Link]) -> Odd | None:
    """The links that are unlike the others; None: there are none, or too few carry enough to be compared."""
    most = max((link.use.sent for link in links), default=0.0)
    compared = [link for link in links if link.use.sent >= CARRIES * most and link.use.sent * link.seconds >= LEAST_BYTES]
    if len(compared) < FEWEST:
        return None
    usual = _median(link.use.rate for link in compared)
    lossy = [link for link in compared if link.use.lost >= LOSSY and link.use.again >= LEAST_LOST]
    return _apart(compared, lossy, lambda one, other: one.use.lost > LOSSIER * other.use.lost) or _apart(
        compared,
        [link for link in compared if link.use.rate < SLOWER * usual and link.use.sent >= BUSY * link.use.rate],
        lambda one, other: one.use.rate < SLOWER * other.use.rate,
    )


def _apart(compared: Sequence[Link], found: Sequence[Link], is_apart: Callable[[Link, Link], bool]) -> Odd | None:
    """These links as those that are unlike the others, if they are few, have a host in common, and stand apart from each other link.

    The acknowledgements of a link come over the link of the other direction, and late where that one is slow: then it seems slow, too.
    """
    ends = {(link.sender, link.receiver): link for link in found}
    back = {link: ends.get((link.receiver, link.sender)) for link in found}
    found = [link for link, other in back.items() if other is None or _is_worse(link, other)]
    others = tuple(link for link in compared if link not in found and (link.receiver, link.sender) not in ends)
    if not found or not others or len(found) > PART * len(compared):
        return None
    if len({link.sender for link in found}) > 1 and len({link.receiver for link in found}) > 1:
        return None
    return Odd(tuple(found), others) if all(is_apart(link, other) for link in found for other in others) else None


def _is_worse(one: Link, other: Link) -> bool:
    return (
        (one.use.lost, other.use.rate) > (other.use.lost, one.use.rate)
        if max(one.use.lost, other.use.lost) >= LOSSY
        else one.use.rate < other.use.rate
    )


def _median(values: Iterable[float]) -> float:
    found = sorted(values)
    return (found[(len(found) - 1) // 2] + found[len(found) // 2]) / 2


# --- in words -------------------------------------------------------------------------------------


def describe(odd: Odd, cluster: Cluster) -> str:
    """``the link worker-1 -> worker-3 is unlike the others: 4 % lost, 11 MB/s; the others 0 % lost, 104-112 MB/s``."""
    senders = dict.fromkeys(link.sender for link in odd.links)
    receivers = dict.fromkeys(link.receiver for link in odd.links)
    what = "link" if len(odd.links) == 1 else "links"
    where = f"{_tasks(senders, cluster)} -> {_tasks(receivers, cluster)} {'is' if what == 'link' else 'are'} unlike the others"
    return f"the {what} {where}: {_numbers(odd.links)}; the others {_numbers(odd.others)}"


def _tasks(hosts: Iterable[str], cluster: Cluster) -> str:
    """The training tasks of these hosts, or the hosts if they have none."""
    hosts = list(hosts)
    return group_tasks([task.name for task in cluster.tasks.values() if task.host in hosts and trains(task.type)]) or few(hosts)


def _numbers(links: Sequence[Link]) -> str:
    lost = max(link.use.lost for link in links)
    low, high = (bytes_of(round(pick(link.use.rate for link in links))) for pick in (min, max))
    return f"{100 * lost:.2g} % lost, {low if low == high else f'{low} to {high}'} a second"
