"""The log view: bytes of many streams in, prefixed whole lines out; and the reader of growing files."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
import tracemalloc
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.cli.viewers import JsonLines
from orchestrator.controller import Ended
from orchestrator.errors import OrchError, UsageError
from orchestrator.model.state.cluster import Cluster, Outcome, Verdict
from orchestrator.model.state.events import RunNoted
from orchestrator.record import follower as followers
from orchestrator.record.console import Console, Sink
from orchestrator.record.follower import Follower, tail_offset
from orchestrator.record.run_store import create_run
from orchestrator.record.text.lines import LineSplitter
from orchestrator.record.text.log_view import LogView, wants_color
from tests.live import PATIENCE_S

SAMPLES = Path(__file__).parent / "noise"

TOKENS = [b"a", b"loss: 0.5 ", b"\n", b"\r", b"\r\n", "é━𝄞".encode(), b"\xe2\x94", b"\xff", b"\xc3", b"\xc2\x9b", b"\x00", b"\x08", b"\x0c"]
ESCAPES = [
    b"\x1b[31m",
    b"\x1b[0m",
    b"\x1b[2K",
    b"\x1b]0;title\x07",
    b"\x1b]8;;http",
    b"\x1b\\",
    b"\x1b[",
    b"\x1b",
    b"\x1b(B",
    b"\x1bc",
    b"3m",
]
any_bytes = st.one_of(st.binary(max_size=60), st.lists(st.sampled_from(TOKENS + ESCAPES), max_size=40).map(b"".join))
plain_bytes = st.lists(st.sampled_from([b"ab", b"\n", "é━".encode(), b"\xff", b"\xe2\x94", b" "]), max_size=40).map(b"".join)
cuts = st.lists(st.integers(0, 120), max_size=8)


def chunks(data: bytes, at: list[int]) -> list[bytes]:
    bounds = [0, *sorted(min(cut, len(data)) for cut in at), len(data)]
    return [data[a:b] for a, b in pairwise(bounds)]


def split(*data: bytes, color: bool = False, longest: int = 1 << 20) -> list[str]:
    splitter = LineSplitter(color=color, longest=longest)
    reads = [chunk[start : start + longest] for chunk in data for start in range(0, len(chunk), longest)]
    return [line for read in reads for line in splitter.feed(read)] + splitter.flush()


# --- lines -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n\n", ["", ""]),
        (b"a\nb\r\nc", ["a", "b", "c"]),
        (b"a\r\r\nb\r", ["a", "b"]),
        (b"10%\r20%\r30%\ndone\n", ["30%", "done"]),
        (b"\r10%\r20%\r\n", ["20%"]),
        (b"100%|####|\r      \rsaved\n", ["saved"]),
        (b"50%\r\n\r\r\n", ["50%", ""]),
        (b"caf\xc3\xa9 \xff\xfe caf\xe9\n", ["café \\xff\\xfe caf\\xe9"]),
        ("\u2028 \u0085 \u00a0\n".encode(), ["\u2028 \\x85 \u00a0"]),
        ("a\u202eb\u202c \u2066c\u2069 d\u200fe\u061c \u206e\n".encode(), [r"a\u202eb\u202c \u2066c\u2069 d\u200fe\u061c \u206e"]),
        ("\u05e9\u05dc\u05d5\u05dd \u200d\n".encode(), ["\u05e9\u05dc\u05d5\u05dd \u200d"]),
        (b"a\tb\x0cc\x1b\x00\x07d\n", ["a\tb\\x0cc\\x1bd"]),
        (b"\x1b[2J\x1b[1;1Hhi\x1b[K\x1b]0;title\x07 \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\x1bc\x1b(B!\n", ["hi link!"]),
        (b"\x1b]0;never closed\n", ["\\x1b]0;never closed"]),
        (b"\x1b[31mred\x1b[0m\n", ["red"]),
        (b"\x1b[31mred", ["red"]),
    ],
)
def test_the_rules_of_a_line(data: bytes, lines: list[str]) -> None:
    assert split(data) == lines


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"\x1b[31mred\x1b[0m end", "\x1b[31mred\x1b[0m end"),
        (b"\x1b[1;31mred", "\x1b[1;31mred\x1b[0m"),
        (b"\x1b[38;5;200mpink\x1b[m", "\x1b[38;5;200mpink\x1b[m"),
        (b"\x1b[31m\x1b[2Kred\x1b[H", "\x1b[31mred\x1b[0m"),
        (b"no colour", "no colour"),
    ],
)
def test_colours_are_kept_and_closed_on_a_colour_terminal(data: bytes, line: str) -> None:
    assert split(data + b"\n", color=True) == [line]
    assert split(data, color=True) == [line]


def test_a_keras_progress_bar_is_one_line_an_epoch() -> None:
    data = (SAMPLES / "keras-progress.bin").read_bytes()
    bar = "2/2 ━━━━━━━━━━━━━━━━━━━━ 0s"
    assert split(data) == ["Epoch 1/2", f"{bar} 17ms/step - loss: 2.4815 ", "Epoch 2/2", f"{bar} 19ms/step - loss: 0.9876"]


def test_many_escapes_and_nuls_are_as_few_are() -> None:
    """A program that cuts the file of its own output writes NULs up to where it was."""
    assert split(b"\x1b" * 40 + b"[1mbold\n") == ["\\x1b" * 39 + "bold"]
    assert split(b"a" + b"\0" * 100_000 + b"b\r\0\n") == ["ab"]


@pytest.mark.parametrize("byte", [b"\0", b"\x1b"])
def test_a_megabyte_of_nuls_or_escapes_costs_little(byte: bytes) -> None:
    """Two gigabytes of them took minutes after the end of a run. Counted, not timed: calls of functions, and memory."""
    block = b"a" + byte * (1 << 20) + b"b\n"
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    tracemalloc.start()
    sys.setprofile(count)
    try:
        split(block)
        _, most = tracemalloc.get_traced_memory()
    finally:
        sys.setprofile(None)
        tracemalloc.stop()
    assert calls < 200
    assert most < 16 * len(block)


@given(any_bytes, cuts, st.booleans(), st.sampled_from([1 << 20, 33, 8, 1]))
@example(b"a" * 40 + b"\rb\n", [8, 33, 34], False, 33)
@example(b"x" * 33 + b"\r" + b"y" * 70 + b"\r\n", [33, 34, 40], False, 33)
def test_lines_do_not_depend_on_how_the_bytes_arrive(data: bytes, at: list[int], color: bool, longest: int) -> None:
    assert split(*chunks(data, at), color=color, longest=longest) == split(data, color=color, longest=longest)


@given(plain_bytes, cuts)
def test_nothing_is_lost_or_reordered(data: bytes, at: list[int]) -> None:
    text = data.decode("utf-8", "backslashreplace")
    assert split(*chunks(data, at)) == (text.removesuffix("\n").split("\n") if text else [])


@given(st.lists(st.sampled_from([b"ab", b"\n", b"\r", b"\r\n", "━".encode(), b"\xff"]), max_size=40).map(b"".join), cuts)
def test_the_last_state_before_each_line_end_is_the_line(data: bytes, at: list[int]) -> None:
    expected = [next((state for state in reversed(line.split(b"\r")) if state), b"") for line in data.split(b"\n")]
    if not expected[-1]:
        expected.pop()
    assert split(*chunks(data, at)) == [line.decode("utf-8", "backslashreplace") for line in expected]


@given(plain_bytes, cuts, st.sampled_from([8, 20]))
def test_pieces_of_a_long_line_add_up_to_it(data: bytes, at: list[int], longest: int) -> None:
    data = data.replace(b"\n", b"")
    pieces = split(*chunks(data, at), longest=longest)
    assert "".join(pieces) == data.decode("utf-8", "backslashreplace")
    assert all(len(piece) <= 4 * longest for piece in pieces)  # an invalid byte takes four characters


@given(any_bytes, cuts, st.booleans())
def test_no_line_can_disturb_a_terminal(data: bytes, at: list[int], color: bool) -> None:
    for line in split(*chunks(data, at), color=color):
        if color and "\x1b" in line:
            assert re.search(r"\x1b\[[0;]*m[^\x1b]*\Z", line)
            line = re.sub(r"\x1b\[[0-9;:]*m", "", line)
        assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", line)
        line.encode()


@given(plain_bytes, cuts)
def test_idle_and_flush_lose_nothing(data: bytes, at: list[int]) -> None:
    splitter = LineSplitter()
    shown = []
    for number, chunk in enumerate(chunks(data, at)):
        shown += splitter.feed(chunk, number * 100.0)
        shown += splitter.idle(number * 100.0 + 99) if number % 2 else splitter.flush()
    shown += splitter.flush()
    text = data.replace(b"\n", b"")
    # `flush` escapes a character it catches half way; put such bytes back together.
    joined = re.sub(r"\\x(..)", lambda m: chr(0xDC00 + int(m[1], 16)), "".join(shown)).encode("utf-8", "surrogateescape")
    assert joined == text


def test_a_prompt_is_shown_when_it_is_quiet_and_its_end_adds_no_empty_line() -> None:
    splitter = LineSplitter()
    assert splitter.idle(100.0) == []
    assert splitter.feed(b"start\nName: ", 100.0) == ["start"]
    assert splitter.idle(100.9) == []
    assert splitter.idle(101.0) == ["Name: "]
    assert splitter.idle(200.0) == []
    assert splitter.feed(b"\nnext\n", 201.0) == ["next"]
    assert splitter.feed(b"Name: ", 300.0) == []
    assert splitter.idle(302.0) == ["Name: "]
    assert splitter.feed(b"Ann\nmore\n", 303.0) == ["Ann", "more"]


def test_a_row_of_dots_is_shown_now_and_then() -> None:
    splitter = LineSplitter()
    shown = []
    for tick in range(100):
        shown += splitter.feed(b".", tick / 2)
        shown += splitter.idle(tick / 2)
    assert "".join(shown + splitter.flush()) == "." * 100
    assert 4 <= len(shown) <= 6


def test_a_long_progress_bar_shows_signs_of_life() -> None:
    splitter = LineSplitter()
    shown = []
    for tick in range(1, 601):
        assert splitter.feed(f"\r{tick}/600".encode(), tick / 10) == []
        shown += splitter.idle(tick / 10)
    assert shown == ["101/600", "201/600", "301/600", "401/600", "501/600"]
    assert splitter.feed(b"\ndone\n", 61.0) == ["600/600", "done"]
    assert splitter.feed(b"50%\r", 1000.0) == []
    assert splitter.idle(1009.9) == []
    assert splitter.idle(1010.0) == ["50%"]
    assert splitter.feed(b"\n", 1011.0) == []


def test_idle_keeps_back_half_a_character_and_half_an_escape_sequence() -> None:
    splitter = LineSplitter()
    splitter.feed(b"caf\xc3", 0.0)
    assert splitter.idle(1.0) == ["caf"]
    splitter.feed(b"\xa9 \x1b[3", 2.0)
    assert splitter.idle(20.0) == ["é "]
    assert splitter.idle(40.0) == []
    assert splitter.feed(b"1mred\n", 41.0) == ["red"]
    splitter.feed(b"\xe2\x94")
    assert splitter.flush() == ["\\xe2\\x94"]


def test_a_line_without_end_takes_bounded_memory() -> None:
    splitter = LineSplitter()
    block = b"0123456789abcdef" * 4096
    size = 0
    tracemalloc.start()
    try:
        for _ in range(640):
            size += sum(len(piece) for piece in splitter.feed(block))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    size += sum(len(piece) for piece in splitter.flush())
    assert size == 640 * len(block)
    assert peak < 8 << 20


def test_carriage_returns_without_end_take_no_memory() -> None:
    splitter = LineSplitter()
    tracemalloc.start()
    try:
        for number in range(2000):
            assert splitter.feed(b"\r" * 999 + b"%d" % number) == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert splitter.flush() == ["1999"]
    assert peak < 1 << 20


# --- the view ----------------------------------------------------------------------------------


def test_prefixes_are_aligned_and_lines_whole() -> None:
    view = LogView(["chief-0", "worker-0", "worker-10"])
    assert view.render("worker-0", "stdout", b"one\ntw") == "worker-0  | one\n"
    assert view.render("chief-0", "stdout", b"hello\n\n") == "chief-0   | hello\nchief-0   | \n"
    assert view.render("worker-0", "stdout", b"o\n") == "worker-0  | two\n"
    assert view.render("worker-10", "stdout", b"") == ""
    assert view.render("worker-0", "stderr", b"rest") == ""
    assert view.finish() == [("stderr", "worker-0  | rest\n")]
    assert view.finish() == []


def test_colours_are_stable_and_go_round() -> None:
    names = [f"worker-{index}" for index in range(300)]
    every = LogView(names, color=True)
    text = [every.render(name, "stdout", b"x\n") for name in names]
    colors = [re.match(r"\x1b\[\d+m", line)[0] for line in text]  # type: ignore[index]
    assert colors[0] == colors[10] != colors[1]
    assert len(set(colors)) == 10
    assert text[7] == f"{colors[7]}worker-7   |\x1b[0m x\n"
    one = LogView(names, color=True, only={"worker-217"})
    assert one.render("worker-217", "stdout", b"\x1b[1mx\n") == f"{colors[217]}worker-217 |\x1b[0m \x1b[1mx\x1b[0m\n"


def test_timestamps_are_those_of_the_call() -> None:
    at = datetime(2026, 11, 22, 22, 13, 20, 41_600).timestamp()
    view = LogView(["a-0"], timestamps=True)
    assert view.render("a-0", "stdout", b"x\ny\nz", at) == "22:13:20.041 a-0 | x\n22:13:20.041 a-0 | y\n"
    assert view.idle(at + 1.5) == [("stdout", "22:13:21.541 a-0 | z\n")]


def test_only_some_tasks_are_shown_and_the_column_fits_them() -> None:
    view = LogView(["ps-0", "worker-0"], only={"ps-0"})
    assert view.render("worker-0", "stdout", b"x\n") == ""
    assert view.render("ps-0", "stdout", b"x\n") == "ps-0 | x\n"
    assert view.finish() == []


def test_a_clock_that_is_set_back_keeps_no_line_from_the_console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create_run(tmp_path / "home", "one")
    run.append_output("worker-0", 1, "stdout", 0, b"name? ")
    read_fd, write_fd = os.pipe()
    with os.fdopen(read_fd, "rb") as shown, os.fdopen(write_fd, "wb"):
        monkeypatch.setattr(time, "time", lambda: 0.0)
        console = Console(run, Sink(write_fd, write_fd), LogView(["worker-0"]))
        console.on_output("worker-0", 1, "stdout", 6)
        ready, _, _ = select.select((shown,), (), (), PATIENCE_S)
        assert ready, "the line is never shown"
        assert shown.readline() == b"worker-0 | name? \n"
        console.finish()


def test_what_was_printed_before_a_traceback_is_shown_before_it(tmp_path: Path) -> None:
    run = create_run(tmp_path / "home", "one")
    said = {"stderr": b"Traceback\nE: x\n", "stdout": b"step 1\n" * 30_000}
    for stream, data in said.items():
        run.append_output("worker-0", 1, stream, 0, data)
    shown = tmp_path / "shown"
    with shown.open("wb") as file:
        console = Console(run, Sink(file.fileno(), file.fileno()), LogView(["worker-0"]))
        with console._changed:  # both have grown before the console looks
            for stream, data in said.items():
                console.on_output("worker-0", 1, stream, len(data))
        console.finish()
    lines = shown.read_text().splitlines()
    assert lines[-3:] == ["worker-0 | step 1", "worker-0 | Traceback", "worker-0 | E: x"]
    assert len(lines) == 30_002


def test_what_comes_just_after_an_empty_read_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create_run(tmp_path / "home", "one")
    shown, read = tmp_path / "shown", Follower.read

    def read_before_it_grows(follower: Follower, limit: int) -> bytes:
        data = read(follower, limit)
        if not follower.path.exists():
            run.append_output("worker-0", 1, "stdout", 0, b"one\n")
            console.on_output("worker-0", 1, "stdout", 4)
        return data

    monkeypatch.setattr(Follower, "read", read_before_it_grows)
    with shown.open("wb") as file:
        console = Console(run, Sink(file.fileno(), file.fileno()), LogView(["worker-0"]))
        console.on_output("worker-0", 1, "stdout", 2)
        console.finish()
    assert shown.read_text() == "worker-0 | one\n"


def test_a_refused_run_shows_the_lines_that_wait_to_be_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []

    def write(sink: Sink, stream: str, text: str) -> None:
        time.sleep(0.2)
        shown.append(text)

    monkeypatch.setattr(Sink, "write", write)
    run = create_run(tmp_path / "home", "one")
    viewer = JsonLines(run)
    viewer.on_event(Cluster(), Cluster(), RunNoted("a note", 1.0))
    viewer.end(Ended(run, Cluster(), Verdict(Outcome.FAILED, 2, 1, 1.0, 2.0), UsageError("no")))
    assert len(shown) == 1


def test_a_view_shortens_a_huge_line_of_stderr_only_if_it_is_asked_to() -> None:
    message = b"E: [" + b"0. " * 10_000 + b"]\n"
    whole, short = LogView(["w-0"]), LogView(["w-0"], shorten=True)
    assert whole.render("w-0", "stderr", message) == short.render("w-0", "stdout", message) == f"w-0 | {message.decode()}"
    shown = short.render("w-0", "stderr", message)
    assert shown.startswith("w-0 | E: [0. 0. ")
    assert " … 25,909 characters left out … " in shown
    assert len(shown) < 4_200


def test_a_log_that_cannot_be_read_keeps_no_other_from_the_console(tmp_path: Path) -> None:
    run = create_run(tmp_path / "home", "one")
    log = run.log_path("worker-0", 1, "stdout")
    log.mkdir(parents=True)
    run.append_output("worker-1", 1, "stdout", 0, b"one\n")
    read_fd, write_fd = os.pipe()
    with os.fdopen(read_fd, "rb", buffering=0) as shown, os.fdopen(write_fd, "wb") as write_end:
        console = Console(run, Sink(write_fd, write_fd), LogView(["worker-0", "worker-1"]))
        for task, size in (("worker-0", 4), ("worker-0", 5), ("worker-1", 4)):
            console.on_output(task, 1, "stdout", size)
        lines = set()
        for _ in range(2):
            assert select.select((shown,), (), (), PATIENCE_S)[0], "the other is never shown"
            lines.add(shown.readline())
        complaint = f"orch: {log} is a directory, not a file that orch has written; remove it; its lines are shown once it can be read\n"
        assert lines == {complaint.encode(), b"worker-1 | one\n"}
        log.rmdir()
        run.append_output("worker-0", 1, "stdout", 0, b"zero\nend\n")
        console.on_output("worker-0", 1, "stdout", 9)
        console.finish()
        write_end.close()
        assert shown.read() == b"worker-0 | zero\nworker-0 | end\n"


def test_idle_says_which_stream_and_when() -> None:
    view = LogView(["w-0", "w-1"])
    view.render("w-0", "stderr", b"10%\r", 50.0)
    view.render("w-1", "stdout", b"Name: ", 52.0)
    assert view.idle(52.9) == []
    assert view.idle(53.0) == [("stdout", "w-1 | Name: \n")]
    assert view.idle(59.9) == []
    assert view.idle(60.0) == [("stderr", "w-0 | 10%\n")]
    assert view.idle(100.0) == []


def test_an_ended_task_s_last_line_comes_out_and_the_next_attempt_begins_anew() -> None:
    view = LogView(["w-0", "w-1"])
    view.render("w-0", "stdout", b"killed he")
    view.render("w-1", "stdout", b"alive")
    assert view.finish("w-0") == [("stdout", "w-0 | killed he\n")]
    assert view.render("w-0", "stdout", b"\nagain\n") == "w-0 | \nw-0 | again\n"
    assert view.finish() == [("stdout", "w-1 | alive\n")]


def test_noise_is_folded_and_counted() -> None:
    noise = (SAMPLES / "tf2.21-multi-worker-0.log").read_bytes()
    view = LogView(["worker-0", "worker-1"])
    assert view.folded_note == ""
    shown = ""
    for start in range(0, len(noise), 100):
        shown += view.render("worker-0", "stderr", noise[start : start + 100])
    shown += view.render("worker-1", "stderr", b"ValueError: bad\n" + noise.splitlines(keepends=True)[0])
    assert shown == "worker-1 | ValueError: bad\n"
    count = noise.count(b"\n")
    assert view.folded_note == f"{count + 1} lines of TensorFlow's own messages folded; --all shows all lines"


def test_all_shows_the_noise() -> None:
    noise = (SAMPLES / "tf2.21-multi-worker-0.log").read_bytes()
    view = LogView(["w-0"], fold=False)
    assert view.render("w-0", "stderr", noise).replace("w-0 | ", "") == noise.decode()
    assert view.folded_note == ""


def test_grep_sees_the_text_without_colours_and_prefix_and_every_line() -> None:
    view = LogView(["w-0"], color=True, grep=re.compile(r"^loss: 0\.\d$|oneDNN|w-0"))
    data = b"\x1b[1mloss\x1b[0m: 0.5\nloss: 1.5\nI0000 00:00:1.1 1 port.cc:1] oneDNN custom operations are on.\n"
    text = view.render("w-0", "stdout", data)
    assert re.sub(r"\x1b\[\d*m", "", text) == "w-0 | loss: 0.5\nw-0 | I0000 00:00:1.1 1 port.cc:1] oneDNN custom operations are on.\n"
    assert view.folded_note == ""


@given(st.lists(st.tuples(st.sampled_from(["w-0", "w-1", "ps-0"]), st.sampled_from(["stdout", "stderr"]), plain_bytes), max_size=20))
def test_streams_do_not_mix(writes: list[tuple[str, str, bytes]]) -> None:
    view = LogView(["w-0", "w-1", "ps-0"])
    shown_on = {"stdout": "", "stderr": ""}
    for task, stream, data in writes:
        shown_on[stream] += view.render(task, stream, data)
    for stream, text in view.finish():
        shown_on[stream] += text
    for task in ("w-0", "w-1", "ps-0"):
        for stream, text in shown_on.items():
            head = f"{task:<4} | "
            shown = [line.removeprefix(head) for line in text.split("\n") if line.startswith(head)]
            assert shown == split(b"".join(data for *key, data in writes if key == [task, stream]))


@pytest.mark.parametrize(
    ("flag", "isatty", "environ", "wanted"),
    [
        ("auto", True, {}, True),
        ("auto", False, {}, False),
        ("auto", True, {"TERM": "dumb"}, False),
        ("auto", True, {"NO_COLOR": "1"}, False),
        ("auto", True, {"NO_COLOR": ""}, True),
        ("auto", False, {"FORCE_COLOR": "1"}, True),
        ("auto", False, {"FORCE_COLOR": "1", "TERM": "dumb"}, True),
        ("auto", False, {"FORCE_COLOR": "0"}, False),
        ("auto", True, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ("always", False, {"NO_COLOR": "1"}, True),
        ("never", True, {"FORCE_COLOR": "1"}, False),
    ],
)
def test_who_gets_colours(flag: str, isatty: bool, environ: dict[str, str], wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: isatty)
    assert wants_color(flag) is wanted  # type: ignore[arg-type]


# --- the follower ------------------------------------------------------------------------------


def test_a_file_is_read_as_it_comes_and_grows(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    follower = Follower(path)
    assert follower.read() == b""
    path.write_bytes(b"0123456789")
    assert follower.read(4) == b"0123"
    assert follower.offset == 4
    assert follower.read() == b"456789"
    assert follower.read() == b""
    with path.open("ab") as file:
        file.write(b"abc")
    assert follower.read() == b"abc"
    path.unlink()
    assert follower.read() == b""


def test_of_a_file_that_becomes_shorter_the_new_bytes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_bytes(b"0123456789")
    follower = Follower(path)
    follower.read()
    path.write_bytes(b"012")
    assert follower.read() == b""
    path.write_bytes(b"012new")
    assert follower.read() == b"new"


def test_a_log_that_cannot_be_read_is_one_message(tmp_path: Path) -> None:
    for attempt in (Follower(tmp_path).read, lambda: tail_offset(tmp_path, 3)):
        with pytest.raises(OrchError, match=re.escape(str(tmp_path)) + ".*is a directory"):
            attempt()


@given(st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r"]), max_size=30).map(b"".join), st.integers(0, 12), st.integers(1, 7))
def test_the_tail_is_the_last_lines(tmp_path_factory: pytest.TempPathFactory, data: bytes, lines: int, block: int) -> None:
    path = tmp_path_factory.getbasetemp() / "tail.log"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(followers, "BLOCK", block)
        start = tail_offset(path, lines)
    every = data.split(b"\n")
    every = [line + b"\n" for line in every[:-1]] + ([every[-1]] if every[-1] else [])
    assert data[start:] == b"".join(every[max(0, len(every) - lines) :])


def test_the_tail_of_a_log_without_a_line_end_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.touch()
    os.truncate(path, 64 << 20)
    tracemalloc.start()
    try:
        assert tail_offset(path, 1) == 0
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_writer_in_another_process_is_followed_without_loss(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    program = "for i in range(50_000):\n    print(i, 'x' * (i % 50))"
    follower, splitter, shown = Follower(path), LineSplitter(), list[str]()
    with path.open("wb") as file:
        writer = subprocess.Popen([sys.executable, "-c", program], stdout=file)
        ended = False
        while True:
            if data := follower.read():
                shown += splitter.feed(data)
            elif ended:
                break
            else:
                ended = writer.poll() is not None
    assert writer.returncode == 0
    assert splitter.flush() == []
    assert shown == [f"{i} {'x' * (i % 50)}" for i in range(50_000)]
