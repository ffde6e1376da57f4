"""Measures what the tasks of this host use, every two seconds while tasks run (four for 64 tasks), and sends it to the controller.

A sample costs some 40 µs for each process. A channel that is full gets no sample: the rates of the next one are about all the time since
the last that was sent, so nothing is counted twice or lost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..machine import clock
from ..protocol import messages
from ..values.fast_dataclass import dataclass
from . import pace_file
from .facts import gpu_driver
from .facts.control_group import ControlGroup
from .network.link import Link
from .network.socket_use import Links
from .processes import proc_files, process_state
from .processes.helpers import Helpers
from .processes.loop import Loop
from .processes.proc_files import ProcessCounts

EVERY_S, EACH_S = 2.0, 1 / 16
"""The time between two samples, and the least time for each task: a host with many tasks is sampled less often."""
OWN_MEMORY_S = 60.0
"""The time between two readings of the proportional memory, each of one task, in turn."""
SILENT_S = 5.0
"""A task that tells nothing new for so long is not in the meeting of which it told last."""
SLOW_S = 0.05
"""The proportional memory is read no more once a reading has taken so long: the process cannot change its mappings meanwhile."""
ENDED = "ZX"
"""The states of a process that has ended, and has no memory any more: its parent has not asked for its exit code yet."""
GPUS_S = 20.0
"""The time between two questions to the GPUs' driver, each of which starts a program."""
LINKS_REST = 1000
"""The connections are read again after so many times the CPU time of the last reading: at most 0.1 % of a core."""


@dataclass(frozen=True, slots=True)
class Watched:
    task: str
    attempt: int
    pid: int
    directory: str = ""


class Sampler:
    """Sends `Sampled` while `find_tasks` returns any, and waits for those that will come."""

    def __init__(
        self,
        loop: Loop,
        link: Link,
        helpers: Helpers,
        find_tasks: Callable[[], Sequence[Watched]],
        awaits_tasks: Callable[[], bool],
        *,
        has_gpus: bool,
        proc: str = "/proc",
    ) -> None:
        """`awaits_tasks`: whether tasks will come that have no process yet, such as during TensorFlow's import."""
        self._loop, self._link, self._helpers, self._proc = loop, link, helpers, proc
        self._find_tasks, self._awaits_tasks = find_tasks, awaits_tasks
        self._is_on = self._is_broken = False
        self._group = ControlGroup()
        self._before: Mapping[tuple[int, float], ProcessCounts] = {}
        """The processes at the last sample, by pid and start."""
        self._paces: dict[str, tuple[dict[str, Any], float]] = {}
        """What each task last told of its steps, and since when it has told nothing else."""
        self._own_memory_at = proc_files.now() + OWN_MEMORY_S
        self._turn = 0
        self._has_gpus, self._gpus_at = has_gpus, 0.0
        self._gpus: tuple[messages.GpuUse, ...] = ()
        self._links, self._links_at = Links(proc), 0.0
        self._sees_processes = process_state.shows_this_namespace()

    def begin(self) -> None:
        """Tasks were started: sample until none is left."""
        if not self._is_on and self._sees_processes:
            self._is_on = True
            self._guard(self._begin_anew)
            self._loop.after(EVERY_S, lambda: self._guard(self._sample))

    def _guard(self, measure: Callable[[], None]) -> None:
        """Measure. An error of orch's own turns the sampler off, with a note, and the run goes on."""
        try:
            if not self._is_broken:
                measure()
        except Exception as error:
            self._is_broken = True
            why = f"orch's own code has failed ({type(error).__name__}: {error})"
            self._link.send(messages.RunNoted(f"what the tasks use is not measured from here on, because {why}", clock.now()))

    def _begin_anew(self) -> None:
        """The next sample is about the time from now on."""
        self._at = proc_files.now()
        self._host, self._stall = proc_files.read_host(self._proc), self._group.read()

    def _sample(self) -> None:
        tasks = self._find_tasks()
        if not tasks and not self._awaits_tasks():
            self._is_on, self._before = False, {}
            return
        self._loop.after(max(EVERY_S, EACH_S * len(tasks)), lambda: self._guard(self._sample))
        if not tasks:
            self._begin_anew()
            return
        if self._link.is_full:
            return
        self._ask_gpus()
        at = proc_files.now()
        seconds = max(1e-3, at - self._at)
        seen: dict[tuple[int, float], ProcessCounts] = {}
        used = [self._measure(task, at, seconds, seen) for task in tasks]
        self._measure_own_memory(tasks, used, at)
        found, links = tuple(use for use in used if use is not None), self._measure_links(tasks, at)
        self._link.send(messages.Sampled(clock.now(), round(seconds, 3), found, self._measure_host(seconds), self._gpus, links=links))
        self._at, self._before = at, seen

    def _measure(self, task: Watched, at: float, seconds: float, seen: dict[tuple[int, float], ProcessCounts]) -> messages.TaskUse | None:
        """Return what a task used, with the processes that its main thread has started; None if it is gone."""
        first = proc_files.read_process(task.pid, self._proc)
        if first is None or first.state in ENDED:
            return None
        children = {pid: proc_files.read_process(pid, self._proc) for pid in proc_files.read_children(task.pid, self._proc)}
        cpu = faults = read = written = 0.0
        memory = threads = 0
        for pid, counts in {task.pid: first, **children}.items():
            if counts is None:
                continue
            seen[pid, counts.started_at] = counts
            before = self._before.get((pid, counts.started_at))
            # Of a process that no sample has seen yet, the means since its start.
            past = before or ProcessCounts("", at, 0.0, 0, 0, 0, 0, 0)
            lasted = seconds if before is not None else max(0.05, at - counts.started_at)
            cpu += (counts.cpu_s - past.cpu_s) / lasted
            faults += (counts.faults - past.faults) / lasted
            read += (counts.read - past.read) / lasted
            written += (counts.written - past.written) / lasted
            memory, threads = memory + counts.memory, threads + counts.threads
        return messages.TaskUse(
            task.task,
            task.attempt,
            first.state,
            cpu=round(max(0.0, cpu * 100), 1),
            memory=memory,
            threads=threads,
            faults=round(max(0.0, faults), 1),
            read=round(max(0.0, read)),
            written=round(max(0.0, written)),
            **self._read_pace(task, at),
        )

    def _read_pace(self, task: Watched, at: float) -> dict[str, Any]:
        """What a task tells of its steps. One that waits for its peers tells so each second: if not, no Python runs in it, and it does
        something else, such as a call that keeps the interpreter's lock."""
        pace = pace_file.read(task.directory)
        told, since = self._paces.get(task.task, ({}, at))
        self._paces[task.task] = pace, since if pace == told else at
        if pace == told and at - since >= SILENT_S and pace.get("came", 0) > pace.get("met", 0):
            return {**pace, "came": pace["met"], "waits": 0.0}
        return pace

    def _measure_own_memory(self, tasks: Sequence[Watched], used: list[messages.TaskUse | None], at: float) -> None:
        """Now and then, the proportional memory of the next task."""
        if at < self._own_memory_at:
            return
        self._own_memory_at = at + OWN_MEMORY_S
        self._turn = (self._turn + 1) % len(tasks)
        use = used[self._turn]
        if use is not None:
            from dataclasses import replace

            began = time.monotonic()
            used[self._turn] = replace(use, own_memory=proc_files.read_own_memory(tasks[self._turn].pid, self._proc))
            if time.monotonic() - began > SLOW_S:
                self._own_memory_at = float("inf")

    def _measure_host(self, seconds: float) -> messages.HostUse:
        before, stall = self._host, self._stall
        self._host, self._stall = host, group = proc_files.read_host(self._proc), self._group.read()
        stalled = proc_files.read_stalls(self._proc)

        def rate(now: float, then: float) -> float:
            return round(max(0.0, now - then) / seconds, 3)

        return messages.HostUse(
            cpu=round(100 * rate(host.cpu_s, before.cpu_s), 1),
            cores=host.cores,
            memory=max(0, host.memory),
            memory_total=host.memory_total,
            swap=max(0, host.swap),
            received=rate(host.received, before.received),
            sent=rate(host.sent, before.sent),
            throttled=round(100 * max(0, group.throttled - stall.throttled) / max(1, group.periods - stall.periods), 1),
            stalled_cpu=stalled[0],
            stalled_memory=stalled[1],
            stalled_io=stalled[2],
        )

    def _measure_links(self, tasks: Sequence[Watched], at: float) -> tuple[messages.LinkUse, ...]:
        """Return what the tasks have sent to other hosts; nothing if this is not due, or the kernel does not tell."""
        if at < self._links_at:
            return ()
        began = time.thread_time()
        try:
            found = self._links.read([task.pid for task in tasks], at)
        except OSError:
            self._links_at = float("inf")
            return ()
        self._links_at = at + LINKS_REST * (time.thread_time() - began)
        return found

    def _ask_gpus(self) -> None:
        """Now and then, ask the driver, in a process of its own; the next samples have its answer."""
        if self._has_gpus and proc_files.now() >= self._gpus_at:
            self._gpus_at = proc_files.now() + GPUS_S
            from .processes.async_subprocess import Question

            def keep(ending: messages.ProgramEnded) -> None:
                self._gpus = gpu_driver.read_use(ending.out)

            def answer(ending: messages.ProgramEnded) -> None:
                self._guard(lambda: keep(ending))

            self._helpers.add(Question(self._loop, gpu_driver.use_command(), os.environ, GPUS_S / 2, answer))
