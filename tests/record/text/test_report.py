"""The report of how a run ended."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.model.cause import remedies, root_cause
from orchestrator.model.policy import lifecycle
from orchestrator.model.state import events
from orchestrator.model.state.cluster import Cause, Cluster, Outcome, Secondary, Verdict
from orchestrator.record.report import report
from orchestrator.record.run_directory import RunDir
from orchestrator.record.run_store import create_run
from orchestrator.record.text.event_messages import headline
from tests.record.states import BAD, TAMED, cluster, exited, lost
from worker.formats import saves
from worker.protocol.messages import Failure


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return create_run(tmp_path / "home", "train-1")


def test_a_success_is_one_line(run: RunDir) -> None:
    assert report(Verdict(Outcome.SUCCEEDED, 0, 1, 100.0, 161.0), run, Cluster()) == "train-1 succeeded after 1 min 01 s"


def test_a_failure_shows_the_traceback_the_log_the_others_and_the_code(run: RunDir) -> None:
    failure = Failure("ValueError", "bad", "Traceback (most recent call last):\n  File 'x'\nValueError: bad\n", 110.0)
    state = cluster(
        exited("worker-1", 1, failure=failure), exited("worker-0", 143, 110.1, stopped=True), exited("worker-2", 5, 110.2, stopped=False)
    )
    cause = Cause("failed", 110.0, "worker-1", "local", 1, failure)
    text = report(Verdict(Outcome.FAILED, 1, 1, 100.0, 110.5, cause), run, state, Path("shown"))
    assert text.splitlines() == [
        "train-1 failed after 10.5 s",
        "  first failure: worker-1 on local: exit code 1",
        "    Traceback (most recent call last):",
        "      File 'x'",
        "    ValueError: bad",
        "  log: shown/attempt-1/worker-1/stderr.log",
        *text.splitlines()[6:-1],
        "  exit code 1",
    ]
    others = "\n".join(text.splitlines()[6:-1])
    assert "stopped because of it: worker-0" in others
    assert "worker-1" not in others


def test_a_failed_training_that_saves_is_told_how_it_goes_on(run: RunDir) -> None:
    verdict = Verdict(Outcome.FAILED, 137, 1, 100.0, 110.5, Cause("failed", 110.0, "worker-1", "local", 137))
    for given, more in (("{}", ""), ('{"fit": true}', "; --set checkpoints.every=STEPS saves sooner"), ('{"fit": true, "every": 5}', "\n")):
        (run.path / "spec.yaml").write_text(f'{{"script": "train.py", "checkpoints": {given}}}')
        text = report(verdict, run, Cluster(), Path("shown"))
        assert ("  there is no checkpoint to continue from: the run has ended before its first one" + more in text) == bool(more)
    directory = str(run.path / "checkpoints/fit-1" / saves.name_of(12))
    os.makedirs(directory)
    saves.write_file(saves.LOCAL, directory, "worker-0", {}, {})
    world = {"workers": ["worker-0"], "replicas": 1}
    made = {"at": 105.0, "order": "train-1", "world": world, "versions": {}, "run": "train-1", "attempt": 1}
    note = {**made, "step": 12, "kind": "", "by": "worker-0", "input": {"epoch": 0, "batch": 1}}
    saves.finish(saves.LOCAL, directory, note, {"worker-0": {}})
    assert "\n  to continue after step 12: orch up -f shown/spec.yaml --resume train-1\n" in report(verdict, run, Cluster(), Path("shown"))
    assert "to continue" not in report(Verdict(Outcome.SUCCEEDED, 0, 1, 100.0, 161.0), run, Cluster(), Path("shown"))
    late = Cause("the run was not over", 110.0, remedy="orch up … --timeout 2m    # allows twice the time")
    lines = report(Verdict(Outcome.TIMED_OUT, 124, 1, 100.0, 110.5, late), run, Cluster(), Path("shown")).splitlines()
    fix = "orch up -f shown/spec.yaml --resume train-1 --timeout 2m    # allows twice the time; continues after step 12"
    assert [line for line in lines if "orch up" in line] == [f"  fix: {fix}"]


def test_a_named_pipe_in_the_place_of_the_spec_keeps_no_report_waiting(run: RunDir) -> None:
    (run.path / "spec.yaml").unlink(missing_ok=True)
    os.mkfifo(run.path / "spec.yaml")
    verdict = Verdict(Outcome.FAILED, 137, 1, 100.0, 110.5, Cause("failed", 110.0, "worker-1", "local", 137))
    assert "to continue" not in report(verdict, run, Cluster(), Path("shown"))


def test_a_suspect_is_shown_with_its_place_and_what_to_do(run: RunDir) -> None:
    failure = lost("2", 109.0)
    state = cluster(
        exited("worker-1", 1, failure=failure),
        exited("worker-0", 1, 110.1, failure=lost("2", 109.5)),
        exited("worker-2", 137, 115.0, stopped=True),
    )
    for task in ("worker-0", "worker-1", "worker-2"):
        state, _ = lifecycle.step(state, events.TaskSwept(task, 1, 116.0))
    assert state.verdict is not None
    stacks = run.task_dir("worker-2", 1) / "stacks.txt"
    stacks.parent.mkdir(parents=True)
    stacks.write_text('Thread 0x00007f0000000001 (most recent call first):\n  File "/home/me/gone.py", line 9 in load\n')
    assert report(state.verdict, run, state, Path("shown")).splitlines()[1:] == [
        "  first failure: worker-1 on local: exit code 1; "
        "it failed because it lost worker-2 (it stopped sending heartbeats), which was still running until orch stopped it",
        *(f"    {line}" for line in failure.traceback.splitlines()),
        "  log: shown/attempt-1/worker-1/stderr.log",
        "  where the tasks were:",
        "    worker-2: in load (gone.py:9)",
        "  fix: look at where worker-2 was, and at its log: a stalled task often waits for input or for a lock",
        "  more: orch help a-task-that-stalls",
        "  stopped because of it: worker-2",
        "  failed because of it: worker-0: lost worker-2 (it stopped sending heartbeats)",
        "  exit code 1",
    ]


def test_a_worker_that_left_early_is_shown_with_the_line_at_which_another_one_waited(run: RunDir) -> None:
    trace = (
        'Traceback (most recent call last):\n  File "/w/train.py", line 8, in <module>\n    strategy.reduce("SUM", x, axis=None)\nE: lost\n'
    )
    state = cluster(exited("worker-1", 0), exited("worker-0", 1, 110.1, failure=replace(lost("1", 109.0), traceback=trace)))
    cause = Cause(root_cause.LEFT_EARLY, 110.0, "worker-1", "local", 0, remedy="give all the same", about=remedies.ENDS_EARLY)
    text = report(Verdict(Outcome.FAILED, 1, 1, 100.0, 110.0, cause), run, state, Path("shown"))
    assert '\n  where the tasks were:\n    worker-0: train.py:8 in <module>: strategy.reduce("SUM", x, axis=None)\n  fix: give all' in text


def test_tasks_that_lost_the_same_peer_stand_together(run: RunDir) -> None:
    secondary = tuple(Secondary(f"worker-{i}", 111.0, 1, "worker-9 (its connection was closed)") for i in (2, 0, 1))
    cause = Cause("failed", 110.0, "worker-9", "local", 3, remedy="mend it", secondary=secondary)
    text = report(Verdict(Outcome.FAILED, 3, 1, 100.0, 110.0, cause), run, cluster(workers=10))
    assert "  fix: mend it\n  failed because of it: worker-0..2: lost worker-9 (its connection was closed)\n" in text


def test_of_many_that_failed_some_are_named_and_the_rest_is_counted(run: RunDir) -> None:
    failed = [exited(f"worker-{i}", 2 + i, 110.0 + i / 100) for i in range(21)]
    cause = Cause("failed", 110.0, "worker-0", "local", 2)
    lines = report(Verdict(Outcome.FAILED, 2, 1, 100.0, 110.5, cause), run, cluster(*failed, workers=21)).splitlines()
    shown = [line for line in lines if line.startswith("  failed after it: ")]
    assert (len(shown), shown[-1]) == (8, "  failed after it: worker-8 (exit code 10)")
    assert lines[lines.index(shown[-1]) + 1] == "    and 12 more: orch ps"
    secondary = tuple(Secondary(f"worker-{i}", 111.0, 1, f"worker-{i + 1}") for i in range(1, 11))
    text = report(Verdict(Outcome.FAILED, 2, 1, 100.0, 110.5, replace(cause, secondary=secondary)), run, cluster(workers=21))
    assert "  failed because of it: worker-8: lost worker-9\n    and 2 more: orch ps\n" in text


def test_a_command_is_shown_by_its_last_lines_and_none_is_endless(run: RunDir) -> None:
    cause = Cause("failed", 110.0, "worker-0", "local", 9)
    verdict = Verdict(Outcome.FAILED, 9, 1, 100.0, 110.0, cause)
    assert "printed nothing" in report(verdict, run, Cluster())
    run.append_output("worker-0", 1, "stdout", 0, "".join(f"line {i}\n" for i in range(1000)).encode())
    text = report(verdict, run, Cluster())
    assert "its last lines on stdout:\n    line 980\n" in text
    assert "line 979" not in text
    assert "stdout.log" in text
    run.append_output("worker-0", 1, "stderr", 0, b"10%\r20%\r30%\ncaf\xe9\n" + b"x" * 5000 + b"\n")
    lines = report(verdict, run, Cluster()).splitlines()
    assert lines[3:5] == ["    30%", "    caf\\xe9"]
    assert lines[5] == "    " + "x" * 400 + " … 4,500 characters left out … " + "x" * 100


def test_the_last_lines_of_a_task_are_its_own(run: RunDir) -> None:
    """A task that is killed has often written nothing but what TensorFlow says at a start."""
    noise = (Path(__file__).parent.parent / "output/noise/tf2.21-multi-worker-0.log").read_bytes()
    closed = b"E0000 00:00:1.1  9 ring_alg.cc:291] Aborting RingReduce with UNAVAILABLE: Socket closed\n"
    verdict = Verdict(Outcome.FAILED, 137, 1, 100.0, 110.0, Cause("failed", 110.0, "worker-1", "local", 137, killed=True))
    run.append_output("worker-1", 1, "stderr", 0, noise)
    assert "worker-1 printed nothing of its own" in report(verdict, run, Cluster())
    run.append_output("worker-1", 1, "stderr", len(noise), b"step 1\n" + closed)
    assert f"its last lines on stderr:\n    step 1\n    {closed.decode()}" in report(verdict, run, Cluster())


def test_a_long_traceback_loses_its_middle(run: RunDir) -> None:
    failure = Failure("E", "m", "\n".join(f"frame {i}" for i in range(500)), 110.0)
    text = report(Verdict(Outcome.FAILED, 1, 1, 100.0, 110.0, Cause("failed", 110.0, "worker-0", "local", 1, failure)), run, Cluster())
    assert "    frame 29\n    … 440 lines left out: stderr.log has it all …\n    frame 470\n" in text


def test_a_tensor_in_a_message_does_not_fill_the_report(run: RunDir) -> None:
    trace = "Traceback (most recent call last):\n  File 'x'\nE: bad [[0.],\n" + " [0.],\n" * 300 + " [0.]]\n"
    cause = Cause("failed", 110.0, "worker-0", "local", 1, Failure("E", "m", trace, 110.0))
    lines = report(Verdict(Outcome.FAILED, 1, 1, 100.0, 110.0, cause), run, Cluster()).splitlines()
    assert lines[4:16] == ["    E: bad [[0.],", *["     [0.],"] * 11]
    assert lines[16] == "    … 278 lines left out: stderr.log has it all …"
    assert lines[27:30] == ["     [0.],", "     [0.]]", f"  log: {run.log_path('worker-0', 1, 'stderr')}"]


def test_an_end_that_no_task_has_caused_is_told_with_its_reason(run: RunDir) -> None:
    text = report(Verdict(Outcome.BROKEN, 125, 1, 100.0, 100.0, Cause("no space left on /x", 100.0)), run, Cluster(), Path("shown"))
    assert text.splitlines() == ["train-1 failed after 0.0 s", "  no space left on /x", "  logs: shown", "  exit code 125"]


def test_a_lost_host_is_told_with_what_to_do_and_in_few_words_without(run: RunDir) -> None:
    lost_host = lifecycle.step(cluster(), events.HostLost("local", "the pod was evicted", 110.0, remedy="ask for more memory"))[0]
    assert lost_host.ending is not None
    cause = lost_host.ending.cause
    assert cause is not None
    lines = report(Verdict(Outcome.BROKEN, 125, 1, 100.0, 110.5, cause), run, lost_host, Path("shown")).splitlines()
    assert lines[1:3] == ["  lost host local: the pod was evicted", "  fix: ask for more memory"]
    refused = Cause("host b cannot be reached: refused\nfix: start its sshd\nmore: orch help ssh", 110.0)
    lines = report(Verdict(Outcome.BROKEN, 125, 1, 100.0, 110.5, refused), run, Cluster(), Path("shown")).splitlines()
    assert lines[1:4] == ["  host b cannot be reached: refused", "  fix: start its sshd", "  more: orch help ssh"]
    assert headline(refused) == "host b cannot be reached: refused"


def test_a_code_that_means_something_else_here_is_explained(run: RunDir) -> None:
    text = report(Verdict(Outcome.FAILED, 1, 1, 100.0, 110.0, Cause("failed", 110.0, "worker-0", "local", 124)), run, Cluster())
    assert text.endswith("exit code 1 (worker-0 ended with 124, which means something else here)")


def test_what_a_task_says_does_not_command_the_terminal_that_shows_its_report(run: RunDir) -> None:
    failure = Failure("E", BAD, f"Traceback\n\tE: {BAD}\n", 110.0)
    cause = Cause(f"failed {BAD}", 110.0, "worker-0", "local", 1, failure, remedy=BAD)
    text = report(Verdict(Outcome.FAILED, 1, 1, 100.0, 110.0, cause), run, Cluster())
    assert f"    Traceback\n    \tE: {TAMED}\n" in text
    run.append_output("worker-0", 1, "stderr", 0, BAD.encode() + b"\n" + b"\x1b[1m" * 200 + b"bold")
    last = report(Verdict(Outcome.FAILED, 9, 1, 100.0, 110.0, Cause("failed", 110.0, "worker-0", "local", 9)), run, Cluster())
    assert f"    {TAMED}\n    bold\n" in last
    for shown in (text, last):
        assert not [character for character in shown if (ord(character) < 32 and character not in "\n\t") or 127 <= ord(character) < 160]
