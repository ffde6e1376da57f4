"""Hosts that are network namespaces of this machine, joined by links whose rate and loss are set: `python -m tests.links_bed --trials 20`.

Real: TCP, its counters, the reading of these in each namespace, and the judgement. In place of TensorFlow, one process on each host sends
to each other host as in an exchange of gradients: no round begins before all have got what the others sent. So a trial needs no cores. A
link's rate is that of a class of htb in the sender's namespace; loss is a rule of nftables in the receiver's. Root only.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.model.policy import links
from orchestrator.model.state.cluster import Cluster, Policy, TaskStatus
from worker.protocol.messages import LinkUse, Sampled

ROOT = Path(__file__).resolve().parent.parent
HOSTS = 4
EVERY_S = 2.0
_COUNT = itertools.count()
EXCHANGE = """
import os, threading

def exchange(out, into, size):
    begin, data = threading.Barrier(len(out) + len(into)), bytes(size)

    def send(connection):
        while True:
            begin.wait()
            connection.sendall(data)

    def receive(connection):
        buffer = bytearray(1 << 18)
        while True:
            begin.wait()
            left = size
            while left:
                got = connection.recv_into(buffer, min(left, len(buffer)))
                if not got:
                    os._exit(0)
                left -= got

    for target, ends in ((send, out), (receive, into)):
        for end in ends:
            threading.Thread(target=target, args=(end,), daemon=True).start()
"""
"""For programs: to send so many bytes over each connection and take as many, again and again, in step."""
HOST = (
    EXCHANGE
    + """
import json, os, socket, sys, threading, time
from worker.host.network.socket_use import Links

number, count, size, network, every = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], float(sys.argv[5])
others = [other for other in range(count) if other != number]
listener = socket.create_server((f"{network}.{number + 1}", 7000), backlog=16)
print("listens", flush=True)
sys.stdin.readline()
out = {other: socket.create_connection((f"{network}.{other + 1}", 7000)) for other in others}
into = [listener.accept()[0] for _ in others]
exchange([*out.values()], into, size)
known = Links()
known.read([os.getpid()], time.monotonic())
while True:
    time.sleep(every)
    began = time.thread_time()
    found = known.read([os.getpid()], time.monotonic())
    took = time.thread_time() - began
    fields = ("peer", "sent", "rate", "lost", "again")
    print(json.dumps({"took": took, "links": [[getattr(one, name) for name in fields] for one in found]}), flush=True)
"""
)


def missing() -> str:
    """Why there can be no bed here; empty if there can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    lacks = [program for program in ("ip", "tc", "nft") if shutil.which(program) is None]
    return f"not installed: {', '.join(lacks)}" if lacks else ""


def _run(line: str) -> None:
    subprocess.run(line.split(), check=True, capture_output=True)


class Net:
    """The namespaces of some hosts, whose links all have one rate until `slow` or `lose` changes one."""

    def __init__(self, mbit: float, hosts: int = HOSTS) -> None:
        """`mbit`: 0: as fast as this machine is."""
        self.mbit, self.hosts = mbit, hosts
        # A namespace takes its time to go: each net has names of its own.
        self.mark = f"ol{os.getpid() % 10_000}{next(_COUNT) % 100}"
        self.network = f"10.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 200}"

    def address(self, number: int) -> str:
        return f"{self.network}.{number + 1}"

    def make(self) -> None:
        _run(f"ip link add {self.mark} type bridge")
        _run(f"ip link set {self.mark} up")
        for number in range(self.hosts):
            space, here = f"{self.mark}-{number}", f"{self.mark}v{number}"
            _run(f"ip netns add {space}")
            _run(f"ip link add {here} type veth peer name eth0 netns {space}")
            _run(f"ip link set {here} master {self.mark} up")
            for line in ("link set lo up", f"addr add {self.address(number)}/24 dev eth0", "link set eth0 up"):
                _run(f"ip -n {space} {line}")
            if self.mbit:
                _run(f"tc -n {space} qdisc add dev eth0 root handle 1: htb default 99")
                for other in range(self.hosts):
                    if other != number:
                        self._shape(number, other, self.mbit, "add")
                        match = f"match ip dst {self.address(other)}/32 flowid 1:{other + 1}"
                        _run(f"tc -n {space} filter add dev eth0 parent 1: protocol ip prio 1 u32 {match}")

    def _shape(self, number: int, other: int, mbit: float, what: str) -> None:
        rate = f"rate {mbit}mbit ceil {mbit}mbit burst 16k cburst 16k quantum 3000"
        _run(f"tc -n {self.mark}-{number} class {what} dev eth0 parent 1: classid 1:{other + 1} htb {rate}")

    def slow(self, number: int, other: int, share: float) -> None:
        self._shape(number, other, self.mbit * share, "change")

    def lose(self, number: int, other: int, percent: int) -> None:
        enter = f"ip netns exec {self.mark}-{other} nft"
        _run(f"{enter} add table ip lossy")
        _run(f"{enter} add chain ip lossy in {{ type filter hook prerouting priority -300; }}")
        _run(f"{enter} add rule ip lossy in ip saddr {self.address(number)} numgen random mod 100 < {percent} drop")

    def take_away(self) -> None:
        for number in range(self.hosts):  # what is still on its way would keep a namespace, and so its link, for minutes
            subprocess.run(["ip", "link", "del", f"{self.mark}v{number}"], capture_output=True)
            subprocess.run(["ip", "netns", "del", f"{self.mark}-{number}"], capture_output=True)
        subprocess.run(["ip", "link", "del", self.mark], capture_output=True)

    @contextmanager
    def programs(self, size: int) -> Iterator[list[subprocess.Popen[str]]]:
        """The processes of the hosts, which exchange so many bytes in each round."""
        words = [str(self.hosts), str(size), self.network, str(EVERY_S)]
        made = [
            subprocess.Popen(
                ["ip", "netns", "exec", f"{self.mark}-{number}", sys.executable, "-c", HOST, str(number), *words],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(self.hosts)
        ]
        try:
            for one in made:
                assert one.stdout is not None
                assert one.stdout.readline() == "listens\n"
            for one in made:
                assert one.stdin is not None
                one.stdin.write("\n")
                one.stdin.flush()
            yield made
        finally:
            for one in made:
                one.kill()
            for one in made:
                one.communicate()


@contextmanager
def net(mbit: float, hosts: int = HOSTS) -> Iterator[Net]:
    made = Net(mbit, hosts)
    try:
        made.make()
        yield made
    finally:
        made.take_away()


def cluster_of(made: Net) -> Cluster:
    tasks = {f"worker-{number}": TaskStatus(f"worker-{number}", f"host{number}") for number in range(made.hosts)}
    return Cluster(
        Policy("multi_worker_mirrored"), tasks=tasks, addresses={made.address(number): f"host{number}" for number in range(made.hosts)}
    )


def trial(made: Net, seconds: float, size: int = 1 << 20) -> tuple[list[tuple[float, str]], list[float], list[links.Link]]:
    """The lines about links, each with the seconds since the traffic began; how long each reading took; and the links at the end."""
    cluster, known = cluster_of(made), links.Watch()
    said, took = list[tuple[float, str]](), list[float]()
    with made.programs(size) as programs:
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            for number, one in enumerate(programs):
                assert one.stdout is not None
                found = json.loads(one.stdout.readline())
                took.append(found["took"])
                uses = tuple(LinkUse(*each) for each in found["links"])
                known, line = links.watch(known, Sampled(time.time(), EVERY_S, host=f"host{number}", links=uses), cluster)
                if line:
                    said.append((time.monotonic() - began, line))
    return said, took, links.links_of(known.recent, cluster)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--mbit", type=float, default=40)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--kinds", default="healthy,half,loss")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    drawn = random.Random(asked.seed)
    for kind in asked.kinds.split(","):
        right, times, every = 0, list[float](), list[float]()
        for _ in range(asked.trials):
            number, other = drawn.sample(range(HOSTS), 2)
            with net(asked.mbit) as made:
                if kind == "half":
                    made.slow(number, other, 0.5)
                if kind == "loss":
                    made.lose(number, other, 4)
                said, took, ended = trial(made, asked.seconds)
            every += took
            wanted = "" if kind == "healthy" else f"the link worker-{number} -> worker-{other} "
            is_right = not said if kind == "healthy" else len(said) == 1 and said[0][1].startswith(wanted)
            right += is_right
            times += [at for at, _ in said]
            if not is_right:
                shown = ", ".join(f"{one.sender[4:]}{one.receiver[4:]} {one.use.rate / 1e6:.2f} {100 * one.use.lost:.2f}%" for one in ended)
                print(f"{kind}: wanted {wanted or 'none'!r}: {said}: {shown}", flush=True)
        found = f", named after {min(times):.1f} to {max(times):.1f} s" if times else ""
        reading = f"a reading takes {1e3 * sorted(every)[len(every) // 2]:.2f} ms of CPU"
        print(f"{kind}, {asked.mbit:g} Mbit/s: {right} of {asked.trials} right{found}; {reading}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
