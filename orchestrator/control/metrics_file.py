"""``metrics_dir:`` the metrics of a run in a file for the textfile collector of node_exporter, until the end of the run.

A thread writes the file, so no event of the run waits for the directory. It holds a lock of the kernel on the file: a file without one is
left of a run that was killed, and the next run with this directory removes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import threading
from pathlib import Path
from typing import IO

from worker.machine.clock import patience

from ..record import run_metrics
from ..record.run_files import private_opener
from .starting import RunStart
from .supervisor import Supervisor

EVERY_S = patience(15.0)
"""Seconds between two writes. Prometheus usually asks every 15 s to 60 s."""
LAST_S = 0.5
"""The most that the end of a run waits for the removal of the file, where a file system hangs."""
MARK = b"# Written by orch; removed at the end of the run.\n"


class MetricsFile:
    def __init__(self, start: RunStart, supervisor: Supervisor) -> None:
        """Begin to write; to be called in the loop of the run."""
        self._start, self._supervisor, self._over = start, supervisor, threading.Event()
        self._path = Path(start.spec.workdir, start.spec.metrics_dir, f"orch-{start.run.run_id}.prom")
        self._file: IO[bytes] | None = None
        self._thread = threading.Thread(target=self._serve, args=[asyncio.get_running_loop()], name="orch-metrics", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join(LAST_S)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        has_told = False
        self._remove_left()
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
        if self._file is not None:
            self._file.close()

    def _write(self) -> None:
        """Write the file under another name, and rename it: the collector reads the whole file, or the one before."""
        cluster = self._supervisor.cluster
        text = run_metrics.text(self._start.run, self._start.spec, cluster, self._supervisor.phases.measure(cluster), lives=True)
        aside = self._path.with_name(f".{self._path.name}.new")
        aside.unlink(missing_ok=True)
        if self._file is not None:
            self._file.close()
        self._file = open(aside, "xb")  # noqa: SIM115 - it holds the lock until the next one does
        fcntl.flock(self._file, fcntl.LOCK_EX)
        os.fchmod(self._file.fileno(), 0o644)  # for the collector's user, whatever the umask is
        self._file.write(MARK + text.encode())
        self._file.flush()
        aside.replace(self._path)

    def _remove_left(self) -> None:
        for path in self._path.parent.glob("orch-*.prom"):
            with contextlib.suppress(OSError), open(path, "rb", opener=private_opener) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an error if its run goes on
                if file.readline() == MARK and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    path.unlink()
