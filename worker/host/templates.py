"""The templates of a run on this host: which of them can fork a task, and when another one is started."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from . import leftovers
from .forkserver import import_environment
from .forkserver.template_link import ForkRequest, Preload, TemplateLink, TemplateProcess, adopt_template, start_template
from .processes.loop import Loop
from .processes.spawn import SpawnError
from .task import PendingTask

if TYPE_CHECKING:
    from .forkserver.template_link import ForkListener

_CLOSING_POLL_S = 0.002


class Templates:
    """A template serves all tasks whose import-time environment is its own, in every attempt of a run."""

    def __init__(self, loop: Loop, listener: ForkListener, limits: tuple[int, int], ready: TemplateProcess | None) -> None:
        """`limits`: of open files (soft, hard). `ready`: a fork of the warm process, which becomes the first template."""
        self._loop, self._listener, self._limits, self._ready = loop, listener, limits, ready
        self._logs = ""
        self._first: Preload | None = None
        """What the first template imports; None: this run uses no templates."""
        self._no_template = ""
        """Why a template could not be started."""
        self._links: list[TemplateLink] = []

    def start_first(self, preload: Preload, logs: str) -> None:
        """Start the imports that the tasks will need. `logs`: the directory of the templates' logs."""
        self._first, self._logs = preload, logs
        self._add(preload)

    def choose(self, tasks: Sequence[PendingTask]) -> list[TemplateLink | str]:
        """For each of these tasks, the template that can fork it, or why there is none; empty: the task is not to be forked."""
        first = self._first
        if first is None:
            return [""] * len(tasks)
        keys = [import_environment.frozen(task.env, first.modules) if task.is_python else None for task in tasks]
        sharing = Counter(keys)
        return [
            "" if key is None else self._find(key, replace(first, env=task.env), is_shared=sharing[key] > 1)
            for task, key in zip(tasks, keys, strict=True)
        ]

    def _find(self, key: frozenset[tuple[str, str]], preload: Preload, *, is_shared: bool) -> TemplateLink | str:
        """The template with this import-time environment, which is started if several tasks share it; or why there is none."""
        link = next((link for link in self._links if link.key == key), None)
        if link is None and self._links and is_shared:  # for one task alone an import is no gain
            link = self._add(preload)
        if link is None:
            return self._no_template or self._explain_difference(key)
        return link.why_gone if link.gone else link

    def withdraw(self, request: ForkRequest) -> bool:
        """Withdraw a request to fork. False: a template has received the request, and will answer."""
        return any(link.withdraw(request) for link in self._links)

    def _add(self, preload: Preload) -> TemplateLink | None:
        """None: the template cannot be started, and tasks get fresh interpreters."""
        log = os.path.join(self._logs, f"template-{len(self._links) + 1}.log")
        process, self._ready = self._ready, None
        try:
            os.makedirs(self._logs, mode=0o700, exist_ok=True)
            if process is None:
                process = start_template(preload, log, self._limits)
            else:
                with suppress(OSError):  # it has died, as the link will notice
                    adopt_template(process, preload, log)
        except (OSError, SpawnError) as error:
            self._no_template = f"the template could not be started: {error}"
            return None
        self._links.append(TemplateLink(self._loop, self._listener, preload, log, process))
        return self._links[-1]

    def _explain_difference(self, key: frozenset[tuple[str, str]]) -> str:
        first = self._links[0]
        names = sorted({name for name, _ in key ^ first.key})
        differ = "differs" if len(names) == 1 else "differ"
        return f"{', '.join(names)} {differ} from what {', '.join(first.preload.modules)} has been imported under"

    @property
    def pids(self) -> set[int]:
        return {child.pid for child in (*self._links, self._ready) if child is not None}

    def poll(self) -> None:
        """To be called about once a second: ends a template that does not answer."""
        for link in self._links:
            link.poll()

    def read(self, ended: int) -> None:
        """Read what the templates have sent. `ended`: the pid of a process that has ended, which may be a template."""
        for link in self._links:
            link.read(has_ended=link.pid == ended)

    def close(self) -> None:
        """End the templates. Their tasks go on."""
        for link in self._links:
            link.close()
        until = time.monotonic() + leftovers.GIVE_UP_S  # SIGKILL does not end a process in state D
        for link in self._links:
            with suppress(ChildProcessError):
                while os.waitpid(link.pid, os.WNOHANG) == (0, 0) and time.monotonic() < until:
                    time.sleep(_CLOSING_POLL_S)
