"""``python warm/start_warm.py FD IDLE_S MODULE…``: the warm process. It writes the result of its start to FD, as one JSON object;
before that, on SIGQUIT, the stack of the imports.

Its forks become agents, templates and tasks, so this file is for such a task what `task/start_task.py` is for an executed one.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys


def _report(fd: int, message: dict[str, object]) -> None:
    with os.fdopen(fd, "w") as file:
        json.dump(message, file)


def _serve(fd: int, idle_s: float, preload: list[str]) -> dict[str, object] | None:
    """Returns in a task only, with its order."""
    from _orch_worker.host.processes import lifeline, process_setup  # type: ignore[import-not-found]
    from _orch_worker.host.warm import warm_fork, warm_server, warm_socket  # type: ignore[import-not-found]
    from _orch_worker.task.own_process import set_parent_death_signal  # type: ignore[import-not-found]

    # Another directory than that of the variables below would be one for the imports alone.
    place = warm_socket.make(os.environ.pop("ORCH_WARM_DIRECTORY", "") or warm_socket.directory(os.environ))
    if not (place.lock() and place.is_still_there):
        _report(fd, {"error": "another one is being started at this moment"})
        os._exit(1)
    process_setup.name_process("orch-warm")
    if fd_of_lifeline := os.environ.pop("ORCH_WARM_LIFELINE", ""):  # this process ends with the process that has the other end
        lifeline.hold_lifeline(int(fd_of_lifeline))
        os.close(int(fd_of_lifeline))
    set_parent_death_signal(signal.SIGKILL)  # an import that hangs is given up with the command that waits for it
    faulthandler.register(signal.SIGQUIT, file=fd)
    try:
        warm = warm_server.WarmProcess(preload)
    except warm_server.StartError as error:
        place.clear()
        _report(fd, {"error": str(error)})
        os._exit(1)
    faulthandler.unregister(signal.SIGQUIT)

    def report() -> None:
        set_parent_death_signal(0)
        _report(fd, {"pid": os.getpid()})

    fork = warm.serve(place, idle_s, report)
    if fork is None:
        os._exit(0)
    order: dict[str, object] | None = warm_fork.become_agent(fork)
    return order


if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the directory of this file
    package = type(sys)("_orch_worker")
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))]
    sys.modules[package.__name__] = package
    from _orch_worker.task import bootstrap  # type: ignore[import-not-found]

    order = _serve(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
    if order is not None:  # this process is a task now
        bootstrap.run(order, frozenset(sys.modules))
