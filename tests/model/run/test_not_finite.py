"""A loss that is NaN: a remark at the end of a run, or its end."""

from __future__ import annotations

from typing import Any

from orchestrator.model.policy import endings
from orchestrator.model.policy.not_finite import REMEDY
from orchestrator.model.settings import Restart
from orchestrator.model.state import events as ev
from orchestrator.model.state.cluster import Outcome, Policy
from orchestrator.record.text.event_messages import describe_event
from tests.model.run.test_lifecycle import History
from worker.protocol.task_files import APART

STRICT = Policy("multi_worker_mirrored", restart=Restart(max=3), fail_on_nan=True)


def reported(history: History, task: str, **values: Any) -> list[ev.Action]:
    return history.happen(ev.TaskReported(task, 1, values, 105.0))


def remarks_of(history: History) -> list[str]:
    for name in history.cluster.tasks:
        history.end(name)
    verdict = history.sweep_all()
    assert verdict.outcome is Outcome.SUCCEEDED
    return list(verdict.remarks)


def test_a_value_that_is_no_number_is_a_remark_with_its_first_report() -> None:
    history = History().start_all()
    for task in ("worker-0", "worker-1"):
        reported(history, task, epoch=1, step=2, loss=0.5)
        reported(history, task, epoch=1, step=4, loss="nan", note="nan.txt", accuracy=0.1)
        reported(history, task, epoch=2, step=4, loss="nan")
    reported(history, "worker-2", norm="-inf")
    assert remarks_of(history) == [
        f"worker-0..1: loss is nan by epoch 1 and step 4. {REMEDY}",
        f"worker-2: norm is -inf. {REMEDY}",
    ]


def test_values_of_one_task_are_one_remark_with_the_first_report_of_any_and_one_line_at_that_report() -> None:
    history = History().start_all()
    lines = []
    for values in ({"epoch": 1, "loss": "nan"}, {"epoch": 2, "val_loss": "nan", "loss": "nan", "norm": "inf"}, {"epoch": 3, "loss": "nan"}):
        before = history.cluster
        event = ev.TaskReported("worker-0", 1, values, 105.0)
        history.happen(event)
        lines.append(describe_event(before, history.cluster, event))
        if values["epoch"] == 2:
            assert [*history.cluster.tasks["worker-0"].not_finite] == ["loss", "val_loss", "norm"]
    assert lines == ["worker-0: loss is nan by epoch 1; --fail-on-nan ends such a run", None, None]
    reported(history, "worker-0", epoch=4, loss="nan", val_loss="nan")
    assert remarks_of(history) == [f"worker-0: loss and val_loss are nan by epoch 1. {REMEDY}"]


def test_workers_that_have_trained_apart_are_a_remark() -> None:
    what = "a fit has trained a model from outside of the scope of the strategy"
    history = History().start_all()
    for task, said in (("worker-0", f"worker-0: {what}, so this task may"), ("worker-1", f"worker-0..1: {what}, so each may")):
        reported(history, task, **{APART: True, "loss": 0.5})
        (remark,) = endings.remarks(history.cluster)
        assert remark.startswith(said)
        reported(history, task, loss=0.4)
    assert history.cluster.tasks["worker-1"].report == {"loss": 0.4}
    assert endings.remarks(history.cluster) == (remark,)
    reported(history, "worker-0", **{APART: False, "loss": 0.4})
    assert endings.remarks(history.cluster)[0].startswith("worker-1: ")
    reported(history, "worker-1", **{APART: False, "loss": 0.4})
    assert remarks_of(history) == [], "a later fit has trained the model of all"


def test_a_value_that_is_finite_again_is_no_remark() -> None:
    history = History().start_all()
    reported(history, "worker-0", step=1, loss="inf")
    reported(history, "worker-0", step=2, loss=3.0)
    assert remarks_of(history) == []


def test_such_a_report_ends_the_run_if_the_user_wants_that_and_nothing_restarts() -> None:
    history = History(STRICT).start_all()
    assert reported(history, "worker-1", step=7, loss=1.0) == []
    (stop,) = reported(history, "worker-1", step=8, loss="nan")
    assert isinstance(stop, ev.Stop)
    verdict = history.sweep_all()
    assert (verdict.outcome, verdict.exit_code, verdict.remarks) == (Outcome.FAILED, 1, ())
    assert (history.cause.task, history.cause.what) == ("worker-1", "reported that loss is nan by step 8 (--fail-on-nan)")
    assert (history.cause.about, history.cause.remedy.split(",")[0]) == ("a-loss-that-is-nan", "lower the learning rate")


def test_the_last_report_counts_also_if_it_comes_after_the_end_of_its_task() -> None:
    history = History(STRICT).start_all()
    for name in history.cluster.tasks:
        history.end(name)
    reported(history, "worker-2", loss="nan")
    verdict = history.sweep_all()
    assert (verdict.outcome, verdict.exit_code) == (Outcome.FAILED, 1)
    assert history.cause.task == "worker-2"
