"""Facts of hosts and what is judged of them. Each row changes one thing about a host that has nothing wrong."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
import yaml

from orchestrator.checks import doctor_report
from orchestrator.checks.facts import Disk, DriverGpu, HostReport, Machine, Nvidia, Ports, Python, TensorFlow
from orchestrator.checks.finding import Wanted
from orchestrator.checks.rules import judge
from tests import golden
from worker.values.codec import from_json

GB = 1 << 30
MACHINE = Machine(
    hostname="box",
    system="Linux 6.1.0 x86_64",
    cores=8,
    run_dir=Disk("/home/me", free_bytes=50 * GB),
    ports=Ports(),
    memory_bytes=32 * GB,
    memory_free_bytes=30 * GB,
    shm=Disk("/dev/shm", free_bytes=16 * GB),
    open_files=(20_000, 20_000),
)
TENSORFLOW = TensorFlow(version="2.21.0", seconds=3.0, keras="2.15.0")
SOUND = HostReport("local", "python3", MACHINE, python=Python("/usr/bin/python3", "3.11.7"), tensorflow=TENSORFLOW)
MIRRORED = Wanted("mirrored")
MWMS = Wanted("multi_worker_mirrored", tasks=4)
GPUS = Nvidia("550.54", (DriverGpu(0, "H200", 143771), DriverGpu(1, "H200", 143771)))
CUDA = replace(TENSORFLOW, is_cuda_build=True, build={"cuda_version": "12.5.1", "cudnn_version": "9"})


def machine(**changes: Any) -> HostReport:
    return replace(SOUND, machine=replace(MACHINE, **changes))


def tensorflow(**changes: Any) -> HostReport:
    return replace(SOUND, tensorflow=replace(TENSORFLOW, **changes))


def changed(value: Any, changes: Any) -> Any:
    if not isinstance(value, dict) or not isinstance(changes, dict):
        return changes
    return {**value, **{name: changed(value.get(name), found) for name, found in changes.items()}}


@golden.cases("findings.txt")
def test_what_is_wrong_is_found_and_has_a_remedy(case: golden.Case) -> None:
    """What differs from a sound host, and the requirements of the run."""
    changes = yaml.safe_load(case.given)
    wanted = from_json(Wanted, changes.pop("wanted"))
    findings = judge([from_json(HostReport, changed(json.loads(json.dumps(asdict(SOUND))), changes))], wanted)
    case.check("\n".join(f"{one.severity} {one.topic}: {one.what}; {one.why}; fix: {one.remedy}" for one in findings))


def test_several_hosts_are_compared_and_share_their_findings() -> None:
    a = replace(SOUND, name="a")
    b = replace(tensorflow(version="2.19.0"), name="b", clock_ahead_s=-1000.0)
    c = replace(machine(open_files=(256, 256)), name="c")
    findings = judge([a, b, c], MWMS)
    by_what = {one.what: one for one in findings}
    versions = by_what["the hosts have different versions of TensorFlow"]
    assert (versions.severity, versions.why.partition(":")[0]) == ("error", "2.19.0 on b; 2.21.0 on a, c")
    assert by_what["its clock is 1000 s behind this machine's"].hosts == ("b",)
    assert by_what["a process may have 256 files open"].hosts == ("c",)
    assert by_what["TensorFlow's servers listen on every interface"].hosts == ("a", "b", "c")
    assert findings[0].severity == "error"
    assert findings[-1].severity == "note"


def test_versions_that_a_program_does_not_need_stop_nothing() -> None:
    hosts = [replace(tensorflow(version=version, keras=version), name=version) for version in ("2.19.0", "2.21.0")]
    severities = {one.topic: one.severity for one in judge(hosts, replace(MWMS, needs_tensorflow=False)) if "different" in one.what}
    assert severities == {"tensorflow": "note", "keras": "note"}


def test_of_several_hosts_each_finding_names_its_own_and_what_they_share_is_said_once() -> None:
    away = [replace(machine(open_files=(256, 256)), name=name, is_here=False) for name in ("a", "b")]
    lost = HostReport("c", "python3", is_here=False, unreached="No route\x1b[2J to host", unreached_remedy="check the address")
    hosts = [*away, lost]
    lines = list(doctor_report.to_text(hosts, judge(hosts, MIRRORED), MIRRORED, color=False))
    assert [line for line in lines if line.startswith(("error", "warning"))] == [
        "error    this host cannot be reached (c)",
        "warning  a process may have 256 files open (a, b)",
    ]
    assert lines[lines.index("c") + 1 :][:2] == ["  unreached   No route to host", ""]
    alone = list(doctor_report.to_text([lost], judge([lost], MIRRORED), MIRRORED, color=False))
    assert "error    this host cannot be reached (c)" in alone
    assert "error    this host cannot be reached" in list(
        doctor_report.to_text([replace(lost, is_here=True)], judge([lost], MIRRORED), MIRRORED, color=False)
    )


def test_a_host_that_could_not_be_looked_at_is_told_of_in_its_own_words_and_with_what_a_user_has() -> None:
    complaint = "it ended with exit code 1: OSError: [Errno 116] Stale file handle"
    (finding,) = [one for one in judge([replace(SOUND, machine=None, machine_problem=complaint)], MIRRORED) if one.topic == "host"]
    assert finding.why == complaint
    assert "nvidia-smi" in finding.remedy
    assert "start.py" not in finding.remedy


def test_the_memory_of_a_host_is_held_against_its_own_tasks() -> None:
    hosts = [replace(machine(memory_free_bytes=GB, open_files=(1100, 1100)), name=name) for name in ("a", "b")]
    wanted = Wanted("multi_worker_mirrored", tasks=200, shares={"a": 1, "b": 199})
    by_topic = {one.topic: (one.hosts, one.what) for one in judge(hosts, wanted)}
    assert by_topic["limits"] == (("a", "b"), "a process may have 1,100 files open")
    assert by_topic["memory"][0] == ("b",)


def test_the_text_fits_into_80_columns_and_ends_with_a_verdict() -> None:
    bad = replace(machine(run_dir=Disk("/mnt", writable=False), nvidia=GPUS), tensorflow=CUDA)
    findings = judge([bad], MWMS)
    lines = list(doctor_report.to_text([bad], findings, MIRRORED, color=False))
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in "".join(lines)
    assert lines[-1] == "1 error, 1 warning, 1 note: a run would fail here"
    assert any("\x1b[31merror\x1b[0m" in line for line in doctor_report.to_text([bad], findings, MIRRORED, color=True))
    assert list(doctor_report.to_text([SOUND], [], MIRRORED, color=False))[-1] == "no problem was found"
    for private in (True, False):
        shown = "\n".join(doctor_report.to_text([SOUND], [], replace(MIRRORED, private_network=private), color=False))
        assert ("a private network can be made" in shown) is private


@pytest.mark.parametrize(("severities", "code", "strict"), [([], 0, 0), (["note"], 0, 0), (["warning"], 0, 1), (["error", "note"], 1, 1)])
def test_the_exit_code_says_whether_a_run_can_start(severities: list[Any], code: int, strict: int) -> None:
    sample = judge([machine(run_dir=Disk("/mnt", writable=False))], MIRRORED)[0]
    findings: list[Any] = [replace(sample, severity=severity) for severity in severities]
    assert (doctor_report.exit_code(findings, strict=False), doctor_report.exit_code(findings, strict=True)) == (code, strict)
