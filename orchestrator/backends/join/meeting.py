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
from collections.abc import Callable, Mapping

from worker.host.network import proof
from worker.host.network.interfaces import find_addresses
from worker.values.codec import from_json, to_json
from worker.values.fast_dataclass import dataclass

from ...errors import OrchError, UsageError
from ...model import joining
from ...model.joining import TOKEN, Seat
from ...model.settings import JoinSettings
from ..connection.listener import PORT
from . import pmi, pmix

TELL_S = 10.0
"""How often a node says what it waits for."""
PUBLISH_S, LOOK_S = 5.0, 2.0
"""How long an answer of the launcher is waited for, before node 0 waits for the others, and before another node looks again."""


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
        """Called by node 0, which listens. Raises `OrchError`, OSError."""

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


class ByLauncher(Meeting):
    """The launcher passes the ticket on. If it cannot, the nodes meet in another way."""

    def __init__(self, env: Mapping[str, str], otherwise: Meeting, say: Callable[[str], None]) -> None:
        name, self._exchange = ("PMI", pmi.exchange) if pmi.is_there(env) else ("PMIx", pmix.exchange)
        self._env, self._otherwise, self._say = dict(env), otherwise, say
        self.secret, self.words = secrets.token_hex(32), f"by the launcher ({name})"
        self._ticket: Ticket | None = None
        self._thread: threading.Thread | None = None
        """Waits for the launcher, which may take for ever."""

    def publish(self, ticket: Ticket) -> None:
        if not self._is_waiting(ticket.text(), PUBLISH_S) and self._ticket is None:
            self._otherwise.publish(ticket)

    def find(self) -> Ticket:
        if self._is_waiting(None, LOOK_S):
            raise OSError("not all processes of the launcher have come")
        return self._ticket or self._otherwise.find()

    def withdraw(self) -> None:
        self._otherwise.withdraw()

    def _is_waiting(self, text: str | None, limit_s: float) -> bool:
        if self._thread is None:
            self._thread = threading.Thread(target=self._wait, args=(text,), daemon=True)
            self._thread.start()
        self._thread.join(limit_s)
        return self._thread.is_alive()

    def _wait(self, text: str | None) -> None:
        try:
            self._ticket = Ticket.read(self._exchange(self._env, text))
        except (OSError, ValueError) as error:
            self._say(f"the launcher does not pass it on ({error}): the nodes meet {self._otherwise.words}")


def meet(settings: JoinSettings, home: str, say: Callable[[str], None]) -> Meeting:
    """The way on which the nodes meet. Raises `UsageError` if there is none that keeps others out."""
    seat, env = here()
    where, secret = settings.join_at or seat.first, env.get(TOKEN, "")
    if secret and (where or settings.node_index == 0):
        return ByPort(where or "localhost", secret)
    if settings.join_at:
        raise no_secret(f"--join-at {settings.join_at}")
    has_launcher = pmi.is_there(env) or pmix.is_there(env)
    if has_launcher or settings.join_dir or seat.shares_files or not seat.engine:
        file = ByFile(settings.join_dir or home, f"{settings.job or 'no job'} {seat.attempt}")
        return ByLauncher(env, file, say) if has_launcher and not settings.join_dir else file
    raise no_secret(f"{seat.engine}: the nodes share no file that orch knows of (--join-dir DIR names one)")


def no_secret(why: str) -> UsageError:
    what = f"{why}: the nodes need a secret that no one else has, in {TOKEN}"
    return UsageError(what, "make one with openssl rand -hex 32, and pass it to all nodes as the engine passes secrets", "join")
