"""The same command on every node: who takes the run, who may join it, and one end for all. Without TensorFlow."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from orchestrator import __version__
from orchestrator.backends import Host, RunFacts, join
from orchestrator.backends.connection import listener
from orchestrator.backends.join import pmi
from orchestrator.backends.join.meeting import Ticket
from orchestrator.model.joining import TOKEN, Seat
from orchestrator.model.settings import JoinSettings
from orchestrator.model.settings.document import read
from orchestrator.model.settings.parse import parse
from tests.conftest import Orch, Running
from tests.live import wait_until, write_script
from worker.host.network import proof

OPENS_PORT = """
host, _, port = json.loads(os.environ['TF_CONFIG'])['cluster']['worker'][int(os.environ['RANK'])].rpartition(':')
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.bind((host, int(port)))
server.listen()
"""
SEEN = (
    f"print('seen', TASK, os.getcwd(), *sorted(name for name in os.environ if name in ('{TOKEN}', 'PMI_FD', 'SLURM_PROCID')), flush=True)\n"
)
SHORT, LONG, FAILS = SEEN, f"{OPENS_PORT}{SEEN}ready()\nsleep()\n", f"{SEEN}sys.exit(7 * (TASK == 'worker-1'))\n"
CLEAN = dict.fromkeys((name for name in os.environ if name.startswith(("SLURM_", "PMI_"))), None)


class Nodes:
    """Directories with copies of one script, one for each node."""

    def __init__(self, orch: Orch, directory: Path, program: str, count: int = 2) -> None:
        self._orch = orch
        self.directories = [directory / f"node-{number}" for number in range(count)]
        self.files = directory / "shared"
        for each in self.directories:
            each.mkdir()
            write_script(each, program)

    def start(self, number: int, *words: str, env: Mapping[str, str | None] | None = None) -> Running:
        return self._orch.start(
            *("up", "script.py", "--join", "--join-dir", str(self.files), *words),
            cwd=self.directories[number],
            env={**CLEAN, "HOME": str(self.directories[number]), **(env or {})},
        )

    def start_both(self, *words: str, env: Mapping[str, str | None] | None = None) -> list[Running]:
        return [self.start(number, "--nodes", "2", "--node-index", str(number), *words, env=env) for number in range(2)]

    def until_ready(self, each: int = 1) -> list[int]:
        """The pids of all tasks, once they run. `each`: how many there are on a node."""
        files = [self.directories[number // each] / f"worker-{number}.ready" for number in range(each * len(self.directories))]
        wait_until(lambda: all(file.exists() for file in files), "tasks")
        return [int(file.read_text()) for file in files]


@pytest.fixture
def nodes(orch: Orch, tmp_path: Path) -> Callable[..., Nodes]:
    return lambda program, count=2: Nodes(orch, tmp_path, program, count)


def _codes(started: list[Running]) -> list[int]:
    return [each.wait().code for each in started]


def test_two_terminals_are_two_nodes_with_directories_and_homes_of_their_own(nodes: Callable[..., Nodes], orch: Orch) -> None:
    pair = nodes(SHORT)
    first, second = pair.start_both()
    assert _codes([first, second]) == [0, 0]
    seen = re.findall(r"seen (\S+) (\S+)(.*)", first.out)
    assert sorted(seen) == [(f"worker-{number}", str(directory), "") for number, directory in enumerate(pair.directories)]
    assert "all 2 nodes are here: the run is on" in second.err
    assert "the run has ended with exit code 0" in second.err
    assert not [*pair.files.iterdir()], "what node 0 has published is removed"
    listed = orch("ps", "--json", "--home", str(pair.directories[0] / ".orch"), check=0)
    assert [task["task"] for task in json.loads(listed.out)["tasks"]] == ["worker-0", "worker-1"]


def test_sigterm_on_any_node_ends_the_run_on_all_of_them(nodes: Callable[..., Nodes]) -> None:
    made = nodes(LONG)
    pair = made.start_both()
    tasks = made.until_ready()
    pair[1].signal(signal.SIGTERM)
    assert _codes(pair) == [143, 143]
    assert not any(map(psutil.pid_exists, tasks))


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_the_death_of_any_node_ends_all(nodes: Callable[..., Nodes], lost: int) -> None:
    """It is a lost host; without node 0 there is no run."""
    made = nodes(LONG, 3)
    started = [made.start(number, "--nodes", "3", "--node-index", str(number)) for number in range(3)]
    tasks = made.until_ready()
    started.pop(lost).kill()
    ends = [each.wait() for each in started]
    assert [done.code for done in ends] == [125, 125]
    if lost:
        assert re.search(rf"host \S+-{lost}", ends[0].err)
        assert "the run has ended with exit code 125" in ends[1].err
    else:
        assert all("node 0 is gone" in done.err for done in ends)
    wait_until(lambda: not any(map(psutil.pid_exists, tasks)), "end of the tasks")


@pytest.mark.slow
def test_a_node_that_comes_a_minute_late_is_waited_for(nodes: Callable[..., Nodes]) -> None:
    made = nodes(SHORT)
    first = made.start(0, "--nodes", "2", "--node-index", "0")
    first.wait_for(re.compile(r"1 of 2 nodes is here; missing: index 1 \(after 6\d s\)"))
    second = made.start(1, "--nodes", "2", "--node-index", "1")
    assert _codes([first, second]) == [0, 0]
    assert set(re.findall(r"seen (\S+)", first.out)) == {"worker-0", "worker-1"}


def test_a_node_that_comes_first_waits_and_each_says_who_is_missing(nodes: Callable[..., Nodes]) -> None:
    made = nodes(SHORT, 3)
    last = made.start(2, "--nodes", "3", "--node-index", "2")
    last.wait_for("the nodes meet by the file")
    first = made.start(0, "--nodes", "3", "--node-index", "0")
    for one in (first, last):
        one.wait_for("2 of 3 nodes are here; missing: index 1")
    middle = made.start(1, "--nodes", "3", "--node-index", "1")
    assert _codes([first, middle, last]) == [0, 0, 0]
    assert set(re.findall(r"seen (\S+)", first.out)) == {"worker-0", "worker-1", "worker-2"}


def test_nodes_that_do_not_come_are_named_at_the_end(nodes: Callable[..., Nodes]) -> None:
    made = nodes(SHORT)
    brief = ("--nodes", "3", "--set", "backend.wait_s=4")
    pair = [made.start(number, *brief, "--node-index", str(number)) for number in range(2)]
    assert _codes(pair) == [125, 125]
    assert "after 4 s (wait_s) 2 of 3 nodes are here; missing: index 2" in pair[0].err


def test_who_does_not_fit_is_told_why_and_the_run_goes_on(nodes: Callable[..., Nodes], monkeypatch: pytest.MonkeyPatch) -> None:
    made = nodes(SHORT, 3)
    first = made.start(0, "--nodes", "3", "--node-index", "0")
    second = made.start(1, "--nodes", "3", "--node-index", "1")
    first.wait_for("2 of 3 nodes are here")
    for words, why in (
        (("--nodes", "3", "--node-index", "1"), "the index 1 is here already, from"),
        (("--nodes", "4", "--node-index", "2"), "this node has a run of 4 nodes, and node 0"),
    ):
        done = made.start(2, *words).wait()
        assert (done.code, done.err.count(why)) == (2, 1), done.err
    twice = made.start(2, "--nodes", "3", "--node-index", "0").wait()
    assert (twice.code, "two nodes have the index 0" in twice.err) == (125, True)
    third = made.start(2, "--nodes", "3", "--node-index", "2")
    assert _codes([first, second, third]) == [0, 0, 0]


@pytest.mark.parametrize(("words", "codes"), [((), [2, 2]), (("-n", "3"), [0, 0])])
def test_nodes_with_unlike_slots_need_the_number_of_workers(nodes: Callable[..., Nodes], words: tuple[str, ...], codes: list[int]) -> None:
    made = nodes(SHORT)
    each = [("--nodes", "2", "--node-index", str(number), "--set", f"backend.slots={2 - number}", *words) for number in range(2)]
    pair = [made.start(number, *each[number]) for number in range(2)]
    assert _codes(pair) == codes
    assert ("the nodes have unlike numbers of slots" in pair[0].err, "give the number of workers, -n N" in pair[0].err) == (not words,) * 2
    assert len({*re.findall(r"seen (\S+)", pair[0].out)}) == (3 if words else 0)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_without_a_file_the_nodes_have_an_address_and_a_secret(nodes: Callable[..., Nodes]) -> None:
    made, at = nodes(SHORT), f"127.0.0.1:{_free_port()}"
    where = ("--join-at", at, "--nodes", "2", "--node-index")
    refused = made.start(0, *where, "0").wait()
    assert (refused.code, f"the nodes need a secret that no one else has, in {TOKEN}" in refused.err) == (2, True)
    first = made.start(0, *where, "0", env={TOKEN: "s" * 64})
    first.wait_for("1 of 2 nodes is here")
    with socket.create_connection(("127.0.0.1", int(at.partition(":")[2]))) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"x" * 1000)
        with suppress(ConnectionError):
            assert len(stranger.recv(1000)) in (0, proof.NONCE_BYTES)
    wrong = made.start(1, *where, "1", "--set", "backend.wait_s=2", env={TOKEN: "t" * 64}).wait()
    assert (wrong.code, "does not know the secret of this run" in wrong.err) == (125, True)
    second = made.start(1, *where, "1", env={TOKEN: "s" * 64})
    assert _codes([first, second]) == [0, 0]
    assert TOKEN not in first.out


STEP = {
    "SLURM_CLUSTER_NAME": "c",
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_RESTART_COUNT": None,
}


def _processes(made: Nodes, **more: str | None) -> list[Running]:
    """Two processes on each of two nodes, as srun starts them."""
    own = [{"SLURM_PROCID": str(rank), "SLURM_NODEID": str(rank // 2), "SLURM_LOCALID": str(rank % 2)} for rank in range(4)]
    return [made.start(rank // 2, env={**STEP, **own[rank], **more}) for rank in range(4)]


def test_of_several_processes_on_a_node_one_counts_and_all_end_with_the_code(nodes: Callable[..., Nodes]) -> None:
    made = nodes(FAILS)
    started = _processes(made)
    assert _codes(started) == [7, 7, 7, 7]
    assert "worker-0..3" in started[0].err, "a node takes as many tasks as it has processes"
    assert "a further process of this node waits for the end of the run (Slurm)" in started[1].err
    assert re.findall(r"seen \S+ \S+ ([A-Z].*)", started[0].out) == [], "no task has the variables of the step"


def test_a_job_that_starts_again_goes_on_in_its_run(nodes: Callable[..., Nodes]) -> None:
    made = nodes(LONG.replace("ready()", "ready()\nif os.environ['ORCH_ATTEMPT'] == '2': sys.exit(0)"))
    started = _processes(made)
    made.until_ready(2)
    for each in started:
        each.signal(signal.SIGTERM)
    assert _codes(started) == [143] * 4
    again = _processes(made, SLURM_RESTART_COUNT="1")
    assert _codes(again) == [0] * 4
    runs = [path.name for path in (made.directories[0] / ".orch" / "runs").iterdir()]
    assert len(runs) == 1
    assert (made.directories[0] / ".orch" / "runs" / runs[0] / "attempt-2").is_dir()


def test_the_code_42_may_be_another_one_for_the_engine() -> None:
    settings = JoinSettings(requeue_code="99")
    assert [settings.exit_code(code) for code in (0, 42, 125)] == [0, 99, 125]
    assert JoinSettings(requeue_code="scontrol").exit_code(42) == 42


@pytest.mark.parametrize(
    ("says", "called"),
    [("RUNNING 59:00", "requeue 17\n"), ("COMPLETING 59:00", ""), ("COMPLETING 0:00", "requeue 17\n"), ("", "requeue 17\n")],
)
def test_node_0_lets_slurm_queue_the_job_of_a_saved_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, called: str
) -> None:
    """Unless `scancel` has ended it: then it has time left."""
    (tmp_path / "called").touch()
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/called\n')
    (tmp_path / "squeue").write_text(f"#!/bin/sh\necho {says}\n")
    for name in ("scontrol", "squeue"):
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(join, "here", lambda: (Seat(), {"SLURM_JOB_ID": "17"}))
    for code in (0, 42, 125):
        backend = join.Join()
        backend._settings = JoinSettings(requeue_code="scontrol")
        asyncio.run(backend.end(code))
    assert (tmp_path / "called").read_text() == called


def test_the_doctor_says_what_is_known_and_what_is_missing(orch: Orch) -> None:
    unknown = orch("doctor", "--join", env=CLEAN, check=1).out
    assert "none is recognised" in unknown
    assert unknown.splitlines()[-5:] == [
        "error    --join: the number of nodes is not known here (no engine is recognised here)",
        "         fix: --nodes N",
        "error    --join: which of the nodes this is, is not known here (no engine is recognised here)",
        "         fix: --node-index I, from 0 on; node 0 controls the run",
        "         more: orch help join",
    ]
    known = orch("doctor", "--join", env={**CLEAN, **STEP, "SLURM_PROCID": "3", "SLURM_NODEID": "1", "SLURM_LOCALID": "1"}, check=0).out
    assert re.search(r"^nodes +2 +\(SLURM_STEP_NUM_NODES\)$", known, re.MULTILINE)
    assert re.search(r"^engine +Slurm$", known, re.MULTILINE)
    shell = orch("up", "x.py", "--join", env={**CLEAN, "SLURM_JOB_ID": "17", "SLURM_PROCID": "0"}, check=2).err
    assert "this is no step of srun" in shell
    assert "stays in the foreground" in orch("up", "x.py", "--join", "-d", check=2).err


# --- a launcher with PMI -----------------------------------------------------------------------------


class Launcher:
    """What a launcher of MPI does: a socket for each process, a space of keys, a barrier."""

    def __init__(self, size: int) -> None:
        self._barrier, self._space = threading.Barrier(size), dict[str, str]()
        self.pairs = [socket.socketpair() for _ in range(size)]
        self._threads = [threading.Thread(target=self._serve, args=(here,)) for here, _ in self.pairs]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        for (_, end), thread in zip(self.pairs, self._threads, strict=True):
            end.close()
            thread.join()

    def _serve(self, here: socket.socket) -> None:
        with here, here.makefile("rwb") as lines:
            for line in lines:
                words = dict(word.split("=", 1) for word in line.decode().split())
                lines.write(self._answer(words).encode() + b"\n")
                lines.flush()

    def _answer(self, words: Mapping[str, str]) -> str:
        if words["cmd"] == "put":
            self._space[words["key"]] = words["value"]
        if words["cmd"] == "barrier_in":
            self._barrier.wait()
        more = {"get_my_kvsname": "kvsname=kvs_1", "get": f"msg=success value={self._space.get(words.get('key', ''))}"}
        return f"cmd=answer rc=0 {more.get(words['cmd'], '')}"


def test_a_launcher_with_pmi_passes_a_text_from_rank_0_to_all() -> None:
    launcher = Launcher(3)
    got: list[str] = []
    envs = [{"PMI_FD": str(end.fileno()), "PMI_RANK": str(rank), "PMI_SIZE": "3"} for rank, (_, end) in enumerate(launcher.pairs)]
    assert all(map(pmi.is_there, envs))

    def meet(env: Mapping[str, str]) -> None:
        got.append(pmi.exchange(env, "[1]" if env["PMI_RANK"] == "0" else None))

    threads = [threading.Thread(target=meet, args=(env,)) for env in envs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == ["[1]"] * 3
    launcher.end()


@pytest.mark.skipif(not Path("/usr/bin/mpiexec.mpich").exists(), reason="there is no MPICH")
def test_mpiexec_of_mpich_starts_a_run(nodes: Callable[..., Nodes], orch: Orch) -> None:
    made = nodes(FAILS)
    done = orch.start(
        *("up", "script.py", "--join", "--home", str(made.directories[0] / "runs")),
        cwd=made.directories[0],
        env=CLEAN,
        by=("/usr/bin/mpiexec.mpich", "-n", "2", "-hosts", "localhost:1,127.0.0.1:1", "-launcher", "fork"),
    ).wait()
    assert (done.code, "the nodes meet by the launcher (PMI)" in done.err) == (7, True), done.err
    assert "seen worker-1 " in done.out  # the other task may be stopped before it writes


@pytest.mark.skipif(not Path("/usr/bin/mpiexec.mpich").exists(), reason="there is no MPICH")
def test_node_0_ends_with_sigterm_while_a_launcher_waits_for_another_process(orch: Orch, tmp_path: Path) -> None:
    write_script(tmp_path, SHORT)
    mpiexec = ("/usr/bin/mpiexec.mpich", "-n", "2", "-hosts", "localhost:1,127.0.0.1:1", "-launcher", "fork")
    late = ("sh", "-c", '[ $PMI_RANK = 0 ] || exec sleep 100; echo $$ > pid; exec "$@"', "sh")
    running = orch.start("up", "script.py", "--join", env=CLEAN, by=(*mpiexec, *late))
    running.wait_for("missing: index 1")
    node_0 = psutil.Process(int((tmp_path / "pid").read_text()))
    node_0.terminate()
    node_0.wait(30)
    running.signal(signal.SIGTERM)
    assert "cancelled after" in running.wait().err


def test_nodes_meet_by_a_file_if_their_launcher_does_not_pass_it_on(nodes: Callable[..., Nodes], orch: Orch) -> None:
    """PMIx without a server; where its library is missing, too."""
    made = nodes(SHORT)
    pair = [
        orch.start(
            *("up", "script.py", "--join", "--home", str(made.files), "--nodes", "2", "--node-index", str(number)),
            cwd=directory,
            env={**CLEAN, "PMIX_NAMESPACE": "1", "PMIX_RANK": str(number)},
        )
        for number, directory in enumerate(made.directories)
    ]
    assert _codes(pair) == [0, 0]
    for each in pair:
        assert re.search(r"the launcher does not pass it on \(.+\): the nodes meet by the file .*\.join\n", each.err)


def test_64_nodes_meet_in_the_order_of_their_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come in another order, and one of them twice."""
    backend, said = join.Join(), list[str]()
    backend_keys = f"{{join: true, nodes: 64, node_index: 0, join_dir: '{tmp_path}'}}"
    spec = parse(read(f"{{script: x.py, backend: {backend_keys}}}", "orch.yaml"), workdir="/w")
    request = backend.request(RunFacts(spec, "run", str(tmp_path / "runs" / "run")))
    facts = {"address": "", "number": 1, "version": __version__, "nodes": 64, "job": "", "attempt": "", "python": "python3", "cwd": "/w"}

    def come(index: int, lines: ExitStack) -> None:
        ticket = Ticket.read(next(tmp_path.glob("*.join")).read_text())
        line = lines.enter_context(socket.create_connection(("127.0.0.1", ticket.port)))
        words = {**facts, "node": str(index), "name": f"n{index}", "session": str(index), "waits": False}
        line.sendall(proof.meet(line, ticket.secret.encode()).seal(json.dumps(words).encode() + b"\n"))

    async def use(lines: ExitStack) -> tuple[Host, ...]:
        async def meet() -> tuple[Host, ...]:
            async with backend.allocate(request, said.append) as hosts:
                return hosts

        meeting = asyncio.create_task(meet())
        while not [*tmp_path.glob("*.join")]:
            await asyncio.sleep(0.01)
        for index in [*range(63, 3, -1), 1, 1]:
            await asyncio.to_thread(come, index, lines)
        while not any("62 of 64" in text for text in said):
            await asyncio.sleep(0.01)
        for index in (2, 3):
            await asyncio.to_thread(come, index, lines)
        hosts = await meeting
        monkeypatch.setattr(listener, "FAREWELL_S", 0.1)
        await backend.end(0)
        return hosts

    with ExitStack() as lines:
        hosts = asyncio.run(use(lines))
    assert [host.name for host in hosts] == [socket.gethostname(), *(f"n{index}" for index in range(1, 64))]
    assert any("62 of 64 nodes are here; missing: index 2, 3" in text for text in said)


def test_an_elastic_run_goes_on_without_a_node_that_dies(nodes: Callable[..., Nodes]) -> None:
    made = nodes(LONG.replace("ready()", "ready()\nif os.environ['ORCH_ATTEMPT'] == '2': sys.exit(0)"))
    pair = made.start_both("-n", "1:2", "--max-restarts", "1")
    made.until_ready()
    pair[1].kill()
    assert pair[0].wait().code == 0
    assert "elastic: 1 of 2 workers" in pair[0].err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({}, None),
        ({"version": "0.0.9"}, f"this node has orch 0.0.9, and node 0 ({socket.gethostname()}) has orch {__version__}"),
        ({"attempt": "1"}, "this node has the start '1' of this job"),
        ({"job": "18"}, "this node has the job '18'"),
        ({"node": "0"}, "the index 0 is here already"),
        ({"node": "x"}, "this node has no index"),
        ({"name": "../n1"}, "this node has no index, or no name"),
    ],
)
def test_who_is_not_of_this_start_of_the_job_is_told_so(words: Mapping[str, object], why: str | None) -> None:
    backend = join.Join()
    facts = {"version": __version__, "nodes": None, "job": "", "attempt": "", "node": "1", "name": "n1", "session": "a"}
    refusal = backend._judge({**facts, **words}, None)
    assert (refusal and why is not None and why in refusal["refused"]) == (None if why is None else True)
