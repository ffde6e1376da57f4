"""Trials of a real cluster that something is done to: who dies, is stopped or is told to end, in which phase of the training.

`python -m tests.real.chaos --trials 200 --seed 1` runs many and counts what must be zero; tests/real/test_chaos.py chooses a few.
A trial is drawn from its seed. Two workers train under MultiWorkerMirroredStrategy, save what they have, and number what they print:
a ledger beside the log says how many lines each has printed, whatever becomes of it next.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.clock import Clock
from tests.live import PATIENCE_S
from tests.real.programs import SUM
from worker.protocol import task_files

ROOT = Path(__file__).resolve().parents[2]
PHASES = ("start", "training", "checkpoint", "shutdown")
WORKERS = ("worker-0", "worker-1")
AGENT_ENDS_S = 20.0
"""How long the agent of a controller that was killed may take to end its tasks and itself."""
STEPS = 20

PROGRAM = (
    """
import json, os, struct, sys, time
import tensorflow as tf
import worker

TASK, ATTEMPT = os.environ["ORCH_TASK"], int(os.environ["ORCH_ATTEMPT"])
STEPS, PADDING = int(sys.argv[1]), int(sys.argv[2])
ledger = os.open(f"{TASK}.{ATTEMPT}.ledger", os.O_WRONLY | os.O_CREAT, 0o600)
printed = 0

def say(text):
    global printed
    print(printed, text, "x" * PADDING, flush=True)
    printed += 1
    os.pwrite(ledger, struct.pack("q", printed), 0)

def enter(phase, seconds=0.0):
    with open(f".{TASK}.part", "w") as file:
        file.write(f"{ATTEMPT} {phase}")
    os.rename(f".{TASK}.part", f"{TASK}.{phase}.{ATTEMPT}")
    time.sleep(seconds)

enter("start", 0.3)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
"""
    + SUM
    + """
enter("training")
while int(step.numpy()) < STEPS:
    if ATTEMPT == 1 and os.path.exists(f"{TASK}.stalls.at.{int(step.numpy())}"):
        time.sleep(1000)
    train()
    say(f"step {int(step.numpy())}")
    time.sleep(0.03)
    if int(step.numpy()) % 5 == 0:
        enter("checkpoint")
        manager.save()
        worker.report(step=int(step.numpy()))
enter("shutdown")
until = time.monotonic() + 60
while ATTEMPT == 1 and not os.path.exists("acted") and time.monotonic() < until:
    time.sleep(0.01)
time.sleep(2.0 if ATTEMPT == 1 else 0.0)  # whatever was done in this phase takes effect in it
with open(f".{TASK}.done.part", "w") as file:
    json.dump({"began_at": began_at, "total": float(total.numpy()), "attempt": ATTEMPT}, file)
os.rename(f".{TASK}.done.part", f"{TASK}.done")
"""
)


@dataclass(frozen=True)
class Aim:
    """The moment of a fault: when this task comes into this phase; it is also the task that is meant, where one is."""

    phase: str
    task: str


@dataclass(frozen=True)
class Fault:
    """What is done to whom, and what has to come of it.

    `restarted`: a second attempt makes it good. `hangs`: nobody dies of it. `disk`, `clock`: the run has one of its
    own, one of this size and one that is set. `paused`: the console is a pipe that nobody reads during the training.
    """

    name: str
    act: Callable[[Life, random.Random], None]
    code: int
    restarted: bool = False
    options: tuple[str, ...] = ()
    paused: bool = False
    hangs: bool = False
    disk: str = ""
    clock: bool = False


@dataclass
class Verdict:
    """What a trial has shown. Everything that is wrong is in `wrong`, in words."""

    name: str
    wrong: list[str] = field(default_factory=list)
    orphans: int = 0
    lost_bytes: int = 0
    wrong_causes: int = 0


class Life:
    """The run of a trial, seen from outside."""

    def __init__(self, directory: Path, process: subprocess.Popen[bytes], aim: Aim | None) -> None:
        self.directory, self.process, self.aim = directory, process, aim
        self.target = ""

    @property
    def run(self) -> Path:
        return (self.directory / ".orch" / "latest").resolve()

    def events(self) -> list[dict[str, Any]]:
        with contextlib.suppress(FileNotFoundError):
            lines = (self.run / "events.jsonl").read_bytes().splitlines(keepends=True)
            return [json.loads(line) for line in lines if line.endswith(b"\n")]
        return []

    def wait_for(self, phase: str, task: str, attempt: int = 1) -> None:
        path = self.directory / f"{task}.{phase}.{attempt}"
        self._wait(path.exists, f"{task} in {phase}")

    def task(self, name: str) -> psutil.Process:
        found: list[int] = []

        def find() -> bool:
            found.extend(event["pid"] for event in self.events() if event["event"] == "task_started" and event["task"] == name)
            return bool(found)

        self._wait(find, f"start of {name}")  # which the task itself may know before
        return psutil.Process(found[-1])

    def agent(self) -> psutil.Process:
        return psutil.Process(next(event["pid"] for event in self.events() if event["event"] == "host_ready"))

    def template(self) -> psutil.Process:
        parent = self.task("worker-0").parent()
        assert parent is not None
        assert any(word.endswith(("forkserver/start_template.py", "forkserver/start_warm.py")) for word in parent.cmdline())
        return parent

    def ask(self, line: bytes) -> None:
        """Put a line into the pipe for requests, or the part of the line for which there is room."""
        with contextlib.suppress(OSError):
            fd = os.open(self.run / "control", os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(fd, line)
            finally:
                os.close(fd)

    def _wait(self, ready: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not ready():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise TimeoutError(f"no {what}")
            time.sleep(0.005)


# --- what is done ------------------------------------------------------------------------------


def _in_phase(life: Life, draw: random.Random) -> None:
    aim = life.aim or Aim(draw.choice(PHASES), draw.choice(WORKERS))
    life.target = aim.task
    life.wait_for(aim.phase, aim.task)
    time.sleep(draw.uniform(0, 0.15))


def _signal_task(number: signal.Signals) -> Callable[[Life, random.Random], None]:
    def act(life: Life, draw: random.Random) -> None:
        _in_phase(life, draw)
        life.task(life.target).send_signal(number)

    return act


def _signal_other(who: Callable[[Life], psutil.Process], *numbers: signal.Signals) -> Callable[[Life, random.Random], None]:
    def act(life: Life, draw: random.Random) -> None:
        _in_phase(life, draw)
        process = who(life)
        for position, number in enumerate(numbers):
            if position:
                time.sleep(draw.uniform(0.1, 1.0))
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    return act


def _controller(life: Life) -> psutil.Process:
    return psutil.Process(life.process.pid)


def _fill_disk(life: Life, draw: random.Random) -> None:
    life.wait_for("training", draw.choice(WORKERS))
    time.sleep(draw.uniform(0, 0.3))
    with contextlib.suppress(OSError), (life.run / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def _stall(life: Life, draw: random.Random) -> None:
    life.target = draw.choice(WORKERS)
    (life.directory / f"{life.target}.stalls.at.{draw.randrange(STEPS)}").touch()


def _set_clock(life: Life, draw: random.Random) -> None:
    _in_phase(life, draw)
    (life.directory / "jump").touch()


def _nothing(life: Life, draw: random.Random) -> None:
    pass


def _put_odd_files(life: Life, draw: random.Random) -> None:
    """As any program may: in the place of what a task writes for its agent, and into the directories for temporary files."""
    _in_phase(life, draw)
    log_dir = life.run / "attempt-1" / life.target
    names = draw.sample((task_files.REPORTS, task_files.STACKS, task_files.ENDED, task_files.ERROR, task_files.OTHER_TF_CONFIG), 3)
    for path in (*(log_dir / name for name in names), *(found / "odd" for found in (life.directory / "tmp").glob("orch-*"))):
        with contextlib.suppress(OSError):  # its owner has removed it, or made it again
            path.unlink(missing_ok=True)
            subprocess.run(["sh", "-c", f"{draw.choice(ODD_FILES)} 2>&-", "sh", path], check=False)
    life.ask(b'{"ask": "stacks"}\n')


def _ask_badly(life: Life, draw: random.Random) -> None:
    _in_phase(life, draw)
    for line in draw.sample(BAD_REQUESTS, 4):
        life.ask(line)


def _read_requests(life: Life, draw: random.Random) -> None:
    """As `cat control` does: each request comes to one of two readers."""
    _in_phase(life, draw)
    with open(os.open(life.run / "control", os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as pipe:
        until = time.monotonic() + draw.uniform(0.1, 2.0)
        while time.monotonic() < until:
            life.ask(b'{"ask": "stacks"}\n')
            pipe.read(100)
            time.sleep(0.01)


def _close_console(life: Life, draw: random.Random) -> None:
    """As `orch up | head` does."""
    _in_phase(life, draw)
    assert life.process.stdout is not None
    life.process.stdout.close()


ODD_FILES = ("mkfifo $1", "ln -s /dev/zero $1", "mkdir $1", "truncate -s 3G $1", "mknod $1 c 1 5", "ln -s $1 $1")
BAD_REQUESTS = (
    b'{"ask": "signal", "task": "worker-0", "number": true}\n',
    b'{"ask": "signal", "task": "worker-9", "number": 9}\n',
    b'{"ask": "stop", "reason": 1, "now": "yes"}\n',
    b"\n" * 60_000,
    b"[" * 4000 + b"\n",
    b"x" * 20_000 + b"\n",
    b"\xff\x00\n",
    b'{"ask": "sta',  # the next request is part of this line
)

RESTART = ("--max-restarts", "1", "--set", "timeouts.grace_s=1")
HANG = ("--hang-timeout", "12")  # TensorFlow, too, is silent for a while as it starts
FAULTS = (
    Fault("task -9", _signal_task(signal.SIGKILL), 0, restarted=True, options=RESTART),
    Fault("task -9, no restart", _signal_task(signal.SIGKILL), 137, options=("--set", "timeouts.grace_s=1")),
    Fault("task -TERM", _signal_task(signal.SIGTERM), 0, restarted=True, options=RESTART),
    Fault("task -STOP", _signal_task(signal.SIGSTOP), 0, restarted=True, options=(*RESTART, *HANG), hangs=True),
    Fault("task stalls", _stall, 0, restarted=True, options=(*RESTART, *HANG), hangs=True),
    Fault("template -9", _signal_other(Life.template, signal.SIGKILL), 0),
    Fault("template -STOP", _signal_other(Life.template, signal.SIGSTOP), 0),
    Fault("template -TERM", _signal_other(Life.template, signal.SIGTERM), 0),
    Fault("agent -9", _signal_other(Life.agent, signal.SIGKILL), 125),
    Fault("agent -TERM", _signal_other(Life.agent, signal.SIGTERM), 125, options=("--set", "timeouts.grace_s=1")),
    Fault("agent -STOP, -CONT", _signal_other(Life.agent, signal.SIGSTOP, signal.SIGCONT), 0),
    Fault("controller -9", _signal_other(_controller, signal.SIGKILL), -signal.SIGKILL),
    Fault("controller -TERM", _signal_other(_controller, signal.SIGTERM), 143, options=("--set", "timeouts.grace_s=1")),
    Fault("controller -INT", _signal_other(_controller, signal.SIGINT), 130, options=("--set", "timeouts.grace_s=1")),
    Fault("controller -STOP, -CONT", _signal_other(_controller, signal.SIGSTOP, signal.SIGCONT), 0),
    Fault("paused console", _nothing, 0, paused=True),
    Fault("console closed", _close_console, 0, paused=True),
    Fault("odd files", _put_odd_files, 0),
    Fault("bad requests", _ask_badly, 0),
    Fault("another reader", _read_requests, 0),
    Fault("clock set", _set_clock, 0, options=("--hang-timeout", "600", "--set", "timeouts.start_s=600", "--timeout", "600"), clock=True),
    *(
        [  # these take a mount
            Fault("full disk", _fill_disk, 125, disk="4m", options=("--set", "timeouts.grace_s=1")),
            Fault("disk full at the start", _nothing, 125, disk="60k", options=("--set", "timeouts.grace_s=1")),
        ]
        if os.geteuid() == 0
        else []
    ),
)


# --- a trial -----------------------------------------------------------------------------------


def try_once(fault: Fault, seed: int, aim: Aim | None = None, env: Mapping[str, str] | None = None) -> Verdict:
    """One run, what is done to it, and what came of it.

    `aim`: when, of a fault that has its moment; otherwise that is drawn, too. `env`: the environment of orch; by default that of this
    process, with a directory for temporary files and a KERAS_HOME of the trial's own.
    """
    verdict = Verdict(f"{fault.name} (seed {seed})")
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        directory = Path(name)
        (directory / "train.py").write_text(PROGRAM)
        (directory / "tmp").mkdir()
        if fault.disk:
            (directory / ".orch").mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={fault.disk}", "none", str(directory / ".orch")], check=True)
        padding = 20_000 if fault.paused else draw.choice((0, 100, 5000))  # more than a pipe holds
        command, env = _command(fault, padding), {**(env or _environment(directory))}
        litter = Path(env["TMPDIR"])
        before = {*litter.iterdir()}
        if fault.clock:
            clock = Clock(directory, draw.choice((-86400, 86400)))
            command[4:4] = ["--python", str(clock.python)]
            env |= {**clock.env, "PYTHONPATH": f"{ROOT}:{clock.path}"}
        with (directory / "said").open("wb") as said:
            out = subprocess.PIPE if fault.paused else said
            process = subprocess.Popen(command, cwd=directory, env=env, stdout=out, stderr=subprocess.STDOUT)
        life = Life(directory, process, aim)
        code: int | None = None
        try:
            fault.act(life, draw)
            (directory / "acted").touch()
            if fault.paused and process.stdout is not None and not process.stdout.closed:
                life.wait_for("shutdown", "worker-0")
                (directory / "said").write_bytes(process.communicate(timeout=PATIENCE_S)[0])
            code = process.wait(PATIENCE_S)
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            verdict.wrong.append(f"{error}\n{(directory / 'said').read_text(errors='replace')[-3000:]}")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            _look_for_orphans(verdict, life.run.name, grace_s=AGENT_ENDS_S if code in (-signal.SIGKILL, 125, None) else 0.0)
        if code is not None:
            _judge(verdict, fault, life, code)
            left = [*({*litter.iterdir()} - before), *_temporary_files(life, code)]
            verdict.wrong += [f"left: {path}" for path in left if not path.name.startswith(AUTOGRAPHS)]
        if fault.disk:
            subprocess.run(["umount", "--lazy", str(directory / ".orch")], check=True)
        if verdict.wrong:
            verdict.wrong.append((directory / "said").read_text(errors="replace")[-3000:])
    return verdict


def _command(fault: Fault, padding: int) -> list[str]:
    return [sys.executable, "-m", "orchestrator", "up", "train.py", "-n", "2", *fault.options, "--", str(STEPS), str(padding)]


def _environment(directory: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ORCH_")}
    own = {"PYTHONPATH": str(ROOT), "TMPDIR": str(directory / "tmp"), "KERAS_HOME": str(directory / "keras")}
    return {**kept, **own, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}


def _judge(verdict: Verdict, fault: Fault, life: Life, code: int) -> None:
    if code != fault.code and not (fault.disk and code == 1):  # a task may be the first to find it full
        verdict.wrong.append(f"exit code {code}, not {fault.code}")
    if fault.code >= 0 and (code == fault.code or fault.disk):
        _judge_cause(verdict, fault, life)
    if code == 0:
        _judge_training(verdict, fault, life)
    if fault.clock and max(times := [event["at"] for event in life.events()]) - min(times) > 3600:
        verdict.wrong.append("the events have the times of a clock that was set")
    verdict.lost_bytes = 0 if fault.disk else sum(_missing_bytes(life))
    if verdict.lost_bytes:
        verdict.wrong.append(f"{verdict.lost_bytes} bytes lost")
    deadline = time.monotonic() + AGENT_ENDS_S
    while (held := [port for port in _ports(life) if _is_held(port, life.run.name)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    verdict.wrong += [f"port {port} is still held" for port in held]


AUTOGRAPHS = ("__autograph_generated_file", "__pycache__")
"""TensorFlow's AutoGraph takes its modules away as its interpreter ends, so not in a task that is killed, and never what Python compiled
them to."""


def _temporary_files(life: Life, code: int) -> Iterator[Path]:
    """What is neither a result nor a log: files that a run wrote aside, and, after an end that nobody forced, the script's own."""
    if code != -signal.SIGKILL:
        yield from life.run.rglob(".*")
    if code == 0:
        yield from life.directory.glob(".*.part")


def _judge_cause(verdict: Verdict, fault: Fault, life: Life) -> None:
    if fault.disk:
        text = (life.directory / "said").read_text(errors="replace")  # result.json may have found no room either
        if "no space left" not in text.lower():
            verdict.wrong_causes += 1
            verdict.wrong.append("the full disk is not named as the cause")
        return
    result = json.loads((life.run / "result.json").read_text())
    causes = [past["cause"] for past in result["past"]] + [result["cause"]] * (result["cause"] is not None)
    said = [(cause["task"], cause["what"]) for cause in causes]
    if fault.hangs:
        # TensorFlow itself may find out first, by its heartbeats: then it is a peer that fails, of the loss of the one that hangs.
        good = len(said) == 1 and ("--hang-timeout" in said[0][1] or causes[0]["suspect"] == life.target)
    elif fault.name.startswith("task"):
        number = signal.SIGTERM if "TERM" in fault.name else signal.SIGKILL
        good = said == [(life.target, "failed")] and causes[0]["killed"] and causes[0]["code"] == 128 + number
    elif fault.name.startswith("agent") and fault.code:
        good = len(said) == 1 and not said[0][0] and "lost host" in said[0][1]
    elif fault.code in (130, 143):
        good = len(said) == 1 and not said[0][0]
    else:
        good = not said
    if not good:
        verdict.wrong_causes += 1
        verdict.wrong.append(f"named as the cause: {said}; it was {life.target or fault.name}")


def _judge_training(verdict: Verdict, fault: Fault, life: Life) -> None:
    done = {name: json.loads((life.directory / f"{name}.done").read_text()) for name in WORKERS}
    expected = 2 if fault.restarted else 1
    for name, one in done.items():
        if one["total"] != 2.0 * STEPS or one["attempt"] != expected:
            verdict.wrong.append(f"{name}: {one}")
    begun = {one["began_at"] for one in done.values()}
    saved = any((life.directory / f"worker-0.checkpoint.{attempt}").exists() for attempt in range(1, expected))
    if len(begun) != 1 or (fault.restarted and not saved and begun != {0}) or (not fault.restarted and begun != {0}):
        verdict.wrong.append(f"the attempts began at {begun}")


def _missing_bytes(life: Life) -> Iterator[int]:
    """What a task says it has printed, and its log does not hold: every line in its place, and whole."""
    for path in life.directory.glob("worker-*.ledger"):
        task, attempt, _ = path.name.split(".")
        count = int.from_bytes(path.read_bytes()[:8], "little")
        log = life.run / f"attempt-{attempt}" / task / "stdout.log"
        lines = log.read_bytes().split(b"\n")[:-1] if log.exists() else []
        numbers = [int(line.split(b" ", 1)[0]) for line in lines]
        yield 0 if numbers[:count] == list(range(count)) and len(numbers) >= count else max(1, count - len(numbers))


def _ports(life: Life) -> list[int]:
    try:
        plan = json.loads((life.run / "plan.json").read_text())
    except FileNotFoundError:
        return []
    return [task["order"]["port"] for task in plan["tasks"] if task["order"].get("port")]


def _is_held(port: int, run_id: str) -> bool:
    """By this run, or by nobody that can be named: another may have been given it since."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what is only in TIME_WAIT belongs to nobody
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            own = {process.pid for process in _processes_of(run_id)}
            holders = {found.pid for found in psutil.net_connections("tcp") if found.laddr and found.laddr.port == port}
            return not holders - {None} or bool(holders & own)
    return False


def _look_for_orphans(verdict: Verdict, run_id: str, grace_s: float) -> None:
    """Processes of the run that are left. `grace_s`: for tasks whose controller was killed, until their agent has ended them."""
    deadline = time.monotonic() + grace_s
    while (left := list(_processes_of(run_id))) and time.monotonic() < deadline:
        time.sleep(0.05)
    verdict.orphans = len(left)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            verdict.wrong.append(f"left behind: {process.pid} {process.name()} {process.status()}")
            process.kill()


def _processes_of(run_id: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("ORCH_RUN_ID") == run_id and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="faults whose name begins with this")
    options = parser.parse_args()
    faults = [fault for fault in FAULTS if fault.name.startswith(options.only)]
    verdicts = []
    for number in range(options.trials):
        verdict = try_once(faults[number % len(faults)], options.seed + number)
        verdicts.append(verdict)
        print(f"{number + 1:4} {verdict.name}: {'; '.join(verdict.wrong) or 'as it should be'}", flush=True)
    counts = Counter(verdict.name.split(" (")[0] for verdict in verdicts)
    print("trials: " + ", ".join(f"{name} {count}" for name, count in counts.items()))
    orphans, lost, wrong = (sum(getattr(one, what) for one in verdicts) for what in ("orphans", "lost_bytes", "wrong_causes"))
    bad = sum(bool(one.wrong) for one in verdicts)
    found = f"{orphans} orphans, {lost} lost bytes, {wrong} wrong causes; {bad} with anything wrong"
    print(f"{len(verdicts)} trials from seed {options.seed}: {found}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
