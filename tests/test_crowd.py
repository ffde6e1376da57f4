"""Many runs at once on one machine: each has its own ports and reaches its own tasks. No TensorFlow."""

from __future__ import annotations

import fcntl
import json
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import Orch
from tests.live import wait_until, write_script
from worker.host.facts import machine_survey

RUNS, SOAKING_RUNS = 16, 200
ASKED = 8
"""How often each address is asked. Where two listen on one port, the kernel gives each about half of the connections."""

PROGRAM = f"""
import fcntl, json, socket, threading

def answer(server, text):
    while True:
        connection, _ = server.accept()
        with connection:
            connection.sendall(text.encode())

server = listen()  # as TensorFlow does
config = json.loads(os.environ["TF_CONFIG"])
whose = os.environ["ORCH_RUN_ID"]
threading.Thread(target=answer, args=(server, f"{{whose}} {{TASK}}"), daemon=True).start()
ready()
with open("../gate") as gate:
    fcntl.flock(gate, fcntl.LOCK_SH)  # until all tasks of all runs are there

found = []
for index, address in enumerate(config["cluster"]["worker"]):
    host, _, port = address.rpartition(":")
    for _ in range({ASKED}):
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            found.append([f"{{whose}} worker-{{index}}", connection.makefile().read()])
tell(f"{{TASK}}.found", json.dumps([config["cluster"]["worker"], found]))
# Nobody leaves while others still ask.
wait_for("worker-0.found", "worker-1.found")
"""


AT_ONCE = 8
"""How many are being started at any time: on a slow machine all of them at once would take longer than orch waits for an agent."""
NEEDED_MB = 50
"""A controller, an agent and a pair of tasks take about 38 MB."""


def count_ready(homes: list[Path]) -> int:
    return sum((home / f"worker-{index}.ready").exists() for home in homes for index in (0, 1))


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_runs_side_by_side_never_meet(orch: Orch, tmp_path: Path, soaks: bool) -> None:
    count = SOAKING_RUNS if soaks else RUNS
    if machine_survey.survey(str(tmp_path), None)["memory_free_bytes"] < count * NEEDED_MB * 1e6:  # of the control group, if that has less
        pytest.skip(f"NOT TESTED: this takes {count * NEEDED_MB:,} MB of free memory")
    homes = [tmp_path / f"run-{number}" for number in range(count)]
    with (tmp_path / "gate").open("w") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        runs = []
        for home in homes:
            home.mkdir()
            write_script(home, PROGRAM)
            runs.append(orch.start("up", "script.py", "-n", "2", "--quiet", cwd=home))
            wait_until(
                lambda: count_ready(homes) > 2 * (len(runs) - AT_ONCE) or any(not run.alive for run in runs), "tasks of earlier runs", 800
            )
        wait_until(lambda: count_ready(homes) == 2 * count or any(not run.alive for run in runs), "tasks of all runs", 800)
        assert all(run.alive for run in runs), next(str(run.wait()) for run in runs if not run.alive)
    for run in runs:
        run.wait(300, check=0)
    addresses: Counter[str] = Counter()
    for home in homes:
        clusters = set()
        for index in (0, 1):
            cluster, found = json.loads((home / f"worker-{index}.found").read_text())
            clusters.add(tuple(cluster))
            assert len(found) == 2 * ASKED
            assert all(wanted == said for wanted, said in found)
        (cluster,) = clusters
        addresses.update(cluster)
    assert len(addresses) == addresses.total() == 2 * count
