"""The pictures of docs/commands.md, of real runs (`make pictures`): `orch top` on three troubles, and a page of `orch report`."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Mapping
from pathlib import Path

import pyte
from rich.console import Console
from rich.text import Text

from benchmarks.measure import ROOT

REPORT = ROOT / "docs" / "report.png"
SCENES = {"top.svg": ("--slow", "0.05"), "top-input.svg": ("--slow-input", "0.05"), "top-hang.svg": ("--hang-at", "100")}
COMMAND = ("examples/who_waits.py", "--workers", "3", "--quiet", "--", "--steps", "100000")
COLUMNS, ROWS = 104, 12
TRAINS_S, SEEN_S = 60.0, 4.0
"""How long a run trains before its picture, and how long the view is looked at."""
BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium") or shutil.which("google-chrome")
WIDTH, HEIGHT = 1100, 1300


def screen_of(command: list[str], cwd: Path, env: Mapping[str, str], columns: int = COLUMNS, rows: int = ROWS) -> pyte.Screen:
    """What stands on a terminal of this size after `SEEN_S` seconds of a command, which is then ended."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(command, cwd=cwd, env={**env}, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    os.set_blocking(master, False)
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    until = time.monotonic() + SEEN_S
    while time.monotonic() < until:
        try:
            stream.feed(os.read(master, 65536))
        except BlockingIOError:
            time.sleep(0.05)
    process.terminate()
    process.wait()
    os.close(master)
    return screen


def svg_of(screen: pyte.Screen, title: str) -> str:
    text = Text()
    for row in range(screen.lines):
        for column in range(screen.columns):
            cell = screen.buffer[row][column]
            on, behind = ("" if name == "default" else f"#{name}" if _is_hex(name) else name for name in (cell.fg, cell.bg))
            style = " ".join(filter(None, ("bold" * cell.bold, "reverse" * cell.reverse, on, behind and f"on {behind}")))
            text.append(cell.data, style or None)
        text.append("\n")
    text.rstrip()
    console = Console(record=True, width=screen.columns, file=io.StringIO())
    console.print(text)
    return console.export_svg(title=title, unique_id="top")


def _is_hex(name: str) -> bool:
    return len(name) == 6 and all(letter in "0123456789abcdef" for letter in name.lower())


def photograph(page: Path, picture: Path, *, width: int = WIDTH, height: int = HEIGHT, dark: bool = False) -> None:
    """The upper part of a page in a browser, as PNG."""
    if BROWSER is None:
        raise SystemExit("orch: the picture of the report needs a browser: install chromium-headless-shell")
    with tempfile.TemporaryDirectory() as profile:
        options = ["--no-sandbox", "--disable-gpu", "--headless", "--hide-scrollbars", f"--user-data-dir={profile}"]
        options += ["--blink-settings=preferredColorScheme=0"] if dark else []
        command = [BROWSER, *options, f"--window-size={width},{height}", f"--screenshot={picture}", f"file://{page}"]
        subprocess.run(command, check=True, capture_output=True, timeout=200)


def take(env: Mapping[str, str]) -> None:
    """Make the pictures, one run after the other."""
    for name, words in SCENES.items():
        with tempfile.TemporaryDirectory() as directory:
            _take(Path(directory), ROOT / "docs" / name, words, env)


def _take(directory: Path, picture: Path, words: tuple[str, ...], env: Mapping[str, str]) -> None:
    orch = [sys.executable, "-m", "orchestrator"]
    shutil.copytree(ROOT / "examples", directory / "examples")
    env = {**env, "ORCH_EXAMPLES_DATA": str(directory / "data")}
    run = subprocess.Popen([*orch, "up", *COMMAND, *words], cwd=directory, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(TRAINS_S)
        seen = {**env, "TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": "", "LINES": ""}
        picture.write_text(svg_of(screen_of([*orch, "top"], directory, seen), "orch top"))
    finally:
        subprocess.run([*orch, "down"], cwd=directory, env=env, check=False, capture_output=True)
        run.wait()
    if picture.name == "top.svg":
        page = directory / "page.html"
        subprocess.run([*orch, "report", "-o", str(page)], cwd=directory, env=env, check=True, capture_output=True)
        photograph(page, REPORT)
