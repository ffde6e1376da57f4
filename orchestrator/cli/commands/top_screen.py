"""The terminal of `orch top`. Textual owns it: the alternate screen, the keys, the size. `views` makes what is shown."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import termios
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Key, Resize
from textual.widgets import Static

from ...control.requests import ask_restart, ask_running
from ...errors import OrchError
from ...record import stack_report
from ...record.run_progress import read_cluster
from ...record.run_store import plan_of
from ...record.text.lines import clean
from ...views.frame import frame, room_of, troubled
from ...views.keys import press
from ...views.top_state import TopState, View
from ...views.watcher import Watcher

EVERY_S = 0.5
"""The run is read, and the screen drawn if anything has changed, twice a second."""


def show(watcher: Watcher) -> int:
    """Show a run until the user quits. Returns the exit code; raises `OrchError` if the run cannot be read any more."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    app = Top(watcher)
    try:
        code = app.run(mouse=False)  # without the mouse, the terminal lets users select text
    finally:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
    if app.error is not None:
        raise app.error
    return code or 0


class Top(App[int]):
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: ansi_default; color: ansi_default; overflow: hidden; }
    Static { background: ansi_default; color: ansi_default; width: 100%; height: 100%; text-wrap: nowrap; text-overflow: clip; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "leave", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
    ]

    def __init__(self, watcher: Watcher) -> None:
        super().__init__(ansi_color=True)
        self._watcher = watcher
        self._state: TopState = watcher.read(View())
        self._lines: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.error: OrchError | None = None

    def compose(self) -> ComposeResult:
        yield Static(markup=False)

    def on_mount(self) -> None:
        # Textual handles no signal that ends a program: without this, SIGTERM leaves the terminal raw, on the alternate screen.
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, self.exit, 128 + number)
        self.set_interval(EVERY_S, self._look)

    def action_leave(self) -> None:
        """Ctrl-C."""
        self.exit(128 + signal.SIGINT)

    def on_resize(self, event: Resize) -> None:
        self._draw()

    def on_key(self, event: Key) -> None:
        key = event.character if event.is_printable and event.character else event.key
        view, action = press(self._state, key, room_of(self._state, self.size.width, self.size.height))
        self._state = replace(self._state, view=view)
        match action:
            case "quit":
                self.exit(0)
            case "logs":
                self._show_log()
            case "stacks":
                self._begin(self._show_stacks())
            case "restart":
                self._begin(self._restart())
        self._draw()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _look(self) -> None:
        try:
            termios.tcgetattr(sys.stdin.fileno())
        except termios.error:  # the terminal is gone, and no SIGHUP came, as in a session without one
            self.exit(128 + signal.SIGHUP)
            return
        try:
            self._state = self._watcher.read(self._state.view)
        except OrchError as error:
            self.error = error
            self.exit(error.exit_code)
            return
        if self._state.view.page == "logs":
            self._show_log()
        self._draw()

    def _draw(self) -> None:
        lines = frame(self._state, self.size.width, self.size.height)
        if lines == self._lines:
            return
        self._lines = lines
        text = Text(no_wrap=True, overflow="crop", end="")
        first = troubled(self._state, lines)
        for number, line in enumerate(lines):
            style = " ".join(filter(None, ("reverse" * line.startswith("> "), "bold" * (number == 0), "bold red" * (number in first))))
            text.append(line + ("\n" if number + 1 < len(lines) else ""), style=style)
        self.query_one(Static).update(text)

    # --- what keys ask for ---------------------------------------------------------------------

    def _show_log(self) -> None:
        """The end of the output of the selected task; the end stays on the screen, unless the user has scrolled."""
        view = self._state.view
        row = next((row for row in self._state.rows if row.task == view.selected), None)
        if row is None:
            return
        lines = self._watcher.read_log(row.task, row.attempt)
        follows = view.page != "logs" or view.first >= len(view.lines) - self.size.height
        first = len(lines) if follows else view.first
        self._state = replace(self._state, view=replace(view, page="logs", lines=lines, first=first))

    async def _show_stacks(self) -> None:
        try:
            lines = await asyncio.to_thread(self._collect_stacks)
        except OrchError as error:
            lines = (str(error),)
        view = replace(self._state.view, page="stacks", lines=lines, first=0, message="")
        self._state = replace(self._state, view=view)
        self._draw()

    def _collect_stacks(self) -> tuple[str, ...]:
        run = self._watcher.run
        cluster = read_cluster(run)
        found = stack_report.collect(run, plan_of(run), cluster, lambda: ask_running(run, "stacks"))
        answers = {name: stack_report.parse(text) for name, text in found.items()}
        lines = stack_report.summarise({name: answer for name, answer in answers.items() if answer})
        for name, text in found.items():
            answer = [clean(line) for line in stack_report.in_order(text, is_brief=True)]
            lines += ["", f"--- {name}", *(answer or ["no answer (not Python, or not started yet)"])]
        return tuple(lines)

    async def _restart(self) -> None:
        try:
            attempt = await asyncio.to_thread(ask_restart, self._watcher.run)
            message = f"asked to start again after attempt {attempt}"
        except OrchError as error:
            message = str(error)
        self._state = replace(self._state, view=replace(self._state.view, message=message))
        self._draw()
