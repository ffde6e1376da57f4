"""What the headers of a TFRecord file tell. tests/real/test_files.py counts what TensorFlow has written."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from worker import tfrecords

# tf.io.TFRecordWriter, TensorFlow 2.21: the records b"ab", b"" and b"c" * 20.
WRITTEN = base64.b64decode("AgAAAAAAAAB4Jws0YWIcsPD0AAAAAAAAAAApA5gH2OqCohQAAAAAAAAAXj0pFWNjY2NjY2NjY2NjY2NjY2NjY2NjfVqzbA==")


def test_records_are_counted_by_their_headers(tmp_path: Path) -> None:
    path = tmp_path / "some.tfrecord"
    path.write_bytes(b"")
    assert tfrecords.count(str(path)) == 0
    path.write_bytes(WRITTEN)
    assert tfrecords.count(str(path)) == 3


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (WRITTEN[:-1], "is cut off at byte 69: the record that begins at byte 34 needs 1 more"),
        (WRITTEN[:40], "is cut off at byte 40, in the header of the record that begins at byte 34"),
        (WRITTEN[:18] + b"\x01" + WRITTEN[19:], "no record begins at byte 18, where one should: the file is damaged or no TFRecord file"),
        (b"1,2,3,4,5,6,7\n", "no record begins at byte 0"),
    ],
)
def test_a_damaged_file_is_named_with_the_byte(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "bad.tfrecord"
    path.write_bytes(content)
    with pytest.raises(tfrecords.DamagedFileError) as caught:
        tfrecords.count(str(path))
    assert f"{path}" in str(caught.value)
    assert complaint in str(caught.value)
