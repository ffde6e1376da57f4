"""From hosts to a plan, with real processes in the place of the hosts."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.backends import Backend, Host, Reaching, Request, RunFacts, Transport, Workdir, interpreters, local
from orchestrator.backends.code_sync import COPIES, WorkingDirectory
from orchestrator.backends.connection import agent_link
from orchestrator.backends.connection.agent_link import AgentLink, LinkState
from orchestrator.control import launch as launch_module
from orchestrator.control import supervisor as supervisor_module
from orchestrator.control.agents import Agents
from orchestrator.control.launch import Launch
from orchestrator.control.log_collector import LogCollector
from orchestrator.control.preparation import Preparation
from orchestrator.control.sampling import Samples
from orchestrator.control.starting import start_of
from orchestrator.control.supervisor import Supervisor
from orchestrator.model.planning import plan
from orchestrator.model.settings import ClusterSpec, GpuWish, TaskDevices, TaskSpec
from orchestrator.model.state import events as ev
from orchestrator.model.state.cluster import Outcome, Phase, Verdict
from orchestrator.record.run_store import create_run
from orchestrator.record.text.event_messages import Messages
from tests.cli.test_devices import HOST_WITH_GPUS
from tests.live import PATIENCE_S
from tests.model.run.test_saves import shrunk
from tests.worker.controller_double import patched_agent
from worker.protocol import messages

HERE = interpreters.transport_here(sys.executable)
ANSWER_S = 60.0


class SeveralHere(local.Local):
    def __init__(self, names: tuple[str, ...], argv: Mapping[str, tuple[str, ...]]) -> None:
        self._names, self._argv = names, argv

    def request(self, run: RunFacts) -> Request:
        transports = {name: Transport(self._argv[name]) if name in self._argv else HERE for name in self._names}
        found = (Host(name, "127.0.0.1", True, is_here=False, transport=transport) for name, transport in transports.items())
        return Request(run, tuple(found), reaching=Reaching(answer_s=ANSWER_S))


class Elsewhere(SeveralHere):
    """Hosts that do not see the run's directory."""

    def request(self, run: RunFacts) -> Request:
        request = super().request(run)
        # As srun: the agent outlives its program, and ends with the channel.
        far = Transport(("sh", "-c", f"cat | setsid {shlex.join(HERE.argv)} | cat"))
        return replace(request, hosts=tuple(replace(host, sees_run_dir=False, transport=far) for host in request.hosts))


TRUE = messages.Program("command", "true")


def spec_of(directory: Path, size: int, program: messages.Program = TRUE) -> ClusterSpec:
    return ClusterSpec("one", "multi_worker_mirrored", program, (TaskSpec("worker", size),), str(directory), preload=())


def supervisor_of(directory: Path, backend: Backend, size: int, program: messages.Program = TRUE) -> Supervisor:
    spec = spec_of(directory, size, program)
    return Supervisor(start_of(create_run(directory / "home", "one"), backend, spec), Messages())


def run(supervisor: Supervisor) -> Verdict:
    async def supervise() -> Verdict:
        return await asyncio.wait_for(supervisor.run(), PATIENCE_S)

    try:
        return asyncio.run(supervise())
    finally:
        supervisor._given.run.close()


def refusal(directory: Path, backend: Backend, size: int, program: messages.Program = TRUE) -> str:
    """Why no plan is made, or why the run ends before its tasks."""
    verdict = run(supervisor_of(directory, backend, size, program))
    assert verdict.cause is not None
    assert (verdict.outcome, verdict.exit_code) == (Outcome.BROKEN, 125)
    return verdict.cause.what


def test_two_names_of_one_machine_do_not_get_the_same_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second claim is refused, the plan is made again, and the first host is asked once more for what it holds already."""
    (tmp_path / "agent.txt").write_text(HOST_WITH_GPUS)
    start = Path(messages.__file__).parents[1] / "host" / "start_agent.py"
    agent = (sys.executable, "-I", str(tmp_path / "agent.txt"), str(start))
    answers = answered(monkeypatch, messages.TakeGpus)

    async def prepare() -> plan.Plan:
        program = messages.Program("command", "true")
        tasks = (TaskSpec("worker", 2, devices=TaskDevices(gpus=GpuWish(count=1))),)
        spec = ClusterSpec("one", "multi_worker_mirrored", program, tasks, str(tmp_path), preload=())
        both = SeveralHere(("red", "blue"), {"red": agent, "blue": agent})
        start = start_of(create_run(tmp_path / "home", "one"), both, spec)
        agents = Agents(start.run, lambda *_: None, lambda loss: None)
        try:
            return (await Preparation(start, agents, lambda event: None).prepare(1, start.request.hosts)).plan
        finally:
            await agents.let_go()

    planned = asyncio.run(prepare())
    assert [task.order.env["CUDA_VISIBLE_DEVICES"] for task in planned.tasks] == ["GPU-00", "GPU-11"]
    assert [[holder.uuid for holder in frame.holders] for frame in answers] == [[], ["GPU-00"], [], []]


def test_hosts_that_say_nothing_are_all_named_with_their_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ANSWER_S", 1.0)
    silent = ("sleep", "1000")
    heard = "cannot be reached: its agent has started and has not answered for 1 s"
    red, red_fix, blue, blue_fix = refusal(tmp_path, SeveralHere(("red", "blue"), {"red": silent, "blue": silent}), 2).splitlines()
    assert (red, blue) == (f"host red {heard}", f"host blue {heard}")
    for host, fix in (("red", red_fix), ("blue", blue_fix)):
        assert fix == f"fix: is that machine overloaded, or its disk stuck? messages of the agent: agents/{host}.log in the run's directory"


def test_output_that_comes_at_one_time_is_acknowledged_once(tmp_path: Path) -> None:
    supervisor = supervisor_of(tmp_path, SeveralHere(("red", "blue"), {}), 2)
    ordered: list[tuple[str, Any]] = []

    async def receive() -> None:
        for name in ("red", "blue"):
            link: Any = SimpleNamespace(order=lambda order, name=name: ordered.append((name, order)))
            supervisor._agents.links[name] = link
        for offset in (0, 4, 8):
            supervisor._on_frame("red", messages.Output("worker-0", 1, "stdout", offset), b"1234")
        supervisor._on_frame("blue", messages.Output("worker-1", 1, "stdout", 0), b"12")
        await asyncio.sleep(0)
        supervisor._on_frame("red", messages.Output("worker-0", 1, "stdout", 12), b"5")
        await asyncio.sleep(0)

    try:
        asyncio.run(receive())
    finally:
        supervisor._given.run.close()
    assert ordered == [("red", messages.Ack(12)), ("blue", messages.Ack(2)), ("red", messages.Ack(1))]
    assert supervisor._given.run.log_path("worker-0", 1, "stdout").read_text() == "1234123412345"


def test_agents_whose_output_cannot_be_stored_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have nothing left to do but to wait until all is stored, which never comes."""

    def store(self: LogCollector, output: messages.Output, data: bytes = b"") -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(agent_link, "ENDING_S", 2 * PATIENCE_S)
    monkeypatch.setattr(LogCollector, "on_output", store)
    told = refusal(tmp_path, Elsewhere(("red", "blue"), {}), 2, messages.Program("command", "sh", ("-c", "echo hello; exec sleep 1000")))
    assert "cannot be recorded" in told
    assert "No space left on device" in told


def test_who_ends_a_hang_reads_which_task_was_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = supervisor_of(tmp_path, Elsewhere(("red", "blue"), {}), 2)
    given: list[Any] = []
    monkeypatch.setattr(supervisor, "_on_event", given.append)
    monkeypatch.setattr(supervisor, "_samples", Samples(supervisor._given.run))
    for awaited in ("", "worker-1 did not come: worker-0 waits for it after step 47"):
        monkeypatch.setattr(Samples, "describe_awaited", lambda self, cluster, awaited=awaited: awaited)
        supervisor.stop("interrupted (Ctrl-C)", 130)
    assert [event.reason for event in given] == [
        "interrupted (Ctrl-C)",
        "interrupted (Ctrl-C); worker-1 did not come: worker-0 waits for it after step 47",
    ]
    supervisor._given.run.close()


@pytest.mark.parametrize("name", ["links.watch", "stragglers.watch", "stragglers.standstill"])
def test_an_error_of_what_judges_the_samples_turns_it_off_with_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("planted")

    supervisor = supervisor_of(tmp_path, Elsewhere(("red", "blue"), {}), 2)
    run, kept = supervisor._given.run, Samples(supervisor._given.run)
    monkeypatch.setattr(f"orchestrator.control.sampling.{name}", fail)
    cluster, sample = replace(supervisor.cluster, phase=Phase.RUNNING), messages.Sampled(1.0, 2.0, host="red")
    why = "because orch's own code has failed (KeyError: 'planted')"
    assert kept.keep(sample, cluster) == (f"slow tasks and links are not named from here on, {why}",)
    assert kept.keep(sample, cluster) == ()
    kept.close()
    run.close()


@pytest.mark.parametrize("cut", [False, True])
def test_output_that_a_channel_loses_at_the_end_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: bool) -> None:
    """The tasks have ended well, and the channel ends before their output is through, as srun does when Slurm gives up its node."""
    close: Callable[..., Any] = AgentLink.close

    async def close_late(link: AgentLink, **words: bool) -> None:
        if cut and link.host.name == "blue":
            link._advance(LinkState.LEAVING)
            link._channel.kill()
        await close(link, **words)

    monkeypatch.setattr(AgentLink, "close", close_late)
    size = 30_000_000
    supervisor = supervisor_of(
        tmp_path, Elsewhere(("red", "blue"), {}), 2, messages.Program("command", "head", ("-c", str(size), "/dev/zero"))
    )
    verdict = run(supervisor)
    assert (verdict.outcome, verdict.exit_code) == (Outcome.SUCCEEDED, 0)
    logs = [tmp_path / "home/runs/one/attempt-1" / task / "stdout.log" for task in ("worker-0", "worker-1")]
    come = [path.stat().st_size if path.exists() else 0 for path in logs]
    if not cut:
        assert come == [size, size]
        assert verdict.remarks == ()
        return
    (lost,) = [size - count for count in come if count < size]
    (remark,) = verdict.remarks
    assert re.fullmatch(
        rf"attempt-1/worker-[01]: the last {lost:,} bytes of its stdout did not come from host blue: its agent was killed .*", remark
    )


@pytest.mark.parametrize("last", [messages.Hello, messages.Try])
def test_what_ends_a_run_together_with_the_last_answer_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: type) -> None:
    """A Ctrl-C in the same turn of the loop: all have answered, and the plan is not made yet."""
    supervisor = supervisor_of(tmp_path, SeveralHere(("red", "blue"), {}), 2)
    answers = answered(monkeypatch, last, lambda: supervisor.stop("interrupted", 130) if len(answers) == 2 else None)
    verdict = run(supervisor)
    assert verdict.cause is not None
    assert (verdict.outcome, verdict.exit_code, verdict.cause.what) == (Outcome.CANCELLED, 130, "interrupted")
    assert not supervisor.cluster.tasks
    assert len(answers) == 2


def answered(monkeypatch: pytest.MonkeyPatch, kind: type, then: Callable[[], None] = lambda: None) -> list[Any]:
    """The answers to orders of a kind, as they come; `then` is called at each."""
    found: list[Any] = []
    request: Callable[..., Any] = AgentLink.request

    async def watched(link: AgentLink, order: Any, kind_of_answer: Any) -> Any:
        answer = await request(link, order, kind_of_answer)
        if isinstance(order, kind):
            found.append(answer)
            then()
        return answer

    monkeypatch.setattr(AgentLink, "request", watched)
    return found


def test_a_working_directory_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def describe(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "private/train.py")

    monkeypatch.setattr(Preparation, "_describe_directory", describe)
    found = refusal(tmp_path, SeveralHere(("red",), {}), 1)
    assert found == f"the working directory {tmp_path} cannot be read: [Errno 13] Permission denied: 'private/train.py'"


def test_it_is_said_whose_tries_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []

    def say(viewer: Messages, text: str) -> None:
        noted.append(text)
        if "(1 of 2 have tried)" in text:
            supervisor.stop("seen", 130)

    monkeypatch.setattr(Messages, "say", say)
    monkeypatch.setattr(supervisor_module, "UNREADY_S", 0.1)
    silent = patched_agent("find('_orch_worker.host.network.reachability').try_to_reach = lambda *_: None")
    supervisor = supervisor_of(tmp_path, SeveralHere(("red", "blue"), {"blue": silent}), 2)
    assert run(supervisor).exit_code == 130
    assert noted[-1] == "waiting for blue: the hosts try each other's addresses (1 of 2 have tried)"


UNFIT = {
    "problem": "programs.find_problems = lambda *_: ['there is no script']",
    "unreached": "find('_orch_worker.host.network.reachability').try_to_reach = lambda loop, targets, done: done(refuse(targets))",
}
REFUSE = """
def refuse(targets):
    refused = find('_orch_worker.protocol.messages').Refused
    return tuple(refused(one.host, port, address, 'timed out') for one in targets for port in one.ports for address in one.addresses)
"""


@pytest.mark.parametrize(
    ("unfit", "why"),
    [("problem", "there is no script"), ("unreached", "blue cannot reach "), ("silent", "its agent has started and has not answered")],
)
@pytest.mark.parametrize("least", [2, 3])
def test_an_elastic_cluster_does_without_a_host_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unfit: str, why: str, least: int
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ANSWER_S", 60.0 if unfit in UNFIT else 3.0)
    noted: list[str] = []
    monkeypatch.setattr(Messages, "say", lambda viewer, text: noted.append(text))
    blue = patched_agent(REFUSE + UNFIT[unfit]) if unfit in UNFIT else ("sleep", "1000")
    backend = SeveralHere(("red", "gray", "blue"), {"blue": blue})
    program = messages.Program("command", "true")
    tasks = (TaskSpec("worker", 3, least=least if least < 3 else 0),)
    spec = ClusterSpec("one", "multi_worker_mirrored", program, tasks, str(tmp_path), preload=())
    rundir = create_run(tmp_path / "home", "one")
    verdict = run(Supervisor(start_of(rundir, backend, spec), Messages()))
    if least == 3:
        assert verdict.exit_code in (2, 125)
        assert verdict.cause is not None
        assert why in verdict.cause.what
    else:
        assert verdict.outcome is Outcome.SUCCEEDED, verdict
        (line,) = [line for line in noted if line.startswith("elastic: 2 of 3 workers: host blue cannot be ")]
        assert why in line


def test_after_a_restart_of_no_use_the_next_look_for_a_host_comes_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = shrunk()
    history.happen(*(ev.TaskSaves(name, 2, "ready", 20, 126.0) for name in ("worker-0", "worker-1")))
    told: list[ev.Event] = []
    pauses: list[float] = []

    async def sleep(pause_s: float) -> None:
        if told:  # the next attempt begins
            raise asyncio.CancelledError
        pauses.append(pause_s)

    async def is_back(host: Host) -> bool:
        return True

    start = start_of(create_run(tmp_path / "home", "one"), SeveralHere(("red",), {}), spec_of(tmp_path, 1))
    launch = Launch(start, Agents(start.run, lambda *_: None, lambda loss: None), lambda: history.cluster, told.append)
    monkeypatch.setattr(launch_module, "asyncio", SimpleNamespace(sleep=sleep, gather=asyncio.gather))
    monkeypatch.setattr(launch, "_is_back", is_back)
    monkeypatch.setattr(launch, "_prepared", SimpleNamespace(missing=(Host("blue", "127.0.0.1", True, transport=HERE),)))
    for _ in range(3):
        told.clear()
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(launch.await_missing())
        assert told
    start.run.close()
    assert pauses == [10.0, 20.0, 40.0]


def test_each_attempt_runs_the_files_of_the_first_one(tmp_path: Path) -> None:
    class Shipped(SeveralHere):
        def request(self, run: RunFacts) -> Request:
            request = super().request(run)
            return replace(request, hosts=tuple(replace(host, workdir=Workdir("ship")) for host in request.hosts))

    (tmp_path / "train.py").write_text("print('one')")
    program = messages.Program("script", "train.py")
    start = start_of(create_run(tmp_path / "home", "one"), Shipped(("red",), {}), spec_of(tmp_path, 1, program))
    agents = Agents(start.run, lambda *_: None, lambda loss: None)

    async def prepare() -> list[WorkingDirectory]:
        found, code = [], None
        for attempt in (1, 2):
            prepared = await Preparation(start, agents, lambda event: None).prepare(attempt, start.request.hosts, code=code)
            await agents.let_go()
            assert prepared.code is not None
            found.append(code := prepared.code)
            (tmp_path / "train.py").write_text("print('two')")
            (tmp_path / "new.py").write_text("print('new')")
        return found

    one, two = asyncio.run(prepare())
    assert one == two
    assert "new.py" not in {file.path for file in two.files}
    assert "print('one')" in {sent.read_text() for sent in (start.run.path / COPIES).iterdir()}
    asyncio.run(Launch(start, agents, lambda: None, lambda event: None).end())  # type: ignore[arg-type, return-value]
    assert not (start.run.path / COPIES).exists()


def test_the_end_of_a_run_is_prepared_once_while_its_tasks_end(tmp_path: Path) -> None:
    seen: list[tuple[bool, int]] = []
    ends_slowly = 'trap "sleep 1; exit" TERM; touch traps; while :; do sleep 0.1; done'
    fails = "while [ ! -e traps ]; do sleep 0.1; done; exit 7"
    program = messages.Program("command", "sh", ("-c", f'if [ "$RANK" = 0 ]; then {fails}; fi; {ends_slowly}'))
    start = start_of(create_run(tmp_path / "home", "one"), SeveralHere(("red", "blue"), {}), spec_of(tmp_path, 2, program))

    def prepare() -> None:
        seen.append((supervisor.cluster.is_over, sum(task.has_ended for task in supervisor.cluster.tasks.values())))

    supervisor = Supervisor(start, Messages(), on_ending=prepare)
    assert run(supervisor).exit_code == 7
    assert seen == [(False, 1)]
