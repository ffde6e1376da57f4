"""Ways for the nodes of a run to meet: node 0 publishes where it listens, and a secret; the others read that. Each way is a `Meeting`."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from worker.host.network import proof
from worker.host.network.interfaces import find_addresses
from worker.values.codec import from_json, to_json
from worker.values.fast_dataclass import dataclass

from ...errors import OrchError, UsageError
from ...model import joining
from ...model.joining import TOKEN, Seat
from ...model.settings import JoinSettings
from ..connection.listener import PORT
from . import pmi

TELL_S = 10.0
"""How often a node says what it waits for."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """The address at which node 0 listens, and the secret of the run."""

    hosts: tuple[str, ...]
    port: int
    secret: str

    def text(self) -> str:
        """Without blanks."""
        return json.dumps(to_json(self), separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> Ticket:
        """Raises ValueError."""
        return from_json(cls, json.loads(text))


@functools.lru_cache(maxsize=1)
def here() -> tuple[Seat, Mapping[str, str]]:
    """The facts that the engine tells this process, and the environment that it has given. No task, and no agent, gets those variables."""
    env = dict(os.environ)
    texts = {}
    for name in joining.FILES:
        with contextlib.suppress(OSError), open(env.get(name, "/dev/null"), encoding="utf-8", errors="replace") as file:
            texts[name] = file.read(1 << 20)
    return joining.detect(env, socket.getfqdn() if "JOB_COMPLETION_INDEX" in env else socket.gethostname(), texts), env


class Meeting:
    """``words`` say which way it is, for people: ``by the file /shared/a.join``."""

    words: str
    secret: str
    port = 0
    """Where node 0 listens; 0: at any port."""

    def publish(self, ticket: Ticket) -> None:
        """Called by node 0, which listens. May wait for all nodes. Raises `OrchError`, OSError."""

    def find(self) -> Ticket:
        """Called by the others, again and again. Raises OSError with the reason if there is none yet."""
        raise NotImplementedError

    def withdraw(self) -> None:
        """Called by node 0 at the end of the run."""


def new_ticket(meeting: Meeting, port: int) -> Ticket:
    """The ticket of a node 0 that listens at this port: with all of its addresses, of which the others try each."""
    found = [each.address for each in find_addresses() if not each.address.lower().startswith(("127.", "fe80:", "::1"))]
    own = [each for each in found if not each.startswith("172.17.")] or found  # not the bridge of Docker
    return Ticket((*own[:8], "127.0.0.1"), port, meeting.secret)


class ByPort(Meeting):
    """Nothing publishes: the address is known, and all nodes have the secret."""

    def __init__(self, where: str, secret: str) -> None:
        name, _, port = where.rpartition(":") if where.rpartition(":")[2].isdecimal() and not where.endswith("]") else (where, "", "")
        self._host, self.port, self.secret = name.strip("[]"), int(port or PORT), secret
        self.words = f"at {self._host or 'node 0'}:{self.port}, with the secret in {TOKEN}"

    def find(self) -> Ticket:
        return Ticket((self._host,), self.port, self.secret)


class ByFile(Meeting):
    """A file in a directory that all nodes see, which only this user can read."""

    def __init__(self, directory: str, job: str) -> None:
        name = hashlib.sha256(f"{os.geteuid()} {job}".encode()).hexdigest()[:16]
        self._path = os.path.join(os.path.abspath(directory), f"{name}.join")
        self.secret = secrets.token_hex(32)
        self.words = f"by the file {self._path}"

    def publish(self, ticket: Ticket) -> None:
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        self._refuse_another()
        fd, aside = tempfile.mkstemp(dir=os.path.dirname(self._path))  # for this user alone
        with open(fd, "w", encoding="ascii") as file:
            file.write(ticket.text())
        os.replace(aside, self._path)

    def _refuse_another(self) -> None:
        """Raise `OrchError` if another node 0 of this job listens. One that was killed leaves its file."""
        with contextlib.suppress(OSError, ValueError):
            ticket = self.find()
            for host in ticket.hosts:
                with contextlib.suppress(OSError, ValueError), socket.create_connection((host, ticket.port), 2.0) as line:
                    proof.meet(line, ticket.secret.encode())
                    raise OrchError(f"two nodes have the index 0: the other one listens at {host}:{ticket.port} ({self._path})")

    def find(self) -> Ticket:
        directory = os.path.dirname(self._path)
        with contextlib.suppress(OSError):
            os.listdir(directory)  # NFS looks again
        try:
            with open(self._path, encoding="ascii") as file:
                found = os.fstat(file.fileno())
                if found.st_uid != os.geteuid() or found.st_mode & 0o077:
                    raise OSError(f"{self._path} is not a file that only you can read")
                return Ticket.read(file.read(1 << 16))
        except FileNotFoundError:
            raise OSError(f"node 0 has not written {self._path} yet; do all nodes see this directory? (--join-dir, --join-at)") from None
        except ValueError:
            raise OSError(f"{self._path} cannot be read") from None

    def withdraw(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path)


class ByPmi(Meeting):
    """The launcher passes the ticket on."""

    def __init__(self, env: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._env, self._say = dict(env), say
        self.secret, self.words = secrets.token_hex(32), "by the launcher (PMI)"
        self._ticket: Ticket | None = None

    def publish(self, ticket: Ticket) -> None:
        self._exchange(ticket.text())

    def find(self) -> Ticket:
        self._ticket = self._ticket or Ticket.read(self._exchange(None))
        return self._ticket

    def _exchange(self, text: str | None) -> str:
        """Wait in a thread, which a launcher without an answer keeps for ever; and say so now and then."""
        done: list[Any] = []

        def wait() -> None:
            try:
                done.append(pmi.exchange(self._env, text))
            except (OSError, ValueError) as error:
                done.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        began = time.monotonic()
        while thread.is_alive():
            thread.join(TELL_S)
            if thread.is_alive():
                self._say(f"not all processes of the launcher have come after {time.monotonic() - began:.0f} s")
        if not isinstance(done[0], str):
            raise OrchError(f"the nodes cannot meet by the launcher (PMI): {done[0]}", "meet by --join-dir or --join-at", "join")
        return done[0]


def meet(settings: JoinSettings, home: str, say: Callable[[str], None]) -> Meeting:
    """The way on which the nodes meet. Raises `UsageError` if there is none that keeps others out."""
    seat, env = here()
    where, secret = settings.join_at or seat.first, env.get(TOKEN, "")
    if secret and (where or settings.node_index == 0):
        return ByPort(where or "localhost", secret)
    if settings.join_at:
        raise no_secret(f"--join-at {settings.join_at}")
    if pmi.is_there(env) and not settings.join_dir:
        return ByPmi(env, say)
    if settings.join_dir or seat.shares_files or not seat.engine:
        return ByFile(settings.join_dir or home, f"{settings.job or 'no job'} {seat.attempt}")
    raise no_secret(f"{seat.engine}: the nodes share no file that orch knows of (--join-dir DIR names one)")


def no_secret(why: str) -> UsageError:
    what = f"{why}: the nodes need a secret that no one else has, in {TOKEN}"
    return UsageError(what, "make one with openssl rand -hex 32, and pass it to all nodes as the engine passes secrets", "join")
