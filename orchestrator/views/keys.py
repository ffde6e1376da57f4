"""Defines what a key does in `orch top`. Pure: a key gives the next view, and what the program around it has to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from .frame import HELP, first_of, selected_place, shown
from .top_state import SORTS, TopState, View

Action = Literal["", "quit", "logs", "stacks", "restart"]
MOVES = {"up": -1, "down": 1, "home": -(10**6), "g": -(10**6), "end": 10**6, "G": 10**6}
PAGES = {"pageup": -1, "pagedown": 1}
LONGEST_FILTER = 40


def press(state: TopState, key: str, room: int) -> tuple[View, Action]:
    """The view after a key, such as ``x`` or ``up``, and what to do. `room`: the rows or lines on the screen (`frame.room_of`)."""
    view = replace(state.view, message="")
    if view.asks == "restart":
        return replace(view, asks=""), "restart" if key in ("y", "Y") else ""
    if view.asks == "filter":
        return _type(view, key), ""
    if key == "q":
        return view, "quit"
    if key in MOVES:
        return _move(state, view, MOVES[key], room), ""
    if key in PAGES:
        moved = _move(state, view, by := PAGES[key] * max(1, room), room)
        first = moved.first if view.page != "tasks" else max(0, first_of(state, shown(state), room) + by)
        return replace(moved, first=first), ""
    if view.page != "tasks":
        return (replace(view, page="tasks", lines=(), first=0), "") if key in ("escape", "enter", "?", "l", "k") else (view, "")
    return _choose(state, view, key)


def _choose(state: TopState, view: View, key: str) -> tuple[View, Action]:
    chosen = shown(state)
    match key:
        case "l" | "enter" if chosen:
            return replace(view, selected=chosen[selected_place(state, chosen)].task), "logs"
        case "k" if state.lives:
            return replace(view, message="asking all tasks for their stacks ..."), "stacks"
        case "r" if state.lives:
            return replace(view, asks="restart"), ""
        case "k" | "r":
            return replace(view, message="the run is over"), ""
        case "s":
            return replace(view, sort=SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)], first=0), ""
        case "/":
            return replace(view, asks="filter"), ""
        case "?":
            return replace(view, page="help", lines=HELP, first=0), ""
        case "escape":
            return replace(view, filter="", first=0), ""
    return view, ""


def _type(view: View, key: str) -> View:
    if key == "enter":
        return replace(view, asks="")
    if key == "escape":
        return replace(view, asks="", filter="")
    if key == "backspace":
        return replace(view, filter=view.filter[:-1])
    is_character = len(key) == 1 and key.isprintable()
    return replace(view, filter=(view.filter + key)[:LONGEST_FILTER], first=0) if is_character else view


def _move(state: TopState, view: View, by: int, room: int) -> View:
    if view.page != "tasks":
        lines = len(view.lines) * (2 if view.page == "help" else 1)  # the lines of the help are wrapped on a narrow terminal
        last = max(0, lines - room)
        return replace(view, first=max(0, min(min(view.first, last) + by, last)))
    chosen = shown(state)
    if not chosen:
        return view
    place = max(0, min(selected_place(state, chosen) + by, len(chosen) - 1))
    return replace(view, selected=chosen[place].task)
