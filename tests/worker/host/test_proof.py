"""What a controller and those who dial it send each other to prove that they know one secret, and the records afterwards."""

from __future__ import annotations

import socket
import threading

import pytest

from worker.host.network import proof

SECRET = b"s" * 32


def both(guest: bytes = SECRET, host: bytes = SECRET) -> tuple[proof.Seal, proof.Seal]:
    """The seals of a guest and of a host. Raises ValueError."""
    nonce = b"n" * proof.NONCE_BYTES
    greeting, nonces = proof.greet(guest, nonce)
    _, seal = proof.admit(host, nonce, greeting)
    return proof.Seal(guest, nonces, proof.GUEST), seal


def test_records_arrive_as_they_were_sent_however_they_are_cut() -> None:
    guest, host = both()
    data = bytes(range(256)) * 3000
    sent = guest.seal(data) + guest.seal(b"end")
    got = [part for start in range(0, len(sent), 10_007) for part in host.open(sent[start : start + 10_007])]
    assert (b"".join(got), got[-1]) == (data + b"end", b"end")
    assert [*guest.open(host.seal(b"answer"))] == [b"answer"]
    assert guest.seal(b"") == b""


def test_who_does_not_know_the_secret_is_not_admitted() -> None:
    with pytest.raises(ValueError, match="no one of this run"):
        both(guest=b"t" * 32)


def test_a_record_that_was_changed_repeated_left_out_or_sent_back_is_refused() -> None:
    for tamper in ("change", "length", "repeat", "leave out", "send back"):
        guest, host = both()
        first, second = guest.seal(b"first"), guest.seal(b"second")
        assert [*host.open(first)] == [b"first"]
        bad = {
            "change": second[:-1] + b"x",
            "length": b"\xff" + second[1:],
            "repeat": first,
            "leave out": guest.seal(b"third"),
            "send back": host.seal(b"second"),
        }[tamper]
        with pytest.raises(ValueError, match="no one has sent"):
            list(host.open(bad))


def test_an_answer_of_before_proves_nothing() -> None:
    greeting, _ = proof.greet(SECRET, b"n" * proof.NONCE_BYTES)
    with pytest.raises(ValueError, match="no one"):
        proof.admit(SECRET, b"m" * proof.NONCE_BYTES, greeting)


@pytest.mark.parametrize("answer", [b"", b"x" * proof.PROOF_BYTES])
def test_a_controller_that_does_not_know_the_secret_is_not_believed(answer: bytes) -> None:
    here, there = socket.socketpair()
    with here, there:

        def pretend() -> None:
            there.sendall(b"n" * proof.NONCE_BYTES)
            there.recv(proof.GREETING_BYTES)
            there.sendall(answer)
            there.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(ValueError, match="secret of this run"):
            proof.meet(here, SECRET)
        thread.join()
