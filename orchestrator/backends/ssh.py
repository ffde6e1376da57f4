"""Hosts that the OpenSSH client reaches: one connection each, with the user's own configuration, keys, agents and host-key policy.

Nothing of ours is installed there: `worker/` goes over the connection (see worker/host/arrive.py). The only text that a shell on a
host reads is the interpreter's name and the user's own `setup` lines; everything else is data on the channel.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import secrets
import shlex
import socket
import zlib
from collections.abc import Mapping
from pathlib import Path

import worker

from ..errors import UsageError
from ..model.endings import describe_return
from ..model.spec import ClusterSpec, HostSpec
from . import Backend, Diagnosis, Errand, Host, Transport, interpreters, local

# BatchMode: ask nobody. RemoteCommand and forwardings of the user's configuration are for people who log in.
OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes", "-o", "RemoteCommand=none")
# Without a quote, a dollar, a backslash or an exclamation mark: sh, csh and fish read it alike. FileIO reads no byte too many.
BOOT = "import io;exec(io.FileIO(0,closefd=False).readline())"
TOO_OLD, SETUP_FAILED = 96, 95
"""Exit codes of ours, on a host."""
_HERE = {"localhost", "127.0.0.1", "::1"}


class Ssh:
    """See `Backend`."""

    def hosts(self, spec: ClusterSpec) -> tuple[Host, ...]:
        """Raises `UsageError` if this machine is named twice: its cores and GPUs would be shared out twice."""
        here = [host.name for host in spec.backend.hosts if _is_here(host)]
        if len(here) > 1:
            raise UsageError(f"{' and '.join(here)} are one machine, this one; name it once, with all of its slots: {here[0]}:N")
        return tuple(
            Host(
                host.name,
                host.address,
                sees_run_dir=_is_here(host),
                lost_after_s=None if _is_here(host) else spec.backend.lost_after_s,
                interface=host.interface,
                is_here=_is_here(host),
            )
            for host in spec.backend.hosts
        )

    def transport(self, spec: ClusterSpec, host: Host, errand: Errand = "agent") -> Transport:
        if host.is_here:
            return local.transport(interpreters.of(spec, host), errand)
        mark = f"\norch-agent-{secrets.token_hex(8)}\n".encode()
        return Transport(_command(spec, host), _arrival(mark, errand), mark, functools.partial(diagnose, _named(spec, host)))

    def request(self, spec: ClusterSpec) -> Mapping[str, str]:
        commands = {
            host.name: local.transport(interpreters.of(spec, host)).argv if host.is_here else _command(spec, host)
            for host in self.hosts(spec)
        }
        return {f"agent-{name}.txt": shlex.join(argv) + "\n" for name, argv in commands.items()}

    def cancel(self, run_id: str) -> int:
        """Only here: an agent that hears nothing from its controller any more ends its tasks by itself."""
        return local.make().cancel(run_id)


def make() -> Backend:
    return Ssh()


def _named(spec: ClusterSpec, host: Host) -> HostSpec:
    return next(named for named in spec.backend.hosts if named.name == host.name)


def _is_here(host: HostSpec) -> bool:
    """This machine needs no ssh to itself, unless it is told how to log in."""
    return not (host.user or host.port) and (host.name in _HERE or host.name == socket.gethostname())


def _command(spec: ClusterSpec, host: Host) -> tuple[str, ...]:
    named = _named(spec, host)
    login = (*(("-l", named.user) if named.user else ()), *(("-p", str(named.port)) if named.port else ()))
    return (*(spec.backend.ssh or ("ssh",)), *OPTIONS, *login, "--", host.name, _remote_command(spec, host))


def _remote_command(spec: ClusterSpec, host: Host) -> str:
    boot = f'exec {_word(interpreters.of(spec, host))} -I -c "{BOOT}"'
    named = _named(spec, host)
    setup = spec.backend.setup if named.setup is None else named.setup
    if not setup:
        return boot
    # A login shell, because that is where `module` and `conda` are. What a line prints or reads must not be the channel's.
    # `eval`, because a line may end with a comment or an &, and so that one that bash does not understand is a line that fails.
    lines = "; ".join(f"eval {shlex.quote(line)} </dev/null >&2 || exit {SETUP_FAILED}" for line in setup)
    return f"exec bash -lc {shlex.quote(f'{lines}; {boot}')}"


def _word(python: str) -> str:
    """What stands for the host's Python in a shell, which knows its home."""
    return f"~/{shlex.quote(python[2:])}" if python.startswith("~/") else shlex.quote(python)


# --- worker/ on its way -------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _worker() -> tuple[bytes, str, str]:
    """worker/ as one piece, the first code that it needs on a host, and the name under which hosts keep it."""
    root = Path(worker.__file__).parent
    files = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py"))}
    text = json.dumps(files).encode()
    return zlib.compress(text), files["host/arrive.py"], f"worker-{hashlib.sha256(text).hexdigest()[:16]}"


def _arrival(mark: bytes, errand: Errand) -> bytes:
    """What `BOOT` reads: one line of Python, that any Python understands, and what that takes from stdin."""
    payload, program, name = _worker()
    too_old = 'sys.stderr.write("orch: %s is Python %d.%d\\n" % ((sys.executable,) + tuple(sys.version_info[:2])))'
    arguments = (len(payload), hashlib.sha256(payload).hexdigest(), name, mark, errand)
    line = (
        f"import sys;sys.version_info<(3,10) and ({too_old},sys.exit({TOO_OLD}));"
        f"n=dict(__name__='orch_arrive');exec({program!a},n);n['arrive']{arguments!r}\n"
    )
    return line.encode("ascii") + payload


# --- when it does not come up -------------------------------------------------------------------

_NO_PYTHON = re.compile(r"not found|No such file|Unknown command|not executable|Permission denied|cannot execute")
_PASSING = re.compile(
    r"kex_exchange_identification|Connection (?:closed|reset) by|Connection reset|banner exchange|Exceeded MaxStartups|MaxSessions|"
    r"Temporary failure in name resolution|mux_client_request_session|Session open refused"
)
_BEHIND_JUMP = re.compile(r"(?:closed|reset) by UNKNOWN port 65535")
"""What ssh says of a connection over a ProxyJump or ProxyCommand that has ended."""
_REMEDIES = (
    ("UNPROTECTED PRIVATE KEY FILE", "others may read your key, so ssh does not use it: chmod 600 it"),
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is not the one you know: if that is right, ssh-keygen -R {host} and log in once by hand",
    ),
    (
        "Host key verification failed",
        "its host key is not known yet: log in once by hand (ssh {host}), or ssh-keyscan {host} >> ~/.ssh/known_hosts",
    ),
    ("Permission denied", "it refused your keys: ssh-copy-id {host}, load the key into your agent (ssh-add), or name it in ~/.ssh/config"),
    ("Too many authentication failures", "name the right key in ~/.ssh/config (IdentityFile, IdentitiesOnly yes)"),
    ("Could not resolve hostname", "check the name, or give it a HostName in ~/.ssh/config"),
    ("Connection refused", "no sshd listens there: check the port (port:, or Port in ~/.ssh/config)"),
    ("No route to host", "check the address, and that the host is up"),
    ("Network is unreachable", "check the address, and that the host is up"),
    ("timed out", "check the address, the port and the firewall, and that the host is up"),
    ("Bad owner or permissions", "ssh refuses its own configuration until that is mended"),
)


def diagnose(host: HostSpec, code: int, said: str) -> Diagnosis:
    """Why ssh, or the shell or the Python that it has started, has ended before there was an agent. `said`: its stderr."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if code == 255:
        return _diagnose_ssh(host, said, last)
    if code == SETUP_FAILED:
        return Diagnosis(f"a line of setup: failed there: {last or 'it said nothing'}")
    if code == TOO_OLD:
        return Diagnosis(f"{last.removeprefix('orch: ')}; orch needs 3.10 or newer there", f"set python: for {host.name}")
    if code in (126, 127) or (code and _NO_PYTHON.search(last)):
        return Diagnosis(f"there is no such Python: {last}", f"set python: for {host.name}, or for all")
    return Diagnosis(f"what ssh has started there {describe_return(code)}" + (f": {last.removeprefix('orch: ')}" if last else ""))


def _diagnose_ssh(host: HostSpec, said: str, last: str) -> Diagnosis:
    text = last or "ssh gave up and did not say why"
    lines = said.splitlines()
    # With a jump host, what it has met comes first, and then the end of a connection that never was one.
    if _BEHIND_JUMP.search(said):
        lines = [line for line in lines if not _PASSING.search(line)]
    elif _PASSING.search(said):
        lines = []
    for sign, remedy in _REMEDIES:
        complaint = next((line.strip("@ \r") for line in lines if sign in line), "")
        if complaint:
            return Diagnosis(complaint, remedy.format(host=host.name))
    if _PASSING.search(said):
        return Diagnosis(f"{text}; its sshd may take no more connections now", "raise MaxStartups there, or try again", passing=True)
    return Diagnosis(text, f"try it by hand: ssh -o BatchMode=yes {host.name} true")
