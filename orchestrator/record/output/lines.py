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

import re

LONGEST = 1 << 20
"""Bytes after which a line without an end is given out in pieces."""
QUIET_S = 1.0
"""An unfinished line (a prompt, a row of dots) is shown after this many seconds without new bytes."""
PROGRESS_S = 10.0
"""An unfinished line that keeps changing (a progress bar) is shown this often."""

_RESET = "\x1b[0m"
_ESCAPE = b"\x1b"
# Every byte that a line must not hand to a terminal as it is; 0xc2 begins the C1 controls in UTF-8. One memchr
# for each is several times faster than a regular expression or bytes.translate over the same block.
_SUSPECTS = [bytes([code]) for code in (*range(9), *range(11, 32), 0x7F, 0xC2)]
_SGR = re.compile(r"\x1b\[[0-9;:]*m")
# All alternatives begin after the one escape, so that the next one is found at the speed of memchr.
_COMMANDS = re.compile(
    r"\x1b(?:"
    r"(\[[0-9;:]*m)"  # 1: SGR
    r"|(\[[0-?]*[ -/]*[@-~]"  # 2: other CSI commands,
    r"|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # OSC, DCS and their kin up to their end,
    r"|[ -/]*[0-OQ-WYZ\\`-~])"  # and short escape sequences
    r")?"  # no group: an escape that begins nothing
)
# Characters that show nothing, and control characters that are shown.
_TAMED = dict.fromkeys("\x00\x07\x08\x7f", "") | {
    chr(code): f"\\x{code:02x}" for code in (*range(1, 7), *range(11, 27), *range(28, 32), *range(128, 160))
}
_CONTROL = re.compile(f"([{re.escape(''.join(_TAMED))}])")
_UNFINISHED = re.compile(
    rb"(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2}|\x1b(?:\[[0-?]*[ -/]*)?)\Z",
)


class LineSplitter:
    """One stream's bytes in, whole lines out, without their line ends.

    `color`: keep SGR sequences, and reset them at the end of a line that leaves one open (a colour does not run on
    into the next line, which may be another task's); else drop them.
    `longest`: see `LONGEST`.

    An unfinished line that was already shown, by `idle` or `flush`, continues as a new line with the bytes
    that come later; if nothing but its line end comes, nothing more is shown.
    """

    __slots__ = ("_changes", "_color", "_fed", "_longest", "_pending", "_returned", "_shown", "_since")

    def __init__(self, *, color: bool = False, longest: int = LONGEST) -> None:
        self._color = color
        self._longest = longest
        self._pending = bytearray()
        """The current state of the unfinished line; never holds a line end or a carriage return."""
        self._returned = False  # a \r followed the pending state: the next byte replaces it
        self._changes = False  # a \r was seen in this line: it is a progress bar
        self._shown = False  # the beginning of this line has been given out
        self._since: float | None = None  # when this line began, or was last shown
        self._fed = 0.0

    def feed(self, data: bytes, now: float = 0.0) -> list[str]:
        """The lines that `data` completes. `now` is only remembered, for `due`."""
        if len(data) <= self._longest:
            return self._feed(data, now)
        lines: list[str] = []
        for start in range(0, len(data), self._longest):
            lines += self._feed(data[start : start + self._longest], now)
        return lines

    def idle(self, now: float) -> list[str]:
        """The unfinished line as it stands, if it is time to show it."""
        due = self.due
        return self._show(now) if due is not None and now >= due else []

    def flush(self) -> list[str]:
        """What is left, whatever it is: the stream has ended, or its reader is about to."""
        rest = bytes(self._pending)
        if not rest:
            return []
        self._pending.clear()
        self._shown = True
        return self._text(rest)

    @property
    def due(self) -> float | None:
        """When `idle` would show something; None while nothing is unfinished."""
        if not self._pending or self._since is None:
            return None
        if self._changes or self._shown:
            return self._since + PROGRESS_S
        return min(self._fed + QUIET_S, self._since + PROGRESS_S)

    def _feed(self, data: bytes, now: float) -> list[str]:
        """`feed` for at most `longest` bytes, so only the line already begun can be too long."""
        self._fed = now
        end = data.rfind(b"\n") + 1
        if not end:
            return self._hold(data, now)
        start = 0
        lines: list[str] = []
        if self._pending or self._shown:
            start = data.index(b"\n") + 1
            lines = self._hold(data[: start - 1], now)
            if self._pending or not self._shown:
                lines += self._text(bytes(self._pending))
            self._pending.clear()
            self._shown = False
        self._returned = self._changes = False
        self._since = None
        if start < end:
            block = self._text(_last_states(data[start : end - 1]))
            lines = lines + block if lines else block
        if end < len(data):
            lines += self._hold(data[end:], now)
        return lines

    def _hold(self, data: bytes, now: float) -> list[str]:
        """Takes in bytes without a line end; gives out pieces of a line that is too long."""
        head, returns, tail = data.partition(b"\r")
        lines = self._append(head, now)
        if returns:
            self._returned = self._changes = True
            states = tail.rstrip(b"\r")
            lines += self._append(states[states.rfind(b"\r") + 1 :], now)
            if states:
                self._returned = len(states) < len(tail)
        return lines

    def _append(self, data: bytes, now: float) -> list[str]:
        if not data:
            return []
        if self._returned:
            self._pending.clear()
            self._returned = False
        if self._since is None:
            self._since = now
        self._pending += data
        lines: list[str] = []
        while len(self._pending) > self._longest:
            end = _whole_end(self._pending, self._longest) or self._longest
            lines += self._text(bytes(self._pending[:end]))
            del self._pending[:end]
            self._shown = True
        return lines

    def _show(self, now: float) -> list[str]:
        self._since = now
        end = len(self._pending) if self._returned else _whole_end(self._pending, len(self._pending))
        if not end:
            return []
        shown = bytes(self._pending[:end])
        del self._pending[:end]
        self._shown = True
        return self._text(shown)

    def _text(self, block: bytes) -> list[str]:
        """The lines of a block that has no carriage return and no line end at its end."""
        suspects = [byte for byte in _SUSPECTS if byte in block]
        text = _decoded(block)
        if not suspects:
            return text.split("\n")
        if suspects != [_ESCAPE] or len(_SGR.findall(text)) != text.count("\x1b"):
            text = _tamed(text)
        if not self._color:
            return _SGR.sub("", text).split("\n")
        return [_closed(line) if "\x1b" in line else line for line in text.split("\n")]


def clean(text: str) -> str:
    """Text of unknown origin, such as a message or a value that a task reports, with nothing in it that commands a terminal.

    Colours go as well. Line ends and tabs stay.
    """
    return _SGR.sub("", _tamed(text))


def _last_states(block: bytes) -> bytes:
    """Complete lines, each reduced to what follows its last effective carriage return."""
    if b"\r" not in block:
        return block
    block = block.replace(b"\r\n", b"\n")
    if b"\r" not in block:
        return block
    return b"\n".join([_last_state(line) if b"\r" in line else line for line in block.split(b"\n")])


def _last_state(line: bytes) -> bytes:
    line = line.rstrip(b"\r")
    return line[line.rfind(b"\r") + 1 :]


def _whole_end(data: bytearray, end: int) -> int:
    """The last position up to `end` that is inside neither a UTF-8 character nor an escape sequence."""
    tail = bytes(data[max(0, end - 64) : end])
    found = _UNFINISHED.search(tail)
    return end if found is None else end - len(tail) + found.start()


def _decoded(block: bytes) -> str:
    """UTF-8, with ``\\xNN`` for each byte that is not: as ``backslashreplace`` decodes it, which calls a function for every such byte."""
    if b"\\udc" in block:
        return block.decode("utf-8", "backslashreplace")
    escaped = block.decode("utf-8", "surrogateescape").encode("utf-8", "backslashreplace")
    return escaped.replace(b"\\udc", b"\\x").decode()


def _tamed(text: str) -> str:
    """Text in which nothing but SGR sequences commands a terminal."""
    if "\x1b" in text:
        text = _COMMANDS.sub(lambda found: found[0] if found[1] else "" if found[2] else "\\x1b", text)
    # Over binary output this takes a tenth of the time of str.translate or of a replacement of one character after the other.
    parts = _CONTROL.split(text)
    if len(parts) == 1:
        return text
    parts[1::2] = map(_TAMED.__getitem__, parts[1::2])
    return "".join(parts)


def _closed(line: str) -> str:
    """The line, with a reset at its end unless its last SGR sequence is one."""
    start = line.rfind("\x1b[") + 2
    return line if not line[start : line.index("m", start)].strip("0;") else line + _RESET
