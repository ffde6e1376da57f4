"""Facts about hosts -> findings: problems with their reasons and remedies. Pure.

A rule is a function of one host's facts and the requirements of the run, and yields findings. Unknown facts give no finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from worker.values.words import bytes_of, count_of

from . import tensorflow_rules
from .facts import HostReport, Machine
from .finding import Finding, Wanted, error, note, warning

MB, GB = 1 << 20, 1 << 30
TASK_BYTES = 350 * MB
"""A task that has imported TensorFlow and trains a small model: 337 MB measured (TensorFlow 2.21, CPU, PSS)."""
LEAST_FILES, FILES_PER_PEER = 1024, 8
CROWDED = 4
"""More tasks than this on each core are worth a note; fewer are usual where a cluster is tried on a laptop."""
MOST_SKEW_S = 2.0


def judge(hosts: Sequence[HostReport], wanted: Wanted) -> list[Finding]:
    """All findings, the worst first. Equal findings of several hosts are one finding."""
    merged: dict[Finding, list[str]] = {}
    for facts in hosts:
        for finding in _judge_host(facts, wanted):
            merged.setdefault(finding, []).append(facts.name)
    found = [replace(finding, hosts=tuple(names)) for finding, names in merged.items()]
    found += _compare(hosts, wanted)
    return sorted(found, key=lambda finding: _ORDER[finding.severity])


_ORDER = {"error": 0, "warning": 1, "note": 2}


def _judge_host(facts: HostReport, wanted: Wanted) -> Iterator[Finding]:
    if facts.unreached:
        what = "this host cannot be reached" if facts.machine is None else "this host was lost before it had answered everything"
        yield error("host", what, facts.unreached, facts.unreached_remedy)
        return
    yield from tensorflow_rules.judge(facts, wanted)
    if facts.machine is None:
        how = "see whether df or nvidia-smi hang there, and ask again; if none does, report it with these words"
        yield error("host", "this host could not be looked at", facts.machine_problem, how)
        return
    yield from _disk(facts.machine, facts.is_here)
    tasks = wanted.shares.get(facts.name, 1)
    yield from _memory(facts.machine, tasks)
    yield from _cores(facts.machine, tasks)
    if wanted.needs_ports:
        yield from _ports(facts.machine, wanted, tasks)
    for rule in (_shm, _open_files):
        yield from rule(facts.machine, wanted)


def _disk(machine: Machine, is_here: bool) -> Iterator[Finding]:
    disk = machine.run_dir
    elsewhere = "name another directory with --home or ORCH_HOME" if is_here else "set TMPDIR there, in a line of setup:"
    kept = "runs are kept there, with the tasks' logs" if is_here else "the tasks' output waits there to be sent"
    if not disk.writable:
        yield error("disk", f"{disk.path} cannot be written to", disk.problem or kept, elsewhere)
    elif disk.free_bytes is not None and disk.free_bytes < GB:
        kind = error if disk.free_bytes < 50 * MB else warning
        why = "a run ends when its logs or checkpoints find no room"
        yield kind("disk", f"{disk.path} has {bytes_of(disk.free_bytes)} free", why, f"make room, or {elsewhere}")


def _memory(machine: Machine, tasks: int) -> Iterator[Finding]:
    needed = max(1, tasks) * TASK_BYTES
    if machine.memory_free_bytes and machine.memory_free_bytes < needed:
        what = f"{bytes_of(machine.memory_free_bytes)} of memory free, about {bytes_of(needed)} needed"
        why = "a task that imports TensorFlow takes 350 MB at least; short of memory the kernel kills tasks (SIGKILL)"
        yield warning("memory", what, why, "fewer tasks per host, or end what else runs here")


def _cores(machine: Machine, tasks: int) -> Iterator[Finding]:
    if machine.cores and tasks > CROWDED * machine.cores:
        why = "tasks that wait for a core make each step slow, and the start, too"
        yield note("cores", f"{tasks} tasks share {count_of(machine.cores, 'core')}", why, "fewer tasks on this host, or more hosts")


def _shm(machine: Machine, wanted: Wanted) -> Iterator[Finding]:
    free = 0 if machine.shm is None else machine.shm.free_bytes
    if machine.system.startswith("Linux") and free is not None and free < 128 * MB:
        kind = warning if len(machine.nvidia.gpus) > 1 else note
        why = "NCCL between GPUs and Python's multiprocessing keep shared memory there; a container gets 64 MB by default"
        how = "mount a larger tmpfs; in a container: docker run --shm-size=1g, or an emptyDir with medium: Memory"
        yield kind("shm", f"/dev/shm has {bytes_of(free)} free", why, how)


def _open_files(machine: Machine, wanted: Wanted) -> Iterator[Finding]:
    soft, _ = machine.open_files
    needed = max(LEAST_FILES, wanted.tasks * FILES_PER_PEER)
    if soft is not None and soft < needed:
        how = f"ulimit -n {needed}, or nofile in /etc/security/limits.conf (LimitNOFILE= of a service)"
        why = f"about {needed:,} are needed: each task connects to every other task"
        yield warning("limits", f"a process may have {soft:,} files open", why, how)


def _ports(machine: Machine, wanted: Wanted, tasks: int) -> Iterator[Finding]:
    ports = machine.ports
    if ports.problem:
        how = "TensorFlow's servers need such a port; check the sandbox or container"
        yield error("ports", "no port can be bound on every interface", ports.problem, how)
    if wanted.ports is not None and ports.tried and (free := ports.tried - len(ports.busy)) < tasks:
        what = "{} of the ports {}-{} are free".format(free, *wanted.ports)
        reasons = ", ".join(sorted(set(ports.busy.values()))) or "the range ends"
        why = f"{tasks} tasks need a port each here; the others: {reasons}"
        yield error("ports", what, why, "ask for a wider range (ports:), or for none")
    if wanted.private_network:
        if machine.private_network_problem:
            what, _, how = machine.private_network_problem.partition("; ")
            yield error("network", what, "network: private puts the tasks into a network namespace", how or "leave out network: private")
    elif wanted.strategy:
        why = "the servers run every graph that they receive, and check no sender"
        how = "close this host's ports to untrusted networks; on one machine: --network private"
        yield note("ports", "TensorFlow's servers listen on every interface", why, how)


# --- between hosts ------------------------------------------------------------------------------


def _compare(hosts: Sequence[HostReport], wanted: Wanted) -> Iterator[Finding]:
    for topic, what, kind, version in _VERSIONS:
        found: dict[str, list[str]] = {}
        for facts in hosts:
            if version(facts):
                found.setdefault(version(facts), []).append(facts.name)
        if len(found) > 1:
            versions = "; ".join(f"{name} on {', '.join(where)}" for name, where in sorted(found.items()))
            why = f"{versions}: the tasks of a cluster exchange graphs and tensors, which other versions may read differently"
            text = f"the hosts have different versions of {what}"
            names = tuple(name for where in found.values() for name in where)
            yield (kind if wanted.needs_tensorflow else note)(topic, text, why, "install the same version everywhere", names)
    for facts in hosts:
        skew = facts.clock_ahead_s or 0.0
        if abs(skew) > MOST_SKEW_S:
            text = f"its clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
            why = "which task failed first is decided by the hosts' clocks"
            yield warning("clock", text, why, "run chrony or systemd-timesyncd there", (facts.name,))


_VERSIONS: tuple[tuple[str, str, Callable[..., Finding], Callable[[HostReport], str]], ...] = (
    ("tensorflow", "TensorFlow", error, lambda facts: facts.tensorflow.version if facts.tensorflow else ""),
    ("keras", "Keras", warning, lambda facts: facts.tensorflow.keras if facts.tensorflow else ""),
    ("python", "Python", warning, lambda facts: facts.python.version.rpartition(".")[0] if facts.python else ""),
)
"""Topic, name, kind of finding if the tasks import TensorFlow, and a function that returns a host's version."""
