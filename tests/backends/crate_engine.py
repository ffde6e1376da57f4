"""An engine that runs controllers as its jobs: ``python -m tests.backends.crate_engine YARD`` is its daemon, and `CrateEngine` asks it.

Each job is a directory YARD/jobs/N, in which both sides and the test write:

    order.json  what was submitted
    word.json   what the daemon says of the job
    withdraw    the job shall end: SIGTERM to its controller, if it has one
    die         the host of the job dies at once, with all of its processes
    term        the job loses its host: SIGTERM to its controller

A job that is far has a network, processes and a directory `.orch` of its own, which the engine keeps in YARD/far.

YARD/queue      no job begins
YARD/requeue    a job that has lost its host waits again
YARD/deaf       the engine gives no answers
YARD/slow       the engine is busy
YARD/cut        nothing reaches the machine of a job that is far
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
JOB = "CRATE_JOB"
"""The variable that the engine sets inside of a job."""
ORDER = "job.json"
CONTROL = """\
import sys
sys.path.insert(0, {root!r})
from tests.backends import crate
crate.register()
from orchestrator import controller
controller.main()
"""


# --- the side of orch --------------------------------------------------------------------------

if __name__ != "__main__":
    from orchestrator.backends import Request, RunFacts
    from orchestrator.backends.engines import Channel, controller_argv
    from orchestrator.errors import OrchError
    from orchestrator.model.policy.submission import Submission, Word
    from orchestrator.model.settings.parse import to_document
    from worker.values.fast_dataclass import dataclass

    def order(run: RunFacts, yard: Path, where: str) -> dict[str, str]:
        argv = controller_argv(run.directory, program=str(yard / "control.py"))
        spec = to_document(run.spec) if where == "far" else None
        return {ORDER: json.dumps({"run": run.run_id, "argv": argv, "directory": run.directory, "spec": spec}, indent=2) + "\n"}

    @dataclass(frozen=True, slots=True)
    class CrateEngine:
        yard: Path
        is_far: bool

        def submit(self, request: Request) -> Submission:
            if (self.yard / "refuses").exists():
                raise OrchError((self.yard / "refuses").read_text())
            (self.yard / "control.py").write_text(CONTROL.format(root=str(ROOT)))
            jobs = self.yard / "jobs"
            jobs.mkdir(exist_ok=True)
            number = str(len(list(jobs.iterdir())) + 1)
            (jobs / number).mkdir()
            write(jobs / number / "word.json", {"state": "waiting"})
            write(jobs / number / "order.json", json.loads(request.files[ORDER]))
            return Submission(number, f"crate job {number}", time.time())

        def ask(self, jobs: Mapping[str, Submission]) -> Mapping[str, Word]:
            with open(self.yard / "asked", "a") as log:
                log.write(f"{','.join(sorted(jobs))}\n")
            while (self.yard / "slow").exists():
                time.sleep(0.1)
            if (self.yard / "deaf").exists():
                raise OrchError("cannot ask the crates: nobody answers")
            known = {job: self.yard / "jobs" / job / "word.json" for job in jobs}
            return {job: Word(**json.loads(path.read_text())) for job, path in known.items() if path.exists()}

        def withdraw(self, run: RunFacts, job: str) -> None:
            (self.yard / "jobs" / job / "withdraw").touch()

        def channel(self, run: RunFacts, job: str) -> Channel | None:
            way = (str(self.yard / "reach"),) if not (self.yard / "cut").exists() else ("false",)
            return Channel(way, run.directory, sys.executable) if self.is_far else None

        def forget(self, run: RunFacts, job: str) -> bool:
            is_left = not (self.yard / "jobs" / job / "forgotten").exists()
            (self.yard / "jobs" / job / "forgotten").touch()
            return is_left


# --- the daemon --------------------------------------------------------------------------------


def write(path: Path, data: Any) -> None:
    aside = path.with_name(f".{path.name}")
    aside.write_text(json.dumps(data))
    aside.replace(path)


class Job:
    def __init__(self, yard: Path, place: Path) -> None:
        self._yard, self._place = yard, place
        self._process: subprocess.Popen[bytes] | None = None
        self._why = ("", 0)
        self.is_over = False

    def go_on(self) -> None:
        if self._process is None:
            self._wait()
        elif self._process.poll() is None:
            self._look()
        else:
            self._end(self._process.returncode)

    def _wait(self) -> None:
        queue = self._yard / "queue"
        if (self._place / "withdraw").exists():
            self._say("ended", "withdrawn", cause="withdrawn", exit_code=143)
        elif queue.exists():
            self._say("waiting", f"queued at the crates: {queue.read_text()}")
        else:
            given = json.loads((self._place / "order.json").read_text())
            with open(self._place / "log", "ab") as log:
                self._process = subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", *self._far(given), *given["argv"]],
                    env={**os.environ, JOB: self._place.name},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self._say("running", "running at the crates")

    def _far(self, given: dict[str, Any]) -> list[str]:
        """What a controller is started with that shall see another `.orch` than the run's: the same path, on another disk."""
        if given["spec"] is None:
            return []
        here, disk = self._yard / ".orch", self._yard / "far"
        run = disk / Path(given["directory"]).relative_to(here)
        run.mkdir(parents=True, exist_ok=True)
        write(run / "spec.yaml", given["spec"])
        enter = f'mount --bind "{disk}" "{here}" && '
        (self._yard / "reach").write_text(f"""#!/bin/sh\nexec unshare --mount sh -c '{enter}exec "$@"' sh "$@"\n""")
        (self._yard / "reach").chmod(0o700)
        space = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return [*space, "sh", "-c", f'{enter}ip link set lo up && exec "$@"', "sh"]

    def _controller(self) -> int:
        """The pid of the controller, or of the first process of its machine."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(children[0]) if (self._yard / "far").exists() else self._process.pid

    def _look(self) -> None:
        assert self._process is not None
        for name, number, cause, code in (
            ("withdraw", signal.SIGTERM, "withdrawn", 143),
            ("term", signal.SIGTERM, "its host was wanted for another job", 143),
            ("die", signal.SIGKILL, "its host died", 0),
        ):
            if (self._place / name).exists():
                self._why = (cause, code)
                if name != "withdraw":
                    (self._place / name).unlink()
                elif (self._place / "withdrawn").exists():
                    continue
                else:
                    (self._place / "withdrawn").touch()
                os.kill(self._controller(), number)

    def _end(self, code: int) -> None:
        cause, given = self._why
        self._process, self._why = None, ("", 0)
        if cause and cause != "withdrawn" and (self._yard / "requeue").exists():
            self._say("waiting", f"queued again at the crates: {cause}")
            return
        self._say("ended", f"ended at the crates: {cause or code}", cause=cause or "it ended", exit_code=(given or None) if cause else code)

    def _say(self, state: str, words: str, **more: Any) -> None:
        write(self._place / "word.json", {"state": state, "words": words, **more})
        self.is_over = state == "ended"


def main(yard: Path) -> None:
    jobs: dict[str, Job] = {}
    print("ready", flush=True)
    while True:
        for order in sorted(yard.glob("jobs/*/order.json")):
            job = jobs.setdefault(order.parent.name, Job(yard, order.parent))
            if not job.is_over:
                with suppress(OSError, IndexError):  # the test has taken a file back, or a process has just ended
                    job.go_on()
        time.sleep(0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
