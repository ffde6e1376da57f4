"""Sends worker/ to a host on which orch is not installed: over the byte channel, before the orders. For all remote backends.

A backend starts `argv` on the host, or `shell_command` through a shell, by a transport with `brings_worker`. Then the `arrival` goes to the
stdin of this program: worker/host/remote_entry.py and the rest of worker/. A shell on a host reads only the name of the interpreter and the
user's own `setup` lines; everything else is data on the channel.
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
from . import Diagnosis, StartFailure
from .connection.boot import BOOT
from .interpreters import TOO_OLD

SETUP_FAILED = 95
"""The exit code of orch on a host if a line of `setup` has failed."""
GONE = 98
"""The exit code of `come_back` on a host where no agent waits any more."""
_NO_PYTHON = re.compile(r"not found|No such file|Unknown command|not executable|Permission denied|cannot execute")


def argv(python: str) -> tuple[str, ...]:
    """The program to start on a host, with the channel as its stdin and stdout."""
    return (python, "-I", "-c", BOOT)


def shell_command(python: str, setup: Sequence[str] = ()) -> str:
    """`argv` for a shell on the host, which first runs the lines of `setup`."""
    boot = f'exec {_word(python)} -I -c "{BOOT}"'
    if not setup:
        return boot
    # A login shell, because `module` and `conda` are defined there. No line may read from the channel or print to it.
    # `eval`, because a line may end with a comment or an &; and a line with a syntax error then fails alone.
    lines = "; ".join(f"eval {shlex.quote(line)} </dev/null >&2 || exit {SETUP_FAILED}" for line in setup)
    return f"exec bash -lc {shlex.quote(f'{lines}; {boot}')}"


def _word(python: str) -> str:
    """The word for the Python of the host in a shell, which replaces ``~`` itself."""
    return f"~/{shlex.quote(python[2:])}" if python.startswith("~/") else shlex.quote(python)


def arrival() -> tuple[bytes, bytes]:
    """Return what the program reads first, and the mark on its stdout before its first frame. Everything before the mark is noise."""
    mark = f"\norch-agent-{secrets.token_hex(8)}\n".encode()
    return _arrival(mark), mark


def come_back(path: str, secret: str, received: int) -> tuple[bytes, bytes]:
    """As `arrival`, for an agent that waits at this socket of the host after a cut: see worker/host/network/return_program.py."""
    mark = f"\norch-agent-{secrets.token_hex(8)}\n".encode()
    program = (Path(worker.__file__).parent / "host" / "network" / "return_program.py").read_text(encoding="utf-8")
    line = f"n=dict(__name__='orch_return');exec({program!a},n);n['come_back']{(path, secret, received, mark, GONE)!a}\n"
    return line.encode("ascii"), mark


def explain(host: str, failure: StartFailure, by: str) -> Diagnosis:
    """Why the shell or its Python ended before an agent ran. `by`: the program that started them there, such as ``ssh``."""
    last = failure.said.strip().rpartition("\n")[2].strip()
    if failure.code == SETUP_FAILED:
        return Diagnosis(f"a line of setup: failed there: {last or 'it said nothing'}")
    if failure.code == TOO_OLD:
        return Diagnosis(f"{last.removeprefix('orch: ')}; orch needs 3.10 or newer there", f"set python: for {host}", is_mistake=True)
    if failure.code in (126, 127) or (failure.code and _NO_PYTHON.search(last)):
        return Diagnosis(f"there is no such Python: {last}", f"set python: for {host}, or for all", is_mistake=True)
    ended = f"what {by} has started there {describe_return(failure.code)}"
    return Diagnosis(ended + (f": {last.removeprefix('orch: ')}" if last else ""))


@functools.lru_cache(maxsize=1)
def _worker() -> tuple[bytes, str, str]:
    """worker/ in one piece, compressed; the code that unpacks it on a host; and the name under which hosts keep it."""
    root = Path(worker.__file__).parent
    files = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py"))}
    text = json.dumps(files).encode()
    return zlib.compress(text), files["host/remote_entry.py"], f"worker-{hashlib.sha256(text).hexdigest()[:16]}"


def _arrival(mark: bytes) -> bytes:
    """The bytes that `BOOT` reads: a line that any Python understands, and worker/, which this line reads from stdin."""
    payload, program, name = _worker()
    too_old = 'sys.stderr.write("orch: %s is Python %d.%d\\n" % ((sys.executable,) + tuple(sys.version_info[:2])))'
    arguments = (len(payload), hashlib.sha256(payload).hexdigest(), name, mark)
    line = (
        f"import sys;sys.version_info<(3,10) and ({too_old},sys.exit({TOO_OLD}));"
        f"n=dict(__name__='orch_arrive');exec({program!a},n);n['arrive']{arguments!r}\n"
    )
    return line.encode("ascii") + payload
