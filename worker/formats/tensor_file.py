"""A file of tensors, in the format of safetensors: the length of a header, the header as JSON, and the bytes of the tensors.

The format is public (https://github.com/huggingface/safetensors), so programs of others read a save, such as ``load_file`` of safetensors.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

from ..values.fast_dataclass import dataclass

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "C64": 8, "BOOL": 1} | {
    f"{kind}{bits}": bits // 8 for kind in "IU" for bits in (8, 16, 32, 64)
}
"""The types of tensors, with the bytes of one element."""
LONGEST_HEADER = 100_000_000
"""The longest header of safetensors, in bytes."""
_NOTE = "__metadata__"
_PIECE = 1 << 24


class DamagedError(Exception):
    """A file of a save is not what was written: which one, and what is wrong."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as bytes, in the order of C, little-endian."""

    dtype: str
    shape: tuple[int, ...]
    data: Any
    """An object with the buffer of the bytes."""

    @property
    def size(self) -> int:
        return size_of(self.dtype, self.shape)


def size_of(dtype: str, shape: Iterable[int]) -> int:
    """The bytes of a tensor."""
    return SIZES[dtype] * math.prod(shape)


def describe(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    """Return what a manifest says of tensors: `dtype`, `shape` and `sha256`."""

    def told(one: Tensor) -> dict[str, Any]:
        return {"dtype": one.dtype, "shape": list(one.shape), "sha256": hashlib.sha256(one.data).hexdigest()}

    return {name: told(one) for name, one in tensors.items()}


def write(file: BinaryIO, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
    """Write a file. `note`: anything of JSON."""
    header: dict[str, Any] = {_NOTE: {"orch": json.dumps(note)}}
    at = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [at, at + tensor.size]}
        at += tensor.size
    header[_NOTE]["sha256"] = _seal(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of 8 bytes
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in tensors.values():
        file.write(tensor.data)


def read_note(file: BinaryIO) -> dict[str, Any]:
    """The note of a file. Raises `DamagedError`."""
    return _read_header(file)[1]


def read(
    file: BinaryIO, told: Mapping[str, Mapping[str, Any]], *, keep: bool = True, only: str = ""
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file and its note, compared with what the manifest says. `keep` false: check alone, without the memory for them.

    `only`: the name of the one tensor that is read. Raises `DamagedError`.
    """
    places, note = _read_header(file)
    if places.keys() != told.keys():
        raise DamagedError("its header has other names of tensors than the manifest")
    found = {}
    for name, (dtype, shape, (begin, end)) in sorted(places.items(), key=lambda item: item[1][2]):
        wanted = told[name]
        if (dtype, list(shape)) != (wanted["dtype"], wanted["shape"]) or end - begin != SIZES.get(dtype, -1) * math.prod(shape):
            raise DamagedError(f"the type or shape of {name} is not that of the manifest")
        if only not in ("", name):
            file.seek(end - begin, os.SEEK_CUR)
            continue
        found[name] = Tensor(dtype, shape, _read_one(file, name, end - begin, wanted["sha256"], keep=keep))
    return found, note


def _read_header(file: BinaryIO) -> tuple[dict[str, tuple[str, tuple[int, ...], list[int]]], dict[str, Any]]:
    """The tensors of a file, each with its type, its shape, and the places of its bytes; and the note."""
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > LONGEST_HEADER:
        raise DamagedError("its header is cut off")
    try:
        header = json.loads(file.read(length))
        is_whole = header[_NOTE].pop("sha256") == _seal(header)
        note = json.loads(header.pop(_NOTE)["orch"])
        places = {name: (one["dtype"], tuple(one["shape"]), one["data_offsets"]) for name, one in header.items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        raise DamagedError("its header is no header of tensors") from None
    if not is_whole:
        raise DamagedError("its header is not what was written: its checksum differs")
    return places, note


def _seal(header: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()


def _read_one(file: BinaryIO, name: str, size: int, sha256: str, *, keep: bool) -> Any:
    data, digest, left = bytearray(), hashlib.sha256(), size
    while left:
        piece = file.read(min(left, _PIECE))
        if not piece:
            raise DamagedError(f"it ends {left:,} bytes too early, in {name}")
        left -= len(piece)
        digest.update(piece)
        if keep:
            data += piece
    if digest.hexdigest() != sha256:
        raise DamagedError(f"the bytes of {name} have another SHA-256 than the manifest says")
    return data


def digest_of_all(told: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """One SHA-256 of all tensors: of their names, types, shapes and bytes."""
    lines = sorted(f"{name} {one['dtype']} {one['shape']} {one['sha256']}\n" for name, one in told)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def bytes_of(told: Mapping[str, Mapping[str, Any]]) -> int:
    """The bytes of the tensors of a file."""
    return sum(size_of(one["dtype"], one["shape"]) for one in told.values())
