"""A cluster of `orchestrator.testing`: functions in real tasks of real TensorFlow."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import orchestrator.testing
from orchestrator.errors import UsageError
from orchestrator.testing import TaskFailed, TimedOut, barrier, cluster, pool
from orchestrator.testing.failures import ClusterLost
from orchestrator.testing.tasks import Task

pytestmark = pytest.mark.tensorflow

OFFSET = 10.0
LOST_PEERS = Path(__file__).parents[1] / "model" / "cause" / "lost_peers.json"


class OddError(Exception):
    """An exception that only this module has."""


def add_up(strategy: Any, value: float) -> float:
    import tensorflow as tf

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> Any:
        return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(value)))

    return float(step()) + OFFSET


def test_functions_run_in_all_tasks_of_a_cluster() -> None:
    has_imported = "tensorflow" in sys.modules
    with cluster(workers=2) as c:
        assert list(c.tasks) == ["worker-0", "worker-1"]
        assert c.run(add_up, 2.0) == {"worker-0": 14.0, "worker-1": 14.0}
        pids = c.run(os.getpid)
        assert pids == {name: c[name].pid for name in c.tasks}
        assert c.run(lambda: os.getpid(), on="worker-1") == {"worker-1": pids["worker-1"]}
    with cluster(workers=2) as c:
        assert set(c.run(os.getpid).values()).isdisjoint(pids.values())
        assert c.run(add_up, value=1.0) == {"worker-0": 12.0, "worker-1": 12.0}
    assert ("tensorflow" in sys.modules) == has_imported


def test_an_exception_comes_with_its_type_and_the_traceback_of_the_task() -> None:
    def fail() -> None:
        import worker

        if worker.context().task == "worker-1":
            raise OddError("the odd one")

    with cluster(workers=2) as c:
        with pytest.raises(OddError, match="the odd one") as caught:
            c.run(fail)
        cause = caught.value.__cause__
        assert isinstance(cause, TaskFailed)
        assert cause.task == "worker-1"
        assert [entry.frame.code.name for entry in caught.traceback][-1] == "fail"  # with its source, for pytest's report
        assert 'raise OddError("the odd one")' in str(cause)
        assert "worker-0: had returned" in str(cause)
        assert c.run(len, "abc") == {"worker-0": 3, "worker-1": 3}  # nothing of it is left


def test_what_only_tensorflow_knows_does_not_make_the_test_import_it() -> None:
    def compute(shape: int) -> Any:
        import tensorflow as tf

        return {"sum": tf.ones(2) + tf.ones(shape)}

    def describe() -> Any:
        import tensorflow as tf

        return tf.TensorSpec([1])

    with cluster(workers=1) as c:
        assert c.run(compute, 2)["worker-0"]["sum"].tolist() == [2.0, 2.0]
        has_imported = "tensorflow" in sys.modules  # then some other test of this process has
        with pytest.raises(Exception, match="Incompatible shapes") as caught:
            c.run(compute, 3)
        assert isinstance(caught.value, TaskFailed) or has_imported
        if not has_imported:
            assert 'return {"sum": tf.ones(2) + tf.ones(shape)}' in str(caught.value)
            with pytest.raises(TaskFailed, match="known only where tensorflow is imported, and this process has not imported"):
                c.run(describe)
        assert ("tensorflow" in sys.modules) == has_imported


@pytest.mark.parametrize(
    ("function", "args", "said"),
    [
        (lambda s: s, (), r"<lambda>: missing a required argument: 's': give run\(\) the arguments of the function; only a parameter with"),
        (lambda strategy, number: number, (), "missing a required argument: 'number'"),
        (lambda: 0, (1,), "too many positional arguments"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_the_function_is_sent(function: Any, args: tuple[Any, ...], said: str) -> None:
    with cluster(workers=1) as c:
        with pytest.raises(UsageError, match=said):
            c.run(function, *args)
        assert c.run(lambda number, strategy, more=2: number + more, 1) == {"worker-0": 3}


def test_a_killed_task_in_which_the_function_does_not_run_is_named() -> None:
    """The function on worker-0 waits for it, as the start of TensorFlow does."""
    with cluster(workers=3, timeout=2) as c:
        job = c.start(lambda: time.sleep(100), on="worker-0")
        c.kill("worker-1")
        with pytest.raises(TimedOut, match=r"the tasks:\n  worker-0: running, in <lambda> .*\n  worker-1: SIGKILL, by the test") as caught:
            job.result()
        assert [*caught.value.tasks] == ["worker-0", "worker-1"]
        c.restart()
        with pytest.raises(TimedOut) as caught:
            c.run(lambda: time.sleep(100), on="worker-0")
        assert [*caught.value.tasks] == ["worker-0"]


def test_a_process_that_has_not_come_up_in_time_ends_with_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(workers=2) as c:
        run = c.pooled_run
    monkeypatch.setattr(pool, "START_S", 0.0)
    with pytest.raises(ClusterLost, match="worker-0 could not be started: it did not connect in 0 s"):
        cluster(workers=2).__enter__()
    monkeypatch.undo()
    assert {task.exit for task in run.tasks.values()} == {-9}
    with cluster(workers=2) as c:
        assert c.pooled_run is run
        assert c.run(len, "abc") == {"worker-0": 3, "worker-1": 3}


def test_a_cluster_whose_processes_do_not_end_takes_its_run_along_and_can_be_entered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    c = cluster(workers=1).__enter__()
    run = c.pooled_run
    monkeypatch.setattr(pool, "DYING_S", -1.0)
    with pytest.raises(ClusterLost, match="the processes of worker-0 have not ended"):
        c.close()
    monkeypatch.undo()
    assert run not in pool.runs_of(c.session)
    assert not run.handle.is_running
    with c:
        assert c.run(len, "abc") == {"worker-0": 3}


def test_a_hang_ends_in_time_with_the_stacks_of_all_tasks() -> None:
    def hang_in_here() -> None:
        from worker.task.observe import profiling

        profiling.begin(os.devnull)  # starts a thread of orch's own, as a task with TensorFlow has one
        print("going to sleep", flush=True)
        time.sleep(1000)

    with cluster(workers=2, timeout=200) as c:
        job = c.start(hang_in_here)
        for name in c.tasks:
            c.wait_for(name, log="going to sleep")
        with pytest.raises(TimedOut, match=r"hang_in_here was not over after 0\.5 s") as caught:
            job.result(timeout=0.5)
        assert caught.value.stacks.keys() == {"worker-0", "worker-1"}
        assert str(caught.value).count("in hang_in_here") >= 2
        assert "/worker/" not in str(caught.value)  # the calls of orch's own below the function
        assert c["worker-0"].exit == -9
        with pytest.raises(TimedOut, match=r"hang_in_here was not over after 0\.5 s"):  # asked again, the same answer
            job.result()
        c.restart()
        job = c.start(hang_in_here)
    with pytest.raises(TaskFailed, match="worker-0: stopped: the cluster was left before hang_in_here was over"):
        job.result()


def test_a_task_that_takes_nothing_is_not_waited_for_without_end() -> None:
    with cluster(workers=2) as c:
        c.pause("worker-0")
        c.timeout_s = 0.5  # the processes themselves may take longer to come up
        with pytest.raises(TimedOut, match=r"len was not over after 0\.5 s") as caught:
            c.run(len, b" " * 4_000_000)
        assert caught.value.tasks["worker-0"].where == "no answer"
        assert {task.exit for task in c.tasks.values()} == {-9}


def test_a_torn_report_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "reports.jsonl").write_text('{"step": 1}\n{"st{"step": 2}\n{"step": 3}\n{"step": {"a": 4}')
    task = Task(None, "worker-0", tmp_path)  # type: ignore[arg-type]
    assert task.reports == [{"step": 1}, {"step": 3}]


def test_a_signal_that_a_task_has_survived_does_not_explain_its_end() -> None:
    def ignore() -> None:
        import signal

        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def survive_and_die(code: int) -> None:
        import signal

        survived: list[int] = []
        signal.signal(signal.SIGUSR2, lambda *_: survived.append(1))
        print("ready", flush=True)
        while not survived:
            time.sleep(0.01)
        os._exit(code)

    with cluster(workers=1) as c:
        c.run(ignore)
        c["worker-0"].kill(signal.SIGUSR1)
        with pytest.raises(TaskFailed, match="worker-0: exit code 7") as caught:
            c.run(lambda: os._exit(7))
        assert caught.value.tasks["worker-0"].state == "died"
        c.restart()
        job = c.start(survive_and_die, 5)
        c.wait_for("worker-0", log="ready")
        c["worker-0"].kill(signal.SIGUSR2)
        with pytest.raises(TaskFailed, match="worker-0: exit code 5"):
            job.result()
        assert job.tasks["worker-0"].state == "died"


def test_a_killed_task_comes_before_a_peer_that_has_noticed_its_end_first(tmp_path: Path) -> None:
    def lose(going: Path) -> None:
        import signal

        def end_slowly(*_: object) -> None:
            going.touch()
            time.sleep(0.5)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

        if os.environ["ORCH_TASK"] == "worker-1":
            signal.signal(signal.SIGTERM, end_slowly)
        print("ready", flush=True)
        while not going.exists():
            time.sleep(0.01)
        if os.environ["ORCH_TASK"] == "worker-0":
            raise OddError("the peer is gone")
        time.sleep(100)

    with cluster(workers=2) as c:
        job = c.start(lose, tmp_path / "going")
        c.wait_for("worker-1", log="ready")
        c["worker-1"].kill(signal.SIGTERM)
        with pytest.raises(TaskFailed, match=r"^worker-1: SIGTERM\n"):
            job.result()


def test_the_first_failure_is_raised_however_late_the_test_asks() -> None:
    def fail() -> None:
        if os.environ["ORCH_TASK"] == "worker-1":
            raise OddError("the first")
        time.sleep(0.3)
        if os.environ["ORCH_TASK"] == "worker-0":
            raise KeyError("the second")
        os._exit(3)

    with cluster(workers=3) as c:
        job = c.start(fail)
        time.sleep(1)
        with pytest.raises(OddError, match="the first"):
            job.result()


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), 11)"])
def test_a_task_that_dies_by_itself_comes_before_a_peer_that_tensorflow_has_told_of_it(end: str, tmp_path: Path) -> None:
    lost = json.loads(LOST_PEERS.read_text())["mwms kill worker-1 of 2"]["ended"]["worker-0"]["failure"]["message"]

    def end_after_the_peer(path: Path) -> None:
        if os.environ["ORCH_TASK"] == "worker-0":
            raise OddError(lost)
        while not path.exists():
            time.sleep(0.01)
        exec(end)

    with cluster(workers=2, grace=60) as c:
        job = c.start(end_after_the_peer, tmp_path / "go")
        while not job.tasks["worker-0"].has_ended:
            c.poll(0.02)
        (tmp_path / "go").touch()
        with pytest.raises(TaskFailed, match=r"^worker-1: (exit code 3|SIGSEGV: segmentation fault)\n(.*\n)*  worker-0: raised OddError: "):
            job.result()
        c.restart()
        with pytest.raises(OddError):  # nothing else is known
            c.run(end_after_the_peer, tmp_path / "go", on="worker-0")


@pytest.mark.slow
@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), 11)"])
def test_a_task_that_dies_in_a_collective_is_the_cause(end: str) -> None:
    def step(strategy: Any, number: int) -> None:
        for _ in range(number):
            add_up(strategy, 1.0)
        if os.environ["ORCH_TASK"] == "worker-1":
            exec(end)
        add_up(strategy, 1.0)

    with cluster(workers=2, grace=60) as c, pytest.raises(TaskFailed, match=r"^worker-1: (exit code 3|SIGSEGV: segmentation fault)\n"):
        c.run(step, 3)


def test_what_cannot_be_sent_is_named() -> None:
    lock = threading.Lock()
    with cluster(workers=1) as c:
        with pytest.raises(UsageError, match="<lambda>, or a variable that it uses, cannot be sent to a task"):
            c.run(lambda: lock)
        with pytest.raises(UsageError, match=r"argument 1 \(a lock\) cannot be sent to a task"):
            c.run(lambda _: later, lock)  # `later` has no value yet
        later = 1
        with pytest.raises(TypeError, match=r"the function's value cannot be sent to the test: .*; return numbers, texts or arrays"):
            c.run(threading.Lock)


def half(x):  # type: ignore[no-untyped-def]  # AutoGraph evaluates annotations
    if x > 2:  # needs AutoGraph
        return x // 2
    return x


def test_autograph_converts_what_a_lambda_calls() -> None:
    def read() -> list[int]:
        import tensorflow as tf

        return [int(number) for number in tf.data.Dataset.range(6).map(lambda x: half(x))]  # type: ignore[no-untyped-call]

    with cluster(workers=1) as c:
        assert c.run(read) == {"worker-0": [0, 1, 2, 1, 2, 2]}
        assert "AutoGraph could not transform" not in c.logs("worker-0")


def test_the_test_s_own_environment_reaches_its_tasks(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    with cluster(workers=1):
        pass
    monkeypatch.setenv("COLOUR", "red")
    monkeypatch.chdir(tmp_path)
    with cluster(workers=1) as c:
        assert c.run(lambda: (os.environ["COLOUR"], os.getcwd())) == {"worker-0": ("red", str(tmp_path))}
    monkeypatch.delenv("COLOUR")
    with cluster(workers=1) as c:
        assert c.run(lambda: os.environ.get("COLOUR")) == {"worker-0": None}


def arrive(path: str) -> bool:
    import worker

    if worker.context().task == "worker-1":
        time.sleep(0.3)
        Path(path).touch()
    barrier(timeout=200)
    return os.path.exists(path)


def test_tasks_wait_for_each_other_at_a_barrier(tmp_path: Path) -> None:
    with cluster(workers=2) as c:
        assert c.run(arrive, str(tmp_path / "there")) == {"worker-0": True, "worker-1": True}
        with pytest.raises(TimeoutError, match=r"barrier: worker-1 did not come within 0\.1 s"):
            c.run(lambda: barrier(timeout=0.1) if os.environ["ORCH_TASK"] == "worker-0" else None)
        # Those that run the function; by the module's name, which is not sent by value, though pytest has rewritten the module.
        assert c.run(lambda: orchestrator.testing.barrier(), on="worker-0") == {"worker-0": None}
    with cluster(workers=2) as c:  # of the same run
        assert c.run(arrive, str(tmp_path / "again")) == {"worker-0": True, "worker-1": True}
    with pytest.raises(RuntimeError, match="for functions that a cluster runs"):
        barrier()


def coordinate(strategy: Any, steps: int) -> float:
    import tensorflow as tf

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        total = tf.Variable(0.0)

    @tf.function  # type: ignore[untyped-decorator]
    def add() -> None:
        total.assign_add(1.0)

    for _ in range(steps):
        coordinator.schedule(add)
    coordinator.join()
    return float(total)


def test_a_parameter_server_s_cluster_goes_on_with_a_new_worker() -> None:
    with cluster(workers=2, ps=1) as c:
        assert c.run(coordinate, 5) == {"chief-0": 5.0}
        c["worker-1"].restart()
        assert c.run(coordinate, 20) == {"chief-0": 20.0}
        assert c.run(lambda: os.environ["ORCH_TASK"], on=["worker-1", "ps-0"]) == {"worker-1": "worker-1", "ps-0": "ps-0"}
        with pytest.raises(ValueError, match="ps-0 is a server, which has no strategy"):
            c.run(coordinate, 1, on="ps-0")


def test_a_paused_task_goes_on() -> None:
    def count() -> None:
        import worker

        for step in range(1_000_000):
            worker.report(step=step)
            print("step", step, flush=True)
            time.sleep(0.01)

    with cluster(workers=1) as c:
        c.start(count)
        assert c.wait_for("worker-0", log=r"step (\d+)")
        c.pause("worker-0")
        before = c.logs("worker-0")
        time.sleep(0.2)
        assert len(c.logs("worker-0")) - len(before) <= len("step 0000\n")
        c.resume("worker-0")
        step = int(before.split()[-1]) + 30
        c.wait_for("worker-0", log=rf"step {step}\b")
        assert c.wait_for("worker-0", report={"step": 0}) == {"step": 0, "at": pytest.approx(time.time(), abs=1000)}
        with pytest.raises(TimedOut, match=r"no report \{'step': -1\} after 0\.1 s"):
            c.wait_for("worker-0", report={"step": -1}, timeout=0.1)
        with pytest.raises(UsageError, match="worker-0 still runs count; wait for that job first"):
            c.run(os.getpid)
