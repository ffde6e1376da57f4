"""Words for what Slurm's queue says of jobs. Pure."""

from __future__ import annotations

import time

from worker.values.fast_dataclass import dataclass

from ...errors import DEADLINE, TERMINATED
from ...model.policy.submission import Word

FORMAT = "%i|%T|%r|%S|%l|%N|%o"
"""For ``squeue -o``: id, state, reason, start, time limit, nodes, and the batch script, which is a file of the run."""
MOST_WORDS = 400
"""The most characters of a word of Slurm's: a plugin of the site may write a reason of any length."""
WAITING = frozenset(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD", "REVOKED"))
RUNNING = frozenset(("RUNNING", "COMPLETING", "SUSPENDED", "SIGNALING", "STAGE_OUT", "STOPPED", "RESIZING"))
REASONS = {
    "Resources": "Resources",
    "Priority": "Priority: other jobs come first",
    "PartitionNodeLimit": "PartitionNodeLimit: the partition never gives so many nodes to a job",
    "PartitionTimeLimit": "PartitionTimeLimit: the partition's time limit is shorter than the job's",
    "ReqNodeNotAvail": "ReqNodeNotAvail: nodes that it needs are down, drained or reserved",
    "JobHeldUser": "JobHeldUser: scontrol release lets it start",
    "JobHeldAdmin": "JobHeldAdmin: an administrator holds it",
    "BeginTime": "BeginTime: it starts later, as it was asked to, or after a requeue",
    "AssocGrpNodeLimit": "AssocGrpNodeLimit: the account has all of its nodes in use",
    "QOSMaxJobsPerUserLimit": "QOSMaxJobsPerUserLimit: as many of your jobs run as may run",
}
"""Slurm's word for why a job waits, with what it means. Other words are shown as they are."""

UNSEEN = (
    "if its run directory has no controller.log, the node does not see that directory. "
    "fix: --home DIR, on a disk that login nodes and compute nodes share"
)
_NO_OUTPUT = ("JobLaunchFailure", "RaisedSignal")
"""Slurm's words for a batch step that ended by a signal, or could not open its output file: the same ones (22.05)."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    job: str
    state: str
    reason: str = ""
    start: str = ""
    """When it will start, or has started: ``2026-11-24T14:05:00``; ``N/A``."""
    limit: str = ""
    """Its time limit: ``1:00:00``."""
    nodes: str = ""
    script: str = ""

    def is_of(self, run_id: str) -> bool:
        """True if this is the job of a run. Another cluster, or the same one after a new start, may give its number to another job."""
        return run_id in self.script.split("/")

    def word(self, now: float) -> Word:
        """The job for the record of its run. `now`: today is left out of a time."""
        if self.state in WAITING:
            return Word("waiting", self._waits(now))
        if self.state in RUNNING:
            is_running = self.state in ("RUNNING", "COMPLETING")
            return Word("running", f"{'running' if is_running else self.state.lower()} in Slurm on {self.nodes}".rstrip(" on"))
        words = f"ended in Slurm: {self.state}"
        has_exited = self.state == "COMPLETED" or (self.state == "FAILED" and not self.reason.startswith(_NO_OUTPUT))
        return Word("ended", words, *self._end(), has_exited)

    def _waits(self, now: float) -> str:
        if self.state == "CONFIGURING":
            return f"Slurm is starting the nodes {self.nodes}"
        what = "queued in Slurm" if self.state == "PENDING" else f"queued in Slurm ({self.state})"
        reason = self.reason.strip("()")
        told = "" if reason in ("", "None", "null") else f": {REASONS.get(reason, reason)}"
        start = _clock(self.start, now)
        return f"{what}{told}" + (f"{',' if told else ':'} starts about {start}" if start else "")

    def _end(self) -> tuple[str, int | None]:
        """Why the job ended, and the exit code of a run that could not say so itself."""
        match self.state:
            case "CANCELLED":
                return "cancelled (scancel)", TERMINATED
            case "TIMEOUT" | "DEADLINE":
                return f"its time limit of {self.limit} was over" if self.limit else "its time limit was over", DEADLINE
            case "PREEMPTED":
                return "preempted by another job", TERMINATED
            case "NODE_FAIL" | "BOOT_FAIL":
                return "a node died" + (f" ({self.nodes})" if self.nodes else ""), None
            case "OUT_OF_MEMORY":
                return "a node had no memory left for the job (mem)", None
            case "COMPLETED":
                return "its batch step succeeded, but no result.json came into its run directory; see controller.log there", None
            case "FAILED" if self.reason.startswith(_NO_OUTPUT):
                return f"its batch step was killed, or did not begin, on {self.nodes or 'its node'}: {UNSEEN}", None
            case "FAILED":
                early = f"its batch step failed before orch could say why{self._of_slurm()}; see controller.log in its run directory"
                return f"{early}; {UNSEEN}", None  # 24.11 makes the directory of its output file where a node lacks it
            case _:
                return f"Slurm calls it {self.state}{self._of_slurm()}", None

    def _of_slurm(self) -> str:
        return f" (Slurm: {self.reason})" if self.reason not in ("", "None", "(null)", "NonZeroExitCode") else ""


def parse_queue(text: str) -> dict[str, QueuedJob]:
    """The jobs in the output of ``squeue -h -o FORMAT``. A line that is none is left out."""
    found = {}
    last = FORMAT.count("|")
    for words in (line.split("|", last) for line in text.splitlines()):
        if len(words) == last + 1:
            found[words[0]] = QueuedJob(*[word.strip()[:MOST_WORDS] for word in words[:last]] + [words[last].strip()])
    return found


def parse_time(text: str) -> float | None:
    """A time of Slurm's, which is local, in seconds since 1970; None: ``N/A``, ``NONE``."""
    try:
        return time.mktime(time.strptime(text.strip(), "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def _clock(text: str, now: float) -> str:
    """``14:05``, ``Nov 25 14:05``, or ``2027-11-25``; empty if Slurm does not know, or if the time is over."""
    at = parse_time(text)
    if at is None or at <= now:
        return ""
    there, here = time.localtime(at), time.localtime(now)
    return time.strftime("%H:%M" if there[:3] == here[:3] else "%b %d %H:%M" if there[0] == here[0] else "%Y-%m-%d", there)
