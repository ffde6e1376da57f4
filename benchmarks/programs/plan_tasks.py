"""Plans a cluster and then goes through its whole life, and prints what that cost, as JSON.

Usage: ``plan_tasks.py TASKS``. A process of its own, because the peak of a process's memory cannot be asked for twice.
Seconds of CPU; `plan_mb` and `life_mb`: by how much the peak grew; `mb`: what everything needed together.
"""

import json
import resource
import sys
import time

from orchestrator.model.planning import plan
from orchestrator.model.planning.facts_of_hosts import HostFacts
from orchestrator.model.policy import lifecycle
from orchestrator.model.settings import ClusterSpec, TaskSpec
from orchestrator.model.state import events
from orchestrator.model.state.cluster import Cluster
from worker.protocol.channel import encode
from worker.protocol.messages import Program

PER_HOST = 100


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def make(size: int) -> plan.Plan:
    program = Program("script", "train.py", ("--epochs", "5"))
    spec = ClusterSpec("digits", "multi_worker_mirrored", program, (TaskSpec("worker", size),), "/home/somebody/project")
    names = [f"host-{number}" for number in range(size // PER_HOST)]
    placement = plan.place(spec, dict.fromkeys(names))
    ports = tuple(range(20_000, 20_000 + PER_HOST))
    facts = [HostFacts(name, f"10.0.{number}.7", 64, ports, "/shared/run") for number, name in enumerate(names)]
    return plan.make("digits-1", spec, placement, facts)


def live(planned: plan.Plan) -> None:
    """Everything happens to every task: started, up, ended, swept."""
    cluster, _ = lifecycle.step(Cluster(), events.RunBegun(0.0, planned.run_id, lifecycle.policy_of(planned.spec)))
    cluster, _ = lifecycle.step(cluster, lifecycle.begin(planned, 1, 0.0))
    names = [str(task.id) for task in planned.tasks]
    for name in names:
        cluster, _ = lifecycle.step(cluster, events.TaskStarted(name, 1, 4711, 1.0))
    for name in names:
        cluster, _ = lifecycle.step(cluster, events.TaskUp(name, 1, 2.0))
    for name in names:
        cluster, _ = lifecycle.step(cluster, events.TaskExited(name, 1, 0, False, 3.0))
        cluster, _ = lifecycle.step(cluster, events.TaskSwept(name, 1, 3.0))
    assert cluster.is_over


def main() -> None:
    size = int(sys.argv[1])
    before = peak_mb()
    since = time.process_time()
    planned = make(size)
    found: dict[str, float] = {"plan_s": time.process_time() - since, "plan_mb": peak_mb() - before}

    since = time.process_time()
    letters = sum(len(planned.tf_config(task) or "") for task in planned.tasks)
    found |= {"texts_s": time.process_time() - since, "texts_gb": letters / 1e9}

    since = time.process_time()
    sent = sum(len(encode(planned.orders(host.name))) for host in planned.hosts)
    found |= {"orders_s": time.process_time() - since, "orders_mb": sent / 1e6, "mb": peak_mb() - before}

    before = peak_mb()
    since = time.process_time()
    live(planned)
    found |= {"life_s": time.process_time() - since, "life_mb": peak_mb() - before}
    print(json.dumps(found))


main()
