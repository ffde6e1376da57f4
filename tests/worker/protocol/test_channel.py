"""The wire: what goes in comes out, and nothing else does."""

from __future__ import annotations

import dataclasses
import json
import math
import tracemalloc
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.protocol import channel
from worker.protocol import messages as contract
from worker.protocol.channel import ChannelError, Decoder, encode
from worker.protocol.task_id import TaskId
from worker.values.codec import ContractError, from_json, to_json

HELLO = contract.Hello("run-1", 2, (4000, 4001), (contract.Program("script", "a.py", ("x",)),), "/w", owner_grace_s=0.5)


def decode(data: bytes, table: Any = contract.ORDERS) -> list[tuple[Any, bytes]]:
    return list(Decoder(table).feed(data))


def test_a_message_ends_with_a_newline_for_transports_that_forward_lines() -> None:
    output = encode(contract.Output("worker-0", 1, "stdout", 7), b"no newline")
    assert output.endswith(b"no newline\n")
    with pytest.raises(ChannelError, match="does not end where its header says"):
        decode(output[:-1] + b"o", contract.FRAMES)


@given(st.binary(max_size=80), st.lists(st.sampled_from([b"\n", b"\1", b"\2", b"\3", b"x"])))
def test_data_without_newlines_comes_out_with_them(noise: bytes, odd: list[bytes]) -> None:
    output, data = contract.Output("worker-0", 1, "stdout", 7), noise + b"".join(odd)
    stream = encode(output, data, escaped=True)
    assert b"\n" not in stream[channel.HEADER.size : -1]
    assert decode(stream * 2, contract.FRAMES) == [(output, data)] * 2


def test_every_kind_of_message_has_its_own_number() -> None:
    assert not contract.ORDERS.keys() & contract.FRAMES.keys()
    assert all(0 < kind < 256 for kind in (*contract.ORDERS, *contract.FRAMES))


@given(st.lists(st.binary(max_size=50), max_size=8), st.lists(st.integers(1, 40), min_size=1))
def test_any_chunking_gives_the_same_messages(payloads: list[bytes], sizes: list[int]) -> None:
    messages = [(contract.Output("worker-0", 1, "stderr", number), data) for number, data in enumerate(payloads)]
    stream = b"".join(encode(message, data) for message, data in messages)
    decoder = Decoder(contract.FRAMES)
    found: list[tuple[Any, bytes]] = []
    position = 0
    while position < len(stream):
        size = sizes[len(found) % len(sizes)]
        found += decoder.feed(stream[position : position + size])
        position += size
    assert found == messages


@given(st.binary(max_size=200))
def test_noise_is_refused_and_never_anything_worse(noise: bytes) -> None:
    with suppress(ChannelError):
        assert all(isinstance(message, tuple(contract.ORDERS.values())) for message, _ in decode(noise))


@given(st.integers(0, 15), st.binary(min_size=1, max_size=4), st.data())
def test_a_damaged_message_is_refused_or_still_a_message(position: int, damage: bytes, data: st.DataObject) -> None:
    stream = bytearray(encode(HELLO))
    stream[position : position + len(damage)] = damage
    with suppress(ChannelError):
        assert all(isinstance(message, tuple(contract.ORDERS.values())) for message, _ in decode(bytes(stream)))


def test_a_login_banner_is_shown_as_what_it_is() -> None:
    with pytest.raises(ChannelError, match="Welcome to Debian"):
        decode(b"Welcome to Debian\n")


def test_another_version_is_named() -> None:
    message = bytearray(encode(HELLO))
    message[4] = contract.PROTOCOL + 1
    with pytest.raises(ChannelError, match=rf"speaks version {contract.PROTOCOL + 1} .* this end speaks {contract.PROTOCOL}"):
        decode(bytes(message))


def test_an_order_is_no_frame() -> None:
    with pytest.raises(ChannelError, match="unknown kind"):
        decode(encode(HELLO), contract.FRAMES)


def test_lengths_beyond_the_limits_are_refused_before_they_are_read() -> None:
    for table in (contract.ORDERS, contract.FRAMES):
        header = channel.HEADER.pack(b"orch", contract.PROTOCOL, min(table), 0, channel.MAX_JSON + 1, 0)
        with pytest.raises(ChannelError, match="longer than any"):
            decode(header, table)


def test_a_long_message_is_not_held_three_times() -> None:
    stream = encode(contract.TaskWaiting("worker-0", 1, "x" * (16 * 1024 * 1024), 0.0))
    tracemalloc.start()
    try:
        assert len(decode(stream, contract.FRAMES)) == 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2.5 * len(stream)


EXITED = contract.TaskExited("worker-0", 1, 0, False, 0.0)
FACTS = contract.HostReady(7, "/python", "3.11", 2)
DEEP: Any = json.loads("[" * 400 + "]" * 400)
BAD_VALUES = {
    "an exit code that the kernel makes 0 of": dataclasses.replace(EXITED, code=256),
    "an exit code of Python's": dataclasses.replace(EXITED, code=-9),
    "a time that no calendar has": dataclasses.replace(EXITED, at=1e300),
    "a negative port": dataclasses.replace(FACTS, ports=(4000, -1)),
    "too many cores to divide": dataclasses.replace(FACTS, cores=10**300),
    "no core": dataclasses.replace(FACTS, cores=0),
    "the pid of a group": contract.TaskStarted("worker-0", 1, -1, 0.0),
    "a file of less than nothing": contract.Output("worker-0", 1, "stdout", -1),
    "a piece of a file beyond all files": contract.Output("worker-0", 1, "stdout", 2**63),
    "a network of more bits than an address": dataclasses.replace(FACTS, addresses=(contract.NetAddress("eth0", "10.0.0.1", 129),)),
    "a number that no float is": contract.TaskReported("worker-0", 1, {"loss": 10**400}, 0.0),
    "a report deeper than a stack": contract.TaskReported("worker-0", 1, {"loss": DEEP}, 0.0),
    "more ports than there are": dataclasses.replace(HELLO, ports=1_000_000),
    "a range of ports beyond the last": dataclasses.replace(HELLO, port_range=(60_000, 70_000)),
    "NUL in a path": dataclasses.replace(HELLO, cwd="/w\0"),
    "NUL in an argument": dataclasses.replace(HELLO, programs=(contract.Program("script", "a.py", ("\0",)),)),
    "NUL in a variable": contract.StartTasks((), env={"A\0": ""}),
    "a grace period of less than nothing": contract.StopTasks((), -1.0),
}


@pytest.mark.parametrize("message", BAD_VALUES.values(), ids=BAD_VALUES)
def test_a_value_out_of_its_range_is_refused(message: Any) -> None:
    table = contract.ORDERS if type(message) in contract.ORDERS.values() else contract.FRAMES
    with pytest.raises(ChannelError, match=rf"a broken {type(message).__name__}: {type(message).__name__}\..*(expected a value|deeper)"):
        decode(encode(message), table)


@dataclass(frozen=True)
class Numbered:
    names: Mapping[int, str]


def test_keys_that_are_numbers_are_numbers_again() -> None:
    numbered = Numbered({0: "a", 12: "b"})
    assert from_json(Numbered, json.loads(json.dumps(to_json(numbered)))) == numbered


@pytest.mark.parametrize(
    ("cls", "data", "where"),
    [
        (contract.Ack, {"size": "7"}, "Ack.size"),
        (contract.Ack, {"size": True}, "Ack.size"),
        (contract.Ack, {}, "size"),
        (contract.Ack, {"size": 1, "more": 2}, "more"),
        (contract.Ack, [1], "Ack"),
        (contract.StopTasks, {"tasks": ["a", 1], "grace_s": 1}, r"StopTasks.tasks\[1\]"),
        (contract.Hello, {"run_id": "x", "port_range": [1]}, "Hello.port_range"),
        (contract.Program, {"kind": "virus"}, "Program.kind"),
        (contract.StartTasks, {"orders": [{"task": 1}]}, r"StartTasks.orders\[0\].task"),
        (contract.StopTasks, {"tasks": [], "grace_s": math.nan}, "StopTasks.grace_s"),
        (contract.StopTasks, {"tasks": [], "grace_s": -math.inf}, "StopTasks.grace_s"),
        (contract.StopTasks, {"tasks": [], "grace_s": 10**400}, "StopTasks.grace_s"),
        (Numbered, {"names": {"one": "a"}}, "Numbered.names: expected <class 'int'>, got 'one'"),
        (Numbered, {"names": {"١": "a"}}, "Numbered.names: expected <class 'int'>"),
    ],
)
def test_a_wrong_shape_is_refused_by_name(cls: type[Any], data: Any, where: str) -> None:
    with pytest.raises(ContractError, match=where):
        from_json(cls, data)


def test_a_task_is_read_back_from_its_name() -> None:
    assert TaskId.parse("data_worker-12") == TaskId("data_worker", 12)
    for wrong in ("worker", "worker-", "-1", "worker-x", "worker-١"):
        with pytest.raises(ContractError):
            TaskId.parse(wrong)
