"""What to do about failures of tasks that run one program at the same time, for texts of CPython, TensorFlow 2.21 and Keras 3.15."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from orchestrator.model.cause import graph_errors, remedies, together
from orchestrator.model.state import events as ev
from tests import golden
from tests.model.cause.test_root_cause import T0, run
from worker.protocol.messages import Evidence, Failure

TF = "tensorflow.python.framework.errors_impl."
TRACE = 'Traceback (most recent call last):\n  File "/w/train.py", line {}, in {}\n    {}\n{}: {}\n'
DIFFERENT = "Collective instance 125 expected type 0 and data_type 2 but got type 1 and data_type 2"


def failure(kind: str, message: str, line: str = "do(it)", number: int = 12, at: float = 1.0, function: str = "<module>") -> Failure:
    return Failure(kind, message, TRACE.format(number, function, line, kind, message), at)


def remedy_of(given: str) -> str:
    kind, _, message = given.partition("\n")
    return together.find(failure(kind, message), "worker-0..1", 2, all_alike=False).text


@golden.cases("together.txt")
def test_a_failure_that_one_task_alone_does_not_have_has_its_remedy(case: golden.Case) -> None:
    case.check(remedy_of(case.given))


def test_every_remedy_is_reached() -> None:
    found = [remedy_of(case.given) for case in golden.read(Path(__file__).with_name("together.txt"))]
    patterns = [re.sub(r"\\{\w+\\}", ".+", re.escape(remedy.text)) for remedy in together.every()]
    assert [pattern for pattern in patterns if not any(re.fullmatch(pattern, text) for text in found)] == []


@pytest.mark.parametrize(
    ("message", "count"),
    [
        ("Incompatible shapes: [2] vs. [3]", 2),
        ("Incompatible shapes: [8,1] vs. [16,1]", 3),
        ("Incompatible shapes: [8,1] vs. [8,2]", 2),
        ("expected axis -1 of input shape to have value 9, but received input with shape (None, 8)", 2),
    ],
)
def test_shapes_that_are_not_a_share_of_the_batch_have_none(message: str, count: int) -> None:
    assert together.find(failure("ValueError", message), "worker-0..1", count, all_alike=False) == remedies.NONE


@pytest.mark.parametrize(
    ("kind", "line", "is_race"),
    [
        ("FileNotFoundError", "shutil.rmtree(path)", True),
        ("FileNotFoundError", "path.unlink()", True),
        (f"{TF}NotFoundError", "tf.io.gfile.rename(path, other)", True),
        ("FileNotFoundError", "open(path)", False),
        ("ValueError", "names.remove(path)", False),
    ],
)
def test_a_file_that_another_task_has_removed(kind: str, line: str, is_race: bool) -> None:
    missing = failure(kind, "[Errno 2] No such file or directory: 'old'", line)
    assert bool(together.find(missing, "worker-0..1", 2, all_alike=False).text) is is_race
    assert not together.find(missing, "worker-0..1", 2, all_alike=True).text, "no task has removed it: it was never there"


def ended(task: str, error: Failure | None, evidence: Evidence = Evidence()) -> ev.TaskExited:
    return ev.TaskExited(task, 1, 1 if error else 0, False, T0 + 1, error, evidence=evidence)


def test_only_tasks_that_train_together_share_anything() -> None:
    exists = failure("FileExistsError", "[Errno 17] File exists: 'logs'", at=T0)
    for tasks, strategy, said in (
        (["worker-0", "worker-1"], "multi_worker_mirrored", True),
        (["worker-0"], "none", False),
        (["chief-0", "worker-0", "ps-0"], "parameter_server", False),
    ):
        verdict, _ = run([ended(tasks[0], exists)], tasks, strategy)
        assert verdict.cause is not None
        assert (verdict.cause.about == together.SHARED) is said
    verdict, _ = run([ended("worker-0", exists), ended("worker-1", exists)], ["worker-0", "worker-1"])
    assert verdict.cause is not None
    assert not verdict.cause.remedy, "it was there before both"


def test_the_stacks_of_the_others_are_asked_for_when_calls_do_not_fit() -> None:
    other = failure(f"{TF}InternalError", DIFFERENT, at=T0)
    verdict, did = run([ended("worker-1", other)], ["worker-0", "worker-1", "worker-2"])
    assert ev.CollectStacks(("worker-0", "worker-2")) in did
    assert verdict.cause is not None
    assert (verdict.cause.task, verdict.cause.about) == ("worker-1", together.CALLS)


def test_the_line_of_the_user_in_a_traceback() -> None:
    trace = failure("ValueError", "bad", "model.fit(x, y)", 15).traceback.rpartition("ValueError")[0]
    trace += '  File "/venv/lib/python3.11/site-packages/keras/src/x.py", line 3, in error_handler\n    raise e\n'
    inner = '  File "/w/data/own.py", line 4, in on_epoch_end\n    self.model.evaluate(x)\n    ^^^^^^^^^^^^^^^\nValueError: bad\n'
    assert (
        graph_errors.place_in(trace + '  File "/w/train.py", line 9, in build\nof a graph\n') == "train.py:15 in <module>: model.fit(x, y)"
    )
    assert graph_errors.place_in(trace) == "train.py:15 in <module>: model.fit(x, y)"
    assert graph_errors.place_in(trace + inner) == "own.py:4 in on_epoch_end: self.model.evaluate(x)"
    assert graph_errors.place_in("ValueError: bad") == ""


def test_a_worker_whose_steps_were_measured_has_not_left_in_front_of_its_training() -> None:
    peers = failure(f"{TF}UnavailableError", "Collective has timed out during execution.", at=T0 + 2)
    for has_trained, said in ((False, "worker-1 took no step"), (True, "if a loss ends the loop")):
        verdict, _ = run([ended("worker-1", None, Evidence(has_trained=has_trained)), ended("worker-0", peers)], ["worker-0", "worker-1"])
        assert verdict.cause is not None
        assert (verdict.cause.task, said in verdict.cause.remedy) == ("worker-1", True)


@pytest.mark.parametrize("part", ["x", "x."])
def test_the_time_is_in_proportion_to_the_message(part: str) -> None:
    """A message may be one word of 32 KB: an error of a large array or of a path."""

    def seconds(pattern: re.Pattern[str], size: int) -> float:
        began = time.thread_time()
        pattern.search((part * size)[:size])
        return time.thread_time() - began

    # Sixteen times as long a text takes sixteen times as long; 256 times, if each character is tried with all that follow.
    for pattern in map(re.compile, together.PATTERNS):
        longest = min(seconds(pattern, 1 << 15) for _ in range(2))
        assert longest < 80 * max(min(seconds(pattern, 1 << 11) for _ in range(3)), 1e-4), pattern.pattern
