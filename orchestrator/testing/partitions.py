"""A network between the tasks of a cluster that a test can cut (`cluster(partitions=True)`).

Each task has a network namespace of its own, and there is a cable between each two of them: a pair of veth devices. The namespace has no
name: the resident of the task enters it, and the forks of the resident inherit it. So the kernel removes the namespace, and its ends of
the cables, with the last of these processes, however that ends.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from ..errors import UsageError

if TYPE_CHECKING:
    from .pool import PooledRun

_NOBODY = "02:00:00:00:00:00"
"""A hardware address that no device has. Packets to this address are lost, and the sender gets no error."""


class Network:
    """The network of the tasks of a run. Raises `UsageError` that says what is missing where namespaces are not allowed."""

    def __init__(self, run: PooledRun) -> None:
        self._run = run
        self._numbers = {name: number for number, name in enumerate(run.names)}
        # 198.18.0.0/15 is for tests of networks (RFC 2544). Other clusters may have the same addresses: nothing joins their namespaces.
        self._addresses = {name: f"198.18.{number // 250}.{number % 250 + 1}" for name, number in self._numbers.items()}
        self._cut: set[frozenset[str]] = set()
        for name in run.names:
            self._ip(name, "link set lo up", f"address add {self._addresses[name]}/32 dev lo", addresses=self._addresses)
        for one, other in itertools.combinations(run.names, 2):
            ends = f"name {self._cable(other)} type veth peer name {self._cable(one)}"
            self._ip(one, f"link add {ends} netns {run.residents[other].pid}", *self._use_cable(one, other))
            self._ip(other, *self._use_cable(other, one))

    def cut(self, one: str, other: str) -> None:
        """Have everything lost that one of these tasks sends to the other."""
        for here, there in ((one, other), (other, one)):
            self._ip(here, f"neighbor replace {self._addresses[there]} lladdr {_NOBODY} dev {self._cable(there)} nud permanent")
        self._cut.add(frozenset((one, other)))

    def mend(self, *names: str) -> None:
        """Take back what `cut` has done between these tasks; without names, between all."""
        for pair in [pair for pair in self._cut if not names or pair <= set(names)]:
            for here, there in itertools.permutations(pair):
                self._ip(here, f"neighbor del {self._addresses[there]} dev {self._cable(there)}")
            self._cut.remove(pair)

    def _cable(self, name: str) -> str:
        """The device that leads to this task, in any other task's namespace."""
        return f"to-{self._numbers[name]}"

    def _use_cable(self, here: str, there: str) -> tuple[str, str]:
        cable = self._cable(there)
        return f"link set {cable} up", f"route add {self._addresses[there]} dev {cable} src {self._addresses[here]}"

    def _ip(self, name: str, *lines: str, addresses: dict[str, str] | None = None) -> None:
        problem = self._run.request(name, {"do": "network", "lines": lines, "addresses": addresses})["problem"]
        if problem:
            needed = "Linux, `ip` (of iproute2) and the right to make network namespaces, as root has"
            raise UsageError(f"partitions=True takes {needed}: {problem}")
