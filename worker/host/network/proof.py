"""A proof by which a controller and those who dial it show to each other that they know the secret of the run, which itself is never sent.

::

    controller    32 random bytes
    who dials     32 random bytes, and the proof of both
    controller    its own proof of both

From then on each side sends records: a length, a code that only who knows the secret can make, and data. The code counts the records, so
that none is left out, sent again or sent back. Anyone on the way can read the data.

This module is also sent as text, next to the programs that use it: it imports no module of orch, and any Python 3.8 can read it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
from collections.abc import Iterator

NONCE_BYTES = PROOF_BYTES = 32
GREETING_BYTES = NONCE_BYTES + PROOF_BYTES
"""What comes of somebody who dials, before anything of him is believed."""
MOST_BYTES = 1 << 18
"""The longest data of a record."""
CODE_BYTES = 16
_HEAD = struct.Struct(f">I{CODE_BYTES}s")
GUEST, HOST = b"guest", b"host"


def prove(secret: bytes, who: bytes, nonces: bytes) -> bytes:
    return hmac.new(secret, who + nonces, hashlib.sha256).digest()


class Seal:
    """One end of a connection whose ends have proved themselves: makes the records of this end, and reads those of the other."""

    def __init__(self, secret: bytes, nonces: bytes, me: bytes) -> None:
        other = HOST if me == GUEST else GUEST
        self._keys = prove(secret, b"key of " + me, nonces), prove(secret, b"key of " + other, nonces)
        self._sent = self._received = 0
        self._rest = b""

    def seal(self, data: bytes) -> bytes:
        """The records with these data."""
        records = []
        for start in range(0, len(data), MOST_BYTES):
            part = data[start : start + MOST_BYTES]
            records += [_HEAD.pack(len(part), self._code(0, self._sent, part)), part]
            self._sent += 1
        return b"".join(records)

    def open(self, data: bytes) -> Iterator[bytes]:
        """The data of the records that are complete with these bytes. Raises ValueError for a record that the other end has not sent."""
        self._rest += data
        at = 0
        try:
            while len(self._rest) - at >= _HEAD.size:
                length, code = _HEAD.unpack_from(self._rest, at)
                if length > MOST_BYTES:
                    raise ValueError("a record that no one has sent")
                part = self._rest[at + _HEAD.size : at + _HEAD.size + length]
                if len(part) < length:
                    return
                if not hmac.compare_digest(code, self._code(1, self._received, part)):
                    raise ValueError("a record that no one has sent")
                self._received += 1
                at += _HEAD.size + length
                yield part
        finally:
            self._rest = self._rest[at:]

    def _code(self, way: int, number: int, data: bytes) -> bytes:
        return hmac.new(self._keys[way], struct.pack(">QI", number, len(data)) + data, hashlib.sha256).digest()[:CODE_BYTES]


def greet(secret: bytes, nonce: bytes) -> tuple[bytes, bytes]:
    """Return the answer of the one who dials to the first bytes of a controller; and the nonces of both."""
    nonces = nonce + os.urandom(NONCE_BYTES)
    return nonces[NONCE_BYTES:] + prove(secret, GUEST, nonces), nonces


def admit(secret: bytes, nonce: bytes, greeting: bytes) -> tuple[bytes, Seal]:
    """Return the answer of a controller to a `greet`, and the controller's end. Raises ValueError for one who does not know the secret."""
    nonces = nonce + greeting[:NONCE_BYTES]
    if not hmac.compare_digest(greeting[NONCE_BYTES:], prove(secret, GUEST, nonces)):
        raise ValueError("no one of this run")
    return prove(secret, HOST, nonces), Seal(secret, nonces, HOST)


def meet(line: socket.socket, secret: bytes) -> Seal:
    """Prove this end of a connection to a controller, who proves the other. Raises OSError, and ValueError where no controller is."""
    greeting, nonces = greet(secret, _receive(line, NONCE_BYTES))
    line.sendall(greeting)
    if not hmac.compare_digest(_receive(line, PROOF_BYTES), prove(secret, HOST, nonces)):
        raise ValueError("it does not know the secret of this run")
    return Seal(secret, nonces, GUEST)


def _receive(line: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while (missing := size - sum(map(len, parts))) > 0:
        part = line.recv(missing)
        if not part:
            raise ValueError("it has ended the connection: it does not know the secret of this run, or does not believe that this end does")
        parts.append(part)
    return b"".join(parts)
