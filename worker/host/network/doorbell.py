"""Being tried by other hosts.

A host that can be tried listens on one of its held ports and says a word that only it knows: another machine with the same
private address, of which there are many, is not taken for it.
"""

from __future__ import annotations

import contextlib
import socket

from ..loop import Loop


class Doorbell:
    """Says `word` to whoever connects to `port`, which this process holds, until it is closed."""

    def __init__(self, loop: Loop, port: int, word: str) -> None:
        self._loop, self._word = loop, word.encode()
        self._sock: socket.socket | None = None
        for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
            try:
                self._sock = self._listen(family, address, port)
                break
            except OSError:
                continue
        if self._sock is not None:
            loop.on_readable(self._sock, self._answer)

    @staticmethod
    def _listen(family: int, address: str, port: int) -> socket.socket:
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind((address, port))
            sock.listen(1024)
            sock.setblocking(False)
        except OSError:
            sock.close()
            raise
        return sock

    def _answer(self) -> None:
        assert self._sock is not None
        with contextlib.suppress(OSError):
            peer, _ = self._sock.accept()
            with peer:
                peer.setblocking(False)
                peer.send(self._word)
                peer.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        if self._sock is not None:
            self._loop.forget(self._sock)
            self._sock.close()
            self._sock = None
