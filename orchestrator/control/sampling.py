"""Keeps what the agents have measured: in files of the run, and the newest of each host, to find the task for which the others wait."""

from __future__ import annotations

from worker.protocol.messages import Sampled

from ..model.policy import links, stragglers
from ..model.policy.stragglers import Standstill, Watch
from ..model.state.cluster import Cluster, Phase
from ..record.run_directory import RunDir
from ..record.samples import SampleFiles


class Samples:
    def __init__(self, run: RunDir) -> None:
        self._files = SampleFiles(run)
        self._latest: dict[str, Sampled] = {}
        """The newest sample of each host."""
        self._watch, self._standstill, self._links = Watch(), Standstill(), links.Watch()
        self._is_broken = False

    def keep(self, sample: Sampled, cluster: Cluster) -> tuple[str, ...]:
        """Keep a sample. Returns a line for each task that has turned out to be slower than the others, or for which they wait, and for a
        link that is unlike the others."""
        self._files.keep(sample)
        self._latest[sample.host] = sample
        if self._is_broken or cluster.phase is not Phase.RUNNING:
            return ()
        try:
            return self._judge(sample, cluster)
        except Exception as error:  # what only measures ends no run
            self._is_broken = True
            why = f"orch's own code has failed ({type(error).__name__}: {error})"
            return (f"slow tasks and links are not named from here on, because {why}",)

    def _judge(self, sample: Sampled, cluster: Cluster) -> tuple[str, ...]:
        tasks = stragglers.training(cluster)
        self._watch, slow = stragglers.watch(self._watch, self._latest, tasks)
        self._standstill, waits = stragglers.standstill(self._standstill, self._latest, tasks)
        self._links, odd = links.watch(self._links, sample, cluster)
        return (*slow, *waits, *filter(None, [odd]))

    def describe_absent(self, cluster: Cluster) -> str:
        """Return which tasks have not come to where the others wait at a hang, in words; empty: no task is awaited."""
        return stragglers.describe_absent(self._latest, stragglers.training(cluster), at_a_hang=True)

    def describe_awaited(self, cluster: Cluster) -> str:
        """Return the same for tasks of which a line has told that they did not come, and that have not come since."""
        return stragglers.describe_absent(self._latest, stragglers.training(cluster)) if self._standstill.missing else ""

    def close(self) -> None:
        self._files.close()
