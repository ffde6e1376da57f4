"""Bytes of one output stream -> whole lines that are safe to put on a terminal.

The rules, all of them independent of how the bytes were cut into reads:

- A line ends at ``\\n`` or ``\\r\\n``. Text is UTF-8; a byte that is not becomes ``\\xNN``.
- A lone ``\\r`` goes back to the start of the line, as progress bars do: what follows replaces what was
  there, and only the last state is a line. (A terminal would leave the end of a longer state standing.)
- A line longer than `LONGEST` bytes comes in pieces of about that size; no piece ends inside a character or
  an escape sequence. So the memory held for a stream is bounded.
- Colours and other SGR sequences are kept or dropped, as asked. Other terminal commands (cursor, clearing,
  titles, links) are dropped, and so are NUL, BEL, backspace and DEL; the rest of the control characters,
  but for the tab, become ``\\xNN``.

Pure: no I/O, no clock. Times are seconds of any clock, given by the caller.
"""

from __future__ import annotations

import contextlib
import re

LONGEST = 1 << 20
"""Bytes after which a line without an end is given out in pieces."""
QUIET_S = 1.0
"""An unfinished line (a prompt, a row of dots) is shown after this many seconds without new bytes."""
PROGRESS_S = 10.0
"""An unfinished line that keeps changing (a progress bar) is shown this often."""

RESET = "\x1b[0m"
"""The SGR sequence that ends all colours."""
_SGR = re.compile(r"\x1b\[[0-9;:]*m")
# All alternatives begin after the escape, so that memchr finds the next one.
_COMMANDS = re.compile(
    r"\x1b(?:"
    r"(\[[0-9;:]*m)"  # 1: SGR
    r"|(\[[0-?]*[ -/]*[@-~]"  # 2: other CSI commands,
    r"|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # OSC, DCS and similar commands up to their end,
    r"|[ -/]*[0-OQ-WYZ\\`-~])"  # and short escape sequences
    r")?"  # no group: an escape without a command
)
_ESCAPES = re.compile("\x1b{9,}(?=\x1b)")
"""Escapes that are followed by another one, as in binary data: none of them begins a command."""
# Characters that are dropped, and control characters that are shown as \xNN. Those that change the order of what is shown (Unicode's
# Bidi_Control, and older ones) are shown as \uNNNN: a text could look like another one.
_TAMED = dict.fromkeys("\x00\x07\x08\x7f", "") | {
    chr(code): f"\\x{code:02x}" for code in (*range(1, 7), *range(11, 27), *range(28, 32), *range(128, 160))
}
_TAMED |= {chr(code): f"\\u{code:04x}" for code in (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x2070))}
_CONTROL = re.compile(f"([{re.escape(''.join(_TAMED))}])")
_UNFINISHED = re.compile(rb"(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2}|\x1b(?:\[[0-?]*[ -/]*)?)\Z")


class LineSplitter:
    """The bytes of one stream in, whole lines without their line ends out.

    `color`: keep SGR sequences, and add a reset to a line that leaves one open, because the next line may belong to
    another task. Otherwise SGR sequences are dropped.
    `longest`: see `LONGEST`; tests take fewer bytes.

    If `idle` or `flush` has shown an unfinished line, its later bytes are a new line. If only the line end comes, no
    line follows.
    """

    def __init__(self, *, color: bool = False, longest: int = LONGEST) -> None:
        self._color = color
        self._longest = longest
        self._pending = b""
        """The last state of the unfinished line, with a carriage return behind it if one has come."""
        self._changes = False  # this line has a \r: it is a progress bar
        self._shown = False  # the beginning of this line was returned
        self._since: float | None = None  # the time at which this line began, or was last shown
        self._fed = 0.0

    def feed(self, data: bytes, now: float = 0.0) -> list[str]:
        """The lines that `data`, at most `longest` bytes, completes. `now` is kept for `idle`."""
        self._fed = now
        if b"\0" in data:  # a gigabyte of them comes of a program that cuts the file of its own output
            data = data.replace(b"\0", b"")
        head, ended, rest = data.partition(b"\n")
        lines = self._hold(head, now)
        if not ended:
            return lines
        last = self._pending.rstrip(b"\r")
        if last or not self._shown:
            lines += self._text(last)
        self._pending, self._changes, self._shown, self._since = b"", False, False, None
        block, ended, tail = rest.rpartition(b"\n")
        if ended:
            lines += self._text(_last_states(block))
        lines += self._hold(tail, now)
        return lines

    def idle(self, now: float) -> list[str]:
        """The unfinished line, if it has been quiet for `QUIET_S`, or was not shown for `PROGRESS_S`."""
        if self._since is None:
            return []
        due = self._since + PROGRESS_S
        if not (self._changes or self._shown):
            due = min(due, self._fed + QUIET_S)
        if now < due:
            return []
        self._since = now
        return self._take(_whole_end(self._pending, len(self._pending)))

    def flush(self) -> list[str]:
        """The unfinished line: the stream or its reader ends."""
        return self._take(len(self._pending))

    def _hold(self, data: bytes, now: float) -> list[str]:
        """Adds bytes without a line end; returns pieces of a line that is too long."""
        lines: list[str] = []
        head, returned, states = data.partition(b"\r")
        if head:
            self._pending = _open_state(self._pending + head)
            while len(self._pending) > self._longest:
                lines += self._take(_whole_end(self._pending, self._longest) or self._longest)
        if returned:
            self._changes = True
            self._pending = _open_state(self._pending + returned + states)
        if self._since is None and self._pending:
            self._since = now
        return lines

    def _take(self, end: int) -> list[str]:
        """Removes the first `end` bytes from the unfinished line, and returns them as a line, unless there is nothing to show."""
        taken, self._pending = self._pending[:end].rstrip(b"\r"), self._pending[end:]
        if not taken:
            return []
        self._shown = True
        return self._text(taken)

    def _text(self, block: bytes) -> list[str]:
        """The lines of a block without carriage returns, and without a line end at its end."""
        text = _decoded(block)
        if text.replace("\n", "").isprintable():
            return text.split("\n")
        text = _tamed(text)
        if not self._color:
            return _SGR.sub("", text).split("\n")
        return [_closed(line) if "\x1b" in line else line for line in text.split("\n")]


def clean(text: str) -> str:
    """A text, such as the message of a task, without terminal commands and colours. Line ends and tabs stay."""
    return _SGR.sub("", _tamed(text))


def strip_colors(line: str) -> str:
    """A line without SGR sequences."""
    return _SGR.sub("", line) if "\x1b" in line else line


def _last_states(block: bytes) -> bytes:
    """Complete lines, each without the text that its last effective carriage return replaces."""
    if b"\r" not in block:
        return block
    return b"\n".join([_last_state(line) if b"\r" in line else line for line in block.replace(b"\r\n", b"\n").split(b"\n")])


def _last_state(line: bytes) -> bytes:
    line = line.rstrip(b"\r")
    return line[line.rfind(b"\r") + 1 :]


def _open_state(line: bytes) -> bytes:
    """The last state of an unfinished line. A carriage return at its end stays: the next byte replaces this state."""
    return _last_state(line) + (b"\r" if line.endswith(b"\r") else b"")


def _whole_end(data: bytes, end: int) -> int:
    """The last position up to `end` that is not inside a UTF-8 character or an escape sequence."""
    tail = data[max(0, end - 64) : end]
    found = _UNFINISHED.search(tail)
    return end if found is None else end - len(tail) + found.start()


def _decoded(block: bytes) -> str:
    """Decodes as ``backslashreplace`` does (``\\xNN`` for a byte that is not UTF-8), without calling a function for each such byte."""
    with contextlib.suppress(UnicodeDecodeError):
        return block.decode()
    if b"\\udc" in block:
        return block.decode("utf-8", "backslashreplace")
    escaped = block.decode("utf-8", "surrogateescape").encode("utf-8", "backslashreplace")
    return escaped.replace(b"\\udc", b"\\x").decode()


def _tamed(text: str) -> str:
    """The text without terminal commands other than SGR sequences."""
    text = _ESCAPES.sub(lambda found: "\\x1b" * len(found[0]), text)
    if text.count("\x1b") > len(_SGR.findall(text)):
        text = _COMMANDS.sub(lambda found: found[0] if found[1] else "" if found[2] else "\\x1b", text)
    # For binary output this takes a tenth of the time of str.translate or of one replacement for each character.
    parts = _CONTROL.split(text)
    if len(parts) == 1:
        return text
    parts[1::2] = map(_TAMED.__getitem__, parts[1::2])
    return "".join(parts)


def _closed(line: str) -> str:
    """The line, with a reset at its end unless its last SGR sequence is a reset."""
    start = line.rfind("\x1b[") + 2
    return line if not line[start : line.index("m", start)].strip("0;") else line + RESET
