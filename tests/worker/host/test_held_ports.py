"""Ports that a host holds (worker/host/network/held_ports.py)."""

from __future__ import annotations

import pytest

from worker.host.network import held_ports


def test_a_kernel_without_a_free_port_is_no_reason_to_ask_for_the_kernels_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_ports, "_bind", lambda port: None)
    with pytest.raises(held_ports.PortsExhaustedError) as caught:
        held_ports.hold(2, None)
    assert str(caught.value) == (
        "ports of the kernel's choice (net.ipv4.ip_local_port_range) are used up: 2 needed, 0 free; "
        "end what holds them (ss -tanp), or give a range outside of it (ports:)"
    )
