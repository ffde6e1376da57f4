"""Finds the link between two hosts that is unlike the others, judged from what the kernel counts for the tasks' connections. Pure.

In synchronous training all links carry about the same bytes in a step, and the slowest of them sets the time of the exchange. So the links
are compared by what they give while data are on their way, and by what they lose. Links that carry little are left out: their time is
that of single messages. On links of one kind, all differ a little and by chance, so a link must stand apart from each other link, again
and again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace

from worker.protocol.messages import LinkUse, Sampled
from worker.values.fast_dataclass import dataclass
from worker.values.words import bytes_of

from ..settings import trains
from ..state.cluster import UNLIKE, Cluster
from ..task_names import group_tasks
from .stragglers import median

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


Judged = tuple[Sequence[Link], Sequence[Link]]
Names = tuple[tuple[str, str], ...]
"""The hosts of some links: who sends, and who receives."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Holds what is known from earlier samples."""

    recent: Mapping[str, tuple[Sampled, ...]] = field(default_factory=dict)
    """The newest samples of each host that tell of links, at most `TOGETHER`."""
    fresh: frozenset[str] = frozenset()
    """The hosts that have told of their links since these were judged."""
    suspected: Names = ()
    times: int = 0
    """How often these were unlike the others, one time after the other."""
    told: frozenset[Names] = frozenset()


def watch(before: Watch, sample: Sampled, cluster: Cluster) -> tuple[Watch, str]:
    """Return what is known after a sample, and a line where links have turned out to be unlike the others; once for each of these."""
    if not sample.links or not _trains_in_step(cluster):
        return before, ""
    kept = {host: found for host, found in before.recent.items() if found[-1].at > sample.at - OLD_S}
    recent = {**kept, sample.host: (*kept.get(sample.host, ()), sample)[-TOGETHER:]}
    known = replace(before, recent=recent, fresh=before.fresh | {sample.host})
    hosts = recent.keys() if before.times or sample.host in before.fresh else set(cluster.addresses.values())
    if hosts - known.fresh:
        return known, ""  # a host is still to tell of this time
    odd, others = judge(links_of(recent, cluster))
    names = tuple((link.sender, link.receiver) for link in odd)
    times = known.times + 1 if names == known.suspected else 1
    known = replace(known, fresh=frozenset(), suspected=names, times=times)
    if not names or times < TIMES or names in known.told:
        return known, ""
    return replace(known, told=known.told | {names}), describe(odd, others, cluster)


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


def judge(links: Sequence[Link]) -> Judged:
    """The links that are unlike the others, and those others; nothing if none are, or too few carry enough to be compared."""
    most = max((link.use.sent for link in links), default=0.0)
    compared = [link for link in links if link.use.sent >= CARRIES * most and link.use.sent * link.seconds >= LEAST_BYTES]
    if len(compared) < FEWEST:
        return (), ()
    usual = median(link.use.rate for link in compared)
    lossy = [link for link in compared if link.use.lost >= LOSSY and link.use.again >= LEAST_LOST]
    apart = _apart(compared, lossy, lambda one, other: one.use.lost > LOSSIER * other.use.lost)
    if apart[0]:
        return apart
    slow = [link for link in compared if link.use.rate < SLOWER * usual and link.use.sent >= BUSY * link.use.rate]
    return _apart(compared, slow, lambda one, other: one.use.rate < SLOWER * other.use.rate)


def _apart(compared: Sequence[Link], found: Sequence[Link], is_apart: Callable[[Link, Link], bool]) -> Judged:
    """These links as those that are unlike the others, if they are few, have a host in common, and stand apart from each other link.

    The acknowledgements of a link come over the link of the other direction, and late where that one is slow: then it seems slow, too.
    """
    ends = {(link.sender, link.receiver): link for link in found}
    back = {link: ends.get((link.receiver, link.sender)) for link in found}
    found = [link for link, other in back.items() if other is None or _is_worse(link, other)]
    others = [link for link in compared if link not in found and (link.receiver, link.sender) not in ends]
    has_one_end = 1 in (len({link.sender for link in found}), len({link.receiver for link in found}))
    if not others or not has_one_end or len(found) > PART * len(compared):
        return (), ()
    return (found, others) if all(is_apart(link, other) for link in found for other in others) else ((), ())


def _is_worse(one: Link, other: Link) -> bool:
    if max(one.use.lost, other.use.lost) >= LOSSY:
        return (one.use.lost, other.use.rate) > (other.use.lost, one.use.rate)
    return one.use.rate < other.use.rate


# --- in words -------------------------------------------------------------------------------------


def describe(odd: Sequence[Link], others: Sequence[Link], cluster: Cluster) -> str:
    """``the link worker-1 -> worker-3 is unlike the others: 4 % lost, 11 MB/s; the others 0 % lost, 104-112 MB/s``."""
    what, verb = ("link", "is") if len(odd) == 1 else ("links", "are")
    where = f"{_tasks({link.sender for link in odd}, cluster)} -> {_tasks({link.receiver for link in odd}, cluster)}"
    return f"the {what} {where} {verb} {UNLIKE}: {_numbers(odd)}; the others {_numbers(others)}"


def _tasks(hosts: Collection[str], cluster: Cluster) -> str:
    """The training tasks of these hosts."""
    return group_tasks([task.name for task in cluster.tasks.values() if task.host in hosts and trains(task.type)])


def _numbers(links: Sequence[Link]) -> str:
    lost = max(link.use.lost for link in links)
    low, high = (bytes_of(round(pick(link.use.rate for link in links))) for pick in (min, max))
    return f"{100 * lost:.2g} % lost, {low if low == high else f'{low} to {high}'} a second"
