"""Orders and frames on a byte stream.

One message is a header of sixteen bytes, then JSON, then raw data (only `Output` has any), then a newline::

    offset  size  what
    0       4     the bytes "orch"
    4       1     version (messages.PROTOCOL)
    5       1     kind: the number of the message type in messages.ORDERS or messages.FRAMES
    6       2     1 if the data is escaped, else zero
    8       4     length of the JSON, big endian, at most MAX_JSON
    12      4     length of the data, big endian, at most MAX_DATA

The newline is in neither length. Some transports forward whole lines only (srun), and would keep the end of a message without one. They
take time for each line, so data may be escaped: a newline is then the bytes 1 3, and a byte 1 the bytes 1 2.
The JSON is ASCII: lone surrogates travel as ``\\udcXX`` escapes. Every message is checked: the stream may contain a login banner, or
text that the shell of a host prints.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from ..values.codec import from_json, to_json
from . import messages

HEADER = struct.Struct(">4sBBHII")
MAGIC = b"orch"
END = b"\n"
MAX_JSON = 64 * 1024 * 1024
"""Enough for a `StartTasks` with a hundred thousand tasks. It limits the memory that a host can make the controller use."""
MAX_DATA = 4 * 1024 * 1024


class ChannelError(Exception):
    """The stream does not contain this version of the protocol; the message shows what it contains."""


_TO_TEXT = json.JSONEncoder(separators=(",", ":")).encode
_KINDS = {cls: kind for table in (messages.ORDERS, messages.FRAMES) for kind, cls in table.items()}


def _escape(data: bytes) -> bytes:
    return data.replace(b"\1", b"\1\2").replace(b"\n", b"\1\3")


def _unescape(data: bytes) -> bytes:
    return data.replace(b"\1\3", b"\n").replace(b"\1\2", b"\1")


def encode(message: Any, data: bytes = b"", *, escaped: bool = False) -> bytes:
    """One message as bytes. `escaped`: its data without newlines."""
    if len(data) > MAX_DATA:
        raise ChannelError(f"{type(message).__name__} with {len(data)} bytes is too long for a channel")
    data = _escape(data) if escaped else data
    text = _TO_TEXT(to_json(message)).encode("ascii")
    if len(text) > MAX_JSON:
        raise ChannelError(f"{type(message).__name__} of {len(text)} + {len(data)} bytes is too long for a channel")
    return b"".join((HEADER.pack(MAGIC, messages.PROTOCOL, _KINDS[type(message)], escaped, len(text), len(data)), text, data, END))


class Decoder:
    """Bytes in, messages out. `table` is what may arrive: `messages.ORDERS` or `messages.FRAMES`."""

    def __init__(self, table: Mapping[int, type[Any]]) -> None:
        self._table = table
        self._buffer = bytearray()
        self.json_size = 0
        """How many bytes of JSON the last message had."""

    @property
    def unfinished(self) -> int:
        """Return how many bytes have come of a message that is not complete."""
        return len(self._buffer)

    def feed(self, chunk: bytes) -> Iterator[tuple[Any, bytes]]:
        """Each message that `chunk` completes, with its data. Raises `ChannelError`."""
        self._buffer += chunk
        while self._begins_message():
            message_type, is_escaped, json_size, data_size = self._read_header()
            end, self.json_size = HEADER.size + json_size + data_size, json_size
            if len(self._buffer) < end + len(END):
                return
            if self._buffer[end : end + len(END)] != END:
                raise ChannelError(f"a {message_type.__name__} that does not end where its header says")
            with memoryview(self._buffer) as view:  # one copy only, because a message may be long
                text = str(view[HEADER.size : end - data_size], "ascii", "replace")
                data = bytes(view[end - data_size : end])
            del self._buffer[: end + len(END)]
            try:
                message = from_json(message_type, json.loads(text))
            except (ValueError, RecursionError) as error:
                raise ChannelError(f"a broken {message_type.__name__}: {error}") from None
            yield message, _unescape(data) if is_escaped else data

    def _begins_message(self) -> bool:
        """True if a whole header is there. A banner may be shorter than a header, and is refused without waiting for sixteen bytes."""
        if not MAGIC.startswith(self._buffer[: len(MAGIC)]):
            raise ChannelError(f"expected orch's frames, got {bytes(self._buffer[:80])!r}")
        return len(self._buffer) >= HEADER.size

    def _read_header(self) -> tuple[type[Any], int, int, int]:
        _, version, kind, escaped, json_size, data_size = HEADER.unpack_from(self._buffer)
        if version != messages.PROTOCOL:
            raise ChannelError(f"the other end speaks version {version} of orch's protocol, this end speaks {messages.PROTOCOL}")
        if kind not in self._table:
            raise ChannelError(f"a message of unknown kind {kind}")
        if json_size > MAX_JSON or data_size > (2 * MAX_DATA if escaped else MAX_DATA):
            raise ChannelError(f"a message of {json_size} + {data_size} bytes is longer than any that orch sends")
        return self._table[kind], escaped, json_size, data_size
