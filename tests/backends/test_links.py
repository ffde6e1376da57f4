"""One of six links between three hosts gives half of what the others give, or loses packets: orch names it, and no other. No TensorFlow.

A program that exchanges bytes in step stands in for the exchange of gradients: TCP, the agents that read its counters, and the controller
that judges are real.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed import Bed
from tests.conftest import Orch
from tests.links_bed import EXCHANGE
from tests.live import LiveRun, wait_until

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAM = (
    EXCHANGE
    + """
import json, os, socket, threading, time
config = json.loads(os.environ["TF_CONFIG"])
places, index = config["cluster"]["worker"], config["task"]["index"]
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind(("", int(places[index].rpartition(":")[2])))
listener.listen(16)
others = [place.rpartition(":") for number, place in enumerate(places) if number != index]

def connect(host, port):
    while True:
        try:
            made = socket.create_connection((host, int(port)))
        except OSError:
            time.sleep(0.1)
        else:
            made.sendall(b"p")
            return made

into = []

def accept():
    while len(into) < len(others):  # orch may connect, too, to see whether the port is open
        made = listener.accept()[0]
        into.extend([made] if made.recv(1) == b"p" else [])

taking = threading.Thread(target=accept)
taking.start()
out = [connect(host, port) for host, _, port in others]
taking.join()
exchange(out, into, 1 << 19)
time.sleep(600)
"""
)
MBIT = 24.0


@pytest.fixture
def shaped(bed: Bed) -> Iterator[Callable[[str, str, float], None]]:
    """``shape("hostA", "hostB", 0.5)``: what hostA sends to hostB goes at this share of the rate that all links have."""
    if lacks := [program for program in ("tc", "nft") if shutil.which(program) is None]:
        pytest.skip(f"NOT TESTED: links of different rates: not installed: {', '.join(lacks)}")

    def run(host: str, line: str) -> None:
        subprocess.run(["tc", "-n", bed[host].netns, *line.split()], check=True, capture_output=True)

    def shape(host: str, other: str, share: float, what: str = "change") -> None:
        number = list(bed.hosts).index(other) + 1
        rate = f"rate {MBIT * share}mbit ceil {MBIT * share}mbit burst 16k cburst 16k quantum 3000"
        run(host, f"class {what} dev eth0 parent 1: classid 1:{number} htb {rate}")

    for host in bed.hosts:
        run(host, "qdisc add dev eth0 root handle 1: htb default 99")
        for number, other in enumerate(bed.hosts, start=1):
            if other != host:
                shape(host, other, 1.0, "add")
                run(host, f"filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst {bed[other].address}/32 flowid 1:{number}")
    yield shape
    for host in bed.hosts:
        subprocess.run(["tc", "-n", bed[host].netns, "qdisc", "del", "dev", "eth0", "root"], capture_output=True)
        bed[host].run("nft", "flush", "ruleset")


def notes(run: LiveRun) -> list[str]:
    return [event["text"] for event in run.events() if event["event"] == "run_noted" and " unlike the others" in event["text"]]


@pytest.mark.parametrize("fault", ["half", "loss"])
def test_the_link_that_is_unlike_the_others_is_named(orch: Orch, bed: Bed, tmp_path: Path, shaped: Any, fault: str) -> None:
    (tmp_path / "exchange.py").write_text(PROGRAM)
    running = orch.start("up", "exchange.py", "-H", "hostA,hostB,hostC", "--set", f"backend.ssh={json.dumps(bed.ssh)}")
    wait_until(lambda: LiveRun(tmp_path).path.joinpath("samples/0.jsonl").exists(), "samples")
    run = LiveRun(tmp_path)

    wait_until(lambda: (run.path / "samples/0.jsonl").read_text().count("\n") >= 15, "five samples of each host")
    assert notes(run) == [], "all links are alike"
    assert "unlike" not in orch("top", "--once", check=0).out
    if fault == "half":
        shaped("hostB", "hostC", 0.5)
    else:
        enter = bed["hostC"].run
        enter("nft", "add table ip lossy")
        enter("nft", "add chain ip lossy in { type filter hook prerouting priority -300; }")
        enter("nft", f"add rule ip lossy in ip saddr {bed['hostB'].address} numgen random mod 100 < 4 drop")
    wait_until(lambda: bool(notes(run)), "line about a link")
    (line,) = notes(run)
    print(line)
    assert line.startswith("the link worker-1 -> worker-2 is unlike the others: ")
    running.wait_for(f"orch: {line}")
    assert line[:60] in " ".join(orch("top", "--once", check=0).out.split())
    orch("down", check=0)
    running.wait(check=143)
    assert notes(run) == [line]
