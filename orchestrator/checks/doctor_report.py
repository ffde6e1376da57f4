"""The output of `orch doctor`, as text or JSON: the facts about each host, then the findings. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from worker.values.redact import disclose
from worker.values.words import bytes_of, count_of

from ..record.text.format import wrap
from ..record.text.lines import clean
from .facts import HostReport, Machine, TensorFlow
from .finding import Finding, Severity, Wanted

WIDTH = 80
_COLORS: dict[Severity, str] = {"error": "\x1b[31m", "warning": "\x1b[33m", "note": "\x1b[36m"}
_RESET = "\x1b[0m"


def exit_code(findings: Sequence[Finding], *, strict: bool) -> int:
    """0: a run can start. 1: a run cannot start, or with `strict` there are warnings."""
    bad = {"error", "warning"} if strict else {"error"}
    return int(any(finding.severity in bad for finding in findings))


def to_json(hosts: Sequence[HostReport], findings: Sequence[Finding], wanted: Wanted, code: int) -> dict[str, Any]:
    """Everything, for programs. Variables of the spec that may hold secrets are left out."""
    return {
        "wanted": asdict(replace(wanted, env=disclose(wanted.env))),
        "hosts": [{"host": facts.name, **{key: value for key, value in asdict(facts).items() if key != "name"}} for facts in hosts],
        "findings": [asdict(finding) for finding in findings],
        "exit_code": code,
    }


def to_text(hosts: Sequence[HostReport], findings: Sequence[Finding], wanted: Wanted, *, color: bool) -> Iterator[str]:
    """Lines of at most 80 columns, unless a path is longer."""
    for facts in hosts:
        yield facts.name
        for label, text in _facts(facts, wanted):
            yield from wrap(text, WIDTH, f"  {label:<12}", " " * 14)
        yield ""
    is_plain = len(hosts) == 1 and hosts[0].is_here
    for finding in findings:
        yield from _describe(finding, is_plain, color)
    if findings:
        yield ""
    yield _verdict(findings)


def _describe(finding: Finding, is_plain: bool, color: bool) -> Iterator[str]:
    where = f" ({', '.join(finding.hosts)})" if finding.hosts and not is_plain else ""
    head, *rest = wrap(f"{finding.what}{where}", WIDTH, f"{finding.severity:<9}", " " * 9)
    yield head.replace(finding.severity, f"{_COLORS[finding.severity]}{finding.severity}{_RESET}", 1) if color else head
    yield from rest
    for line in finding.why.splitlines():
        yield from [f"{' ' * 9}{clean(line)}"] if line.startswith("  ") else wrap(line, WIDTH, " " * 9)
    yield from wrap(finding.remedy, WIDTH, f"{' ' * 9}fix: ", " " * 14)


def _verdict(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.severity for finding in findings)
    said = ", ".join(count_of(number, kind) for kind in _COLORS if (number := counts[kind]))
    if counts["error"]:
        return f"{said}: a run would fail here"
    return f"{said}: a run can start" if said else "no problem was found"


def _facts(facts: HostReport, wanted: Wanted) -> Iterator[tuple[str, str]]:
    machine = facts.machine
    if facts.unreached:
        yield "unreached", facts.unreached
    if machine is not None:
        memory = f"{bytes_of(machine.memory_bytes)} memory ({bytes_of(machine.memory_free_bytes)} free)"
        yield "machine", f"{machine.hostname}: {machine.system}, {count_of(machine.cores, 'core')}, {memory}"
    if facts.python is not None:
        yield "python", f"{facts.python.executable} ({facts.python.version})"
        yield "tensorflow", _tensorflow(facts.tensorflow)
    elif not facts.unreached:
        yield "python", f"{facts.program}: no answer"
        yield "tensorflow", _tensorflow(None)
    if facts.tensorflow is not None and facts.tensorflow.keras:
        legacy = f", tf-keras {facts.tensorflow.tf_keras}" if facts.tensorflow.tf_keras else ""
        yield "keras", f"{facts.tensorflow.keras}{legacy}"
    if machine is not None:
        yield "gpus", _gpus(machine, facts.tensorflow)
        disks = [disk for disk in (machine.run_dir, machine.shm) if disk is not None and disk.free_bytes is not None]
        if wanted.private_network and not machine.private_network_problem:
            yield "network", "a private network can be made (--network private)"
        yield "disk", ", ".join(f"{disk.path} {bytes_of(disk.free_bytes or 0)} free" for disk in disks)


def _tensorflow(found: TensorFlow | None) -> str:
    if found is None or not found.version:
        return "not installed" if found is not None and found.missing else "cannot be imported"
    cuda = f"CUDA {found.build.get('cuda_version', '')}".strip() if found.is_cuda_build else "CPU"
    return f"{found.version}, {cuda} build, imported in {found.seconds:.1f} s"


def _gpus(machine: Machine, found: TensorFlow | None) -> str:
    nvidia = machine.nvidia
    kinds = Counter(f"{gpu.name} ({gpu.memory_mb:,} MiB)" for gpu in nvidia.gpus)
    listed = ", ".join(f"{number} x {kind}" for kind, number in kinds.items()) or "none"
    seen = f"; TensorFlow sees {len(found.gpus)}" if nvidia.gpus and found is not None and found.version else ""
    return f"{listed} ({f'NVIDIA driver {nvidia.driver}' if nvidia.driver else 'no NVIDIA driver'}){seen}"
