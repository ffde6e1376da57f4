"""Writes the record of a run that never was: any number of tasks, any length, restarts, and hostile words in its logs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

from orchestrator.model.planning import plan
from orchestrator.model.planning.facts_of_hosts import HostFacts
from orchestrator.model.policy import lifecycle
from orchestrator.model.settings import ClusterSpec, TaskSpec
from orchestrator.model.settings.run_sections import Restart
from orchestrator.model.state import events
from orchestrator.model.state.cluster import Cluster, Phase
from orchestrator.record.event_log import to_line
from orchestrator.record.run_directory import RunDir
from orchestrator.record.run_store import create_run
from orchestrator.record.samples import SampleFiles
from worker.protocol.messages import Failure, GpuUse, HostReady, HostUse, Program, Sampled, TaskUse
from worker.protocol.task_files import INPUT

BEGAN = 1_700_000_000.0
HOSTILE = "</script><script>alert(1)</script> <img src=x onerror=alert(2)> & \x1b]0;title\x07 {{ 7*7 }} API_KEY=hunter2hunter"


class MadeUpRun:
    """``MadeUpRun(home, workers=64, hours=24)``. Its parts are written in the order of time."""

    def __init__(
        self,
        home: Path,
        *,
        workers: int = 2,
        seconds: float = 600.0,
        report_s: float = 4.0,
        sample_s: float = 2.0,
        fails_at: tuple[float, ...] = (),
        nan_from: int | None = None,
        run_id: str = "",
    ) -> None:
        """`fails_at`: the shares of the time at which worker-1 fails and all start again, ten steps earlier. `nan_from`: the step from
        which on the loss is NaN; the value `norm` always is."""
        self.run: RunDir = create_run(home, run_id or f"made-up-{workers}")
        self.workers, self.seconds, self._cluster, self._nan_from = workers, seconds, Cluster(), nan_from
        self._file = open(self.run.path / "events.jsonl", "ab")  # noqa: SIM115
        self._samples = SampleFiles(self.run)
        spec = ClusterSpec(
            "made-up",
            "multi_worker_mirrored",
            Program("script", "train.py", ("--api-key", "hunter2", "-H", "Authorization: Bearer hunter2", "password", "hunter2hunter2")),
            (TaskSpec("worker", workers),),
            "/w",
        )
        spec = replace(spec, restart=Restart(max=len(fails_at)))
        (self.run.path / "spec.yaml").write_text("script: train.py\ndefaults:\n  env:\n    WANDB_API_KEY: hunter2hunter2\n")
        planned = plan.make(
            self.run.run_id,
            spec,
            plan.place(spec, {"local": None}),
            [HostFacts("local", "127.0.0.1", 8, tuple(range(2000, 2000 + workers)))],
        )
        self.run.write_plan(planned)
        self.add(events.RunBegun(BEGAN, self.run.run_id, lifecycle.policy_of(spec)))
        self.add(events.Allocated(1, ("local",), BEGAN + 0.1))
        self.add(HostReady(4000, "/usr/bin/python3", "3.11.2", 8, at=BEGAN + 0.5, tensorflow="2.21.0", host="local"))
        self.add(lifecycle.begin(planned, 1, BEGAN + 1.0))
        self.add(events.RunNoted("a note: " + HOSTILE, BEGAN + 1.5))
        begun, step = BEGAN + 1.0, 0
        for attempt, share in enumerate((*fails_at, 1.0), start=1):
            until = BEGAN + seconds * share
            step = self._train(attempt, begun, until, step, report_s, sample_s)
            if share < 1.0:
                begun, step = self._fail(attempt, until), max(0, step - 10)
        for number in range(workers):
            self._end(f"worker-{number}", len(fails_at) + 1, BEGAN + seconds, 0)
        self.finish()

    def add(self, event: events.Event) -> None:
        self._file.write(to_line(event))
        (self._cluster, _) = lifecycle.step(self._cluster, event)

    def _train(self, attempt: int, begun: float, until: float, step: int, report_s: float, sample_s: float) -> int:
        names = [f"worker-{number}" for number in range(self.workers)]
        for number, name in enumerate(names):
            folder = self.run.path / f"attempt-{attempt}" / name
            folder.mkdir(parents=True)
            (folder / "stderr.log").write_text(f"{HOSTILE}\n" * 30)
            (folder / "stdout.log").write_text("")
            self.add(events.TaskStarted(name, attempt, 5000 + number, begun + 0.5))
            self.add(events.TaskBegan(name, attempt, begun + 0.7))
            self.add(events.TaskUp(name, attempt, begun + 2.0 + number / 100))
        at, next_sample = begun + 4.0, begun + 2.0
        while at < until:
            step += 1
            for name in names:
                values = {"step": step, "loss": 1.0 / step + (3.0 if step == 40 else 0.0), "steps_per_s": 1 / report_s, "phase": HOSTILE}
                if self._nan_from is not None:
                    values |= {"norm": "nan", **({"loss": "nan"} if step >= self._nan_from else {})}
                waited = 0.5 * (at - begun) if name == "worker-0" and at - begun > self.seconds / 2 else 0.0
                values[INPUT] = {
                    "steps": step,
                    "batches": [step],
                    "elements": [step * 8],
                    "bytes": [step * 800],
                    "seconds": at - begun,
                    "waiting_s": waited,
                }
                self.add(events.TaskReported(name, attempt, values, at))
            while next_sample <= at:
                self._sample(next_sample, sample_s, names, attempt)
                next_sample += sample_s
            at += report_s
        return step

    def _sample(self, at: float, sample_s: float, names: list[str], attempt: int) -> None:
        uses = tuple(
            TaskUse(
                name,
                attempt,
                "S",
                round(90 + 60 * math.sin(at / 97 + number), 1),
                (900 << 20) + number * (1 << 20),
                700 << 20,
                90,
                0.0,
                5e6,
                1e3,
            )
            for number, name in enumerate(names)
        )
        use = HostUse(780.0, 8, 20 << 30, 64 << 30, 0, 1e6, 2e6, throttled=12.0, stalled_cpu=30.0)
        self._samples.keep(Sampled(at, sample_s, uses, use, (GpuUse(0, 97.0, 60 << 30),), "local"))

    def _end(self, name: str, attempt: int, at: float, code: int, *, stopped: bool = False) -> None:
        failure = Failure("RuntimeError", HOSTILE, f"Traceback\nRuntimeError: {HOSTILE}", at) if code == 1 else None
        self.add(events.TaskExited(name, attempt, code, stopped=stopped, at=at, failure=failure))
        self.add(events.TaskSwept(name, attempt, at + 0.1))

    def _fail(self, attempt: int, at: float) -> float:
        self._end("worker-1", attempt, at, 1)
        for number in range(self.workers):
            if number != 1:
                self._end(f"worker-{number}", attempt, at + 0.5, 143, stopped=True)
        assert self._cluster.phase is Phase.RESTARTING, self._cluster.phase
        assert self._cluster.resume_at is not None
        resumed = self._cluster.resume_at + 0.01
        self.add(events.Tick(resumed))
        return resumed

    def finish(self) -> None:
        self._file.close()
        self._samples.close()
        if self._cluster.verdict is not None:
            self.run.write_verdict(self._cluster.verdict, {"run": self.run.run_id})

    def line(self) -> str:
        return json.dumps({"phase": self._cluster.phase.value, "attempt": self._cluster.attempt})
