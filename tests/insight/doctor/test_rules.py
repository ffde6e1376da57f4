"""Facts of hosts and what is judged of them. Each row changes one thing about a host that has nothing wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.checks import doctor_report
from orchestrator.checks.facts import Disk, DriverGpu, HostReport, Machine, Nvidia, Ports, Python, TensorFlow
from orchestrator.checks.finding import Wanted
from orchestrator.checks.rules import judge

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
PS = Wanted("parameter_server", tasks=4)
GPUS = Nvidia("550.54", (DriverGpu(0, "H200", 143771), DriverGpu(1, "H200", 143771)))
CUDA = replace(TENSORFLOW, is_cuda_build=True, build={"cuda_version": "12.5.1", "cudnn_version": "9"})


def machine(**changes: Any) -> HostReport:
    return replace(SOUND, machine=replace(MACHINE, **changes))


def tensorflow(**changes: Any) -> HostReport:
    return replace(SOUND, tensorflow=replace(TENSORFLOW, **changes))


def found(facts: HostReport, wanted: Wanted) -> list[tuple[str, str]]:
    return [(finding.severity, finding.topic) for finding in judge([facts], wanted)]


def test_a_sound_host_has_nothing_wrong() -> None:
    assert found(SOUND, MIRRORED) == []
    assert found(SOUND, Wanted()) == []


TPU = Wanted("tpu", tpu="local")
ON_TPU = replace(
    machine(tpu_chips=4),
    python=replace(Python("/usr/bin/python3", "3.11.7"), tensorflow_tpu="2.20.0", libtpu="0.0.14"),
    tensorflow=replace(TENSORFLOW, version="2.20.0", has_tpu=True),
)
NEWER = Python("/usr/bin/python3", "3.11.7", tensorflow_tpu="2.20.0", libtpu="0.0.52")


def test_a_tpu_vm_has_nothing_wrong_and_other_strategies_ask_for_no_tpu() -> None:
    assert found(ON_TPU, TPU) == []
    assert found(replace(ON_TPU, python=NEWER), MIRRORED) == []
    assert found(SOUND, Wanted("tpu", tpu="my-tpu")) == []


ROWS = [
    # TPUs
    (tensorflow(), Wanted("tpu", tpu="auto"), "error tpu", "TensorFlow 2.21.0 is built without TPU support"),
    (replace(ON_TPU, machine=MACHINE), TPU, "error tpu", "this host shows no TPU chip"),
    (replace(ON_TPU, python=NEWER), TPU, "error tpu", "pip install libtpu==0.0.14"),
    (replace(ON_TPU, machine=MACHINE), Wanted("tpu", tpu="my-tpu"), "note tpu", "export TPU_SKIP_MDS_QUERY=1"),
    (tensorflow(), Wanted("tpu", tpu="auto", falls_back=True), "note tpu", "tensorflow-tpu, whose last release is 2.20"),
    # the interpreter
    (replace(SOUND, python=None, tensorflow=None, python_problem="it cannot be run"), MIRRORED, "error python", "cannot run the tasks"),
    (replace(SOUND, python=Python("/usr/bin/python3", "3.8.10")), MIRRORED, "error python", "orch's part inside the tasks needs 3.10"),
    # TensorFlow
    (tensorflow(missing=True, version=""), MIRRORED, "error tensorflow", "/usr/bin/python3 -m pip install tensorflow-cpu"),
    (tensorflow(missing=True, version=""), replace(MIRRORED, needs_tensorflow=False), "note tensorflow", "has no TensorFlow"),
    (
        replace(tensorflow(missing=True, version=""), machine=replace(MACHINE, nvidia=GPUS)),
        MIRRORED,
        "error tensorflow",
        "tensorflow[and-cuda]",
    ),
    (tensorflow(version="", problem="ImportError: numpy.core.multiarray failed"), MIRRORED, "error tensorflow", "its NumPy does not fit"),
    (
        replace(tensorflow(missing=True, version=""), python=Python("/usr/bin/python3", "3.14.1")),
        MIRRORED,
        "error tensorflow",
        "there is no TensorFlow for Python 3.14.1: set python: or --python",
    ),
    (tensorflow(version="2.12.1"), MIRRORED, "warning tensorflow", "made for 2.16 or newer"),
    (
        replace(SOUND, tensorflow=None, import_problem='it has not ended after 5 s\n  File "a.py", line 1 in f'),
        MIRRORED,
        "error tensorflow",
        'File "a.py", line 1',
    ),
    (
        replace(SOUND, tensorflow=None, import_problem="it was killed by SIGILL"),
        MIRRORED,
        "error tensorflow",
        "a CPU with AVX",
    ),
    (
        tensorflow(keras="3.15.1", fork_problem="the import of faulty has started a thread"),
        MWMS,
        "note fork",
        "no task can be forked: the import of faulty has started a thread",
    ),
    # Keras
    (tensorflow(keras="3.15.1"), PS, "warning keras", "/usr/bin/python3 -m pip install --no-deps 'tf-keras~=2.21.0'"),
    (tensorflow(keras="3.15.1", tf_keras="2.21.0"), PS, "warning keras", "for fit, Keras 2: --keras legacy"),
    (tensorflow(keras="3.4.1"), MWMS, "warning keras", "tf.keras is Keras 3.4.1, and orch mends Keras 3.10 to 3.16"),
    (
        tensorflow(keras="3.17.0", off={"saves of fit": "Trainer._should_eval: there is no such name"}),
        MWMS,
        "warning releases",
        "1 feature of orch is off: saves of fit",
    ),
    (
        tensorflow(keras="3.17.0", off={"saves of fit": "Trainer._should_eval: there is no such name", "fit on several workers": "x"}),
        MWMS,
        "warning releases",
        "2.22; saves of fit: Trainer._should_eval: there is no such name",
    ),
    (tensorflow(keras="3.9.2"), MWMS, "warning keras", "/usr/bin/python3 -m pip install 'keras>=3.10,<3.17'"),
    (tensorflow(keras="3.15.1"), PS, "warning keras", "cannot work under ParameterServerStrategy"),
    (
        tensorflow(keras="", keras_problem="ImportError"),
        replace(PS, env={"TF_USE_LEGACY_KERAS": "1"}),
        "error keras",
        "tf-keras is not installed",
    ),
    (tensorflow(keras="", keras_problem="ImportError: no keras"), MIRRORED, "warning keras", "no keras"),
    # GPUs
    (machine(nvidia=GPUS), MIRRORED, "warning gpu", "was built without CUDA"),
    (replace(machine(nvidia=GPUS), tensorflow=CUDA), MIRRORED, "warning gpu", "built for CUDA 12.5.1 and cuDNN 9"),
    (replace(machine(nvidia=GPUS), tensorflow=CUDA), replace(MIRRORED, gpus=True), "error gpu", "2 GPUs and TensorFlow sees none"),
    (
        replace(machine(nvidia=GPUS, environment={"CUDA_VISIBLE_DEVICES": ""}), tensorflow=CUDA),
        MIRRORED,
        "warning gpu",
        "unset CUDA_VISIBLE_DEVICES",
    ),
    (SOUND, replace(MIRRORED, gpus=True), "error gpu", "there is no driver"),
    (
        machine(nvidia=Nvidia(problem="couldn't communicate with the NVIDIA driver")),
        MIRRORED,
        "warning gpu",
        "nvidia-smi has to work first",
    ),
    # the host
    (replace(SOUND, machine=None, machine_problem="timed out"), MIRRORED, "error host", "timed out"),
    (HostReport("b", "python3", unreached="No route to host", unreached_remedy="check the address"), MWMS, "error host", "No route"),
    (replace(SOUND, python=None, unreached="nothing was heard of it", unreached_remedy="ask again"), MWMS, "error host", "was lost"),
    (replace(machine(run_dir=Disk("/tmp", free_bytes=1 << 20)), is_here=False), MIRRORED, "error disk", "set TMPDIR there"),
    (machine(memory_free_bytes=GB), replace(MIRRORED, tasks=9, shares={"local": 8}), "warning memory", "about 2.9 GB needed"),
    (machine(run_dir=Disk("/mnt", writable=False)), MIRRORED, "error disk", "--home or ORCH_HOME"),
    (machine(run_dir=Disk("/mnt", free_bytes=1 << 20)), MIRRORED, "error disk", "1.0 MB free"),
    (machine(run_dir=Disk("/mnt", free_bytes=500 << 20)), MIRRORED, "warning disk", "524 MB free"),
    (
        machine(memory_free_bytes=GB),
        replace(MIRRORED, shares={"local": 8}),
        "warning memory",
        "1.1 GB of memory free, about 2.9 GB needed",
    ),
    (machine(shm=None), MIRRORED, "note shm", "/dev/shm has 0 B free"),
    (machine(shm=Disk("/dev/shm", free_bytes=64 << 20)), MIRRORED, "note shm", "--shm-size"),
    (machine(open_files=(256, 4096)), MIRRORED, "warning limits", "ulimit -n 1024, or nofile in /etc/security/limits.conf"),
    (machine(ports=Ports("Operation not permitted")), replace(MIRRORED, data_service=True), "error ports", "Operation not permitted"),
    (machine(ports=Ports("Operation not permitted")), MWMS, "error ports", "Operation not permitted"),
]


@pytest.mark.parametrize(("facts", "wanted", "kind", "said"), ROWS, ids=[f"{row[2]}: {row[3]}" for row in ROWS])
def test_what_is_wrong_is_found_and_has_a_remedy(facts: HostReport, wanted: Wanted, kind: str, said: str) -> None:
    findings = [one for one in judge([facts], wanted) if f"{one.severity} {one.topic}" == kind]
    assert len(findings) == 1, judge([facts], wanted)
    assert said in f"{findings[0].what} {findings[0].why} {findings[0].remedy}"
    assert findings[0].remedy
    others = [one for one in judge([facts], wanted) if one not in findings and one.severity != "note"]
    assert others == []


def test_keras_3_is_no_matter_where_its_fit_works() -> None:
    assert found(tensorflow(keras="3.4.1"), Wanted("one_device")) == []
    assert ("warning", "keras") not in found(tensorflow(keras="3.10.0"), MWMS)
    assert found(tensorflow(keras="3.15.1"), Wanted()) == found(tensorflow(keras="3.15.1"), MIRRORED) == []
    assert ("warning", "keras") not in found(tensorflow(keras="3.15.1"), MWMS)
    assert ("warning", "keras") not in found(tensorflow(keras="3.15.1"), replace(PS, tasks=1))


def test_a_range_of_ports_that_is_too_small_is_an_error() -> None:
    wanted = replace(MWMS, ports=(41000, 41005), shares={"local": 4})
    taken = {str(port): "Address already in use" for port in range(41000, 41003)}
    findings = judge([machine(ports=Ports(tried=6, busy=taken))], wanted)
    assert [(one.severity, one.what) for one in findings if "41000" in one.what] == [("error", "3 of the ports 41000-41005 are free")]
    findings = judge([machine(ports=Ports(tried=6, busy={"41000": "Address already in use"}))], wanted)
    assert not [one for one in findings if "41000" in one.what]


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


@pytest.mark.parametrize(
    ("severities", "code", "strict"),
    [([], 0, 0), (["note"], 0, 0), (["warning"], 0, 1), (["error", "note"], 1, 1)],
)
def test_the_exit_code_says_whether_a_run_can_start(severities: list[Any], code: int, strict: int) -> None:
    sample = judge([machine(run_dir=Disk("/mnt", writable=False))], MIRRORED)[0]
    findings: list[Any] = [replace(sample, severity=severity) for severity in severities]
    assert (doctor_report.exit_code(findings, strict=False), doctor_report.exit_code(findings, strict=True)) == (code, strict)
