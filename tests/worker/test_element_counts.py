"""Counting the elements of files: every format, and each way in which a file can be damaged, with the byte."""

from __future__ import annotations

import gzip
import io
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import tfrecords
from worker.formats.element_counts import Damaged, count, kind_by_name


def counted(path: Path, kind: str) -> int | None:
    with open(path, "rb", buffering=0) as file:
        return count(file, path.stat().st_size, kind)


def counted_bytes(data: bytes, kind: str = "tfrecord") -> int | None:
    return count(io.BytesIO(data), len(data), kind)


def damage_of(data: bytes, kind: str = "tfrecord") -> Damaged:
    with pytest.raises(Damaged) as raised:
        counted_bytes(data, kind)
    return raised.value


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
@pytest.mark.parametrize("sizes", [[], [0], [5] * 700, [3, 40_000, 0, 200_000, 20_000, 7]], ids=["none", "empty", "short", "long"])
def test_records_are_counted_by_their_headers(tmp_path: Path, compression: str, sizes: list[int]) -> None:
    """Short records are read in blocks, long ones are jumped over, and compressed data comes in pieces that end anywhere."""
    path = tfrecords.write(tmp_path / "a", (b"x" * size for size in sizes), compression)
    assert counted(path, "tfrecord") == len(sizes)


RECORDS = [b"a" * 100, b"b" * 30_000, b"c" * 7]
WHOLE = b"".join(map(tfrecords.record, RECORDS))
STARTS = [0, 116, 30_132]


@given(st.integers(1, len(WHOLE) - 1))
def test_a_file_that_was_cut_short_is_found_wherever_that_was(length: int) -> None:
    if length in STARTS:
        assert counted_bytes(WHOLE[:length]) == STARTS.index(length)
        return
    number = max(place for place, start in enumerate(STARTS) if start < length)
    damage = damage_of(WHOLE[:length])
    assert damage.at == length
    assert f"record {number}, which begins at byte {STARTS[number]:,}" in damage.what


def test_a_damaged_header_is_named_with_its_byte() -> None:
    broken = bytearray(WHOLE)
    broken[STARTS[1] + 2] ^= 1
    assert str(damage_of(bytes(broken))) == "at byte 116: the header of record 1 is damaged (the checksum of its length is wrong)"
    assert "no TFRecord file" in damage_of(b"label,value\n1,2\n3,4\n").what


def test_data_inside_a_record_is_not_looked_at() -> None:
    broken = bytearray(WHOLE)
    broken[50] ^= 1
    assert counted_bytes(bytes(broken)) == 3


def test_damaged_compressed_files() -> None:
    packed = gzip.compress(WHOLE)
    for broken in (packed[:-20], packed[:40] + b"\0" * 40 + packed[80:], packed + b"no member of the archive", zlib.compress(WHOLE)[:-20]):
        assert "compressed data is damaged or cut short" in damage_of(broken).what
    assert counted_bytes(packed + packed) == 6
    assert counted_bytes(zlib.compress(WHOLE) * 2) == 3  # TensorFlow does not read the second stream either


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
@given(length=st.integers(1, len(WHOLE) - 1))
def test_records_that_were_cut_before_their_compression_are_found(compress: Callable[[bytes], bytes], length: int) -> None:
    packed = compress(WHOLE[:length])
    if length in STARTS:
        assert counted_bytes(packed) == STARTS.index(length)
    else:
        assert damage_of(packed).at == length


@pytest.mark.slow
def test_data_compressed_with_zlib_is_never_in_memory_as_a_whole() -> None:
    packed = zlib.compress(tfrecords.record(bytes(50_000_000)))
    tracemalloc.start()
    try:
        assert counted_bytes(packed) == 1
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


TEXTS = {b"": 0, b"\n": 1, b"a": 1, b"a\nb": 2, b"a\r\nb\r\n": 2, b"a\n" * 700_000: 700_000}


@pytest.mark.parametrize(("text", "lines"), TEXTS.items(), ids=map(str, TEXTS.values()))
def test_lines_are_those_of_textlinedataset(text: bytes, lines: int) -> None:
    assert counted_bytes(text, "text") == counted_bytes(gzip.compress(text, 1), "csv") == lines


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("train.tfrecord-00000-of-00128", "tfrecord"),
        ("a/b.TFRecords.gz", "tfrecord"),
        ("x.csv.gz", "csv"),
        ("x.jsonl", "text"),
        ("x.npz", ""),
        ("x.npy.txt", "text"),
        ("cat.JPEG", "image"),
        ("tfrecord/train-00000-of-01024", ""),
    ],
)
def test_kinds_by_name(name: str, kind: str) -> None:
    assert kind_by_name(name) == kind
