"""Finds a TPU of this machine without TensorFlow: its chips, and the answers of Google's metadata server."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

from .kernel_files import text_of

# As in jax/_src/hardware_utils.py: Google's vendor id on the PCI bus, and the ids of TPUs.
_GOOGLE = "0x1ae0"
_TPUS = {"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"}
_PCI = "/sys/bus/pci/devices"
SEARCHED = f"a PCI device of Google's in {_PCI}"

METADATA_HOST = "metadata.google.internal"
_METADATA_ADDRESS = "169.254.169.254"
"""The address of that name on every machine of Google's. On a machine without a network, the look-up of the name may hang."""
_QUESTION = "/computeMetadata/v1/instance/attributes/tpu-env"
_ANSWER_S = 1.0
"""How long the connection may take, and the first line of the answer."""


def count_chips() -> int:
    """The number of TPU chips of this machine."""
    try:
        devices = os.listdir(_PCI)
    except OSError:  # not Linux, or a container that hides the directory
        return 0
    return sum(
        text_of(f"{_PCI}/{name}/vendor").strip() == _GOOGLE and text_of(f"{_PCI}/{name}/device").strip() in _TPUS for name in devices
    )


def metadata_server(env: Mapping[str, str]) -> str:
    """The host of the metadata server, as in TensorFlow (`_gce_metadata_endpoint`, tensorflow/python/tpu/client/client.py)."""
    return env.get("GCE_METADATA_HOST") or env.get("GCE_METADATA_IP") or METADATA_HOST


def is_tpu_vm(env: Mapping[str, str]) -> bool:
    """True if the metadata server answers libtpu's questions, as on a TPU VM. Other clouds have a server at that address, which refuses.

    This takes two seconds at most, and longer only if a variable names a server whose look-up takes long.
    """
    host, _, port = metadata_server(env).partition(":")
    request = f"GET {_QUESTION} HTTP/1.1\r\nHost: {host}\r\nMetadata-Flavor: Google\r\nConnection: close\r\n\r\n"
    try:
        with socket.create_connection((_METADATA_ADDRESS if host == METADATA_HOST else host, int(port or 80)), _ANSWER_S) as connection:
            until = time.monotonic() + _ANSWER_S
            connection.sendall(request.encode())
            answer = b""
            while b"\n" not in answer and (left_s := until - time.monotonic()) > 0:
                connection.settimeout(left_s)  # a time limit of a socket begins again with each byte
                part = connection.recv(1024)
                if not part:
                    break
                answer += part
            return answer.split()[1:2] == [b"200"]
    except (OSError, ValueError, OverflowError):
        return False
