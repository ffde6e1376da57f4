"""The first code in a pod that no controller looks after: unpacks worker/ and the user's code, and runs one task to its end.

``python start.py FILES TYPE``, where FILES is the directory of a ConfigMap that `orch plan --kubernetes` has printed and TYPE is the task's
type; Kubernetes gives the task's index and its TF_CONFIG. As `remote_entry`, this module is sent as text and imports no other module of
orch before worker/ is there. It stays as the pod's first process: the kernel ignores signals to such a one that it does not handle, and
somebody has to reap. The exit code is the task's, or 128 + n for signal n. What has ended the task is in the termination message.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import lzma
import os
import signal
import sys
import tarfile
from collections.abc import Mapping
from typing import Any

WORKER, CODE, ORDERS = "worker.json.xz", "code.tar.xz", "tasks.json"
"""The other files of the ConfigMap."""
INDEX = "JOB_COMPLETION_INDEX"
RESTARTS = ("JOBSET_RESTART_ATTEMPT", "JOB_INDEX_FAILURES", "JOB_INDEX_DISRUPTIONS")
"""How often a JobSet has restarted all tasks, and how often the Job of this pod has replaced it, after failures that
count and after others. Each is missing or empty if the engine does not say so."""
MESSAGE = "/dev/termination-log"
"""What is written there, Kubernetes keeps with the state of the container (`terminationMessagePath`)."""
MOST_MESSAGE = 4000
LARGEST_FAILURE = 1 << 20
"""Bytes that are read of an ``error.json``; the bootstrap writes fewer."""
TOO_OLD, BROKEN = 96, 97


def main(files: str, task_type: str) -> int:
    """Runs the task. Returns its exit code as a shell has it."""
    for number in (signal.SIGTERM, signal.SIGINT):  # while the code is unpacked: the first process of a pod has no other answer
        signal.signal(number, lambda number, _frame: os._exit(128 + number))
    home = os.environ["HOME"]
    try:
        _load_worker(os.path.join(files, WORKER), os.path.join(home, "worker"))
        if os.path.exists(os.path.join(files, CODE)):
            with tarfile.open(os.path.join(files, CODE)) as tree:
                tree.extractall(os.path.join(home, "code"))
        with open(os.path.join(files, ORDERS), encoding="ascii") as orders:
            known = json.load(orders)
    except OSError as error:
        print(f"orch: the task's code cannot be unpacked into {home}: {error}", file=sys.stderr)
        return BROKEN
    index = int(os.environ.get(INDEX, "0"))
    order = known.get(f"{task_type}-{index}") or known[task_type]
    log_dir = os.path.join(home, "log")
    os.makedirs(log_dir, exist_ok=True)
    code = _run(*_command(order, task_type, index, log_dir))
    _write_message(log_dir, code)
    return code if code >= 0 else 128 - code


def _load_worker(packed: str, root: str) -> None:
    """Makes worker/ importable under a private name, as `start_agent.load` does: the user may have a module `worker`."""
    with lzma.open(packed) as file:
        texts: Mapping[str, str] = json.load(file)
    for name, text in texts.items():
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as module:
            module.write(text)
    package = type(sys)("_orch_worker")
    package.__path__ = [root]
    sys.modules[package.__name__] = package


def _command(data: dict[str, Any], task_type: str, index: int, log_dir: str) -> tuple[list[str], str, dict[str, str], int]:
    """The program of the task, its working directory, its environment, and the descriptor with the order for its first code."""
    codec = importlib.import_module("_orch_worker.values.codec")
    messages = importlib.import_module("_orch_worker.protocol.messages")
    environment = importlib.import_module("_orch_worker.protocol.task_environment")
    cpu_cores = importlib.import_module("_orch_worker.machine.cpu_cores")
    rank = data["first_rank"] + index
    restarts = sum(int(os.environ.get(name, "") or 0) for name in RESTARTS)
    data["env"] |= {"ORCH_TASK": f"{task_type}-{index}", "ORCH_ATTEMPT": str(restarts + 1)}
    if data["trains"]:
        data["env"] |= {"RANK": str(rank), "ORCH_IS_CHIEF": str(int(rank == 0))}
    order = codec.from_json(
        messages.TaskOrder,
        {**data["order"], "task": f"{task_type}-{index}", "attempt": restarts + 1, "log_dir": log_dir, "env": data["env"]},
    )
    start = messages.StartTasks(
        orders=(order,),
        env_defaults=environment.default_environment(cpu_cores.count_cores(), 1, data["inter_op"]),
        peers=tuple(data["peers"]),
    )
    tf_config = os.environ.get("TF_CONFIG") if data["order"].get("cluster") else None
    env = environment.compose(os.environ, start, order, log_dir, tf_config)
    env.pop("TF_GRPC_REUSE_PORT", None)  # no agent holds the port
    bootstrap = messages.BootstrapOrder(
        task=order.task, program=order.program, tf_config=tf_config, log_dir=log_dir, settings=order.settings
    )
    if order.program.kind == "command":
        return [order.program.target, *order.program.args], order.cwd, env, -1
    memory = importlib.import_module("_orch_worker.machine.memfd")
    fd = memory.keep_in_memory(json.dumps(codec.to_json(bootstrap)).encode("ascii"))
    first = os.path.join(sys.modules["_orch_worker"].__path__[0], "task", "start_task.py")
    return [sys.executable, first, str(fd), order.task, order.program.target or order.program.kind], order.cwd, env, fd


def _run(argv: list[str], cwd: str, env: dict[str, str], fd: int) -> int:
    """The exit code of the program, -n for signal n. SIGTERM and SIGINT are passed on to its process group."""
    endings = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, {*endings, signal.SIGCHLD})
    task = os.fork()
    if task == 0:
        try:
            os.setsid()
            os.chdir(cwd)
            if fd >= 0:
                os.set_inheritable(fd, True)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.execvpe(argv[0], argv, env)
        except OSError as error:
            print(f"orch: {argv[0]!r} cannot be run in {cwd}: {error.strerror}", file=sys.stderr, flush=True)
        finally:
            os._exit(127)
    while True:
        number = signal.sigwait({*endings, signal.SIGCHLD})
        if number in endings:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(task, number)
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == task:
                    return os.waitstatus_to_exitcode(status)
                if pid == 0:
                    break


def _write_message(log_dir: str, code: int) -> None:
    """The exception of the task, or the signal that has ended it, for `kubectl describe`."""
    if code == 0:
        return
    text = f"ended by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
    # Any program may write into its directory, so the file may be a named pipe, and hold anything.
    path, careful = os.path.join(log_dir, "error.json"), os.O_NONBLOCK | os.O_NOFOLLOW
    broken = (OSError, ValueError, LookupError, TypeError, RecursionError)
    with contextlib.suppress(*broken), open(path, "rb", opener=lambda name, flags: os.open(name, flags | careful)) as file:
        error = json.loads(file.read(LARGEST_FAILURE))
        text = f"{error['type']}: {error['message']}\n{error['traceback']}"
    with contextlib.suppress(OSError), open(os.open(MESSAGE, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8", errors="replace") as message:
        message.write(text[:MOST_MESSAGE])  # Kubernetes has made the file


if __name__ == "__main__":
    if tuple(sys.version_info) < (3, 10):
        print(
            f"orch: {sys.executable} is Python {sys.version.split()[0]}; orch needs 3.10 or newer: set python, or another image",
            file=sys.stderr,
        )
        sys.exit(TOO_OLD)
    sys.exit(main(sys.argv[1], sys.argv[2]))
