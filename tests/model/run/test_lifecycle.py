"""The policy of a run, as histories: what happened, and what came of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import BROKEN, DEADLINE, USAGE
from orchestrator.model.policy import deadlines, endings, readiness
from orchestrator.model.policy import lifecycle as lc
from orchestrator.model.settings import Restart, Timeouts
from orchestrator.model.state import events as ev
from orchestrator.model.state.cluster import Cluster, Outcome, Phase, Policy, TaskState, Verdict
from tests.record.states import Told, begun
from worker.protocol.messages import Failure
from worker.protocol.task_files import INPUT

MIRRORED = Policy("multi_worker_mirrored", Timeouts(grace_s=5.0))
SERVED = Policy("parameter_server", Timeouts(grace_s=5.0))
WORKERS = {"worker-0": "a", "worker-1": "a", "worker-2": "b"}
SERVERS = {"chief-0": "a", "worker-0": "a", "ps-0": "b"}


class History(Told):
    """A cluster to which things happen. `did` collects every action."""

    def __init__(self, policy: Policy = MIRRORED, tasks: dict[str, str] | None = None) -> None:
        self.cluster = Cluster()
        self.did: list[ev.Action] = []
        self.verdicts: list[Verdict] = []
        """Every verdict that the cluster has had."""
        self.happen(ev.RunBegun(100.0, policy=policy), ev.Planned(1, tasks or WORKERS, 100.0))

    def happen(self, *events: ev.Event) -> list[ev.Action]:
        new: list[ev.Action] = []
        for event in events:
            self.cluster, actions = lc.step(self.cluster, event)
            new += actions
            if self.cluster.verdict is not None and self.cluster.verdict not in self.verdicts:
                self.verdicts.append(self.cluster.verdict)
        self.did += new
        return new

    def start_all(self, *, up: bool = True) -> History:
        for number, name in enumerate(self.cluster.tasks):
            self.happen(ev.TaskStarted(name, 1, 1000 + number, 101.0))
            if up:
                self.happen(ev.TaskUp(name, 1, 102.0))
        return self

    def end(self, task: str, code: int = 0, *, at: float = 110.0, stopped: bool = False, failure: Failure | None = None) -> list[ev.Action]:
        return self.happen(ev.TaskExited(task, 1, code, stopped, at, failure))

    def sweep_all(self, at: float = 120.0) -> Verdict:
        for name, task in self.cluster.tasks.items():
            if not task.has_ended:
                self.end(name, 143, at=at, stopped=True)
        for name in list(self.cluster.tasks):
            self.happen(ev.TaskSwept(name, 1, at))
        return self.verdict


def raised(at: float) -> Failure:
    return Failure("ValueError", "boom", "Traceback …\nValueError: boom\n", at)


# --- before there is a plan ---------------------------------------------------------------------

BEGUN = ev.RunBegun(100.0, "one", Policy("multi_worker_mirrored", Timeouts(run_s=30.0)))
CONNECTING = ev.Allocated(1, ("a", "b"), 101.0)
QUEUED = ev.HostsAwaited("queued: Resources", 102.0)


@pytest.mark.parametrize("before", [(), (CONNECTING,), (QUEUED,)], ids=["allocating", "connecting", "queued"])
@pytest.mark.parametrize(
    ("event", "outcome", "code", "what"),
    [
        (ev.StopRequested("interrupted (Ctrl-C)", 130, 110.0), Outcome.CANCELLED, 130, "interrupted (Ctrl-C)"),
        (ev.NotPlanned("host b cannot be reached", BROKEN, 110.0), Outcome.BROKEN, BROKEN, "host b cannot be reached"),
        (ev.NotPlanned("there is no file a.py", USAGE, 110.0), Outcome.FAILED, USAGE, "there is no file a.py"),
        (ev.HostLost("b", "silent", 110.0), Outcome.BROKEN, BROKEN, "host b cannot be used: silent"),
        (ev.HostBroken("its disk is full", 110.0, "b"), Outcome.BROKEN, BROKEN, "host b: its disk is full"),
        (ev.HostBroken("the run cannot be recorded", 110.0), Outcome.BROKEN, BROKEN, "the run cannot be recorded"),
        (ev.Tick(130.0), Outcome.TIMED_OUT, DEADLINE, "the run took longer than 30 s (--timeout); {waits}"),
    ],
    ids=["stopped", "not reached", "refused", "lost", "broken", "disk full", "late"],
)
def test_a_run_without_a_plan_ends_by_the_same_events(
    before: tuple[ev.Event, ...], event: ev.Event, outcome: Outcome, code: int, what: str
) -> None:
    cluster = Cluster()
    for one in (BEGUN, *before, event):
        cluster, actions = lc.step(cluster, one)
    verdict = cluster.verdict
    assert verdict is not None
    assert verdict.cause is not None
    waits = "queued: Resources" if QUEUED in before else "no task had been started"
    assert (verdict.outcome, verdict.exit_code, verdict.cause.what) == (outcome, code, what.format(waits=waits))
    assert (verdict.started_at, verdict.ended_at, actions) == (100.0, event.at, ())
    assert lc.step(cluster, ev.Planned(1, WORKERS, 140.0)) == (cluster, ()), "a plan that comes too late"


def test_a_run_knows_what_it_waits_for_until_it_has_a_plan() -> None:
    cluster = Cluster()
    seen = []
    for event in (
        BEGUN,
        QUEUED,
        CONNECTING,
        ev.RestartRequested(103.0),
        ev.HostsAwaited("waiting for b", 104.0),
        ev.Planned(1, WORKERS, 105.0),
    ):
        cluster, _ = lc.step(cluster, event)
        seen.append((cluster.phase, cluster.waiting))
    connecting = [(Phase.CONNECTING, "")] * 2 + [(Phase.CONNECTING, "waiting for b")]
    assert seen == [(Phase.ALLOCATING, ""), (Phase.ALLOCATING, "queued: Resources"), *connecting, (Phase.STARTING, "")]
    assert (cluster.run, cluster.began_at, cluster.started_at) == ("one", 100.0, 105.0)


# --- starting -----------------------------------------------------------------------------------


def test_a_plan_starts_every_task_once() -> None:
    assert History().did == [ev.MakePlan(1), ev.StartAttempt(1, ("worker-0", "worker-1", "worker-2"))]


def test_a_cluster_has_formed_when_every_runtime_listens() -> None:
    history = History().start_all(up=False)
    history.happen(ev.TaskUp("worker-0", 1, 102.0), ev.TaskUp("worker-1", 1, 103.0))
    assert history.cluster.phase is Phase.STARTING
    assert [task.name for task in readiness.awaited(history.cluster)] == ["worker-2"]
    history.happen(ev.TaskUp("worker-2", 1, 104.0))
    assert (history.cluster.phase, history.cluster.formed_at) == (Phase.RUNNING, 104.0)


def test_an_evaluator_is_not_waited_for() -> None:
    history = History(tasks={"worker-0": "a", "evaluator-0": "a"})
    history.happen(ev.TaskStarted("worker-0", 1, 1, 101.0), ev.TaskUp("worker-0", 1, 102.0))
    assert history.cluster.phase is Phase.RUNNING


def test_all_workers_done_is_success_and_the_verdict_waits_for_the_sweep() -> None:
    history = History().start_all()
    history.end("worker-0")
    history.end("worker-1")
    assert history.cluster.phase is Phase.RUNNING
    history.end("worker-2", at=111.0)
    assert history.cluster.phase is Phase.STOPPING
    assert history.cluster.verdict is None
    verdict = history.sweep_all()
    assert (verdict.outcome, verdict.exit_code, verdict.cause) == (Outcome.SUCCEEDED, 0, None)


def test_the_first_failure_stops_the_others_and_gives_the_code() -> None:
    history = History().start_all()
    actions = history.end("worker-1", 7)
    assert actions == [ev.Stop(("worker-0", "worker-2"), 5.0)]
    history.end("worker-0", 1, at=111.0)  # by itself, in the turmoil
    verdict = history.sweep_all()
    assert (verdict.outcome, verdict.exit_code) == (Outcome.FAILED, 7)
    assert history.cause.task == "worker-1"


@pytest.mark.parametrize("code", [124, 125])
def test_codes_that_mean_something_else_here_are_given_as_1(code: int) -> None:
    history = History().start_all()
    history.end("worker-0", code)
    assert history.sweep_all().exit_code == 1
    assert history.cause.code == code


def test_a_parameter_server_run_is_over_when_its_chief_is() -> None:
    history = History(SERVED, SERVERS).start_all()
    assert history.end("chief-0") == [ev.Stop(("worker-0", "ps-0"), 5.0)]
    assert history.sweep_all().outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("server", ["worker-0", "ps-0"])
def test_a_server_that_leaves_before_the_chief_is_a_failure(server: str) -> None:
    history = History(SERVED, SERVERS).start_all()
    history.end(server, 0)
    verdict = history.sweep_all()
    assert (verdict.outcome, verdict.exit_code) == (Outcome.FAILED, 1)
    assert "before the training was done" in history.cause.what


def test_a_failing_evaluator_does_not_fail_the_training() -> None:
    history = History(tasks={"worker-0": "a", "evaluator-0": "a"}).start_all()
    assert history.end("evaluator-0", 1) == []
    history.end("worker-0")
    assert history.sweep_all().outcome is Outcome.SUCCEEDED


def test_an_evaluator_is_stopped_when_the_training_is_done() -> None:
    history = History(tasks={"worker-0": "a", "evaluator-0": "a"}).start_all()
    assert history.end("worker-0") == [ev.Stop(("evaluator-0",), 5.0)]


def test_being_asked_to_stop_does_not_hide_an_earlier_failure() -> None:
    history = History().start_all()
    history.end("worker-1", 7)
    history.happen(ev.StopRequested("interrupted (Ctrl-C)", 130, 111.0))
    assert history.sweep_all().exit_code == 7


def test_a_lost_host_ends_the_run_with_125_and_names_the_host() -> None:
    history = History().start_all()
    assert history.happen(ev.HostLost("b", "its agent was killed by SIGKILL", 110.0)) == [ev.Stop(("worker-0", "worker-1"), 5.0)]
    assert history.cluster.tasks["worker-2"].state is TaskState.LOST
    verdict = history.sweep_all()
    assert (verdict.outcome, verdict.exit_code) == (Outcome.BROKEN, 125)
    assert "lost host b" in history.cause.what


def test_tasks_that_their_dying_agent_stopped_are_not_the_cause() -> None:
    history = History(tasks={"worker-0": "a"}).start_all()
    assert history.end("worker-0", 143, stopped=True) == []
    history.happen(ev.TaskSwept("worker-0", 1, 110.0), ev.HostLost("a", "its agent ended with exit code 1", 110.1))
    assert history.verdict.exit_code == 125


def test_a_task_that_cannot_be_started_is_our_failure() -> None:
    history = History(tasks={"worker-0": "a"})
    history.happen(ev.TaskNotStarted("worker-0", 1, "no such file", 101.0))
    assert history.verdict.exit_code == 125


def test_a_full_disk_ends_the_run() -> None:
    history = History().start_all()
    history.happen(ev.HostBroken("no space left", 110.0, "a"))
    assert history.sweep_all().exit_code == 125


def test_the_start_deadline_names_who_was_late() -> None:
    history = History(Policy("multi_worker_mirrored", Timeouts(start_s=10.0))).start_all(up=False)
    history.happen(ev.TaskUp("worker-0", 1, 102.0), ev.TaskWaiting("worker-1", 1, "timed out", 102.0))
    assert deadlines.next_deadline(history.cluster) == 110.0
    assert history.happen(ev.Tick(109.9)) == []
    history.happen(ev.Tick(110.0))
    verdict = history.sweep_all()
    assert (verdict.outcome, verdict.exit_code) == (Outcome.TIMED_OUT, 124)
    assert "waiting for worker-1: timed out; worker-2: no port is open yet" in history.cause.what


def test_of_several_hosts_the_place_of_a_late_task_is_said() -> None:
    places = {f"worker-{index}": f"host{index}:41{index:03}" for index in range(5)}
    before = begun(MIRRORED, {name: place.partition(":")[0] for name, place in places.items()}, places=places)
    cluster = before
    for name, at in (("worker-0", 101.0), ("worker-1", 102.0)):
        cluster, _ = lc.step(cluster, ev.TaskStarted(name, 1, 1, at))
    assert readiness.describe_formation(cluster) == (
        "waiting for worker-0 on host0:41000, worker-1 on host1:41001: no port is open yet; "
        "worker-2 on host2:41002, worker-3 on host3:41003, worker-4 on host4:41004: not started (0 of 5 up)"
    )
    assert readiness.describe_formation(before) == "waiting for worker-0..4: not started (0 of 5 up)"


def test_a_task_that_was_started_again_alone_is_waited_for_as_long_as_all_were() -> None:
    policy = Policy("parameter_server", Timeouts(start_s=10.0), restart=Restart(max=3, backoff_s=1.0))
    history = History(policy, {"chief-0": "a", "worker-0": "a", "ps-0": "b"}).start_all()
    assert deadlines.next_deadline(history.cluster) is None
    history.end("worker-0", 1, at=110.0)
    history.happen(ev.TaskSwept("worker-0", 1, 110.0))
    assert readiness.describe_formation(history.cluster) == ""  # that it is started again has been said, and when
    again_at = deadlines.next_deadline(history.cluster)
    assert again_at is not None
    assert history.happen(ev.Tick(again_at)) == [ev.StartAttempt(2, ("worker-0",))]
    assert deadlines.next_deadline(history.cluster) is None
    history.happen(ev.TaskStarted("worker-0", 2, 99, 120.0), ev.TaskWaiting("worker-0", 2, "no port is open yet", 120.1))
    assert readiness.describe_formation(history.cluster) == "waiting for worker-0: no port is open yet"
    assert deadlines.next_deadline(history.cluster) == 130.0
    up, _ = lc.step(history.cluster, ev.TaskUp("worker-0", 2, 121.0))
    assert (readiness.describe_formation(up), deadlines.next_deadline(up)) == ("", None)
    history.happen(ev.Tick(130.0))
    ending = history.cluster.ending
    assert ending is not None
    assert ending.cause is not None
    assert ending.exit_code == 124
    assert ending.cause.what == (
        "the restarted tasks had not come up 10 s after its start (timeouts.start_s); waiting for worker-0: no port is open yet"
    )


def test_a_formed_cluster_has_no_start_deadline() -> None:
    history = History(Policy("multi_worker_mirrored", Timeouts(start_s=10.0))).start_all()
    assert deadlines.next_deadline(history.cluster) is None


def test_the_run_deadline_ends_a_formed_cluster() -> None:
    history = History(Policy("multi_worker_mirrored", Timeouts(run_s=60.0))).start_all()
    assert deadlines.next_deadline(history.cluster) == 160.0
    assert not history.cluster.is_due
    history.happen(ev.Tick(160.0))
    assert history.cluster.is_due
    assert deadlines.next_deadline(history.cluster) is None
    assert history.sweep_all(170.0).exit_code == 124


def test_the_run_deadline_holds_while_the_cluster_is_being_stopped() -> None:
    """It failed before, and an agent that must stop the others does not answer."""
    history = History(Policy("multi_worker_mirrored", Timeouts(run_s=60.0))).start_all()
    history.end("worker-0", 1, at=150.0)
    assert not history.cluster.is_due
    assert history.happen(ev.Tick(160.0)) == []
    assert history.cluster.is_due
    assert deadlines.next_deadline(history.cluster) is None
    assert history.sweep_all(170.0).exit_code == 1


# --- properties --------------------------------------------------------------------------------

NAMES = st.sampled_from(["chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0", "data_worker-0", "worker-9"])
TIMES = st.floats(100, 1000)
CODES = st.sampled_from([0, 1, 7, 42, 124, 137, 143])
ATTEMPTS = st.sampled_from([1, 1, 1, 2, 2, 3])
EVENTS = st.one_of(
    st.builds(ev.TaskStarted, NAMES, ATTEMPTS, st.integers(2, 99), TIMES),
    st.builds(ev.TaskNotStarted, NAMES, ATTEMPTS, st.just("no"), TIMES),
    st.builds(ev.TaskUp, NAMES, ATTEMPTS, TIMES),
    st.builds(ev.TaskWaiting, NAMES, ATTEMPTS, st.just("refused"), TIMES),
    st.builds(ev.TaskReported, NAMES, ATTEMPTS, st.just({"step": 1}), TIMES),
    st.builds(ev.TaskReported, NAMES, ATTEMPTS, st.just({INPUT: {"steps": 1, "batches": [1], "elements": [4], "bytes": [8]}}), TIMES),
    st.builds(ev.TaskExited, NAMES, ATTEMPTS, CODES, st.booleans(), TIMES, st.none() | st.builds(raised, TIMES)),
    st.builds(ev.TaskSwept, NAMES, ATTEMPTS, TIMES),
    st.builds(ev.HostLost, st.sampled_from(["a", "b", "c"]), st.just("gone"), TIMES),
    st.builds(ev.HostBroken, st.just("full"), TIMES, st.sampled_from(["a", "b"])),
    st.builds(ev.StopRequested, st.just("Ctrl-C"), st.sampled_from([130, 143]), TIMES),
    st.builds(ev.RestartRequested, TIMES),
    st.builds(ev.CheckpointSeen, TIMES),
    st.builds(ev.Tick, TIMES, TIMES),
)
POLICIES = st.builds(
    Policy,
    st.sampled_from(["multi_worker_mirrored", "parameter_server", "none"]),
    st.builds(Timeouts, start_s=st.none() | TIMES, run_s=st.none() | TIMES, hang_s=st.none() | TIMES),
    restart=st.builds(Restart, max=st.integers(0, 3), without_progress=st.integers(0, 3), backoff_s=st.sampled_from([0.0, 1.0, 50.0])),
)


@given(
    policy=POLICIES,
    tasks=st.lists(st.sampled_from(["chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0", "data_worker-0"]), min_size=1, unique=True),
    events=st.lists(EVENTS, max_size=60),
)
def test_any_history_ends_in_one_verdict_and_starts_no_task_twice(policy: Policy, tasks: list[str], events: list[ev.Event]) -> None:
    history = History(policy, {name: "ab"[number % 2] for number, name in enumerate(tasks)})
    history.happen(*events)
    # Whatever came before: asked to stop, and with everybody gone, there is an end.
    history.happen(ev.StopRequested("SIGTERM", 143, 2000.0), ev.HostLost("a", "gone", 2001.0), ev.HostLost("b", "gone", 2002.0))
    started = [(action.attempt, name) for action in history.did if isinstance(action, ev.StartAttempt) for name in action.tasks]
    (verdict,) = history.verdicts
    assert history.cluster.is_over
    assert len(started) == len(set(started))
    assert {name for _, name in started} == set(tasks)
    assert [name for attempt, name in started if attempt == 1] == tasks
    counted = [past for past in history.cluster.past if not past.free and not past.task.startswith("evaluator")]
    assert len(counted) <= policy.restart.max
    assert (verdict.exit_code == 0) == (verdict.outcome is Outcome.SUCCEEDED)


class World:
    """What agents do with orders: a task is started, comes up, ends and is swept, in an order that is drawn; a Stop ends everybody."""

    def __init__(self, history: History, seconds: float = 100.0) -> None:
        self.history, self.now = history, seconds
        self.alive: dict[str, int] = {}
        """Each task that was started and is not swept yet, and its attempt: its process or its port may still be there."""
        self.is_stopping = False
        self._obey(history.did)

    def go_on(self, choice: int) -> None:
        """One of the things that can happen now. What is being stopped ends before anything else does."""
        self.now += 1.0
        cluster = self.history.cluster
        possible: list[ev.Event] = []
        for name, attempt in self.alive.items():
            task = cluster.tasks[name]
            if task.has_ended:
                possible.append(ev.TaskSwept(name, attempt, self.now))
                continue
            if task.state is TaskState.PENDING and not self.is_stopping:
                possible.append(ev.TaskStarted(name, attempt, 1000 + attempt, self.now))
            elif task.state is TaskState.STARTED and not self.is_stopping:
                possible.append(ev.TaskUp(name, attempt, self.now))
            if task.state is not TaskState.PENDING or self.is_stopping:
                possible += [ev.TaskExited(name, attempt, code, self.is_stopping, self.now) for code in (0, 1, 42)]
        due = deadlines.next_deadline(cluster)
        if due is not None and not self.is_stopping:
            possible.append(ev.Tick(max(due, self.now)))
        if possible:
            event = possible[choice % len(possible)]
            self.now = max(self.now, event.at)
            if isinstance(event, ev.TaskSwept):
                del self.alive[event.task]
            self._obey(self.history.happen(event))

    def _obey(self, actions: list[ev.Action]) -> None:
        for action in actions:
            if isinstance(action, ev.StartAttempt):
                twice = [name for name in action.tasks if name in self.alive]
                assert twice == [], f"started again before the last of them was gone: {twice}"
                self.alive |= dict.fromkeys(action.tasks, action.attempt)
                self.is_stopping = False
            elif isinstance(action, ev.Stop):
                self.is_stopping = True


@given(
    policy=POLICIES,
    tasks=st.sampled_from(
        [
            ("chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0"),
            ("worker-0", "evaluator-0"),
            ("worker-0", "dispatcher-0", "data_worker-0"),
        ]
    ),
    choices=st.lists(st.integers(0, 59), min_size=20, max_size=120),
)
def test_no_task_is_started_while_it_lives_and_no_evaluator_again_when_it_is_done(
    policy: Policy, tasks: tuple[str, ...], choices: list[int]
) -> None:
    history = History(policy, dict.fromkeys(tasks, "a"))
    world = World(history)
    for choice in choices:
        # A worker of parameter servers that ends with 0 has failed: it was to serve until the chief is done.
        done = {name for name, task in history.cluster.tasks.items() if task.state is TaskState.SUCCEEDED and task.type == "evaluator"}
        before = len(history.did)
        world.go_on(choice)
        alone = [action.tasks for action in history.did[before:] if isinstance(action, ev.StartAttempt) and len(action.tasks) < len(tasks)]
        assert not done & {name for names in alone for name in names}, "one that has succeeded is started again alone"


@given(st.lists(EVENTS, max_size=40))
def test_a_task_that_we_stopped_is_blamed_only_for_what_it_did_before(events: list[ev.Event]) -> None:
    history = History(MIRRORED, {"worker-0": "a", "worker-1": "a", "chief-0": "b"})
    history.happen(*events)
    ending = history.cluster.ending
    if ending is None or ending.cause is None or not ending.cause.task:
        return
    task = history.cluster.tasks[ending.cause.task]
    if task.state is TaskState.STOPPED:
        assert task.failure is not None
        assert task.failure.at < ending.ended_at


def test_a_worker_that_is_done_early_is_not_waited_for() -> None:
    history = History(Policy("multi_worker_mirrored", Timeouts(start_s=10.0)), {"worker-0": "a", "worker-1": "a"}).start_all(up=False)
    history.happen(ev.TaskUp("worker-1", 1, 102.0))
    history.end("worker-0", at=103.0)
    assert history.cluster.phase is Phase.RUNNING
    assert deadlines.next_deadline(history.cluster) is None
    assert readiness.describe_formation(history.cluster) == ""


def test_programs_that_open_no_ports_form_by_starting() -> None:
    history = History(Policy("multi_worker_mirrored", opens_ports=False)).start_all(up=False)
    assert history.cluster.phase is Phase.RUNNING


def test_what_is_waited_for_is_said_with_how_many_are_there() -> None:
    history = History(tasks={**WORKERS, "evaluator-0": "a"}).start_all(up=False)
    history.happen(ev.TaskUp("worker-0", 1, 102.0))
    assert readiness.describe_formation(history.cluster) == "waiting for worker-1..2: no port is open yet (1 of 3 up)"


def test_what_opens_a_port_is_said_where_no_task_has_one() -> None:
    history = History(tasks=WORKERS).start_all(up=False)
    assert readiness.describe_formation(history.cluster) == (
        "waiting for worker-0..2: no port is open yet (0 of 3 up; a strategy of tf.distribute opens them)"
    )
    alone = History(tasks={"worker-0": "a"}).start_all(up=False)
    assert readiness.describe_formation(alone.cluster) == "", "nobody waits for the only task"
    alone.happen(ev.TaskWaiting("worker-0", 1, "importing tensorflow", 102.0))
    assert readiness.describe_formation(alone.cluster) == "waiting for worker-0: importing tensorflow (0 of 1 up)"


def test_a_data_service_is_waited_for_even_by_a_program_that_opens_no_port() -> None:
    tasks = {"worker-0": "a", "dispatcher-0": "a", "data_worker-0": "a"}
    history = History(Policy("none", opens_ports=False), tasks).start_all(up=False)
    assert readiness.describe_formation(history.cluster) == "waiting for dispatcher-0, data_worker-0: no port is open yet (1 of 3 up)"
    history.happen(ev.TaskUp("dispatcher-0", 1, 102.0), ev.TaskUp("data_worker-0", 1, 102.0))
    assert history.cluster.phase is Phase.RUNNING


@pytest.mark.parametrize(("overdue_at", "expected"), [(11.0, "lost host b: silent"), (13.0, "failed"), (None, "failed")])
def test_a_host_that_fell_silent_before_a_peer_failed_is_the_cause(overdue_at: float | None, expected: str) -> None:
    """TensorFlow may notice a vanished peer before we do; a failure that came first keeps the blame."""
    cluster = begun(Policy("multi_worker_mirrored"), {"worker-0": "a", "worker-1": "b"}, 1.0)
    happened = (
        ev.TaskStarted("worker-0", 1, 10, 2.0),
        ev.TaskStarted("worker-1", 1, 11, 2.0),
        ev.TaskExited("worker-0", 1, 1, False, 12.0),
        ev.TaskSwept("worker-0", 1, 12.5),
        ev.HostLost("b", "silent", 20.0, overdue_at),
    )
    for event in happened:
        cluster, _ = lc.step(cluster, event)
    assert cluster.verdict is not None
    assert cluster.verdict.cause is not None
    assert cluster.verdict.cause.what == expected
    assert cluster.verdict.exit_code == (125 if "lost" in expected else 1)


LEFT = "pid 1000, waiting in the kernel in state D, where no signal reaches it"


def test_a_task_that_nothing_ends_ends_the_run_and_is_named() -> None:
    """Such as one whose program was over, so that nobody else has failed."""
    history = History().start_all()
    (stop,) = history.happen(ev.TaskSwept("worker-0", 1, 110.0, LEFT))
    assert stop == ev.Stop(("worker-1", "worker-2"), 5.0)
    verdict = history.sweep_all()
    assert (verdict.outcome, verdict.exit_code) == (Outcome.BROKEN, BROKEN)
    assert (history.cause.task, history.cause.what) == ("worker-0", f"has outlived SIGKILL: {LEFT}")
    assert verdict.remains == (f"worker-0 on a: {LEFT}",)


@pytest.mark.parametrize(("first", "outcome"), [(ev.StopRequested("Ctrl-C", 130, 110.0), Outcome.CANCELLED), (None, Outcome.FAILED)])
def test_a_run_that_was_being_stopped_ends_as_was_decided_and_names_what_nothing_ends(
    first: ev.StopRequested | None, outcome: Outcome
) -> None:
    history = History().start_all()
    if first is not None:
        history.happen(first)
    else:
        history.end("worker-1", 7)
    history.happen(ev.TaskSwept("worker-0", 1, 180.0, LEFT))
    assert history.cluster.tasks["worker-0"].state is TaskState.LOST
    verdict = history.sweep_all(at=181.0)
    assert (verdict.outcome, verdict.remains) == (outcome, (f"worker-0 on a: {LEFT}",))


def test_nothing_starts_again_beside_a_task_that_nothing_ends() -> None:
    history = History(Policy("multi_worker_mirrored", restart=Restart(max=3))).start_all()
    history.end("worker-1", 7)
    history.happen(ev.TaskSwept("worker-0", 1, 180.0, LEFT))
    verdict = history.sweep_all(at=181.0)
    assert (verdict.outcome, verdict.exit_code) == (Outcome.FAILED, 7)


def test_what_an_ended_task_has_left_is_named_and_hinders_nobody() -> None:
    history = History().start_all()
    history.end("worker-0", 0)
    assert history.happen(ev.TaskSwept("worker-0", 1, 115.0, LEFT)) == []
    history.end("worker-1", 0)
    history.end("worker-2", 0)
    assert history.sweep_all().remains == (f"worker-0 on a: {LEFT}",)


@pytest.mark.parametrize(("code", "remarks"), [(0, 1), (137, 0)])
def test_tasks_that_have_read_unevenly_are_a_remark_only_of_a_success(code: int, remarks: int) -> None:
    """While they run, and after a failure, the counts of two tasks come from different moments."""
    history = History(tasks={"worker-0": "a", "worker-1": "b"}).start_all()
    for task, batches in (("worker-0", 24), ("worker-1", 20)):
        counts = {"steps": 24, "batches": [batches], "elements": [8 * batches], "bytes": [8]}
        history.happen(ev.TaskReported(task, 1, {INPUT: counts}, 105.0))
    assert endings.remarks(history.cluster) == ()
    history.end("worker-1", code)
    if not code:
        history.end("worker-0")
    assert len(history.sweep_all().remarks) == len(endings.remarks(history.cluster)) == remarks
