"""What `orch top` shows: lines that fit, with what matters most where there is little room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.model.policy import lifecycle
from orchestrator.model.state import events
from orchestrator.model.state.cluster import Cluster, Policy
from orchestrator.record.text.format import display_width
from orchestrator.views.frame import HELP, frame, room_of, troubled
from orchestrator.views.keys import press
from orchestrator.views.top_state import Row, TopState, View, as_json, rows_of
from tests.record.states import begun
from worker.protocol.messages import HostUse, Sampled, TaskUse

USE = HostUse(cpu=190.0, cores=2, memory=8_000_000_000, memory_total=25_000_000_000)


def row(number: int, state: str = "runs", **more: object) -> Row:
    numbers = {"step": 1840.0, "rate": 15.3, "work": 0.0027, "peers": 0.06, "input": 0.0004, "cpu": 12.0, "memory": 385_000_000}
    return Row(f"worker-{number}", "a", state, note="epoch=1 loss=0.25", **{**numbers, **more})  # type: ignore[arg-type]


def state(count: int = 4, **more: object) -> TopState:
    rows = tuple(row(number) for number in range(count))
    hosts = {"a": Sampled(1.0, 2.0, (), USE, host="a")}
    known = TopState("train-1", "multi_worker_mirrored", "running", 1, 725.0, rows, hosts)
    return replace(known, **more)  # type: ignore[arg-type]


def test_a_terminal_of_80_columns() -> None:
    slow = row(3, "slow", work=0.182, peers=0.001)
    seen = state(rows=(*state(3).rows, slow), alert="worker-3 is slower: 182 ms of work per step")
    assert frame(seen, 80, 12) == [
        "train-1: running, 12 min 05 s, multi_worker_mirrored",
        "4 tasks: runs 3, slow 1; a: CPU 190% of 200%, memory 8.0 GB of 25.0 GB",
        "worker-3 is slower: 182 ms of work per step",
        "  TASK      STATE  STEP  STEPS/S    WORK   PEERS   INPUT  CPU  MEMORY  NOTE",
        "> worker-0  runs   1840     15.3  2.7 ms   60 ms  0.4 ms  12%  385 MB  epoch=1 …",
        "  worker-1  runs   1840     15.3  2.7 ms   60 ms  0.4 ms  12%  385 MB  epoch=1 …",
        "  worker-2  runs   1840     15.3  2.7 ms   60 ms  0.4 ms  12%  385 MB  epoch=1 …",
        "  worker-3  slow   1840     15.3  182 ms  1.0 ms  0.4 ms  12%  385 MB  epoch=1 …",
        "",
        "",
        "",
        "q quit  ? help  l log  k stacks  / filter  s sort  r restart",
    ]


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40), (40, 10), (10, 3), (1, 1), (200, 100)])
@pytest.mark.parametrize("count", [0, 1, 64])
@pytest.mark.parametrize("view", [View(), View(page="help"), View(page="logs", lines=("x\ty" * 200, "二" * 200) * 50), View(asks="filter")])
def test_every_frame_fits(columns: int, rows: int, count: int, view: View) -> None:
    seen = state(count, alert="一二三 " * 60, view=view, run="\x1b[2Jrun-二十" * 20)
    lines = frame(seen, columns, rows)
    assert len(lines) == rows
    assert max(map(display_width, lines)) <= columns
    assert "\x1b" not in "".join(lines)


def test_a_narrow_terminal_keeps_who_works_and_who_waits() -> None:
    lines = frame(state(), 40, 10)
    assert lines[2].split() == ["TASK", "STATE", "STEP", "WORK", "PEERS"]


def test_wide_characters_take_two_columns() -> None:
    rows = (Row("worker-0", "機械", "runs", step=1.0), Row("worker-1", "b", "runs", step=22.0))
    lines = frame(state(rows=rows), 60, 8)
    assert lines[2:5] == ["  TASK      HOST  STATE  STEP", "> worker-0  機械  runs      1", "  worker-1  b     runs     22"]


def test_of_64_tasks_the_selected_one_is_on_the_screen() -> None:
    seen = state(64)
    for _ in range(40):
        view, _ = press(seen, "down", 20)
        seen = replace(seen, view=view)
    lines = frame(seen, 80, 24)
    assert [line for line in lines if line.startswith(">")] == [line for line in lines if "worker-40 " in line] != []
    assert sum("worker-" in line for line in lines) == 20
    view, _ = press(seen, "home", 20)
    assert "> worker-0 " in frame(replace(seen, view=view), 80, 24)[3]
    assert lines[-1].endswith("   22-41 of 64")


def test_the_last_line_says_where_the_rows_are_and_keeps_what_the_user_has_chosen() -> None:
    seen, _ = pressed(state(64), "s", "/", *"worker", "enter")
    assert frame(seen, 80, 24)[-1] == "q quit  ? help   1-20 of 64   sort: work   filter: worker"
    assert frame(state(4), 80, 24)[-1] == "q quit  ? help  l log  k stacks  / filter  s sort  r restart"


def test_where_to_look_first_is_marked() -> None:
    seen = state(rows=(*state(3).rows, row(3, "slow"), row(4, "failed")), alert="worker-3 is slower: 182 ms " + "of work " * 12)
    lines = frame(seen, 80, 24)
    assert [lines[place].split()[0] for place in sorted(troubled(seen, lines))] == ["worker-3", "work", "worker-3", "worker-4"]
    assert troubled(state(4), frame(state(4), 80, 24)) == set()
    two = state(rows=(replace(row(0), host="b"), replace(row(1, "missing"), host="c")))
    assert len(troubled(two, frame(two, 80, 24))) == 1


@pytest.mark.parametrize("columns", [80, 40])
def test_the_whole_help_can_be_read(columns: int) -> None:
    rows = 24 if columns == 80 else 10
    seen, _ = pressed(state(), "?", columns=columns, rows=rows)
    words: set[str] = set()
    for _ in range(30):
        words |= {*" ".join(frame(seen, columns, rows)[2:]).split()}
        seen, _ = pressed(seen, "down", columns=columns, rows=rows)
    assert {*" ".join(HELP).split()} <= words


def test_a_pipe_gets_all_tasks_and_nothing_that_is_for_keys() -> None:
    lines = frame(state(64), 10_000)
    assert sum(line.startswith("worker-") for line in lines) == 64
    assert lines[2].startswith("TASK")
    assert lines[-1].endswith("epoch=1 loss=0.25")
    assert not any("quit" in line or line != line.rstrip() for line in lines)


def test_long_alerts_are_wrapped_on_a_terminal() -> None:
    lines = frame(state(alert="word " * 40), 80, 24)
    assert lines[2:5] == [("word " * 16).rstrip(), ("word " * 16).rstrip(), ("word " * 8).rstrip()]


# --- keys ------------------------------------------------------------------------------------------


def pressed(seen: TopState, *keys: str, columns: int = 80, rows: int = 24) -> tuple[TopState, str]:
    action = ""
    for key in keys:
        view, action = press(seen, key, room_of(seen, columns, rows))
        seen = replace(seen, view=view)
    return seen, action


@pytest.mark.parametrize(
    ("keys", "action"),
    [
        (("q",), "quit"),
        (("l",), "logs"),
        (("k",), "stacks"),
        (("r",), ""),
        (("r", "y"), "restart"),
        (("r", "n"), ""),
        (("r", "q"), ""),
        (("/", "q"), ""),
        (("?", "q"), "quit"),
        (("x",), ""),
    ],
)
def test_what_a_key_asks_for(keys: tuple[str, ...], action: str) -> None:
    assert pressed(state(), *keys)[1] == action


def test_a_run_that_is_over_has_no_stacks_and_no_restart() -> None:
    over = state(lives=False)
    assert [pressed(over, key)[1] for key in ("k", "r")] == ["", ""]
    assert pressed(over, "r", "y")[1] == ""
    assert frame(pressed(over, "r")[0], 80, 24)[-1] == "the run is over"


def test_a_restart_is_asked_about() -> None:
    assert frame(pressed(state(), "r")[0], 80, 24)[-1] == "stop all tasks and start them again? y yes, any other key no"


def test_a_filter_shows_some_tasks() -> None:
    seen, _ = pressed(state(12), "/", *"-12", "backspace", "enter")
    lines = frame(seen, 80, 24)
    found = [line[2:].split()[0] for line in lines if "worker-" in line]
    assert found == ["worker-1", "worker-10", "worker-11"]
    assert lines[-1].endswith("filter: -1")
    assert sum("worker-" in line for line in frame(pressed(seen, "escape")[0], 80, 24)) == 12


def test_sorting_puts_the_largest_first() -> None:
    seen = state(rows=(row(0), row(1, work=0.182), row(2, work=None)))
    lines = frame(pressed(seen, "s")[0], 80, 24)
    assert [line[2:10] for line in lines[3:6]] == ["worker-1", "worker-0", "worker-2"]
    assert lines[-1].endswith("sort: work")


def test_a_page_of_many_tasks_is_turned_as_a_whole() -> None:
    def on_screen(seen: TopState) -> tuple[str, str]:
        found = [line for line in frame(seen, 80, 24) if "worker-" in line]
        return " ".join(
            line.split()[1] for line in found if line.startswith("> ")
        ), f"{found[0][2:].split()[0]} to {found[-1][2:].split()[0]}"

    seen, _ = pressed(state(64), "down", "pagedown")
    assert on_screen(seen) == ("worker-21", "worker-20 to worker-39")
    seen, _ = pressed(seen, *["pagedown"] * 3)
    assert on_screen(seen) == ("worker-63", "worker-44 to worker-63")
    seen, _ = pressed(seen, "pageup", "up")
    assert on_screen(seen) == ("worker-42", "worker-24 to worker-43")
    assert on_screen(pressed(seen, "home")[0]) == ("worker-0", "worker-0 to worker-19")


def test_a_log_scrolls_and_escape_leaves_it() -> None:
    seen = state(view=View(page="logs", lines=tuple(f"line {number}" for number in range(100)), first=100))
    assert frame(seen, 80, 24)[-2] == "line 99"
    assert frame(pressed(seen, "up")[0], 80, 24)[-2] == "line 98"
    seen, _ = pressed(seen, "home")
    assert frame(seen, 80, 24)[2] == "line 0"
    seen, _ = pressed(seen, "down", "pagedown")
    assert frame(seen, 80, 24)[2] == "line 22", "a page of 21 lines"
    assert "worker-0" in frame(pressed(seen, "escape")[0], 80, 24)[3]


# --- from a cluster and its samples -------------------------------------------------------------------


def running() -> Cluster:
    cluster = begun(Policy("multi_worker_mirrored"), {f"worker-{number}": "a" for number in range(3)})
    for number in range(3):
        for event in (events.TaskStarted(f"worker-{number}", 1, 50 + number, 101.0), events.TaskUp(f"worker-{number}", 1, 102.0)):
            cluster, _ = lifecycle.step(cluster, event)
    return cluster


def latest(*uses: TaskUse) -> dict[str, Sampled]:
    return {"a": Sampled(110.0, 2.0, uses, USE, host="a")}


def stepping(number: int, work: float, peers: float) -> TaskUse:
    return TaskUse(f"worker-{number}", 1, "S", cpu=9.0, step=50.0, rate=10.0, work=work, peers=peers, window=3, came=150, met=150)


def test_a_slow_task_has_its_word() -> None:
    rows = rows_of(running(), latest(stepping(0, 0.01, 0.06), stepping(1, 0.01, 0.06), stepping(2, 0.07, 0.001)))
    assert [row.state for row in rows] == ["runs", "runs", "slow"]
    assert (rows[2].work, rows[2].peers, rows[2].cpu) == (0.07, 0.001, 9.0)


@pytest.mark.parametrize(("letter", "word"), [("T", "SIGSTOP"), ("S", "missing")])
def test_a_task_that_does_not_come_and_those_that_wait(letter: str, word: str) -> None:
    waiting = [replace(stepping(number, 0.01, 0.06), came=151, waits=9.0) for number in range(2)]
    rows = rows_of(running(), latest(*waiting, replace(stepping(2, 0.01, 0.06), state=letter)))
    assert [row.state for row in rows] == ["waits", "waits", word]
    assert rows[0].waits == 9.0


def test_tasks_without_samples_have_the_words_of_ps() -> None:
    cluster, _ = lifecycle.step(running(), events.TaskExited("worker-1", 1, 137, False, 120.0, killed=True))
    rows = rows_of(cluster, {})
    assert [(row.state, row.note) for row in rows] == [("up", ""), ("failed", "killed by SIGKILL"), ("up", "")]
    for value, shown in ((7, 7.0), (7.5, 7.5), (True, None), ("7", None)):
        cluster, _ = lifecycle.step(running(), events.TaskReported("worker-1", 1, {"step": value}, 120.0))
        assert [row.step for row in rows_of(cluster, {})] == [None, shown, None]


def test_programs_get_the_numbers() -> None:
    found = as_json(state(1))
    assert found["took_s"] == 725.0, "as orch ps calls the time"
    assert (found["run"], found["phase"], found["tasks"][0]["work"], found["hosts"]["a"]["cores"]) == ("train-1", "running", 0.0027, 2)
