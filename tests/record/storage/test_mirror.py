"""The mirror of a run: what it copies, what it takes of an answer, and what it does with bytes that no source sends."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import OrchError
from orchestrator.record import mirror, mirror_source
from orchestrator.record.mirror import Piece, Pieces
from orchestrator.record.mirror_source import MARK, PieceSender

GROWING = ("events.jsonl", "marks", "controller.log", "attempt-1/worker-0/stdout.log", "samples/0.jsonl", "agents/host a.log")
WHOLE = ("result.json", "plan.json", "attempt-2/worker-11/error.json", "samples/0.old.jsonl")
NOT_OURS = (
    "lock",
    "requests",
    "engine.json",
    "submission.json",
    "spec.yaml",
    "checkpoints/model",
    "attempt-1/worker-0/deep/er.log",
    ".x.json",
)


def answer(source: Path, copy: Path) -> bytes:
    out, given = source.with_name("answer"), json.loads(mirror.have(copy))
    fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        PieceSender(str(source), given, fd).send_all()
    finally:
        os.close(fd)
    return out.read_bytes()


def contents(root: Path) -> dict[str, bytes]:
    return {name: (root / name).read_bytes() for name in mirror_source.walk(str(root))}


def put(root: Path, name: str, data: bytes, mode: str = "wb") -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    with open(root / name, mode) as file:
        file.write(data)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(GROWING), st.binary(min_size=1, max_size=300)),
        st.tuples(st.just("begin anew"), st.sampled_from(GROWING), st.binary(max_size=300)),
        st.tuples(st.just("replace"), st.sampled_from(WHOLE), st.binary(max_size=300)),
        st.tuples(st.just("remove"), st.sampled_from(WHOLE), st.just(b"")),
        st.tuples(st.just("fetch"), st.just(""), st.just(b"")),
    ),
    max_size=25,
)


@given(steps=STEPS)
def test_a_mirror_has_what_its_source_has_after_each_fetch(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, bytes]]
) -> None:
    base = tmp_path_factory.mktemp("mirror")
    source, copy = base / "source", base / "copy"
    source.mkdir()
    copy.mkdir()
    for name in NOT_OURS:
        put(source, name, b"not for a mirror")
    put(copy, "engine.json", b"its own")
    at = 1
    for what, name, data in [*steps, ("fetch", "", b"")]:
        if what == "fetch":
            assert mirror.store(copy, [answer(source, copy)]) is False
            assert contents(copy) == contents(source)
        elif what == "remove":
            (source / name).unlink(missing_ok=True)
        else:
            put(source, name, data, "ab" if what == "append" else "wb")
            os.utime(source / name, ns=(at, at))
            at += 1
    assert sorted(path.name for path in copy.glob("*.json") if path.name in ("engine.json", "submission.json")) == ["engine.json"]
    assert not (copy / "lock").exists()


def test_the_verdict_comes_when_all_else_is_there(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    copy.mkdir()
    for name in (*GROWING, *WHOLE):
        put(source, name, b"x")
    sent = [piece.path for piece in Pieces().feed(answer(source, copy))]
    assert sent[-1] == "result.json"
    assert set(sent) == {*GROWING, *WHOLE}


def test_a_long_output_comes_in_several_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_source, "FETCH_BYTES", 1000)
    monkeypatch.setattr(mirror_source, "PIECE_BYTES", 300)
    source, copy = tmp_path / "source", tmp_path / "copy"
    copy.mkdir()
    put(source, "attempt-1/worker-0/stdout.log", os.urandom(2500))
    put(source, "result.json", b"{}")
    for has_more in (True, True, False):
        assert not (copy / "result.json").exists()
        assert mirror.store(copy, [answer(source, copy)]) is has_more
    assert contents(copy) == contents(source)


# --- what others may send -----------------------------------------------------------------------

HOSTILE = (
    ["../escaped.json", 0, 1],
    ["/etc/passwd", 0, 1],
    ["attempt-1/../../escaped.json", 1, 1],
    ["attempt-1/worker-0/..", 1, 1],
    ["agents/..", 1, 1],
    ["agents/.hidden", 1, 1],
    ["agents/a/b", 1, 1],
    ["engine.json", 1, 1],
    ["submission.json", 1, 1],
    ["lock", 1, 1],
    ["request/job.sbatch", 1, 1],
    ["plan.json\n", 1, 1],
    ["agents/a\0b", 1, 1],
    ["events.jsonl", 7, 1],
    ["events.jsonl", -2, 1],
    ["events.jsonl", 0, 1 << 40],
    ["events.jsonl", 1 << 70, 1],
    ["events.jsonl", 0, -1],
    ["events.jsonl", True, 1],
    ["events.jsonl", 0.0, 1],
    ["events.jsonl", 0],
    ["agents/\udcff\ud800", 0, 1],
    {"path": "events.jsonl"},
    [["events.jsonl"], 0, 1],
    None,
)


@pytest.mark.parametrize("line", HOSTILE, ids=repr)
def test_a_piece_that_no_run_has_is_refused_and_nothing_is_written(tmp_path: Path, line: object) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    with pytest.raises(OrchError):
        mirror.store(copy, [MARK + json.dumps(line).encode() + b"\nx"])
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size] == []


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    copy.mkdir()
    put(tmp_path, "secret.log", b"secret")
    put(source, "controller.log", b"mine")
    (source / "agents").mkdir()
    (source / "agents" / "a.log").symlink_to(tmp_path / "secret.log")
    (source / "attempt-1").symlink_to(tmp_path)
    os.mkfifo(source / "plan.json")
    mirror.store(copy, [answer(source, copy)])
    assert contents(copy) == {"controller.log": b"mine"}
    (copy / "controller.log").unlink()
    (copy / "controller.log").symlink_to(tmp_path / "secret.log")
    with pytest.raises(OrchError):
        mirror.store(copy, [answer(source, copy)])
    assert (tmp_path / "secret.log").read_bytes() == b"secret"


def _lines() -> st.SearchStrategy[bytes]:
    names = st.sampled_from([*GROWING, *WHOLE, *NOT_OURS, "", "../x"]) | st.text(max_size=20)
    head = st.tuples(names, st.integers(-3, 40), st.integers(-3, 40)).map(lambda piece: json.dumps(piece).encode() + b"\n")
    return st.lists(head | st.binary(max_size=40), max_size=12).map(b"".join)


@given(data=st.tuples(st.booleans(), _lines()), cuts=st.lists(st.integers(0, 400), max_size=5))
def test_bytes_of_any_kind_are_pieces_or_an_error_however_they_come(data: tuple[bool, bytes], cuts: list[int]) -> None:
    whole = (MARK if data[0] else b"noise") + data[1]
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    parts = [whole[start:end] for start, end in itertools.pairwise(places)]
    assert _decode(parts) == _decode([whole])


def _decode(parts: list[bytes]) -> tuple[list[Piece], str, bool]:
    pieces, found = Pieces(), list[Piece]()

    def feed() -> Iterator[Piece]:
        for part in parts:
            yield from pieces.feed(part)

    try:
        for piece in feed():
            assert mirror_source.is_mirrored(piece.path)
            found.append(piece)
    except OrchError as error:
        return found, str(error), pieces.is_complete
    return found, "", pieces.is_complete


def test_an_answer_without_an_end_is_cut_off(tmp_path: Path) -> None:
    with pytest.raises(OrchError, match="no answer for a mirror: there is no mark in front"):
        mirror.store(tmp_path, iter([b"x" * 65536] * 10))
    with pytest.raises(OrchError, match="a line without an end"):
        mirror.store(tmp_path, [MARK, b"x" * 65536])
    with pytest.raises(OrchError, match="has ended early"):
        mirror.store(tmp_path, [MARK + b'["events.jsonl", 0, 5]\nabc'])
    assert not (tmp_path / "events.jsonl").exists()


def test_the_program_delivers_lines_and_says_what_is_wrong(tmp_path: Path) -> None:
    argv = [sys.executable, "-I", "-c", mirror.SOURCE.read_text(), str(tmp_path)]
    for line in (b'{"ask": "restart"}\n', b'{"ask": "stacks"}\n'):
        subprocess.run([*argv, "deliver"], input=line, check=True)
    assert (tmp_path / "requests").read_text() == '{"ask": "restart"}\n{"ask": "stacks"}\n'
    done = subprocess.run([*argv[:-1], str(tmp_path / "none"), "fetch"], input=b"{}", capture_output=True)
    assert (done.returncode, done.stderr.decode()) == (1, f"the controller has no directory {tmp_path / 'none'} yet\n")


def test_a_source_of_small_files_without_end_keeps_nobody_longer_than_the_limit(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    pieces = (json.dumps([f"attempt-1/worker-{number}/x", 1, 1]).encode() + b"\nx" for number in itertools.count())
    assert mirror.store(copy, itertools.chain([MARK], pieces), limit=time.monotonic() + 0.2) is True
