"""Which template a task is forked from.

A template serves all tasks whose import-time environment is its own, in every attempt of a run.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace

from ..loop import Loop
from ..tasks import import_environment, processes
from .template_client import Running, Start, Template, begin, spawn


class NoTemplateError(Exception):
    """A task cannot be forked; the message says why."""


class Templates:
    """All templates of this host, each with an import-time environment of its own."""

    def __init__(
        self,
        loop: Loop,
        limits: tuple[int, int],
        on_ended: Callable[[int, int], None],
        on_imported: Callable[[tuple[str, ...], float], None],
        running: Running | None = None,
    ) -> None:
        """`running`: the first template, if it was forked from a process that had imported already."""
        self._limits, self._on_ended, self._on_imported = limits, on_ended, on_imported
        self.directory = ""
        self._loop, self._running = loop, running
        self._first: Start | None = None
        self._trouble = ""
        self._templates: list[Template] = []

    @property
    def pids(self) -> set[int]:
        """Our children that are no tasks."""
        return {child.pid for child in (*self._templates, self._running) if child is not None}

    def add(self, start: Start) -> Template | None:
        """Start a template; None if that cannot be done, and then tasks simply get fresh interpreters."""
        self._first = self._first or start
        log = os.path.join(self.directory, f"template-{len(self._templates) + 1}.log")
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            running, self._running = self._running, None
            if running is None:
                running = spawn(start, log, self._limits)
            else:
                begin(running, start, log)
        except (OSError, processes.SpawnError) as error:
            self._trouble = f"the template could not be started: {error}"
            return None
        template = Template(self._loop, start, log, self._on_ended, self._on_imported, running)
        self._templates.append(template)
        return template

    def bury(self, pid: int) -> None:
        """This child of ours has ended: maybe a template."""
        for template in self._templates:
            if template.pid == pid and not template.gone:
                template.has_ended()

    def key(self, env: Mapping[str, str]) -> frozenset[tuple[str, str]]:
        """What tasks must have in common to be forked from the same template."""
        return import_environment.frozen(env, self._first.preload if self._first else ())

    def choose(self, env: Mapping[str, str], key: frozenset[tuple[str, str]], sharing: int) -> Template | None:
        """The living template in which this environment, whose `key` is known, would have imported the same.

        If there has never been one, and `sharing` tasks, at least two, are about to start with the same import-time environment, they
        get one. Raises `NoTemplateError` where a fork was meant and cannot be had; None: nobody meant one.
        """
        if self._first is None:
            return None
        found = next((template for template in self._templates if template.key == key), None)
        if found is None and self._templates and sharing > 1:
            found = self.add(replace(self._first, env=env))
        if found is None:
            raise NoTemplateError(self._trouble or self._explain(key))
        if found.gone:
            raise NoTemplateError(found.why)
        return found

    def close(self) -> None:
        """End all templates, and what is left of their imports in sessions of its own. When no task is left."""
        for template in self._templates:
            template.close()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(template.pid, 0)
        for pid in processes.find_strays(set()) if self._templates else ():
            processes.signal_one(pid, signal.SIGKILL)

    def _explain(self, key: frozenset[tuple[str, str]]) -> str:
        first = self._templates[0]
        names = sorted({name for name, _ in key ^ first.key})
        verb = "differs" if len(names) == 1 else "differ"
        return f"{', '.join(names)} {verb} from what {', '.join(first.preload)} has been imported under"
