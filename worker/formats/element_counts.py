"""Counts the elements of a file without decoding them: TFRecords by their headers, and lines. Standard library only.

A TFRecord file is records of: length (8 bytes, little endian), the masked CRC-32C of these 8 bytes (4), the data, the data's CRC (4)
(tensorflow/core/lib/io/record_writer.h). This module skips the data of a record; the first CRC shows that the length is right. So it finds
a file that was cut short, or is no TFRecord file, and names the byte. It does not find a wrong bit inside the data.
"""

from __future__ import annotations

import functools
import io
import os
import re
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

KINDS = ("tfrecord", "text", "csv", "image", "other")
WITH_READER = ("tfrecord", "text")
"""The kinds that TensorFlow can divide by files: `TFRecordDataset`, `TextLineDataset` (`kReaderDatasetOps` in auto_shard.cc)."""

_BY_NAME = re.compile(
    r"(?P<tfrecord>\.(tfrecords?|tfr|tfrec)\b)|(?P<csv>\.[ct]sv\b)|(?P<text>\.(txt|text|jsonl|ndjson|lines)\b)"
    r"|(?P<image>\.(jpe?g|png|gif|bmp|webp)$)",
    re.IGNORECASE,
)
_BLOCK = 1 << 16
_CHUNK = 1 << 20
_HEADER, _FOOTER = 12, 4
_GZIP, _ZLIB = b"\x1f\x8b", (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
"""How compressed data begins (RFC 1952; RFC 1950, with the window that TensorFlow uses)."""


class Damaged(Exception):
    """A damaged file. `at`: the byte where the damage was found; `what`: a description."""

    def __init__(self, at: int, what: str) -> None:
        self.at, self.what = at, what
        super().__init__(f"at byte {at:,}: {what}")


def kind_by_name(name: str) -> str:
    """One of `KINDS`, by the last part of a file's path; "": unknown."""
    found = _BY_NAME.search(os.path.basename(name))
    return (found.lastgroup or "") if found else ""


def looks_like_tfrecord(head: bytes) -> bool:
    """True if a file begins like a TFRecord file."""
    return len(head) >= _HEADER and _is_length(head[:_HEADER])


def count(file: BinaryIO, size: int, kind: str) -> int | None:
    """The number of elements of a file of `size` bytes, open at its beginning; None: unknown. Raises `Damaged`, OSError."""
    head = file.read(_HEADER)
    file.seek(0)
    if kind == "tfrecord":
        is_compressed = head.startswith((_GZIP, *_ZLIB)) and not looks_like_tfrecord(head)
        return _count_compressed(file, head, _count_records) if is_compressed else _count_records(file, size)
    if kind in ("text", "csv"):
        return _count_compressed(file, head, _count_lines) if head.startswith(_GZIP) else _count_lines(file)
    return 1 if kind == "image" else None


# --- TFRecord ----------------------------------------------------------------------------------


def _count_records(file: BinaryIO, size: int | None = None) -> int:
    """`size`: None for compressed data, whose records are read to be skipped."""
    at = counted = 0
    while (size is None or at < size) and (header := file.read(_HEADER)):
        if len(header) < _HEADER:
            raise Damaged(at + len(header), f"the file ends inside the header of record {counted:,}, which begins at byte {at:,}")
        if not _is_length(header):
            what = f"the header of record {counted:,} is damaged" if counted else "this is no TFRecord file"
            raise Damaged(at, f"{what} (the checksum of its length is wrong)")
        start, left = at, int.from_bytes(header[:8], "little") + _FOOTER
        at += _HEADER + left
        if size is None:
            while left and (skipped := file.read(min(left, _CHUNK))):
                left -= len(skipped)
        else:
            left = max(0, at - size)
            file.seek(at - left)
        if left:
            what = f"the file ends inside record {counted:,}, which begins at byte {start:,} and should end at byte {at:,}"
            raise Damaged(at - left, what)
        counted += 1
    return counted


@functools.lru_cache(4096)  # the records of a file often have only a few lengths
def _is_length(header: bytes) -> bool:
    crc = _crc32c(header)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF == int.from_bytes(header[8:12], "little")


@functools.cache
def _table() -> list[int]:
    """The table for CRC-32C of one byte."""
    table = list(range(256))
    for _ in range(8):
        table = [value >> 1 ^ (0x82F63B78 if value & 1 else 0) for value in table]
    return table


def _crc32c(data: bytes) -> int:
    """CRC-32C of the first eight bytes."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in data[:8]:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


# --- compressed data ---------------------------------------------------------------------------


def _count_compressed(file: BinaryIO, head: bytes, count: Callable[[Any], int]) -> int:
    """`count` for the decompressed data, in which the positions of its messages are. The data is decompressed in pieces."""
    import gzip  # few files are compressed

    try:
        return count(gzip.GzipFile(fileobj=file) if head.startswith(_GZIP) else io.BufferedReader(_ZlibFile(file), _BLOCK))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise Damaged(file.tell(), f"the compressed data is damaged or cut short before this byte ({error})") from None


class _ZlibFile(io.RawIOBase):
    """The decompressed data of a file, from the beginning to the end. What follows the first ZLIB stream is left out, as by TensorFlow."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._stream = file, zlib.decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Raises EOFError if the file ends before its ZLIB stream."""
        data = b""
        while not data and not self._stream.eof:
            packed = self._stream.unconsumed_tail or self._file.read(_BLOCK)
            data = self._stream.decompress(packed, len(buffer))
            if not (data or packed or self._stream.eof):
                raise EOFError("the ZLIB stream has no end")
        buffer[: len(data)] = data
        return len(data)


# --- lines --------------------------------------------------------------------------------------


def _count_lines(file: BinaryIO) -> int:
    """The lines as in `TextLineDataset`: text after the last line feed is a line, too."""
    lines, last = 0, b"\n"
    while chunk := file.read(_CHUNK):
        lines += chunk.count(b"\n")
        last = chunk[-1:]
    return lines + (last != b"\n")
