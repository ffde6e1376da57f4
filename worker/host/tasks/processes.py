"""Processes that cannot outlive their owner.

Every task leads its own session and process group. Three things end it when the agent dies in any way,
`kill -9` included:

* the *lifeline*: the task inherits the read end of a pipe whose only write end is the agent's. The pipe
  is set to send SIGKILL to the task's process group when that end closes (``F_SETSIG``, ``F_SETOWN``,
  ``O_ASYNC``; see fcntl(2)), so the kernel does it, without a thread, blocked signals or not;
* ``PR_SET_PDEATHSIG`` for the first process of a task that was executed (a forked one is the template's child, and must survive it);
* the agent is a subreaper (``PR_SET_CHILD_SUBREAPER``, prctl(2)): what a task leaves behind, even in a
  session of its own, becomes the agent's child, and is found and ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import select
import signal
import sys
from collections.abc import Mapping, Sequence

from ...fast_dataclass import dataclass

_LINUX = sys.platform == "linux"
_F_SETSIG = 10  # not in the fcntl module; include/uapi/asm-generic/fcntl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PF_EXITING = 0x4  # include/linux/sched.h
_INHERITED_FROM = 200  # where a task's private descriptors go, out of the way of the user's own
_DEFAULTED = (signal.SIGPIPE, signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD)

_libc = ctypes.CDLL(None, use_errno=True) if _LINUX else None


class SpawnError(Exception):
    """A program that could not be started; the message says why."""


@dataclass(frozen=True, slots=True)
class Command:
    """What to execute. `order_fd`: a descriptor the program inherits under the number that stands in `argv` for ``{fd}``.

    `cores`: those that it is tied to.
    """

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    stdout: str
    stderr: str
    order_fd: int | None = None
    cores: Sequence[int] | None = None


def become_subreaper() -> None:
    """Inherit the orphans of our descendants. Does nothing where the platform has no such thing."""
    if _libc is not None:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def allow_many_files() -> tuple[int, int]:
    """Raise our own limit of open files as far as it goes; returns the limits before, for the tasks."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    return before


def spawn(command: Command, limits: tuple[int, int]) -> tuple[int, int]:
    """Start a task. Returns its pid and our end of its lifeline. Raises `SpawnError`, or OSError without descriptors to spare."""
    life_read, life_write = os.pipe()
    try:
        error_read, error_write = os.pipe()
    except OSError:
        os.close(life_read)
        os.close(life_write)
        raise
    agent = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        for fd in (life_read, life_write, error_read, error_write):
            os.close(fd)
        raise SpawnError(f"no process can be started: {error.strerror}") from None
    if pid == 0:
        _become_task(command, agent, limits, life_read, error_write)
    os.close(life_read)
    os.close(error_write)
    with os.fdopen(error_read, "rb") as pipe:
        report = pipe.read()
    if report:
        os.waitpid(pid, 0)
        os.close(life_write)
        number, _, what = report.decode(errors="surrogateescape").partition(" ")
        raise SpawnError(f"{what}: {_explain(int(number), command)}" if int(number) else what)
    return pid, life_write


def _explain(number: int, command: Command) -> str:
    if number != errno.E2BIG:
        return os.strerror(number)
    sizes = {f"the variable {name}": len(os.fsencode(f"{name}={value}")) for name, value in command.env.items()}
    sizes |= {f"argument {position}": len(os.fsencode(word)) for position, word in enumerate(command.argv)}
    longest = max(sizes, key=lambda what: sizes[what])
    return (
        f"arguments and environment are too long for the kernel (128 KiB a string); the longest is {longest} with {sizes[longest]:,} bytes"
    )


def _become_task(command: Command, agent: int, limits: tuple[int, int], lifeline: int, error_fd: int) -> None:
    """The child, between fork and exec. Never returns."""
    doing = command.argv[0]
    try:
        os.setsid()
        hold_lifeline(lifeline)
        _die_with(agent)
        doing = f"the log directory of {command.stdout}"
        redirect(command.stdout, command.stderr)
        doing = f"the working directory {command.cwd}"
        os.chdir(command.cwd)
        doing = command.argv[0]
        restore_signals()
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and would leave that to any program
        restore_limits(limits)
        tie_to(command.cores)
        argv = list(command.argv)
        if command.order_fd is not None:
            argv[argv.index("{fd}")] = str(_keep(command.order_fd))
        os.execvpe(argv[0], argv, dict(command.env))
    except OSError as error:
        os.write(error_fd, f"{error.errno} {doing}".encode(errors="surrogateescape"))
    except ValueError as error:  # a null byte, a variable's name with "=": nothing that the kernel was asked
        os.write(error_fd, f"0 {doing}: {error}".encode(errors="surrogateescape"))
    finally:
        os._exit(127)


def follow_parent(number: int) -> None:
    """Have the kernel send us this signal when our parent ends; 0: not any more."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def wake_for(fd: int) -> None:
    """Have the kernel continue this process (SIGCONT) whenever something comes on `fd`, or its other end closes.

    Nobody can stop (SIGSTOP) an agent for good: its run would hang with it, and its tasks survive the controller.
    """
    if _libc is None:
        return
    with contextlib.suppress(OSError):  # what is no pipe, socket or terminal tells nobody anything
        fcntl.fcntl(fd, _F_SETSIG, signal.SIGCONT)
        fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)


def _die_with(agent: int) -> None:
    follow_parent(signal.SIGKILL)
    if os.getppid() != agent:  # it died before the line above could take hold
        os._exit(127)


# --- what a task does to itself, between fork and exec or instead of an exec ---------------------


def hold_lifeline(fd: int) -> None:
    """In the leader of a new group: have the kernel kill the group when the other end of the pipe `fd` closes."""
    kept = _keep(fd)
    if _libc is None:
        return
    fcntl.fcntl(kept, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(kept, fcntl.F_SETOWN, -os.getpid())
    fcntl.fcntl(kept, fcntl.F_SETFL, fcntl.fcntl(kept, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(kept, 0)
    if poll.poll(0):  # it had closed before
        os._exit(127)


def restore_signals() -> None:
    """The dispositions and the mask of a process that nobody has prepared."""
    for number in _DEFAULTED:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def restore_limits(limits: tuple[int, int]) -> None:
    """The limits of open files (soft, hard) that the agent found."""
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def tie_to(cores: Sequence[int] | None) -> None:
    """Run on these cores only, with all threads to come."""
    if cores:
        os.sched_setaffinity(0, cores)


def name_process(name: str) -> None:
    """What ``ps -o comm`` and ``top`` call this process."""
    if _libc is not None:
        _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def find_room(name: str) -> tuple[int, int] | None:
    """Where in our memory the value of a variable stands that we were started with, and how long it is."""
    if _libc is None:
        return None
    _libc.getenv.restype = ctypes.c_void_p
    address = _libc.getenv(name.encode())
    return (address, len(ctypes.string_at(address))) if address else None


def show_mark(room: tuple[int, int], value: str) -> None:
    """Write a value there. Others read it in /proc/PID/environ, where `find_strays` looks; our own environment is elsewhere by now."""
    address, size = room
    ctypes.memmove(address, value.encode()[:size].ljust(size, b"\0"), size)


def _keep(fd: int) -> int:
    """A copy of `fd` that survives exec, out of the way of the descriptors that the program will open."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD, _INHERITED_FROM)
    except OSError:  # the limit of open files is lower than that
        return fcntl.fcntl(fd, fcntl.F_DUPFD, 3)


def redirect(stdout: str, stderr: str) -> None:
    """Descriptors 0, 1 and 2 of a task."""
    # O_APPEND: the task, its children and a restarted interpreter write one after the other, never over one another.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for number, path, mode in ((0, os.devnull, os.O_RDONLY), (1, stdout, flags), (2, stderr, flags)):
        fd = os.open(path, mode, 0o600)
        os.dup2(fd, number)
        os.close(fd)


def group_is_empty(leader: int) -> bool:
    """True if no process, zombies included, is left in the group of `leader`."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def members(leader: int) -> set[int]:
    """The processes in the group of `leader`; empty where there is no /proc."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            with contextlib.suppress(ValueError, OSError):
                if os.getpgid(int(name)) == leader:
                    found.add(int(name))
    return found


def signal_group(leader: int, number: int) -> None:
    """Send a signal to all of a group. One that is gone is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
        if number == signal.SIGTERM:
            os.killpg(leader, signal.SIGCONT)  # a stopped process would not see the SIGTERM


def signal_one(pid: int, number: int) -> None:
    """Send a signal to one process. One that is gone is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def find_strays(known: set[int]) -> dict[int, frozenset[bytes] | None]:
    """Our direct children outside `known`, each with its environment (``KEY=value``); empty for one that does not show it; None for one
    that has none at this moment, as it is ending or executing a program, or any more, as its main thread is gone.

    They are what a task left behind in a session of its own: as a subreaper we have inherited them.
    """
    return {pid: _environment_of(pid) for pid in _children() if pid not in known}


def _children() -> list[int]:
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def _environment_of(pid: int) -> frozenset[bytes] | None:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            if data := file.read():
                return frozenset(data.split(b"\0"))
        # Linux lets go of a process's memory, which takes its time, before its files, and before its children become ours; and one that
        # has executed a program since the file was opened shows nothing there. Only "env -i" leaves no room between start and end.
        start, end = map(int, _stat_of(pid)[47:49])
        return frozenset() if end and start == end else None
    except ProcessLookupError:
        return None
    except OSError:
        return None if _is_exiting(pid) else frozenset()


def _is_exiting(pid: int) -> bool:
    """Whether a process, or its first thread, is ending. Newer kernels refuse its environment to all but root once its memory is gone."""
    try:
        return bool(int(_stat_of(pid)[6]) & _PF_EXITING)
    except OSError:
        return True


def _stat_of(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the third on (proc_pid_stat(5))."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()
