"""A `tensorboard` task: TensorBoard, for the directory that the user has named, on the port that the agent holds.

TensorBoard binds with SO_REUSEPORT here, as the held port asks for, and on the loopback interface alone: anyone who reaches it reads all
logs.
"""

from __future__ import annotations

import socket
import sys
import time
from typing import Any, NoReturn


def serve(directory: str, port: str) -> NoReturn:
    """Serve without end. `directory`: relative to the working directory of the tasks. Exits with 1 if TensorBoard is not installed."""
    try:
        from tensorboard import default, program
    except ImportError as error:
        # TensorBoard before 2.21 imports pkg_resources, which setuptools 82 and newer do not have (tensorboard#7064).
        package = "'setuptools<82'" if error.name == "pkg_resources" else "tensorboard"
        print(f"orch: warning: TensorBoard cannot be imported ({error}). fix: {sys.executable} -m pip install {package}", file=sys.stderr)
        sys.exit(1)

    class Server(program.WerkzeugServer):  # type: ignore[misc]
        def server_bind(self) -> None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            super().server_bind()

    board: Any = program.TensorBoard(default.get_plugins(), server_class=Server)
    # Without its own process for reading, which would listen on another port.
    board.configure(argv=["tensorboard", "--logdir", directory, "--host", "127.0.0.1", "--port", port, "--load_fast", "false"])
    board.launch()
    while True:  # SIGTERM ends this
        time.sleep(3600)
