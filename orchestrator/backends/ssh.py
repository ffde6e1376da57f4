"""Hosts that the OpenSSH client reaches: one connection each, with the user's own configuration, keys, agents and host-key policy.

Nothing of orch is installed there: `worker/` is sent over the connection (see remote_worker.py).
"""

from __future__ import annotations

import re
import shlex
import socket
from collections.abc import Sequence
from dataclasses import replace

from worker.values.words import few

from ..errors import Problem
from ..model.settings import ClusterSpec, HostSpec, SshSettings
from . import (
    Backend,
    Cleanup,
    Diagnosis,
    Host,
    NamedHosts,
    Reaching,
    Request,
    RunFacts,
    StartFailure,
    Transport,
    Workdir,
    interpreters,
    local,
    remote_worker,
)

# BatchMode: ssh asks no questions. RemoteCommand and forwardings of the user's configuration are for people who log in.
OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes", "-o", "RemoteCommand=none")
OWN_CONNECTION = ("-o", "ControlPath=none")
"""A connection that the user's configuration shares (ControlMaster) may be the one that stalls; but it may be the only one that needs no
password."""
REACHING = Reaching(at_once=8, tries=6)
"""From ten connections on, an sshd drops some at random (MaxStartups), and a jump host carries all."""
_HERE = {"localhost", "127.0.0.1", "::1"}


class Ssh(NamedHosts):
    def problems(self, spec: ClusterSpec) -> Sequence[Problem]:
        """A problem if the spec names this machine twice: two tasks would get the same cores and GPUs."""
        here = [host.name for host in _settings(spec).hosts if _is_here(host)]
        if len(here) < 2:
            return ()
        message = f"{' and '.join(here)} are one machine, this one; name it once, with all of its slots: {here[0]}:N"
        return (Problem("backend.hosts", message),)

    def request(self, run: RunFacts) -> Request:
        return Request(run, tuple(_host(run.spec, _settings(run.spec), named) for named in _settings(run.spec).hosts), reaching=REACHING)

    def explain(self, host: Host, failure: StartFailure) -> Diagnosis:
        told = local.explain(failure) if host.is_here else explain(host.name, failure, _by_hand(host.transport.argv))
        return replace(told, about="ssh")

    def cancel(self, run: RunFacts) -> Cleanup:
        """Kill the tasks on this machine only: on the other hosts, an agent without a controller ends its tasks by itself."""
        unseen = tuple(named.name for named in _settings(run.spec).hosts if not _is_here(named))
        return Cleanup(local.kill_tasks(run.run_id), unseen, _describe_unseen(run.spec, run.run_id, unseen) if unseen else "")


def make() -> Backend:
    return Ssh()


def _settings(spec: ClusterSpec) -> SshSettings:
    assert isinstance(spec.backend, SshSettings)
    return spec.backend


def _host(spec: ClusterSpec, settings: SshSettings, named: HostSpec) -> Host:
    """A host. With `setup` lines or shipped code, it need not have its Python at the same path as this machine."""
    is_here, is_like_here = _is_here(named), not (settings.code == "ship" or settings.setup or named.setup)
    python = interpreters.find(spec, named.python, is_here=is_here, has_ours=is_like_here)
    host = Host(named.name, named.address, is_here, named.slots, interface=named.interface, is_here=is_here, python=python)
    if is_here:
        return replace(host, transport=interpreters.transport_here(python, spec))
    argv, way_back = (_command(settings, named, python, options) for options in (OPTIONS, (*OPTIONS, *OWN_CONNECTION)))
    transport = Transport(argv, brings_worker=True, returns=True, way_back=way_back)
    workdir = Workdir(settings.code, settings.code_limit_mb, settings.code_secrets)
    return replace(host, lost_after_s=settings.lost_after_s, workdir=workdir, transport=transport)


def _command(settings: SshSettings, named: HostSpec, python: str, options: Sequence[str]) -> tuple[str, ...]:
    login = (*(("-l", named.user) if named.user else ()), *(("-p", str(named.port)) if named.port else ()))
    setup = settings.setup if named.setup is None else named.setup
    return (*(settings.ssh or ("ssh",)), *options, *login, "--", named.name, remote_worker.shell_command(python, setup))


def _by_hand(argv: Sequence[str]) -> str:
    """The command by which a user logs in to the host of a `_command`, with the user's own options."""
    words = list(argv[:-1])
    own = next(at for at in range(len(words)) if tuple(words[at : at + len(OPTIONS)]) == OPTIONS)
    del words[own : own + len(OPTIONS)]
    words.remove("--")
    return shlex.join(words)


def _is_here(host: HostSpec) -> bool:
    """True if the host is this machine and needs no ssh. With a user or a port in the spec, ssh is used."""
    return not (host.user or host.port) and (host.name in _HERE or host.name == socket.gethostname())


def _describe_unseen(spec: ClusterSpec, run_id: str, names: Sequence[str]) -> str:
    return (
        f"{few(names)}: not looked at; an agent ends its tasks and itself once its connection closes, or after "
        f"{_settings(spec).lost_after_s:g} s without a word\n"
        f"to make sure: ssh {names[0]} grep -lsz ORCH_RUN_ID={run_id} '/proc/[0-9]*/environ' (names what is left there, by pid)"
    )


# --- an agent that does not start -------------------------------------------------------------------

_PASSING = re.compile(
    r"kex_exchange_identification|Connection (?:closed|reset) by|Connection reset|banner exchange|Exceeded MaxStartups|MaxSessions|"
    r"Temporary failure in name resolution|mux_client_request_session|Session open refused"
)
_FORGET = re.compile(r"""^\s*(ssh-keygen -f ["']?/?[\w./@+-]*known_hosts\w*["']? -R ["']?[\w\[][\w.:\[\]-]*["']?)\s*$""", re.MULTILINE)
"""The command that ssh itself names, whole on a line, for a file of known hosts and without what a shell acts on: a host writes to the same
stream."""
_REMEDIES = (
    ("UNPROTECTED PRIVATE KEY FILE", "others may read your key, so ssh does not use it: chmod 600 it"),
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "its host key is not the one you know: if that is right, {forget}, then log in once: {ssh}"),
    ("Host key verification failed", "its host key is not known yet: log in once, and compare the key that is shown: {ssh}"),
    ("Permission denied", "it refused your keys: ssh-copy-id {host}, load the key into your agent (ssh-add), or name it in ~/.ssh/config"),
    ("Too many authentication failures", "name the right key in ~/.ssh/config (IdentityFile, IdentitiesOnly yes)"),
    ("Could not resolve hostname", "check the name, or give it a HostName in ~/.ssh/config"),
    ("Connection refused", "no sshd listens there: check the port (port:, or Port in ~/.ssh/config)"),
    ("No route to host", "check the address, and that the host is up"),
    ("Network is unreachable", "check the address, and that the host is up"),
    ("timed out", "check the address, the port and the firewall, and that the host is up"),
    ("Bad owner or permissions", "ssh refuses its own configuration until that is mended"),
)


def explain(host: str, failure: StartFailure, by_hand: str) -> Diagnosis:
    """Why ssh, or the program that it started on the host, ended before an agent ran. `by_hand`: the command that logs a user in there."""
    if failure.error is not None:
        return Diagnosis(failure.text, "install the OpenSSH client, or set backend.ssh")
    return _explain_ssh(host, failure.said, by_hand) if failure.code == 255 else remote_worker.explain(host, failure, by="ssh")


def _explain_ssh(host: str, said: str, by_hand: str) -> Diagnosis:
    lines = said.splitlines()
    text = next((line.strip() for line in reversed(lines) if line.strip()), "ssh gave up and did not say why")
    # Over a jump host, the error of the jump host comes first, and then the end of the connection that was to go through it.
    lines = [line for line in lines if not _PASSING.search(line)]
    for sign, remedy in _REMEDIES:
        complaint = next((line.strip("@ \r") for line in lines if sign in line), "")
        if complaint:
            forget = _FORGET.search(said)  # ssh itself knows the file and the port
            told = remedy.format(host=host, ssh=by_hand, forget=forget[1] if forget else f"ssh-keygen -R {host}")
            return Diagnosis(complaint.rstrip("."), told)
    if _PASSING.search(said):
        return Diagnosis(text, "its sshd may take no more connections now: raise MaxStartups there, or try again", passing=True)
    return Diagnosis(text, f"try it: {by_hand} true")
