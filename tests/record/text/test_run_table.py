"""The table of a run's tasks, and tables as such."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.model.state import events
from orchestrator.record import run_list
from orchestrator.record.run_list import RunSummary
from orchestrator.record.text.format import aligned, describe_moment
from orchestrator.record.text.run_table import table
from tests.record.states import BAD, TAMED, cluster, exited
from worker.protocol.messages import Evidence, Failure


def test_the_table_has_a_line_a_task_in_straight_columns() -> None:
    state = cluster(
        events.TaskUp("worker-0", 1, 101.0),
        events.TaskReported("worker-0", 1, {"step": 12, "loss": 0.123456789}, 102.0),
        events.TaskWaiting("worker-1", 1, "no port is open yet", 103.0),
    )
    lines = table(state, now=161.0).splitlines()
    assert [line.split()[0] for line in lines] == ["TASK", "worker-0", "worker-1", "worker-2"]
    assert lines[1].endswith("1 min 01 s  step=12 loss=0.1235")
    assert lines[2].endswith("not in the cluster yet")
    assert (lines[2].split()[2], state.word) == ("running", "running"), "a program without TensorFlow never opens one"
    assert len({line.index("local") for line in lines[1:]} | {lines[0].index("HOST")}) == 1
    assert all(line == line.rstrip() for line in lines)


def test_a_task_without_others_has_no_cluster_to_come_to() -> None:
    alone = cluster(events.TaskWaiting("worker-0", 1, "no port is open yet", 103.0), workers=1)
    assert table(alone, now=161.0).splitlines()[1].endswith("1 min 01 s")
    busy = cluster(events.TaskWaiting("worker-0", 1, "timed out", 103.0), workers=1)
    assert table(busy, now=161.0).splitlines()[1].endswith("1 min 01 s  timed out")


def test_a_task_that_orch_stopped_is_not_called_killed() -> None:
    state = cluster(exited("worker-0", 7), exited("worker-1", 143, stopped=True), exited("worker-2", 0, stopped=True))
    lines = table(state, now=161.0).splitlines()
    assert lines[1].endswith("10.0 s  exit code 7")
    assert lines[2].endswith("stopped by orch (SIGTERM)")
    last = cluster(events.TaskReported("worker-1", 1, {"step": 7}, 102.0), exited("worker-1", 143, stopped=True))
    assert table(last, now=161.0).splitlines()[2].endswith("stopped by orch (SIGTERM); step=7")
    assert lines[3].endswith("10.0 s")
    said = cluster(replace(exited("worker-1", 3), evidence=Evidence(last_words="reading\ncannot open data\n")))
    assert table(said, now=161.0).splitlines()[2].endswith("exit code 3; cannot open data")
    raised = cluster(exited("worker-1", 1, failure=Failure("ValueError", "no\ndata", "", 1.0)))
    assert table(raised, now=161.0).splitlines()[2].endswith("exit code 1; ValueError: no data")


def test_a_success_that_is_none_is_not_called_one_alone() -> None:
    for loss, result, state in (
        (0.5, None, "succeeded"),
        ("nan", None, "succeeded, nan"),
        ("-inf", None, "succeeded, -inf"),
        (0.5, {"exit_code": 0, "warning": "no cluster was formed: …"}, "succeeded, no cluster"),
    ):
        run = RunSummary("a", "/a", "succeeded", reports={"worker-0": {"loss": loss}}, result=result)
        assert re.split(r"  +", run_list.table([run], 1.0).splitlines()[1])[1] == state


def test_a_long_reason_of_a_run_without_tasks_does_not_widen_the_list() -> None:
    what = "\n".join(f"host {name} cannot be reached: {'no route ' * 12}" for name in "ab")
    away = RunSummary("one", "/runs/one", "broken", result={"exit_code": 125, "cause": {"task": "", "what": what}})
    (line,) = (line for line in run_list.table([away], 0.0).splitlines() if "host a" in line)
    assert len(line) < 200
    assert "host b" not in line


def test_a_narrow_terminal_cuts_the_lines_of_the_tables() -> None:
    state = cluster(events.TaskWaiting("worker-1", 1, "no port is open yet", 103.0))
    full, narrow = table(state, now=161.0).splitlines(), table(state, now=161.0, width=55).splitlines()
    without = [line.replace("local  ", "").replace("HOST   ", "") for line in full]
    assert narrow == [
        *(line if len(line) <= 55 else f"{line[:54]}…" for line in without),
        "(cut to 55 columns: whole lines in a pipe, as with | cat)",
    ]
    keras = {"epoch": 12, "step": 29, "steps_per_s": 29.26, "accuracy": 0.94123, "loss": 0.1931}
    state = cluster(events.TaskReported("worker-0", 1, keras, 102.0))
    assert "  epoch=12 step=29 steps_per_s=29.26 accuracy=0.9412 loss=0.1931" in table(state, now=161.0, width=120)
    narrow = table(state, now=161.0, width=72).splitlines()
    assert narrow[1].endswith("  loss=0.1931 accuracy=0.9412 epoch=1…")
    assert narrow[4] == "(cut to 72 columns: whole lines in a pipe, as with | cat)"
    late = RunSummary("one", "/runs/one", "timed_out", result={"exit_code": 124, "cause": {"task": "", "what": "the run was not over"}})
    away = RunSummary("two", "/runs/two", "broken", result={"exit_code": 125, "cause": {"task": "", "what": "host b cannot be reached"}})
    lines = run_list.table([late, away], 161.0).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["RUN", "one", "two"]
    assert " timed out (124) " in lines[1]
    assert lines[1].endswith("  the run was not over")
    assert " failed (125) " in lines[2]
    assert lines[2].endswith("  host b cannot be reached")
    *narrow, note = run_list.table([late, away], 161.0, width=50).splitlines()
    assert max(len(line) for line in narrow) == 50
    assert note == "(cut to 50 columns: orch ps --all | cat shows whole lines)"


GRAPH = """Graph execution error:

Detected at node loss defined at (most recent call last):
  File "/home/me/train.py", line 7, in <module>

  File "/venv/lib/python3.11/site-packages/keras/src/losses/loss.py", line 67, in __call__

a label of 1
\t [[{{node loss}}]] [Op:__inference_470]"""


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--lr", "0.1", "-n", "3", "data.csv"], {"lr": 0.1, "n": 3}),
        (["--lr=1e-3", "--name=a=b", "--fast", "--min", "-2.5"], {"lr": 0.001, "name": "a=b", "fast": True, "min": -2.5}),
        (["--fast", "--lr", "x y", "-v"], {"fast": True, "lr": "x y", "v": True}),
        (["--", "-1", "--=3", "---"], {}),
        ([], {}),
    ],
)
def test_options_are_columns(words: list[str], found: dict[str, Any]) -> None:
    assert run_list.values_of(words, {}) == found
    assert run_list.values_of(words, {"worker-0": {}, "worker-1": {"lr": 7.0}}) == found | {"lr": 7.0}, "what was trained with counts"


def test_a_sweep_is_a_table_and_csv() -> None:
    runs = [
        RunSummary("a-1", "/a", "succeeded", took_s=3.0, started_at=1e9, values={"lr": 0.1, "loss": 0.123456}, result={"exit_code": 0}),
        RunSummary("a-2", "/b", "failed", values={"lr": 0.01, "note": 'say "x", y'}, result={"exit_code": 3}),
    ]
    table = [line.split() for line in run_list.sweep(runs, ["loss", "lr"]).splitlines()]
    assert table == [["RUN", "STATE", "TOOK", "loss", "lr"], ["a-1", "succeeded", "3.0", "s", "0.1235", "0.1"], ["a-2", "failed", "0.01"]]
    rows = list(csv.DictReader(io.StringIO(run_list.sweep(runs, [], as_csv=True))))
    assert rows[0] == {"run": "a-1", "state": "succeeded", "took_s": "3.0", "lr": "0.1", "loss": "0.123456", "note": ""}
    assert (rows[1]["note"], rows[1]["took_s"]) == ('say "x", y', "")
    assert run_list.sweep(runs, ["loss"], as_csv=True).splitlines()[0] == "run,state,took_s,loss"
    of_joker = [RunSummary("a-3", "/c", "failed", values={"no\x1b[2Jte": BAD})]
    assert "\x1b" not in run_list.sweep(of_joker, [], as_csv=True) + run_list.sweep(of_joker, ["no\x1b[2Jte"])


def test_the_table_of_runs_shows_what_differs_in_eighty_columns() -> None:
    now = 1_700_000_000.0
    summaries = [
        RunSummary(
            f"train-20231114-{220000 + number}-0123abc{number}",
            "/runs/x",
            state,
            started_at=now - days * 86400,
            took_s=33.2,
            counts={"worker": 2},
            arguments=["--lr", f"0.{number}"],
            reports={"worker-0": {"epoch": 4, "step": 50, "steps_per_s": 6.07, "loss": 0.25, "val_loss": loss}} if loss else {},
            values={"lr": number / 10, **({"loss": 0.25, "val_loss": loss} if loss else {})},
            result=result,
        )
        for number, state, days, loss, result in (
            (1, "succeeded", 0, 0.5, None),
            (2, "succeeded", 2, "nan", None),
            (
                3,
                "failed",
                0,
                None,
                {"exit_code": 1, "cause": {"task": "worker-1", "failure": {"type": "ValueError", "message": "no data"}}},
            ),
            (4, "succeeded", 0, 0.25, None),
        )
    ]
    head, *lines = run_list.table(summaries, now, width=80).splitlines()
    assert head.split() == ["RUN", "TOOK", "STATE", "ARGUMENTS", "LAST", "REPORT"]
    alike = [replace(run, arguments=[*(run.arguments or []), "--epochs", "2", "-v"]) for run in summaries]
    assert run_list.table(alike, now, width=80).splitlines() == [head, *lines], "what all have alike tells none from another"
    by_loss = run_list.table(summaries[:2], now, width=80, first="loss").splitlines()
    assert [" ".join(line.split())[:61] for line in by_loss[:2]] == [
        "RUN loss TOOK STATE ARGUMENTS LAST REPORT",
        "train-20231114-220001 0.25 33.2 s succeeded --lr 0.1 val_loss",
    ], "what the runs are sorted by stands beside the ids"
    long = [replace(run, run=f"a-long-name-of-a-run-{run.run}", arguments=["--data", "x" * 60]) for run in summaries]
    by_val_loss = run_list.table(long, now, width=80, first="val_loss").splitlines()
    assert [line.split()[1] for line in by_val_loss[:5]] == ["val_loss", "0.5", "nan", "33.2", "0.25"], "also beside long names"
    assert "val_loss" not in run_list.table(summaries, now, first="val_loss").splitlines()[1]
    by_rate = run_list.table(summaries, now, first="lr").splitlines()[3]
    assert by_rate.split()[1] == "0.3", "an argument"
    assert "--lr" not in by_rate, "the number stands in its own column"
    wide = [replace(run, arguments=["--data", "x" * 60, "--seed", run.run]) for run in summaries]
    assert "  val_loss=0.5" in run_list.table(wide, now, width=80).splitlines()[1], "arguments leave room for one value"
    epochs = [replace(run, arguments=["--epochs", f"5{place}"]) for place, run in enumerate(summaries)]
    shown = run_list.table(epochs, now, width=80).splitlines()[1:]
    assert all(f"--epochs 5{place}" in line for place, line in enumerate(shown[:4])), "what differs comes before the reports"
    assert "train-20231114-220001  " in lines[0], "the random end of an id says nothing"
    assert all(f"--lr 0.{number}" in line for number, line in enumerate(lines[:4], 1))
    whole = run_list.table(summaries, now).splitlines()
    assert " val_loss=0.5 loss=0.25 epoch=4 step=50 steps_per_s=6.07 worker 2" in " ".join(whole[1].split())
    assert describe_moment(now)[11:16] in whole[1]
    assert f"  {describe_moment(now - 2 * 86400)[5:16]}  " in whole[2]
    assert "succeeded, nan" in whole[2]
    assert "  ValueError: no data" in whole[3]
    assert [run.run[17] + run.run[20] for run in run_list.ordered(summaries, "val_loss")] == ["02", "03", "01", "04"]
    assert next(run.run[20] for run in run_list.ordered(summaries, "loss")) == "3"
    assert [run.run[20] for run in run_list.ordered(summaries[::-1], "lr")] == ["1", "2", "3", "4"]
    late = [replace(run, took_s=float(number)) for number, run in enumerate(summaries)]
    for words, numbers in (("took TOOK time elapsed", "1234"), ("started date", "2134"), ("run name id", "1234"), ("state status", "3124")):
        assert {"".join(run.run[20] for run in run_list.ordered(late, word)) for word in words.split()} == {numbers}
    assert run_list.column(late, "loss") == run_list.column(late, "epochs") == ""
    reported = [replace(run, values={"took": -number}) for number, run in enumerate(late)]
    assert "".join(run.run[20] for run in run_list.ordered(reported, "took")) == "4321", "a number of this name counts"
    killed = {"exit_code": 139, "cause": {"task": "worker-1", "what": "failed", "code": 139, "killed": True}}
    assert "  worker-1: killed by SIGSEGV: segmentation fault" in run_list.table([replace(summaries[2], result=killed, reports={})], now)
    graph = {"type": "x.InvalidArgumentError", "message": GRAPH}
    failed = replace(summaries[0], state="failed", result={"exit_code": 1, "cause": {"task": "worker-0", "failure": graph}})
    assert "  InvalidArgumentError: a label of 1; val_loss=0.5 " in run_list.table([failed], now)
    twins = [replace(summaries[0], run=f"train-20231114-220001-0{end}", arguments=["--long", "x" * 40]) for end in ("a12", "b34")]
    narrow = run_list.table([*twins, *summaries[1:]], now, width=100).splitlines()
    assert [line.split()[0] for line in narrow[1:3]] == ["train-20231114-220001-0a", "train-20231114-220001-0b"]
    one = run_list.table(twins[1:], now, ids=[twin.run for twin in twins]).splitlines()
    assert one[1].split()[0] == "train-20231114-220001-0b", "the other is not listed, and its id begins alike"
    assert "val_loss=0.5 loss=0.25 ep" in narrow[1], "arguments leave room for what the runs are compared by"
    sweep = [replace(run, run=f"lr-1{'0' * place}-20231114-22000{place}-{place}a2b3c4d") for place, run in enumerate(summaries)]
    assert [line.split()[0] for line in run_list.table(sweep, now, width=80).splitlines()[1:]][:4] == ["lr-1", "lr-10", "lr-100", "lr-1000"]
    assert run_list.table(sweep, now, width=200).splitlines()[1].startswith("lr-1-20231114-220000")
    assert "ARGUMENTS" not in run_list.table([RunSummary("one", "/runs/one")], now)


def test_what_a_task_reports_stays_in_its_line_of_the_table() -> None:
    state = cluster(events.TaskReported("worker-0", 1, {"phase": f"{BAD}\n\nworker-9  local  up\x0b"}, 102.0))
    lines = table(state, now=161.0).splitlines()
    assert [line.split()[0] for line in lines] == ["TASK", "worker-0", "worker-1", "worker-2"]
    assert lines[1].endswith(f"phase={TAMED} worker-9 local up")


@pytest.mark.parametrize(
    ("rows", "right", "lines"),
    [
        ([("A", "BB", "C"), ("aaa", "b", "")], (), ["A    BB  C", "aaa  b"]),
        ([("A", "BB", "C"), ("aaa", "b", "c")], (1,), ["A    BB  C", "aaa   b  c"]),
        ([("A",), ("aaa",)], (0,), ["A", "aaa"]),
    ],
)
def test_columns_are_straight(rows: list[tuple[str, ...]], right: tuple[int, ...], lines: list[str]) -> None:
    assert aligned(rows, right) == lines
