"""Finds whether hosts reach each other: by connecting, as their tasks will. `try_to_reach` tries other hosts, `ProbeListener` answers them.

Before the tasks start, a host listens on the ports that it holds, and sends a word that the controller has given to it alone: another
machine with the same private address, of which there are many, is not taken for this host.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable

from ...machine.own_process import die_with_parent
from ...protocol.messages import Refused, Target
from ..processes.loop import Loop

TRY_S = 2.5
"""How long one connection may take: a lost SYN is sent again after one second."""
TRIES = 2
"""Connections that may time out. Each comes from another port: a path that loses some (one of several links that is dead, a firewall
that looks at the sender's port) is one by which the tasks get through, and no reason to take another address."""
WORD_S = 20.0
"""How long a host that is reached may take to send its word: its agent has other things to do."""
LOOKUP_S = 40.0
"""How long nothing may be reached or refused: each thread then waits for a resolver, which itself gives up after 5 s, twice, with each of
up to three servers (resolv.conf(5)), unless a plug-in of the resolver hangs."""
AT_ONCE = 64
"""Connections that are being made at the same time."""


def try_to_reach(loop: Loop, targets: tuple[Target, ...], on_done: Callable[[tuple[Refused, ...]], None]) -> None:
    """Try all addresses of all targets, a bounded number at a time; `on_done` gets once what was not reached.

    A child process tries them, because names are looked up in threads, and an agent with threads could not be forked safely.
    """
    agent_pid = os.getpid()
    results, sink = os.pipe()
    try:
        child = os.fork()
    except OSError as error:  # the limit of processes
        os.close(results)
        os.close(sink)
        on_done(_all_with(f"could not be tried: {error.strerror}", targets))
        return
    if child == 0:
        _try_all(targets, agent_pid, sink)
    os.close(sink)
    received = bytearray()

    def on_readable() -> None:
        data = os.read(results, 65536)
        received.extend(data)
        if not data:
            loop.forget(results)
            os.close(results)
            with contextlib.suppress(ChildProcessError):  # the agent may have reaped the child already
                os.waitpid(child, 0)  # the child has this host's listeners, too: they must be closed before a task starts
            try:
                on_done(tuple(Refused(*result) for result in json.loads(received)))
            except ValueError:  # the child has failed, or was killed
                on_done(_all_with("could not be tried: the process that tries to connect has ended early", targets))

    loop.on_readable(results, on_readable)


def _all_with(refusal: str, targets: tuple[Target, ...]) -> tuple[Refused, ...]:
    return tuple(Refused(target.host, port, address, refusal) for target, port, address in _all(targets))


def _all(targets: tuple[Target, ...]) -> list[tuple[Target, int, str]]:
    return [(target, port, address) for target in targets for port in target.ports for address in target.addresses]


def _try_all(targets: tuple[Target, ...], agent_pid: int, sink: int) -> None:
    """Runs in the child, and never returns."""
    try:
        die_with_parent(agent_pid)
        signal.set_wakeup_fd(-1)  # a signal of the child must not wake the agent
        results = _try_in_threads(_all(targets))
        with open(sink, "w") as pipe:
            json.dump(results, pipe)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


def _try_in_threads(places: list[tuple[Target, int, str]]) -> list[tuple[str, int, str, str]]:
    """Return what was not reached, as `Refused` has it. Threads that still wait for a resolver are left."""
    import queue
    import threading

    waiting, done = list(places), queue.SimpleQueue[tuple[tuple[Target, int, str], str]]()

    def work() -> None:
        with contextlib.suppress(IndexError):
            while True:
                place = waiting.pop()
                done.put((place, _try(*place)))

    for started in range(min(AT_ONCE, len(places))):
        try:
            threading.Thread(target=work, daemon=True).start()
        except RuntimeError:  # the limit of processes: fewer threads take longer
            if not started:
                raise
            break
    refusals = dict.fromkeys(places, f"the look-up of names does not answer for {LOOKUP_S:g} s")
    with contextlib.suppress(queue.Empty):
        for _ in places:
            place, refusal = done.get(timeout=LOOKUP_S)
            refusals[place] = refusal
    return [(target.host, port, address, refusal) for (target, port, address), refusal in refusals.items() if refusal]


def _try(target: Target, port: int, address: str) -> str:
    """Why this port of the target was not reached; empty: it was."""
    try:
        family, kind, protocol, _, resolved = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        for _ in range(TRIES):
            with socket.socket(family, kind, protocol) as sock, contextlib.suppress(TimeoutError):
                # The connection ends with a reset: in TIME_WAIT, the port of the other host could not be held again for a minute.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.settimeout(TRY_S)
                sock.connect(resolved)
                return _await_word(sock, target.word.encode())
        return "timed out"
    except Exception as error:  # of whatever kind: an answer is waited for. UnicodeError: no name of a host looks so
        return (getattr(error, "strerror", None) or str(error) or repr(error)).lower()


def _await_word(sock: socket.socket, word: bytes) -> str:
    """Why the word has not come over a connection; empty: it has."""
    sock.settimeout(WORD_S)
    received = b""
    try:
        while len(received) <= len(word) and (data := sock.recv(256)):
            received += data
    except TimeoutError:
        return f"it is reached, and says nothing for {WORD_S:g} s"
    return "" if received == word else "another machine answers"


class ProbeListener:
    """Sends `word` to every host that connects to `port`, which this process holds, until it is closed. Raises OSError."""

    def __init__(self, loop: Loop, port: int, word: str) -> None:
        self._loop, self._word = loop, word.encode()
        try:
            self._sock = socket.create_server(("", port), family=socket.AF_INET6, backlog=1024, reuse_port=True, dualstack_ipv6=True)
        except (OSError, ValueError):  # there is no IPv6 here
            self._sock = socket.create_server(("", port), backlog=1024, reuse_port=True)
        self._sock.setblocking(False)
        loop.on_readable(self._sock, self._on_connection)

    def _on_connection(self) -> None:
        with contextlib.suppress(OSError):
            peer, _ = self._sock.accept()
            with peer:
                peer.setblocking(False)
                peer.send(self._word)
                peer.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._loop.forget(self._sock)
        self._sock.close()
