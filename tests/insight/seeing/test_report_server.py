"""`orch report --serve`: the page at an address that nobody else knows, up to date while the run goes on."""

from __future__ import annotations

import contextlib
import http.client
import signal
import socket
import struct
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.views.report_server import ReportServer
from tests.conftest import Orch
from tests.live import held_run
from tests.made_up_run import MadeUpRun


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReportServer]:
    with ReportServer(MadeUpRun(tmp_path, seconds=60.0).run) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server: ReportServer, method: str = "GET", path: str | None = None, host: str = "") -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    path = "/" + server.address.split("/", 3)[3] if path is None else path
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, dict(answer.getheaders())


def test_it_serves_the_page_at_its_address_alone(server: ReportServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    status, text, headers = ask(server)
    assert status == 200
    assert "<title>made-up-2: succeeded</title>" in text
    assert 'http-equiv="refresh"' not in text, "the run is over"
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert ask(server, host=f"localhost:{server.server_port}")[0] == 200
    for path in ("/", "/index.html", "/../../etc/passwd", "/%ff", "/x" * 40):
        status, text, _ = ask(server, path=path)
        assert (status, "made-up" in text) == (404, False), path


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "localhost:1"])
def test_another_host_is_refused(server: ReportServer, host: str) -> None:
    """A page of the Internet whose name leads to 127.0.0.1 all at once."""
    assert ask(server, host=host)[0] == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_answers_get_alone(server: ReportServer, method: str) -> None:
    assert ask(server, method)[0] == 501


def test_whoever_goes_away_or_sends_what_is_no_request_costs_no_line_and_no_browser(
    server: ReportServer, capfd: pytest.CaptureFixture[str]
) -> None:
    for sent in (b"", b"\0" * 70_000, b"GET / HTTP/1.1\r\n", b"GET " + b"/" * 70_000, b"\x16\x03\x01\n", b"GET / HTTP/9.9\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.server_port)) as guest, contextlib.suppress(OSError):
            guest.sendall(sent)
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.server_port)) as guest:
            path = server.address.split("/", 3)[3]
            guest.sendall(f"GET /{path} HTTP/1.1\r\nHost: {server.hosts[0]}\r\n\r\n".encode())
            guest.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, as of a browser that is closed
    assert ask(server)[0] == 200
    server.shutdown()
    server.server_close()  # waits for no thread, but none of them writes a traceback
    assert capfd.readouterr().err == ""


def test_a_run_that_goes_on_is_shown_anew_until_ctrl_c(orch: Orch, tmp_path: Path) -> None:
    with held_run(tmp_path / ".orch", workers=2) as (run, _):
        serving = orch.start("report", "--serve")
        serving.wait_for("Ctrl-C ends this")
        with urllib.request.urlopen(serving.out.strip(), timeout=60) as answer:
            text = answer.read().decode()
        assert f"<title>{run.run_id}: goes on</title>" in text
        assert '<meta http-equiv="refresh" content="5">' in text
        serving.signal(signal.SIGINT)
        serving.wait(check=0)


def test_it_writes_no_file(orch: Orch, tmp_path: Path) -> None:
    MadeUpRun(tmp_path / ".orch", seconds=60.0).run.make_latest()
    assert "--serve writes no file" in orch.in_process("report", "--serve", "--bundle", check=2).err
