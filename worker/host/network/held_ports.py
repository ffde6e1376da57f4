"""Ports that no other program can take between the choice and TensorFlow's bind.

The agent binds a port and keeps it for the run, and does not listen there while tasks run. The bind itself is exclusive; only then does
the agent switch on ``SO_REUSEPORT``. So a task of the same user with ``TF_GRPC_REUSE_PORT=true`` may bind and listen at the same port,
while the kernel refuses the port to a second launcher. (gRPC reads the variable in
tensorflow/core/distributed_runtime/rpc/grpc_server_lib.cc; pull request tensorflow#38705.)
"""

from __future__ import annotations

import socket


class PortsExhaustedError(Exception):
    """Fewer free ports than tasks; the message has the range, the numbers and the remedy."""


def hold(count: int, ports: tuple[int, int] | None) -> list[socket.socket]:
    """`count` bound sockets, from the range `ports` (inclusive) or of the kernel's choice. Raises `PortsExhaustedError`."""
    held: list[socket.socket] = []
    for port in range(ports[0], ports[1] + 1) if ports else [0] * count:
        if len(held) < count and (sock := _bind(port)) is not None:
            held.append(sock)
    if len(held) == count:
        return held
    for sock in held:
        sock.close()
    if ports:
        span, remedy = f"{ports[0]}-{ports[1]}", "give a wider range (ports:), or none, and the kernel chooses"
    else:
        span = "of the kernel's choice (net.ipv4.ip_local_port_range)"
        remedy = "end what holds them (ss -tanp), or give a range outside of it (ports:)"
    raise PortsExhaustedError(f"ports {span} are used up: {count} needed, {len(held)} free; {remedy}")


def _bind(port: int) -> socket.socket | None:
    """None: the port is taken, or not ours to take."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.bind(("0.0.0.0", port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError:
        sock.close()
        return None
    return sock
