"""TFRecord files without TensorFlow, for tests; tests/real/test_shards.py holds them, and what counts them, against TensorFlow's own."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path


def _divide(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


_TABLE = [_divide(value) for value in range(256)]


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def write(path: Path, records: Iterable[bytes], compression: str = "") -> Path:
    data = b"".join(map(record, records))
    if compression:
        data = gzip.compress(data) if compression == "GZIP" else zlib.compress(data)
    path.write_bytes(data)
    return path
