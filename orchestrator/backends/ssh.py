"""Hosts that the OpenSSH client reaches: one connection each, with the user's own configuration, keys, agents and host-key policy.

Nothing of orch is installed there: `worker/` is sent over the connection (see remote_worker.py).
"""

from __future__ import annotations

import re
import shlex
import socket
from collections.abc import Mapping, Sequence

from worker.values.words import few

from ..errors import Problem
from ..model.spec import ClusterSpec, HostSpec, SshSettings
from . import Backend, Cleanup, Diagnosis, Host, StartFailure, Transport, Workdir, interpreters, local, remote_worker

# BatchMode: ssh asks no questions. RemoteCommand and forwardings of the user's configuration are for people who log in.
OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes", "-o", "RemoteCommand=none")
_HERE = {"localhost", "127.0.0.1", "::1"}


class Ssh:
    """See `Backend`."""

    def problems(self, spec: ClusterSpec) -> Sequence[Problem]:
        """A problem if the spec names this machine twice: two tasks would get the same cores and GPUs."""
        here = [host.name for host in _settings(spec).hosts if _is_here(host)]
        if len(here) < 2:
            return ()
        message = f"{' and '.join(here)} are one machine, this one; name it once, with all of its slots: {here[0]}:N"
        return (Problem("backend.hosts", message),)

    def hosts(self, spec: ClusterSpec) -> tuple[Host, ...]:
        return tuple(_host(_settings(spec), named) for named in _settings(spec).hosts)

    def python_for(self, spec: ClusterSpec, host: Host) -> str:
        """See `Backend`. With `setup` lines or shipped code, a host need not have its Python at the same path as this machine."""
        settings, named = _settings(spec), _named(spec, host)
        is_like_here = not (settings.code == "ship" or settings.setup or named.setup)
        return interpreters.find(spec, named.python, is_here=host.is_here, has_ours=is_like_here)

    def transport(self, spec: ClusterSpec, host: Host) -> Transport:
        if host.is_here:
            return interpreters.transport_here(self.python_for(spec, host), spec)
        return remote_worker.transport(self._command(spec, host))

    def explain(self, host: Host, failure: StartFailure) -> Diagnosis:
        return local.explain(failure) if host.is_here else explain(host.name, failure)

    def request(self, spec: ClusterSpec) -> Mapping[str, str]:
        return {f"agent-{host.name}.txt": shlex.join(self.transport(spec, host).argv) + "\n" for host in self.hosts(spec)}

    def cancel(self, spec: ClusterSpec, run_id: str) -> Cleanup:
        """Kill the tasks on this machine only: on the other hosts, an agent without a controller ends its tasks by itself."""
        unseen = tuple(host.name for host in self.hosts(spec) if not host.is_here)
        return Cleanup(local.kill_tasks(run_id), unseen, _describe_unseen(spec, run_id, unseen) if unseen else "")

    def _command(self, spec: ClusterSpec, host: Host) -> tuple[str, ...]:
        settings, named = _settings(spec), _named(spec, host)
        login = (*(("-l", named.user) if named.user else ()), *(("-p", str(named.port)) if named.port else ()))
        setup = settings.setup if named.setup is None else named.setup
        remote = remote_worker.shell_command(self.python_for(spec, host), setup)
        return (*(settings.ssh or ("ssh",)), *OPTIONS, *login, "--", host.name, remote)


def make() -> Backend:
    return Ssh()


def _settings(spec: ClusterSpec) -> SshSettings:
    assert isinstance(spec.backend, SshSettings)
    return spec.backend


def _host(settings: SshSettings, named: HostSpec) -> Host:
    if _is_here(named):
        return Host(named.name, named.address, sees_run_dir=True, slots=named.slots, interface=named.interface)
    workdir = Workdir(settings.code, settings.code_limit_mb)
    return Host(named.name, named.address, False, named.slots, settings.lost_after_s, named.interface, is_here=False, workdir=workdir)


def _named(spec: ClusterSpec, host: Host) -> HostSpec:
    return next(named for named in _settings(spec).hosts if named.name == host.name)


def _is_here(host: HostSpec) -> bool:
    """Whether the host is this machine and needs no ssh. With a user or a port in the spec, ssh is used."""
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


def explain(host: str, failure: StartFailure) -> Diagnosis:
    """Why ssh, or the program that it started on the host, ended before an agent ran."""
    if failure.error is not None:
        return Diagnosis(failure.text, "install the OpenSSH client, or set backend.ssh")
    return _explain_ssh(host, failure.said) if failure.code == 255 else remote_worker.explain(host, failure, by="ssh")


def _explain_ssh(host: str, said: str) -> Diagnosis:
    lines = said.splitlines()
    text = next((line.strip() for line in reversed(lines) if line.strip()), "ssh gave up and did not say why")
    # Over a jump host, the error of the jump host comes first, and then the end of the connection that was to go through it.
    lines = [line for line in lines if not _PASSING.search(line)]
    for sign, remedy in _REMEDIES:
        complaint = next((line.strip("@ \r") for line in lines if sign in line), "")
        if complaint:
            return Diagnosis(complaint, remedy.format(host=host))
    if _PASSING.search(said):
        return Diagnosis(f"{text}; its sshd may take no more connections now", "raise MaxStartups there, or try again", passing=True)
    return Diagnosis(text, f"try it by hand: ssh -o BatchMode=yes {host} true")
