"""What is set before TensorFlow is imported in a task that takes a TPU."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worker.agent_double import run_task
from worker.machine import tpu_host
from worker.protocol.messages import Program
from worker.settings.tpu_settings import TpuSettings

SAYS = "import os\nprint(os.environ.get('TPU_SKIP_MDS_QUERY'), os.environ.get('TPU_LOAD_LIBRARY'))"


@pytest.fixture
def told(tmp_path: Path) -> Callable[..., str]:
    """``told("local", libtpu=True, TPU_NAME=…)``: the two variables as a task finds them."""

    def run(tpu: str, *, libtpu: bool = True, **env: str) -> str:
        (tmp_path / "s.py").write_text(SAYS)
        if libtpu:
            (tmp_path / "libtpu.py").touch()
        return run_task(Program("script", "s.py"), tmp_path, strategy="tpu", tpu=TpuSettings(tpu=tpu), env=env).check().out.strip()

    return run


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_libtpu_asks_nobody_where_no_metadata_server_answers(told: Callable[..., str]) -> None:
    assert told("local", GCE_METADATA_HOST=closed_port()) == "1 None"
    assert told("auto", GCE_METADATA_HOST=closed_port()) == "1 None"


@pytest.mark.parametrize(("status", "found"), [(200, "None None"), (403, "1 None"), (404, "1 None")])
def test_libtpu_asks_the_metadata_server_that_tells_of_a_tpu(told: Callable[..., str], status: int, found: str) -> None:
    """Another cloud's server, and that of a machine without a TPU, would be asked again and again."""

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/computeMetadata/v1/instance/attributes/tpu-env" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert told("local", GCE_METADATA_HOST=f"127.0.0.1:{server.server_port}") == found
        thread.join()


def test_a_server_that_says_nothing_is_given_up(told: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert told("local", GCE_METADATA_HOST=f"127.0.0.1:{silent.getsockname()[1]}") == "1 None"


@pytest.mark.parametrize("says", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n"], ids=["a byte at a time", "that the answer comes soon"])
def test_a_server_that_never_comes_to_an_end_is_given_up(told: Callable[..., str], says: bytes) -> None:
    given_up = threading.Event()

    def serve(server: socket.socket) -> None:
        with server.accept()[0] as connection, contextlib.suppress(OSError):
            while True:
                connection.sendall(says)
                if given_up.wait(0.2):
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,), daemon=True)
        thread.start()
        assert told("local", GCE_METADATA_HOST=f"127.0.0.1:{server.getsockname()[1]}") == "1 None"
        given_up.set()
        thread.join()


def test_what_the_user_says_stands(told: Callable[..., str]) -> None:
    assert told("local", TPU_SKIP_MDS_QUERY="0", GCE_METADATA_HOST=closed_port()) == "0 None"
    assert told("my-tpu", TPU_LOAD_LIBRARY="1") == "None 1"


def test_a_tpu_of_other_hosts_is_not_taken_from_them(told: Callable[..., str]) -> None:
    assert told("my-tpu", GCE_METADATA_HOST=closed_port()) == "None 0"
    assert told("auto", TPU_WORKER_HOSTNAMES="h0,h1") == "None 0"


def test_nobody_is_looked_for_without_libtpu(told: Callable[..., str]) -> None:
    assert told("local", libtpu=False, GCE_METADATA_HOST="no host") == "None None"


def test_chips_are_googles_devices_on_the_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu_host, "_PCI", str(tmp_path))
    assert tpu_host.count_chips() == 0
    for name, vendor, device in (
        ("0", "0x1ae0", "0x0063"),
        ("1", "0x1ae0", "0x0063"),
        ("2", "0x1ae0", "0x1111"),
        ("3", "0x10de", "0x0063"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "device").write_text(f"{device}\n")
    assert tpu_host.count_chips() == 2
    monkeypatch.setattr(tpu_host, "_PCI", str(tmp_path / "nowhere"))
    assert tpu_host.count_chips() == 0
