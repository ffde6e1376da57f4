"""Run a Python program of orch and note when each part of a start ends in it.

``python trace_start.py NOTES PYTHON -I some/file.py ARGS`` stands for ``PYTHON -I some/file.py ARGS``. PYTHON is the wrapper script that
calls this program, so that whatever the program starts with `sys.executable` is noted too. NOTES gets a line for each part that has ended:
time, process, CPU seconds of the process, seconds that it has spent in imports, modules, the part.
"""

from __future__ import annotations

import atexit
import builtins
import functools
import importlib
import importlib.machinery
import os
import runpy
import sys
import time

TYPE_CHECKING = False  # what is imported here would not count as one of orch's imports
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

POINTS: dict[str, dict[str, tuple[str, str]]] = {
    "orchestrator.cli.spec_overlays": {"read_spec": ("imports: Click, spec, options", "spec")},
    "orchestrator.control.starting": {"create": ("imports: run directory", "run directory")},
    "orchestrator.backends.connection.agent_process": {"start_ahead": ("", "agent is executed")},
    "orchestrator.controller": {
        "run": ("imports: asyncio, supervisor, console", "report on the console"),
        "_write_verdict": ("", "result.json"),
    },
    "orchestrator.control.supervisor": {"Supervisor.run": ("event loop", "")},
    "orchestrator.control.agents": {"Agents.let_go": ("the task is awaited, and swept", "goodbye")},
    "orchestrator.model.planning.plan": {"make": ("the agent's facts are awaited", "plan")},
    "orchestrator.backends.connection.agent_link": {"AgentLink.order": ("", "{} is sent")},
    "worker.host.agent": {"main": ("imports", ""), "Agent._on_order": ("{} has come", "")},
    "worker.host.network.link": {"Link.send": ("", "{} is sent")},
    "worker.task.bootstrap": {"run": ("imports", "script")},
    "worker.protocol.task_files": {"write": ("bootstrap: {}", "")},
}
"""By module: the functions whose call and whose return end a part. A pair of empty texts would note nothing; {} is the message's kind."""


class Tracer:
    """Wraps the functions of `POINTS` as their modules are imported."""

    def __init__(self, notes: str) -> None:
        self._fd = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._imported_s = 0.0
        self._is_importing = False

    def note(self, part: str) -> None:
        """A part has ended."""
        if part:
            cpu_s, modules = time.process_time(), len(sys.modules)
            os.write(self._fd, f"{time.time()!r} {os.getpid()} {cpu_s!r} {self._imported_s!r} {modules} {part}\n".encode())

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """For `sys.meta_path`."""
        points = POINTS.get(name.replace("_orch_worker", "worker", 1))
        found = importlib.machinery.PathFinder.find_spec(name, path) if points is not None else None
        if found is not None and found.loader is not None and points is not None:
            execute = found.loader.exec_module

            def execute_and_wrap(module: ModuleType) -> None:
                execute(module)
                for function, (before, after) in points.items():
                    self._wrap(module, function, before, after)

            found.loader.exec_module = execute_and_wrap  # type: ignore[method-assign]
        return found

    def _wrap(self, module: ModuleType, path: str, before: str, after: str) -> None:
        owner = functools.reduce(getattr, path.split(".")[:-1], module)
        name = path.rpartition(".")[2]
        function = getattr(owner, name)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            message = "" if len(args) < 2 else args[1] if isinstance(args[1], str) else type(args[1]).__name__
            self.note(before.format(message))
            found = function(*args, **kwargs)
            if not hasattr(found, "cr_await"):
                self.note(after.format(message))
                return found

            async def wait() -> Any:
                waited = await found
                self.note(after.format(message))
                return waited

            return wait()

        setattr(owner, name, call)

    def time_imports(self, importer: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, whose outermost calls are timed."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_importing:
                return importer(*args, **kwargs)
            self._is_importing, since = True, time.perf_counter()
            try:
                return importer(*args, **kwargs)
            finally:
                self._is_importing = False
                self._imported_s += time.perf_counter() - since

        return call


def main() -> None:
    notes, python, *words = sys.argv[1:]
    while words and words[0] in ("-I", "-u", "-P", "-S"):
        words.pop(0)
    if not words or words[0].startswith("-"):  # -c, -m and the like are not orch's programs
        os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
    sys.executable, sys.argv = python, words
    sys.path[0] = os.path.dirname(words[0])
    tracer = Tracer(notes)
    sys.meta_path.insert(0, tracer)  # type: ignore[arg-type, unused-ignore]
    builtins.__import__ = tracer.time_imports(builtins.__import__)
    importlib.import_module = tracer.time_imports(importlib.import_module)
    tracer.note("interpreter")
    atexit.register(tracer.note, "end")
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
