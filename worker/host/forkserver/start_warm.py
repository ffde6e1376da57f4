"""``python start_warm.py FD DIRECTORY IDLE_S MODULE…``: the warm process, with its socket in DIRECTORY. It writes the result of its
start to FD, as one JSON object.

Its forks become agents, templates and tasks, so this file is for such a task what `task/start_task.py` is for an executed one.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def _serve(fd: int, directory: str, idle_s: float, preload: list[str]) -> dict[str, object]:
    """Returns in a task only, with its order."""
    from _orch_worker.host.forkserver import warm_server  # type: ignore[import-not-found]
    from _orch_worker.host.processes import lifeline, process_setup  # type: ignore[import-not-found]
    from _orch_worker.machine.own_process import set_parent_death_signal  # type: ignore[import-not-found]

    def report(message: dict[str, object]) -> None:
        with os.fdopen(fd, "w") as file:
            json.dump(message, file)

    def on_listening() -> None:
        set_parent_death_signal(0)
        report(warm.facts())

    process_setup.name_process("orch-warm")
    if fd_of_lifeline := os.environ.pop("ORCH_WARM_LIFELINE", ""):  # this process ends with the process that has the other end
        lifeline.hold_lifeline(int(fd_of_lifeline))
        os.close(int(fd_of_lifeline))
    set_parent_death_signal(signal.SIGKILL)  # an import that hangs is given up with the command that waits for it
    try:
        warm = warm_server.WarmProcess(preload, idle_s)
    except warm_server.StartError as error:
        report({"error": str(error), "danger": error.danger})
        os._exit(1)
    order: dict[str, object] | None = warm.serve(directory, on_listening)
    if order is None:
        os._exit(0)
    return order


if __name__ == "__main__":
    if sys.version_info < (3, 10):  # noqa: UP036 - any Python can be named
        old = f"{sys.executable} is Python {sys.version_info[0]}.{sys.version_info[1]}; orch needs 3.10 or newer; set --python"
        os.write(int(sys.argv[1]), json.dumps({"error": old}).encode())
        sys.exit(1)
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the directory of this file
    package = type(sys)("_orch_worker")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    sys.modules[package.__name__] = package
    from _orch_worker.task import bootstrap  # type: ignore[import-not-found]

    order = _serve(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4:])
    bootstrap.run(order)  # this process is a task now
