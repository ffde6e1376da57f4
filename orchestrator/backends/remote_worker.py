"""worker/ on its way to a host where nothing of ours is installed: over the byte channel, ahead of the orders. For all remote backends.

A backend starts `argv`, or has a shell start `shell_command`, on the host; the `transport` sends worker/host/remote_entry.py and the
rest of worker/ to its stdin. The only text that a shell on a host reads is the interpreter's name and the user's own `setup` lines;
everything
else is data on the channel.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import secrets
import shlex
import zlib
from collections.abc import Sequence
from pathlib import Path

import worker

from ..model.cause.exit_status import describe_return
from . import Diagnosis, StartFailure, Transport

# Without a quote, a dollar, a backslash or an exclamation mark: sh, csh and fish read it alike. FileIO reads no byte too many.
BOOT = "import io;exec(io.FileIO(0,closefd=False).readline())"
TOO_OLD, SETUP_FAILED = 96, 95
"""Exit codes of ours, on a host: its Python is too old; a line of `setup` has failed."""
_NO_PYTHON = re.compile(r"not found|No such file|Unknown command|not executable|Permission denied|cannot execute")


def argv(python: str) -> tuple[str, ...]:
    """What has to be started on a host, with the channel as its stdin and stdout."""
    return (python, "-I", "-c", BOOT)


def shell_command(python: str, setup: Sequence[str] = ()) -> str:
    """The same for a shell on the host, which runs the lines of `setup` before."""
    boot = f'exec {_word(python)} -I -c "{BOOT}"'
    if not setup:
        return boot
    # A login shell, because that is where `module` and `conda` are. What a line prints or reads must not be the channel's.
    # `eval`, because a line may end with a comment or an &, and so that one that bash does not understand is a line that fails.
    lines = "; ".join(f"eval {shlex.quote(line)} </dev/null >&2 || exit {SETUP_FAILED}" for line in setup)
    return f"exec bash -lc {shlex.quote(f'{lines}; {boot}')}"


def _word(python: str) -> str:
    """What stands for the host's Python in a shell, which knows its home."""
    return f"~/{shlex.quote(python[2:])}" if python.startswith("~/") else shlex.quote(python)


def transport(command: tuple[str, ...]) -> Transport:
    """How `command`, a program on this machine that has `argv` or `shell_command` started on a host, becomes an agent there."""
    mark = f"\norch-agent-{secrets.token_hex(8)}\n".encode()
    return Transport(command, _arrival(mark), mark)


def explain(host: str, failure: StartFailure, by: str) -> Diagnosis:
    """Why the shell, or the Python that it has started, has ended before there was an agent. `by`: who has started it there."""
    lines = [line.strip() for line in failure.said.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if failure.code == SETUP_FAILED:
        return Diagnosis(f"a line of setup: failed there: {last or 'it said nothing'}")
    if failure.code == TOO_OLD:
        return Diagnosis(f"{last.removeprefix('orch: ')}; orch needs 3.10 or newer there", f"set python: for {host}")
    if failure.code in (126, 127) or (failure.code and _NO_PYTHON.search(last)):
        return Diagnosis(f"there is no such Python: {last}", f"set python: for {host}, or for all")
    ended = f"what {by} has started there {describe_return(failure.code)}"
    return Diagnosis(ended + (f": {last.removeprefix('orch: ')}" if last else ""))


@functools.lru_cache(maxsize=1)
def _worker() -> tuple[bytes, str, str]:
    """worker/ as one piece, the first code that it needs on a host, and the name under which hosts keep it."""
    root = Path(worker.__file__).parent
    files = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py"))}
    text = json.dumps(files).encode()
    return zlib.compress(text), files["host/remote_entry.py"], f"worker-{hashlib.sha256(text).hexdigest()[:16]}"


def _arrival(mark: bytes) -> bytes:
    """What `BOOT` reads: one line of Python, that any Python understands, and what that takes from stdin."""
    payload, program, name = _worker()
    too_old = 'sys.stderr.write("orch: %s is Python %d.%d\\n" % ((sys.executable,) + tuple(sys.version_info[:2])))'
    arguments = (len(payload), hashlib.sha256(payload).hexdigest(), name, mark)
    line = (
        f"import sys;sys.version_info<(3,10) and ({too_old},sys.exit({TOO_OLD}));"
        f"n=dict(__name__='orch_arrive');exec({program!a},n);n['arrive']{arguments!r}\n"
    )
    return line.encode("ascii") + payload
