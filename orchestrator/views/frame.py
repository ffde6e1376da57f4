"""Draws what `orch top` shows as lines of text, at most as wide as the terminal. Pure: no terminal, no clock, no colour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from worker.values.fast_dataclass import dataclass
from worker.values.words import bytes_of, count_of

from ..model.policy.stragglers import milliseconds
from ..record.text.format import describe_seconds, display_width, fit, pad, wrap
from ..record.text.lines import clean
from .top_state import Row, TopState

HELP = (
    "up, down, page up, page down, g (first), G (last)   choose a task",
    "l   the newest lines of its output",
    "k   where all tasks are (Python stacks)",
    "/   show only tasks with this text in their name, host or state",
    "s   sort by the next of: work, peers, input, cpu, memory, state",
    "r   stop all tasks and start them again (asks first)",
    "Esc back    q quit",
    "",
    "WORK, PEERS, INPUT: what a step takes: work, the wait for the other workers, the wait for input.",
    "A slow task works longest and waits least.",
    "STATE: runs; waits (for the others); slow; missing (the others wait for it); input (it waits for its next batch);",
    "SIGSTOP (stopped by this signal); or a word of orch ps.",
    "CPU: percent of one core. MEMORY: resident.",
)
KEYS, FEW_KEYS = "q quit  ? help  l log  k stacks  / filter  s sort  r restart", "q quit  ? help"
TROUBLE = frozenset({"slow", "missing", "input", "SIGSTOP", "failed", "lost"})
"""The states of tasks at which a user should look first."""
MOST_ALERT = 3
"""The most lines of the alert; one line on a terminal of few rows."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table. `worth`: the higher, the longer it stays when the terminal gets narrow."""

    head: str
    worth: int
    text: Callable[[Row], str]
    is_right: bool = True


def _number(pick: Callable[[Row], float | None], words: Callable[[float], str]) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        value = pick(row)
        return "" if value is None else words(value)

    return text


COLUMNS = (
    Column("TASK", 100, lambda row: row.task, is_right=False),
    Column("HOST", 30, lambda row: row.host, is_right=False),
    Column("STATE", 90, lambda row: row.state, is_right=False),
    Column("STEP", 80, _number(lambda row: row.step, lambda value: f"{value:.0f}")),
    Column("STEPS/S", 40, _number(lambda row: row.rate, lambda value: f"{value:.3g}")),
    Column("WORK", 70, _number(lambda row: row.work, milliseconds)),
    Column("PEERS", 69, _number(lambda row: row.peers, milliseconds)),
    Column("INPUT", 60, _number(lambda row: row.input, milliseconds)),
    Column("CPU", 55, _number(lambda row: row.cpu, lambda value: f"{value:.0f}%")),
    Column("MEMORY", 50, _number(lambda row: row.memory, lambda value: bytes_of(round(value)))),
    Column("NOTE", 10, lambda row: row.note, is_right=False),
)
LEAST_NOTE = 8
"""The column for notes, which is cut, is left out where it would be narrower."""


def frame(state: TopState, columns: int, rows: int | None = None) -> list[str]:
    """The lines of the screen. `rows`: exactly so many; None: as many as there are, without the line of keys, for a pipe or a file."""
    heads, position = _heads(state, columns, rows), ""
    room = None if rows is None else room_of(state, columns, rows)
    if state.view.page != "tasks":
        is_help = state.view.page == "help"
        body = [part for line in state.view.lines for part in (wrap(line, columns) or [""])] if is_help else list(state.view.lines)
        table = _window(body, state.view.first, room)
    else:
        chosen = shown(state)
        first = 0 if room is None else first_of(state, chosen, room)
        table = _table(chosen if room is None else chosen[first : first + room], state, columns, marks=rows is not None)
        if room is not None and len(chosen) > room:
            position = f"{first + 1}-{first + room} of {len(chosen)}"
    lines = [fit(_flat(line), columns) for line in (*heads, *table)]
    if rows is None:
        return [line.rstrip() for line in lines]
    lines = lines[: max(0, rows - 1)]
    lines += [""] * (rows - 1 - len(lines))
    return [*lines, fit(_flat(_foot(state, position, columns)), columns)][:rows]


def room_of(state: TopState, columns: int, rows: int) -> int:
    """Return how many rows of the table, or lines of a page, are on the screen, below the heads and above the line of keys."""
    return max(0, rows - len(_heads(state, columns, rows)) - (2 if state.view.page == "tasks" else 1))


def shown(state: TopState) -> list[Row]:
    """The rows that the filter lets through, in the order that the user has chosen."""
    view, wanted = state.view, state.view.filter.casefold()
    found = [row for row in state.rows if wanted in f"{row.task} {row.host} {row.state}".casefold()]
    if view.sort == "state":
        return sorted(found, key=lambda row: row.state)
    return found if view.sort == "task" else sorted(found, key=lambda row: -(getattr(row, view.sort) or 0.0))


def first_of(state: TopState, chosen: Sequence[Row], room: int) -> int:
    """The number of rows above the screen, so that the selected one is on the screen."""
    place = selected_place(state, chosen)
    first = min(state.view.first, max(0, len(chosen) - room))
    return max(0, min(first, place)) if place < first + room else place - room + 1


def selected_place(state: TopState, chosen: Sequence[Row]) -> int:
    """Return where the selected row is among these; 0 if it is not among them."""
    return next((place for place, row in enumerate(chosen) if row.task == state.view.selected), 0)


def _heads(state: TopState, columns: int, rows: int | None) -> list[str]:
    """The lines above the table: the run, its tasks and hosts, and the alert."""
    attempt = f", attempt {state.attempt}" if state.attempt > 1 else ""
    first = f"{state.run}: {state.phase}{attempt}, {describe_seconds(state.seconds)}, {state.strategy}"
    counts: dict[str, int] = {}
    for row in state.rows:
        counts[row.state] = counts.get(row.state, 0) + 1
    parts = [f"{count_of(len(state.rows), 'task')}: " + ", ".join(f"{word} {number}" for word, number in counts.items())]
    for name, sample in list(state.hosts.items())[:3] if state.lives else ():
        use = sample.use
        limit = f", CPU limit reached {use.throttled:.0f}%" if use.throttled >= 1 else ""
        gpus = "".join(f", GPU {gpu.index} {gpu.busy:.0f}%" for gpu in sample.gpus)
        memory = f"memory {bytes_of(use.memory)} of {bytes_of(use.memory_total)}"
        parts.append(f"{name}: CPU {use.cpu:.0f}% of {100 * use.cores}%, {memory}{limit}{gpus}")
    more = len(state.hosts) - 3
    second = "; ".join([*parts, *([f"{more} more hosts"] if more > 0 and state.lives else [])])
    alert = [state.alert] if rows is None or not state.alert else wrap(state.alert, columns)[: max(1, min(MOST_ALERT, rows - 8))]
    return [first, second, *filter(None, alert)]


def _foot(state: TopState, position: str, columns: int) -> str:
    view = state.view
    if view.asks == "filter":
        return f"show tasks with: {view.filter}_   Enter keeps, Esc shows all"
    if view.asks == "restart":
        return "stop all tasks and start them again? y yes, any other key no"
    if view.message:
        return view.message
    if view.page != "tasks":
        return "Esc back  q quit  up, down scroll"
    chosen = [position] if position else []
    chosen += [f"sort: {view.sort}"] if view.sort != "task" else []
    chosen += [f"filter: {view.filter}"] if view.filter else []
    whole = "   ".join([KEYS, *chosen])
    return whole if not chosen or display_width(whole) <= columns else "   ".join([FEW_KEYS, *chosen])


def troubled(state: TopState, lines: Sequence[str]) -> set[int]:
    """The places of the lines at which a user should look first: the alert, and the rows of tasks in trouble. `lines`: a `frame`."""
    if state.view.page != "tasks":
        return set()
    head = next((place for place, line in enumerate(lines) if line.lstrip().startswith("TASK ")), len(lines))
    rows = (place for place in range(head + 1, len(lines)) if TROUBLE & {*lines[place][2:].split()[1:3]})  # HOST and STATE, or STATE
    return {*range(2, head), *rows}


def _window(lines: Sequence[str], first: int, room: int | None) -> list[str]:
    """The part of a page that is on the screen."""
    if room is None:
        return list(lines)
    first = max(0, min(first, len(lines) - room))
    return list(lines[first : first + room])


# --- the table ------------------------------------------------------------------------------------


def _table(chosen: Sequence[Row], state: TopState, width: int, *, marks: bool) -> list[str]:
    several = len({row.host for row in state.rows}) > 1
    given = [column for column in COLUMNS if column.head != "HOST" or several]
    cells = {column.head: [column.text(row) for row in chosen] for column in given}
    given = [column for column in given if column.head in ("TASK", "STATE") or any(cells[column.head])]
    wide = {column.head: max(map(display_width, [column.head, *cells[column.head]])) for column in given}
    indent = 2 if marks else 0
    while len(given) > 1 and _sum(given, wide, indent) > width:
        given.remove(min(given, key=lambda column: column.worth))
    lines = [_line(given, wide, {column.head: column.head for column in given}, " " * indent)]
    place = selected_place(state, chosen)
    for number, _ in enumerate(chosen):
        mark = "" if not marks else "> " if number == place else "  "
        lines.append(_line(given, wide, {column.head: cells[column.head][number] for column in given}, mark))
    return lines


def _sum(given: Iterable[Column], wide: dict[str, int], indent: int) -> int:
    """The width of these columns. The notes, in the last one, take what is left."""
    return indent - 2 + sum(2 + (LEAST_NOTE if column.head == "NOTE" else wide[column.head]) for column in given)


def _line(given: Sequence[Column], wide: dict[str, int], cells: dict[str, str], mark: str) -> str:
    parts = [pad(" ".join(cells[column.head].split()), wide[column.head], is_right=column.is_right) for column in given]
    return (mark + "  ".join(parts)).rstrip()


def _flat(text: str) -> str:
    """The text in one line, without terminal commands."""
    return clean(text).expandtabs(4).replace("\n", " ")
