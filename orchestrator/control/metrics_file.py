"""``metrics_dir:`` the metrics of a run in a file for the textfile collector of node_exporter, until the end of the run.

A thread writes the file, so no event of the run waits for the directory. Its name has the run: the next run of this home with this
directory removes the file of a run that was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from pathlib import Path

from worker.machine.clock import patience

from ..errors import OrchError
from ..record import run_metrics
from ..record.run_directory import RunDir
from ..record.run_files import open_whole
from .starting import RunStart
from .supervisor import Supervisor

EVERY_S = patience(15.0)
"""Seconds between two writes. Prometheus usually asks every 15 s to 60 s."""
LAST_S = 0.5
"""The most that the end of a run waits for the removal of the file, where a file system hangs."""


class MetricsFile:
    def __init__(self, start: RunStart, supervisor: Supervisor) -> None:
        """Begin to write; to be called in the loop of the run."""
        self._start, self._supervisor, self._over = start, supervisor, threading.Event()
        self._path = Path(start.spec.workdir, start.spec.metrics_dir, f"orch-{start.run.run_id}.prom")
        self._thread = threading.Thread(target=self._serve, args=[asyncio.get_running_loop()], name="orch-metrics", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join(LAST_S)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        has_told = False
        for path in self._path.parent.glob("orch-*.prom"):
            with contextlib.suppress(OSError, OrchError, ValueError):  # no name of a run
                run = RunDir(self._start.run.path.with_name(path.stem.removeprefix("orch-")))
                if run.path.is_dir() and not run.is_alive():
                    path.unlink()
        while not self._over.is_set():
            try:
                self._write()
            except Exception as error:  # it only shows the run
                reason = error.strerror if isinstance(error, OSError) else repr(error)
                text = f"warning: --metrics-dir: {self._path} cannot be written: {reason}; the run goes on"
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    has_told = has_told or bool(loop.call_soon_threadsafe(self._supervisor.note, text))
            self._over.wait(EVERY_S)
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        start, cluster = self._start, self._supervisor.cluster
        text = run_metrics.text(start.run, start.spec, cluster, self._supervisor.phases.measure(cluster), lives=True)
        with open_whole(self._path, is_shared=True) as file:
            os.fchmod(file.fileno(), 0o644)  # for the collector's user, whatever the umask is
            file.write(text.encode(errors="surrogateescape"))
