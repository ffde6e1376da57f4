"""`orch metrics`: the table of names, the text format 0.0.4, and values that are left out rather than made up."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.model.policy import lifecycle
from orchestrator.model.settings import ClusterSpec, Restart, TaskSpec
from orchestrator.model.state import events
from orchestrator.model.state.cluster import Cause, Cluster, PastAttempt, Policy
from orchestrator.record import run_metrics
from orchestrator.record.run_directory import RunDir
from orchestrator.record.samples import SampleFiles
from tests.conftest import Orch
from tests.made_up_run import BEGAN, MadeUpRun
from tests.record.states import begun
from worker.protocol.messages import GpuUse, HostUse, Program, Sampled, TaskUse
from worker.protocol.task_files import PROGRESS

SPEC = ClusterSpec("made-up", "multi_worker_mirrored", Program("script", "train.py"), (TaskSpec("worker", 2),), "/w")
SERIES = re.compile(r'(orch_[a-z_]+)\{((?:[a-z]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\} (NaN|[+-]Inf|-?[0-9.]+(?:e[+-]?[0-9]+)?)')


def read(text: str) -> dict[str, dict[str, str]]:
    """The values by name and labels. Fails where the text is not in the format, or breaks a rule of the textfile collector."""
    found: dict[str, dict[str, str]] = {}
    head: list[str] = []
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# "):
            head.append(line)
            continue
        match = SERIES.fullmatch(line)  # without a time, which the collector refuses
        assert match, line
        name, labels, value = match.groups()
        if name not in found:
            kind = "counter" if name.endswith("_total") else "gauge"
            assert head[0].startswith(f"# HELP {name} "), "once, before the first value"
            assert head[1:] == [f"# TYPE {name} {kind}"]
            head = []
        assert not head, "the values of a name are together"
        assert labels not in found.setdefault(name, {}), f"twice: {line}"
        found[name][labels] = value
    return found


def short(text: str, name: str) -> dict[str, str]:
    """The values of a metric by their labels without that of the run, which all have."""
    found = read(text).get(name, {})
    assert all(labels.startswith('run="') for labels in found)
    return {labels.partition('",')[2]: value for labels, value in found.items()}


def happen(cluster: Cluster, *happened: events.Event) -> Cluster:
    for event in happened:
        cluster, _ = lifecycle.step(cluster, event)
    return cluster


def start(cluster: Cluster) -> Cluster:
    names, attempt = [*cluster.tasks], cluster.attempt
    cluster = happen(cluster, *(events.TaskStarted(name, attempt, 50, 101.0) for name in names))
    return happen(cluster, *(events.TaskUp(name, attempt, 102.0) for name in names))


def training() -> Cluster:
    """Two workers that train."""
    policy = Policy("multi_worker_mirrored", restart=Restart(max=5, without_progress=0))
    progress = {"fraction": 0.25, "left_s": 90.0}
    values = {"step": 12, "loss": 0.5, "lr": "nan", "word": "x", "is_on": True, PROGRESS: progress}
    cluster = start(begun(policy, {"worker-0": "local", "worker-1": "local"}))
    return happen(cluster, *(events.TaskReported(name, 1, values, time.time()) for name in cluster.tasks))


@pytest.fixture
def sampled(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "made-up")
    run.path.mkdir()
    uses = tuple(
        TaskUse(
            f"worker-{i}", 1, "R", 150.0, 900 << 20, step=40, rate=8.0, work=0.02 + i, peers=1.0 - i, input=0.001, window=3, came=9, met=9
        )
        for i in range(2)
    )
    files = SampleFiles(run)
    files.keep(Sampled(BEGAN, 2.0, uses, HostUse(throttled=12.0), (GpuUse(0, 97.0, 60 << 30),), "local"))
    files.close()
    return run


def all_of(run: RunDir, cluster: Cluster, *, lives: bool = True, spec: ClusterSpec = SPEC) -> str:
    return run_metrics.text(run, spec, cluster, {"worker-0": {"agent": 0.5, "fork or exec": 2.0}, "worker-1": {"agent": 0.25}}, lives=lives)


def test_a_run_that_goes_on(sampled: RunDir) -> None:
    text = all_of(sampled, training())
    assert short(text, "orch_run_state") == {'state="starting"': "0", 'state="running"': "1", 'state="ended"': "0"}
    assert short(text, "orch_task_step") == {'task="worker-0"': "40", 'task="worker-1"': "40"}
    assert short(text, "orch_task_slow") == {'task="worker-0"': "0", 'task="worker-1"': "1"}
    assert short(text, "orch_task_cpu_ratio") == {'task="worker-0"': "1.5", 'task="worker-1"': "1.5"}
    assert short(text, "orch_task_step_seconds")['task="worker-1",part="work"'] == "1.02"
    assert short(text, "orch_run_progress_ratio") == {"": "0.25"}
    assert short(text, "orch_run_phase_seconds") == {'phase="agent"': "0.5", 'phase="fork_or_exec"': "1.5"}
    assert short(text, "orch_host_cpu_throttled_ratio") == {'host="local"': "0.12"}
    assert short(text, "orch_gpu_busy_ratio") == {'host="local",gpu="0"': "0.97"}
    reports = short(text, "orch_task_report")
    assert reports['task="worker-0",metric="loss"'] == "0.5"
    assert reports['task="worker-0",metric="lr"'] == "NaN", "a number that the program has reported"
    assert not any("word" in labels or "is_on" in labels for labels in reports)
    assert "orch_run_exit_code" not in text, "it is not known yet"
    assert not {"orch_run_end_timestamp_seconds", "orch_checkpoint_timestamp_seconds"} & read(text).keys()


def test_after_the_end_there_is_a_code_and_no_rate(tmp_path: Path) -> None:
    made = MadeUpRun(tmp_path, fails_at=(0.3, 0.6), nan_from=20).run
    (made.path / "checkpoints").mkdir()
    (made.path / "checkpoints/a").write_text("")
    text = run_metrics.of_run(made)
    assert short(text, "orch_run_state")['state="ended"'] == "1"
    assert short(text, "orch_run_exit_code") == {"": "0"}
    assert short(text, "orch_attempt") == {"": "3"}
    assert short(text, "orch_restarts_total") == {f'reason="{reason}"': "2" if reason == "exit" else "0" for reason in run_metrics.REASONS}
    assert short(text, "orch_tasks")['state="succeeded"'] == "2"
    assert not {"orch_task_memory_bytes", "orch_gpu_busy_ratio", "orch_run_remaining_seconds"} & read(text).keys()
    assert "hunter2" not in text, "nothing of the command line"


def test_a_restart_has_its_reason(sampled: RunDir) -> None:
    cluster = training()
    for number, code in ((1, None), (2, 42), (3, 3)):
        asks = events.RestartRequested(120.0) if code is None else events.TaskExited("worker-1", number, code, False, 120.0)
        cluster = happen(cluster, asks)
        rest = [name for name, task in cluster.tasks.items() if not task.has_ended]
        cluster = happen(cluster, *(events.TaskExited(name, number, 143, True, 121.0) for name in rest))
        cluster = happen(cluster, *(events.TaskSwept(name, number, 122.0) for name in cluster.tasks))
        cluster = start(happen(cluster, events.Tick(10_000.0)))
        assert cluster.attempt == number + 1
    found = short(all_of(sampled, cluster), "orch_restarts_total")
    assert {labels for labels, value in found.items() if value == "1"} == {f'reason="{name}"' for name in ("asked", "preempted", "exit")}
    assert {*found} == {f'reason="{reason}"' for reason in run_metrics.REASONS}


@pytest.mark.parametrize(
    ("what", "reason"),
    [("lost host a: it is gone", "lost_host"), ("no task has written … (--hang-timeout)", "hang"), ("the cluster had not formed", "other")],
)
def test_an_end_of_no_task_has_its_reason(sampled: RunDir, what: str, reason: str) -> None:
    cluster = replace(training(), past=(PastAttempt(1, 0.0, 1.0, Cause(what, 1.0, host="a")),))
    assert short(all_of(sampled, cluster), "orch_restarts_total")[f'reason="{reason}"'] == "1"


def test_words_of_a_task_stay_in_their_label_and_names_have_a_bound(sampled: RunDir) -> None:
    values = {'a "quote" \\ and\na line \udcff': 1.0, **{f"v{number}": number for number in range(100)}}
    cluster = happen(training(), events.TaskReported("worker-0", 1, values, 111.0))
    reports = short(all_of(sampled, cluster), "orch_task_report")
    assert r'task="worker-0",metric="a \"quote\" \\ and\na line ?"' in reports
    assert len({labels.partition("metric=")[2] for labels in reports}) == run_metrics.MOST_NAMES


@pytest.mark.skipif(shutil.which("promtool") is None, reason="NOT TESTED: promtool is not installed (apt-get install prometheus)")
def test_promtool_has_nothing_to_say(sampled: RunDir) -> None:
    for text in (all_of(sampled, training()), all_of(sampled, Cluster(), lives=False)):
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    bad = subprocess.run(
        ["promtool", "check", "metrics"], input="# TYPE orchBad counter\norchBad 1\n", capture_output=True, text=True, check=False
    )
    assert bad.returncode, "it does look"


def test_the_command_prints_them(orch: Orch, tmp_path: Path) -> None:
    made = MadeUpRun(tmp_path / ".orch").run
    assert orch.in_process("metrics", made.run_id, check=0).out == run_metrics.of_run(made)
    assert "the run 'other' does not exist" in orch.in_process("metrics", "other", check=2).err
