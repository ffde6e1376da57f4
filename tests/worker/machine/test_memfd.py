"""Requests in memory, also where a sandbox refuses files in memory."""

from __future__ import annotations

import errno
import os

import pytest

from worker.machine import memfd


@pytest.mark.parametrize("refused", [None, OSError(errno.EPERM, "Operation not permitted"), AttributeError()])
def test_what_is_kept_is_read_from_its_beginning(refused: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_name: str) -> int:
        assert refused is not None
        raise refused

    if refused is not None:
        monkeypatch.setattr(os, "memfd_create", refuse)
    fd = memfd.keep_in_memory(b"x" * 100_000)
    with open(fd, "rb") as file:
        assert file.read() == b"x" * 100_000
        assert os.fstat(file.fileno()).st_nlink == 0
