"""How many records a TFRecord file holds, and where it is damaged: from the headers alone, without TensorFlow.

A record is a header of 12 bytes (8 bytes, little endian, for the length of the data, and their checksum of 4 bytes), the data, and the
data's checksum of 4 bytes (`RecordWriter` in tensorflow/core/lib/io/record_writer.h).
"""

from __future__ import annotations

import os
import struct

_HEADER = struct.Struct("<QI")
_FOOTER = 4


class DamagedFileError(ValueError):
    """A file that is cut off, or is no TFRecord file; the message names file and byte."""


def count(path: str) -> int:
    """The number of records in an uncompressed file. Reads 12 bytes of each. Raises `DamagedFileError`, `OSError`."""
    found = at = 0
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        while at < size:
            header = os.pread(file.fileno(), _HEADER.size, at)
            if len(header) < _HEADER.size:
                raise DamagedFileError(f"{path} is cut off at byte {size}, in the header of the record that begins at byte {at}")
            length, checksum = _HEADER.unpack(header)
            if _masked_crc32c(header[:8]) != checksum:
                raise DamagedFileError(f"{path}: no record begins at byte {at}, where one should: the file is damaged or no TFRecord file")
            end = at + _HEADER.size + length + _FOOTER
            if end > size:
                raise DamagedFileError(f"{path} is cut off at byte {size}: the record that begins at byte {at} needs {end - size} more")
            found, at = found + 1, end
    return found


def _masked_crc32c(data: bytes) -> int:
    """The checksum of a header: CRC-32C (Castagnoli), rotated and shifted (`Mask` in tensorflow/core/lib/hash/crc32c.h)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _entry(number: int) -> int:
    for _ in range(8):
        number = (number >> 1) ^ (0x82F63B78 if number & 1 else 0)
    return number


_TABLE = tuple(map(_entry, range(256)))
