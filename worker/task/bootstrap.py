"""From a task's order to the user's program, which runs as if it was started without orch.

Every task pays for this module's time, so the module reads the order as plain JSON: the import of `worker.protocol.messages`, with its many
dataclasses, would take longer than everything else here. The tests compare the two.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import signal
import sys
import time

from ..machine.own_process import move_own_fd
from ..protocol import task_files
from . import failure, own_tf_config
from .observe import membership  # also all that the end needs: the program may have a worker.py of its own
from .patches import guard, hidden_frames
from .program import prepare, unload_shadowed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Change = Callable[[str], None]

_PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pythonpath")
_RESIDENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixture", "resident.py")
_BROKEN = 125


def main(fd: int, loaded: frozenset[str], path: list[str]) -> None:
    """`run` in a fresh interpreter, for the order in `fd`. `loaded`: the modules imported before orch's; `path`: its `sys.path`."""
    order = _read_order(fd)
    changes = _import_changes(order)
    sys.path = path
    run(order, changes, loaded)


def run(order: dict[str, Any], changes: list[Change] | None = None, loaded: frozenset[str] | None = None) -> None:
    """Run an order, a `orders.BootstrapOrder` as JSON data, in this process. Returns when the user's program is over.

    `changes`: what `_import_changes` has returned. `loaded`: see `main`. Without both, this process is a fork, and the template has found
    no file of the program that would hide one of its modules. An exception leaves this function as it would leave the user's script, so
    the call must be the last statement of `__main__`.
    """
    if "ORCH_CALLS" in os.environ and _is_resident(order["program"]):
        from .fixture import resident

        order = resident.fork_for_calls(order)  # returns in a fork, which is a process of this task
    _show_stacks_on_signal(order["log_dir"])
    if order["tf_config"] is not None:
        os.environ["TF_CONFIG"] = order["tf_config"]
        own_tf_config.watch(order["tf_config"], order["log_dir"])
    if changes is None:
        changes = _import_changes(order)
    program = order["program"]
    start = prepare(program["kind"], program.get("target", ""), program.get("args", []))
    sys.path.append(_PATH)
    if loaded is not None:
        unload_shadowed(sys.modules.keys() - loaded)
    if program["kind"] != "calls":  # a test's process stays, and its test gets the exception
        guard.end_at_fault(order["log_dir"])
    for change in changes:
        change(order["log_dir"])
    hidden_frames.hide_own()
    pid = os.getpid()
    ending = _Ending(order["log_dir"], pid, order["tf_config"])
    atexit.register(ending.on_exit)  # before the program's own functions: the function that is registered first runs last
    task_files.write(order["log_dir"], task_files.BEGUN, repr(time.monotonic()))
    try:
        start()
    except SystemExit as exit:
        ending.code = _exit_code(exit.code)
        raise
    except BaseException as error:
        ending.code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        # A child that the user's program has forked ends here, too. Its exception is not the task's.
        if os.getpid() == pid and not isinstance(error, KeyboardInterrupt):
            if "tensorflow" in sys.modules:
                from .strategy import device_setup

                try:  # noqa: SIM105 - a remark, and the error is the program's
                    device_setup.explain(error, order.get("settings", {}).get("devices", {}))
                except Exception:
                    pass
            failure.record(error, order["log_dir"])
        failure.hide_own_frames()
        raise


def _import_changes(order: dict[str, Any]) -> list[Change]:
    """Return what orch changes for the program, in this order; each function gets the directory of the task's logs.

    All code for this is imported before the program's directory is in `sys.path`: a file there may have the name of a module of the
    standard library.
    """
    changes: list[Change] = []
    settings = order.get("settings", {})
    for section, name in SECTIONS.items():
        if section in settings or section in ALWAYS:
            module = __import__(f"{__package__}.{name}", fromlist=["apply_soon"])  # the import of importlib would take longer
            given = settings.get(section, {})
            changes.append(lambda log_dir, module=module, given=given: module.apply_soon(given, log_dir))  # type: ignore[misc]
    from .observe import profiling

    changes.append(profiling.watch)
    if order["tf_config"] is not None:
        from . import sigterm
        from .keras import own_paths
        from .observe import step_times
        from .strategy import joined_server

        changes += [lambda log_dir: sigterm.keep_sigterm(), joined_server.watch, own_paths.watch]
        if settings.get("collectives", {}).get("measured", True):
            changes.append(step_times.watch)
    # Last: around all that the others replace.
    if settings.get("verify"):
        from .observe import record_hooks

        changes.append(record_hooks.watch)
    if settings.get("scale"):
        from .observe import step_parts

        changes.append(step_parts.watch)
    return changes


def _is_resident(program: dict[str, Any]) -> bool:
    """True if the program is the one of `orchestrator.testing`. Any user may have its variable in the environment."""
    try:
        return os.path.samefile(program.get("target", ""), _RESIDENT)
    except OSError:
        return False


def _read_order(fd: int) -> dict[str, Any]:
    try:
        data = b""
        while part := os.pread(fd, 1 << 20, len(data)):
            data += part
        os.close(fd)
        order: dict[str, Any] = json.loads(data)
    except (OSError, ValueError) as error:
        print(f"orch: cannot read this task's order from descriptor {fd}: {error}", file=sys.stderr)
        sys.exit(_BROKEN)
    return order


def _show_stacks_on_signal(log_dir: str) -> None:
    """A crash prints the stacks on stderr; SIGQUIT adds the stacks of all threads to ``stacks.txt``, and the task continues."""
    try:  # noqa: SIM105 - contextlib would be one more import before every task
        faulthandler.enable()
    except (AttributeError, RuntimeError, ValueError):
        pass  # stderr is closed
    if not hasattr(faulthandler, "register"):
        return
    path = os.path.join(log_dir, task_files.STACKS)
    aside = f"{path}.new"
    try:
        fd = task_files.open_regular(aside, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        faulthandler.register(signal.SIGQUIT, move_own_fd(fd), all_threads=True, chain=False)
        os.rename(aside, path)  # last: the agent sends SIGQUIT once the file exists, and SIGQUIT kills a process without a handler
    except OSError:
        pass  # the log directory is removed or full: the program can still run


class _Ending:
    """Writes the exit code when the program is over: the interpreter may hang or be killed before it ends."""

    code = 0

    def __init__(self, log_dir: str, pid: int, tf_config: str | None) -> None:
        self._log_dir, self._pid, self._tf_config = log_dir, pid, tf_config

    def on_exit(self) -> None:
        if os.getpid() == self._pid:  # not in a child that the program has forked
            at = time.time()
            unclustered = self._tf_config is not None and membership.was_in_no_cluster(self._tf_config)
            task_files.write(self._log_dir, task_files.ENDED, f"{self.code} {at!r}{' unclustered' if unclustered else ''}")


def _exit_code(code: object) -> int:
    """The exit code for the argument of `sys.exit`, as in the interpreter (_Py_HandleSystemExit in CPython's Python/pythonrun.c)."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


SECTIONS = {
    "verify": "observe.recorder",
    "tpu": "strategy.tpu_environment",
    "devices": "strategy.device_setup",
    "collectives": "strategy.collective_timeouts",
    "keras": "keras",
    "input": "input.input_policy",
    "checkpoints": "checkpoints.keras_saves",
}
"""The modules that apply a section of the task's settings before the program starts, by their function `apply_soon`. It is called with the
section as JSON data and the directory of the task's logs, in this order, and only if the section is not at its defaults. Other sections are
read where they are needed, for example in `worker.strategy()`."""
ALWAYS = ("keras", "input")
"""The sections that are applied also if they are at their defaults."""
