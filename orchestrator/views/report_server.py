"""The server of ``orch report --serve``: the page of a run, made again while the run goes on, for browsers on this machine.

It listens on 127.0.0.1 alone. Other users of the machine can connect, too, and pages of the Internet can make a browser connect: so the
address holds a random word, which no one else knows, and a request must name this address as its host (against DNS rebinding).
"""

from __future__ import annotations

import hmac
import secrets
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ..errors import OrchError
from ..record.run_directory import RunDir
from .report_page import page

REFRESH_S = 5.0
"""How often a browser asks for the page of a run that goes on."""
SHARE = 10
"""A page that takes a second to make is made every so many seconds at most: looking must not slow the run down."""
QUIET_S = 30.0
"""A connection that sends nothing for so long is closed."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class ReportServer(ThreadingHTTPServer):
    """Serves the page of a run at `address` once `serve_forever` is called."""

    daemon_threads = True

    def __init__(self, run: RunDir, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._run, self._clock = run, clock
        self._word = secrets.token_urlsafe(16)
        self._lock = threading.Lock()
        self._page, self._due = b"", 0.0
        """The page, and the time from which on it is made again."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return what a request may name as its host."""
        return tuple(f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost"))

    @property
    def address(self) -> str:
        return f"http://{self.hosts[0]}/{self._word}/"

    def is_asked_for(self, path: str) -> bool:
        """True if this is the path of the page."""
        return hmac.compare_digest(path.strip("/").encode("utf-8", "replace"), self._word.encode())

    def page(self) -> bytes:
        """The page of the run as it is now, or was a moment ago. Raises `OrchError`."""
        with self._lock:  # several browsers wait for one page
            if self._clock() >= self._due:
                begun, lives = self._clock(), self._run.is_alive()  # read first: the last page shows the end
                made = page(self._run, refresh_s=REFRESH_S if lives else None)
                self._page = made.encode("utf-8", "backslashreplace")
                took = self._clock() - begun
                self._due = self._clock() + max(REFRESH_S / 2, SHARE * took)
            return self._page

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away before it had its answer, as at a reload, is no error of this server."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET, and nothing else."""

    server: ReportServer
    server_version, sys_version = "orch", ""
    timeout = QUIET_S

    def do_GET(self) -> None:
        if self.headers.get_all("Host") not in [[host] for host in self.server.hosts]:
            self._send(HTTPStatus.FORBIDDEN, b"This address is for browsers on this machine.\n", "text/plain")
        elif not self.server.is_asked_for(self.path):
            self._send(HTTPStatus.NOT_FOUND, b"orch report --serve has printed the address of the page.\n", "text/plain")
        else:
            try:
                status, content, kind = HTTPStatus.OK, self.server.page(), "text/html"
            except (OrchError, OSError) as error:
                status, content, kind = HTTPStatus.INTERNAL_SERVER_ERROR, f"{error}\n".encode("utf-8", "replace"), "text/plain"
            self._send(status, content, kind)

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: requests are of no interest, and hold the word."""
