"""What a machine shows of a TPU before TensorFlow is asked: its chips, and what Google's metadata server tells of it."""

from __future__ import annotations

import os
from collections.abc import Mapping

# As jax/_src/hardware_utils.py looks: Google's vendor id on the PCI bus, and those of its devices that are TPUs.
_GOOGLE = "0x1ae0"
_TPUS = {"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"}
_PCI = "/sys/bus/pci/devices"
LOOKED = f"a PCI device of Google's in {_PCI}"
"""Where `count_chips` looks, in words."""

METADATA_HOST = "metadata.google.internal"
_METADATA_ADDRESS = "169.254.169.254"
"""The address of that name on every machine of Google's: a look-up of the name may hang where a machine has no network."""
_ANSWER_S = 1.0


def count_chips() -> int:
    """How many TPU chips this machine has."""
    try:
        devices = os.listdir(_PCI)
    except OSError:  # no Linux, or a container that hides it
        return 0
    return sum(_read(f"{_PCI}/{name}/vendor") == _GOOGLE and _read(f"{_PCI}/{name}/device") in _TPUS for name in devices)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def metadata_server(env: Mapping[str, str]) -> str:
    """The host of the metadata server, as TensorFlow finds it (`_gce_metadata_endpoint`, tensorflow/python/tpu/client/client.py)."""
    return env.get("GCE_METADATA_HOST") or env.get("GCE_METADATA_IP") or METADATA_HOST


def is_tpu_vm(env: Mapping[str, str]) -> bool:
    """Whether the metadata server tells what libtpu asks it for, as on a TPU VM; other clouds have a server at that address, which refuses.

    Takes a second or two at most, but for the look-up of a name that a variable gives.
    """
    from http.client import HTTPConnection, HTTPException  # only a machine with libtpu gets here

    host, _, port = metadata_server(env).partition(":")
    try:
        asked = HTTPConnection(_METADATA_ADDRESS if host == METADATA_HOST else host, int(port or 80), timeout=_ANSWER_S)
        try:
            asked.request("GET", "/computeMetadata/v1/instance/attributes/tpu-env", headers={"Metadata-Flavor": "Google"})
            return asked.getresponse().status == 200
        finally:
            asked.close()
    except (OSError, HTTPException, ValueError, OverflowError):
        return False
