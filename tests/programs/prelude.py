"""What stands before each program of `tests.live.write_script`; its names are the program's."""

import json
import os
import signal
import socket
import subprocess  # noqa: F401 - for the program that follows
import sys  # noqa: F401 - and this
import time
from pathlib import Path

TASK = os.environ["ORCH_TASK"]


def tell(name: str, text: object = "") -> None:
    """Let the test and the other tasks know."""
    aside = Path(f".{name}.{TASK}.{os.getpid()}")
    aside.write_text(str(text))
    aside.replace(name)


def ready() -> None:
    tell(f"{TASK}.ready", os.getpid())


def wait_for(*names: str) -> None:
    while not all(Path(name).exists() for name in names):
        time.sleep(0.005)


def sleep() -> None:
    while True:
        time.sleep(1000)


def ignore(*numbers: int) -> None:
    for number in numbers or (signal.SIGTERM,):
        signal.signal(number, signal.SIG_IGN)


def listen() -> socket.socket:
    """Come up, as TensorFlow does: beside the agent, on the task's own port."""
    config = json.loads(os.environ["TF_CONFIG"])
    address = config["cluster"][config["task"]["type"]][config["task"]["index"]]
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind(("127.0.0.1", int(address.rpartition(":")[2])))
    server.listen()
    return server


def leave_behind(text: str, own_session: bool = False) -> None:
    """A child that outlives this process, and runs the text; returns when that has said that it is ready."""
    if os.fork() == 0:
        if own_session:
            os.setsid()
            if os.fork():
                os._exit(0)
        exec(text, globals())
        os._exit(0)
    if own_session:
        os.wait()
