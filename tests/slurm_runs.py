"""Runs that tests submit to the Slurm of the bed (slurm_bed.py), and what Slurm and orch say of them."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.backends.slurm.queue import parse_time
from tests.conftest import IMPATIENT, Completed, Orch
from tests.live import LiveRun, wait_for_file, wait_until, write_script
from tests.slurm_bed import SlurmBed

SLEEP = "ready()\nsleep()"
GOES_ON = """
ATTEMPT = int(os.environ["ORCH_ATTEMPT"])
tell(f"{TASK}.{ATTEMPT}.ready", os.getpid())
signal.signal(signal.SIGTERM, lambda *_: (tell(f"{TASK}.{ATTEMPT}.saved"), os._exit(42)))
while ATTEMPT == 1:
    time.sleep(0.05)
tell(f"{TASK}.node", os.uname().nodename)
"""
"""The first attempt trains, and saves when it is asked to end; the second one has little left to do."""


class Place:
    """A directory with a script and its spec, whose runs are submitted."""

    def __init__(self, orch: Orch, slurm: SlurmBed, directory: Path, script: str = "script.py") -> None:
        self.orch, self.slurm, self.directory, self._script = orch, slurm, directory, script

    def write(self, script: str, *, nodes: int = 2, more: str = "", **backend: object) -> None:
        write_script(self.directory, script)
        settings = json.dumps({"type": "slurm", "nodes": nodes, "lost_after_s": 6, **backend})
        with (self.directory / "orch.yaml").open("a") as file:
            file.write(f"backend: {settings}\ntimeouts: {{grace_s: 2}}\n{more}\n")

    def submit(self, *words: str) -> tuple[str, str]:
        """The name of a run that is left alone, and the number of its job."""
        name = self.orch("up", self._script, "-d", *words, check=0).out.strip()
        return name, json.loads((self.directory / ".orch/runs" / name / "submission.json").read_text())["job"]

    def wait(self, name: str, check: int, timeout: float = 200, home: Path | None = None) -> Completed:
        """`orch wait`, which asks Slurm ten times as often as elsewhere. `home`: where the run is, if not here."""
        return self.orch("wait", name, env={**IMPATIENT, **({"ORCH_HOME": str(home)} if home else {})}, check=check, timeout=timeout)

    def ps(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.orch("ps", name, "--json").out)
        return found

    def wait_for_words(self, name: str, pattern: str) -> str:
        """What `orch ps` says of the run, once it fits."""

        said = ""

        def fits() -> bool:
            nonlocal said
            said = self.orch("ps", name).out
            return re.search(pattern, said) is not None

        try:
            wait_until(fits, f"{pattern} in orch ps")
        except pytest.fail.Exception:
            pytest.fail(f"orch ps does not say {pattern}, but {said}")
        return said

    def start_again(self, job: str) -> None:
        """Let a job begin that Slurm has queued again, and would let wait for two minutes.

        A slurmd refuses whatever was allowed in or before the second in which it was told to end the job; Slurm waits for that reason
        (slurmctld/job_mgr.c, common/slurm_cred.c). SubmitTime is when the former start of the job was over, or one second later.
        """
        wait_until(lambda: self.slurm.jobs().get(job) == "PENDING", f"pending job {job}")
        assert self.slurm.left_behind() == []
        over = parse_time(self.slurm.job(job)["SubmitTime"])
        assert over is not None
        wait_until(lambda: time.time() >= over + 1, "the next second")

        def has_begun() -> bool:
            state = self.slurm.jobs().get(job)
            if state == "PENDING":
                self.slurm.run("scontrol", "update", f"jobid={job}", "starttime=now", check=False)
            return state != "PENDING"

        wait_until(has_begun, f"running job {job}")

    @contextmanager
    def no_room(self, *options: str) -> Iterator[str]:
        job = self.slurm.run("sbatch", "--parsable", "-N3", "--exclusive", "-o/dev/null", *options, "--wrap", "sleep 1000").strip()
        wait_until(lambda: self.slurm.jobs().get(job) == "RUNNING", "full cluster")
        try:
            yield job
        finally:
            self.slurm.run("scancel", job)


def attempts(run: LiveRun) -> list[list[str]]:
    return [event["hosts"] for event in run.events() if event["event"] == "allocated"]


def ready(place: Place, attempt: int, tasks: int = 2) -> list[psutil.Process]:
    return [psutil.Process(int(wait_for_file(place.directory / f"worker-{index}.{attempt}.ready"))) for index in range(tasks)]


def forget_agents() -> None:
    """Remove the files of agents whose node has died: no agent was left to do so."""
    for left in Path(tempfile.gettempdir()).glob("orch-agent-*"):
        shutil.rmtree(left)
