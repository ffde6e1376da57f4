"""`worker.context()` and `worker.report()`, as a user's script calls them."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import worker
from tests.worker.agent_double import ROOT, Outcome, clean_environment, run_plainly, run_task
from worker.protocol import task_files
from worker.protocol.messages import Program
from worker.protocol.task_environment import tf_config_text
from worker.protocol.task_id import TaskId
from worker.settings.collective_settings import CollectiveSettings
from worker.settings.device_settings import DeviceSettings
from worker.settings.task_settings import VARIABLE, TaskSettings
from worker.task.observe import reports
from worker.task.strategy import servers
from worker.values.codec import to_json

VARIABLES = (
    "ORCH_TASK ORCH_RUN_ID ORCH_ATTEMPT ORCH_IS_CHIEF ORCH_RUN_DIR ORCH_CHECKPOINT_DIR ORCH_TASK_SETTINGS ORCH_LOG_DIR ORCH_DATA_SERVICE"
    " RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE TF_CONFIG"
)


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES.split():
        monkeypatch.delenv(name, raising=False)


def config(cluster: dict[str, Any], type_: str = "worker", index: int = 0) -> str:
    return tf_config_text(json.dumps(cluster), TaskId(type_, index))


# --- context -----------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["", "worker-0"])
def test_the_data_service_is_told_if_there_is_one(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    if task:
        monkeypatch.setenv("ORCH_TASK", task)
    assert worker.context().data_service is None
    monkeypatch.setenv("ORCH_DATA_SERVICE", "grpc://a:1")
    assert worker.context().data_service == "grpc://a:1"


@pytest.mark.parametrize("told", [{}, {"ORCH_TASK": "data_worker-0"}, {"ORCH_TASK": "worker-0", "ORCH_DATA_SERVICE": "grpc://a:1"}])
def test_a_data_server_that_orch_has_not_started_says_so(monkeypatch: pytest.MonkeyPatch, told: dict[str, str]) -> None:
    for name, text in told.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match="is no server of a tf"):
        servers.serve_data("a:1")


def test_by_hand_it_is_a_lone_chief() -> None:
    assert worker.context() == worker.Context("chief-0", "chief", 0, True, "", 1, 0, 1, 0, 1, {}, None, None, TaskSettings())


@pytest.mark.parametrize("text", ["", " \n", "{}", '{"cluster": {}}', '{"task": {}}'])
def test_an_empty_tf_config_is_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    assert worker.context().task == "chief-0"


def test_everything_orch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TaskSettings("multi_worker_mirrored", DeviceSettings(cpus=2), CollectiveSettings(heartbeat_s=7.0))
    told = {
        "ORCH_TASK": "worker-1", "ORCH_RUN_ID": "r-7", "ORCH_ATTEMPT": "3", "ORCH_IS_CHIEF": "0", "ORCH_RUN_DIR": "/runs/r-7",
        "ORCH_CHECKPOINT_DIR": "/ck", VARIABLE: json.dumps(to_json(settings)), "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1", "TF_CONFIG": config({"worker": ["a:1", "b:1"]}, index=1),
    }  # fmt: skip
    for name, text in told.items():
        monkeypatch.setenv(name, text)
    assert worker.context() == worker.Context(
        "worker-1", "worker", 1, False, "r-7", 3, 1, 2, 0, 1, {"worker": ("a:1", "b:1")}, Path("/runs/r-7"), Path("/ck"), settings
    )
    assert worker.context().strategy == "multi_worker_mirrored"


@pytest.mark.parametrize(
    ("type_", "index", "rank", "local", "leads"),
    [
        ("chief", 0, 0, (0, 3), True),
        ("worker", 0, 1, (1, 3), False),
        ("worker", 1, 2, (0, 2), False),
        ("ps", 0, 3, (2, 3), False),
        ("ps", 1, 4, (1, 2), False),
    ],
)
def test_a_pasted_tf_config(
    monkeypatch: pytest.MonkeyPatch, type_: str, index: int, rank: int, local: tuple[int, int], leads: bool
) -> None:
    cluster = {"ps": ["a:3", "[::1]:3"], "worker": ["a:2", "[::1]:2"], "chief": ["a:1"]}
    monkeypatch.setenv("TF_CONFIG", config(cluster, type_, index))
    found = worker.context()
    assert (found.task, found.type, found.index, found.is_chief) == (f"{type_}-{index}", type_, index, leads)
    assert (found.rank, found.world_size, (found.local_rank, found.local_world_size)) == (rank, 5, local)
    assert found.strategy == "parameter_server"
    assert found.cluster["ps"] == ("a:3", "[::1]:3")


def test_without_a_chief_worker_0_is_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for index in (0, 1):
        monkeypatch.setenv("TF_CONFIG", config({"worker": ["a:1", "b:1"]}, index=index))
        assert worker.context().is_chief == (index == 0)
        assert worker.context().strategy == "multi_worker_mirrored"


def test_an_evaluator_need_not_be_in_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", config({"chief": ["a:1"], "worker": ["a:2"], "ps": ["a:3"]}, "evaluator"))
    assert worker.context().task == "evaluator-0"
    assert not worker.context().is_chief


def test_an_index_may_be_a_text_as_in_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": "1"}}')
    assert worker.context().task == "worker-1"


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"cluster": []}',
        '{"cluster": {"worker": "a:1"}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": [1]}, "task": {"type": "worker", "index": 0}}',
        '{"cluster": {"worker": ["a:1"]}}',
        '{"task": 3}',
        '{"task": {"type": 3, "index": 0}}',
        config({"worker": ["a:1"]}, "worker", -1),
        '{"task": {"type": "worker", "index": "first"}}',
        config({"worker": ["a:1"]}, "worker", 1),
        config({"worker": ["a:1"]}, "ps", 0),
    ],
)
def test_an_invalid_tf_config_is_shown_beside_the_expected_form(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match="TF_CONFIG: expected") as caught:
        worker.context()
    assert str(caught.value).endswith(f'"index": 0}}}}, with a task of this cluster, got {text}')


def test_an_unknown_strategy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCH_TASK", "worker-0")
    monkeypatch.setenv(VARIABLE, '{"strategy": "tpu_pod"}')
    with pytest.raises(ValueError, match="the strategy 'tpu_pod' is not one of multi_worker_mirrored, "):
        worker.strategy()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "Expecting property name"),
        ("[]", "expected an object"),
        ('{"tpus": 1}', "unknown field 'tpus'"),
        ('{"devices": 1}', "devices"),
    ],
)
def test_settings_that_are_not_ours_are_refused(monkeypatch: pytest.MonkeyPatch, text: str, complaint: str) -> None:
    monkeypatch.setenv("ORCH_TASK", "worker-0")
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(ValueError, match=complaint):
        worker.context()


def test_by_hand_the_settings_are_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert worker.context().settings == TaskSettings()
    monkeypatch.setenv(VARIABLE, '{"strategy": "mirrored"}')  # without ORCH_TASK: left over from something else
    assert worker.context().settings == TaskSettings()


def test_a_server_needs_a_cluster() -> None:
    with pytest.raises(ValueError, match="TF_CONFIG"):
        worker.serve()


def test_importing_it_needs_the_standard_library_only(tmp_path: Path) -> None:
    program = "import sys\nbefore = set(sys.modules)\nimport worker\nprint(*set(sys.modules) - before)"
    env = clean_environment({"PYTHONPATH": str(ROOT)})
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert {name.partition(".")[0] for name in done.stdout.split()} <= {*sys.stdlib_module_names, "worker", "_orch_shared"}
    names = {"Context", "assign", "checkpoints", "context", "distribute", "files", "replicate", "report", "serve", "split", "strategy"}
    assert set(worker.__all__) == {*names, "KerasCheckpoint", "NoTpu", "TpuError"}


def test_an_exception_has_the_name_by_which_a_script_catches_it() -> None:
    for name in ("NoTpu", "TpuError"):
        kind = getattr(worker, name)
        assert (kind.__module__, kind.__qualname__, issubclass(kind, RuntimeError)) == ("worker", name, True)
        assert type(pickle.loads(pickle.dumps(kind("there is no TPU")))) is kind
    with pytest.raises(AttributeError, match="module 'worker' has no attribute 'nothing'"):
        worker.nothing  # noqa: B018


# --- report ------------------------------------------------------------------------------------


def report_lines(text: str, tmp_path: Path, **settings: Any) -> tuple[Outcome, list[dict[str, Any]]]:
    (tmp_path / "s.py").write_text("import worker\n" + text)
    outcome = run_task(Program("script", "s.py"), tmp_path, **settings)
    path = outcome.log_dir / "reports.jsonl"
    return outcome, [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def test_a_report_is_a_line_of_json(tmp_path: Path) -> None:
    before = time.time()
    outcome, lines = report_lines(
        "worker.report(step=1, loss=0.5, note='\\udcff\\n', done=False, nothing=None, many=[1, (2,)], more={1: 2})", tmp_path
    )
    outcome.check()
    (line,) = lines
    assert before <= line.pop("at") <= time.time()
    assert line == {"step": 1, "loss": 0.5, "note": "\udcff\n", "done": False, "nothing": None, "many": [1, [2]], "more": {"1": 2}}
    assert (outcome.log_dir / "reports.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_tight_loop_writes_the_first_and_the_latest(tmp_path: Path) -> None:
    text = """
import time
from importlib import import_module
reports = import_module("worker.task.observe.reports")
since = time.monotonic()
for step in range(50_000):
    worker.report(step=step)
print(time.monotonic() - since)
"""
    outcome, lines = report_lines(text, tmp_path)
    seconds = float(outcome.check().out)
    assert lines[0]["step"] == 0
    assert lines[-1]["step"] == 49_999
    assert len(lines) <= 2 * (seconds / reports.INTERVAL_S + 1)
    assert [line["step"] for line in lines] == sorted({line["step"] for line in lines})


def test_the_latest_is_written_when_the_program_fails(tmp_path: Path) -> None:
    outcome, lines = report_lines("for step in range(3): worker.report(step=step)\n1 / 0", tmp_path)
    outcome.check(1)
    assert [lines[0]["step"], lines[-1]["step"]] == [0, 2]


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    text = """
import threading
from worker.task.observe import reports
reports.INTERVAL_S = 0.0
def run(name):
    for step in range(500):
        worker.report(name=name, step=step, filler="x" * 1000)
threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    outcome, lines = report_lines(text, tmp_path)
    outcome.check()
    for name in range(4):
        assert [line["step"] for line in lines if line["name"] == name] == list(range(500))


def test_a_forked_child_reports_for_itself(tmp_path: Path) -> None:
    text = """
import os, sys
worker.report(who="parent", step=1)
worker.report(who="parent", step=2)
if os.fork() == 0:
    worker.report(who="child")
    sys.exit()
os.wait()
"""
    outcome, lines = report_lines(text, tmp_path)
    outcome.check()
    assert sorted((line["who"], line.get("step")) for line in lines) == [("child", None), ("parent", 1), ("parent", 2)]


def test_a_signal_handler_may_report(tmp_path: Path) -> None:
    text = """
import signal
worker.report(step=-1)
signal.signal(signal.SIGALRM, lambda *_: worker.report(alarm=True))
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
for step in range(20_000):
    worker.report(step=step)
signal.setitimer(signal.ITIMER_REAL, 0)
worker.report(step="last")
"""
    outcome, lines = report_lines(text, tmp_path)
    outcome.check()
    assert lines[-1]["step"] == "last"


class Refuses:
    """A tensor of which PyTorch gives no array, as it has a gradient."""

    def numpy(self) -> object:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad")


class Own(float):
    def __float__(self) -> float:
        raise RuntimeError("own")


class Holder:
    """Like an array of TensorFlow or NumPy with these elements."""

    def __init__(self, *items: float) -> None:
        self.items = items

    def item(self) -> float:
        if len(self.items) != 1:
            raise ValueError("can only convert an array of size 1")
        return self.items[0]


class Variable:
    def numpy(self) -> Holder:
        return Holder(7)


class Text:
    def numpy(self) -> bytes:
        return b"12"


class Index:
    def __index__(self) -> int:
        return 5


def render(values: dict[str, Any]) -> bytes:
    return reports._render(reports._line(values))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Holder(2.5), 2.5),
        (Variable(), 7),
        (Index(), 5),
        (Decimal("0.5"), 0.5),
        (float("nan"), "nan"),
        (-float("inf"), "-inf"),
        (Holder(float("inf")), "inf"),
        ([Holder(1)], [1]),
        (Own(2.5), 2.5),
    ],
)
def test_what_holds_one_number_is_that_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: Any, expected: Any) -> None:
    found = json.loads(render({"value": value}))["value"]
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("value", [Holder(1, 2), b"bytes", b"12", Text(), object(), 1j, {1, 2}, [object()], len, Refuses()])
def test_what_does_not_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"worker\.report: loss is of type .*, and not one number, text, list or dict"):
        render({"loss": value})


def test_limits() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(TypeError, match="contains itself"):
        render({"circle": circle})
    with pytest.raises(TypeError, match="'at' is taken"):
        render({"at": 1})
    with pytest.raises(ValueError, match="limited to 65536"):
        render({"text": "x" * 70_000})


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({f"layer_{number}_gradient_norm": 1.0 for number in range(4_000)}, "limited to 65536"),
        ({"x" * 70_000: 1}, "limited to 65536"),
        ({"step": 10**5_000}, "Exceeds the limit"),
    ],
)
def test_a_report_of_numbers_that_is_too_long_is_the_fault_of_its_own_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], reason: str
) -> None:
    monkeypatch.setenv("ORCH_LOG_DIR", str(tmp_path))
    for name in ("_writer", "INTERVAL_S"):
        monkeypatch.setattr(reports, name, {"_writer": reports._Writer(), "INTERVAL_S": 1000.0}[name])
    reports.report({"loss": 1.0})  # the next ones are held
    with pytest.raises(ValueError, match=reason):
        reports.report(values)
    reports.report({"loss": 3.0})
    reports._writer.flush()
    assert [json.loads(line)["loss"] for line in (tmp_path / "reports.jsonl").read_text().splitlines()] == [1.0, 3.0]


def test_a_mistake_is_the_users_own_exception(tmp_path: Path) -> None:
    outcome, lines = report_lines("worker.report(loss=object())", tmp_path)
    assert outcome.check(1).failure is not None
    assert outcome.failure is not None
    assert outcome.failure.type == "TypeError"
    assert lines == []


def test_outside_orch_it_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("import worker\nworker.report(step=1)\nworker.report(loss=object())\n")
    outcome = run_plainly(["s.py"], tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert outcome.check().err == ""
    assert os.listdir(tmp_path) == ["s.py"]


def test_a_full_disk_costs_no_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_files, "open_regular", os.open)  # which would refuse a device
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(OSError, match="No space left"):
            reports.append("/dev/full", b"{}\n")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("how", ["full", "gone"])
def test_a_file_that_cannot_be_written_is_told_once_and_never_raised(tmp_path: Path, how: str) -> None:
    prepare = {
        "full": "from resource import *; import signal; signal.signal(25, signal.SIG_IGN); setrlimit(RLIMIT_FSIZE, (100, 100))",
        "gone": "import os; os.environ['ORCH_LOG_DIR'] += '/gone'",
    }[how]
    text = f"{prepare}\nfrom worker.task.observe import reports\nreports.INTERVAL_S = 0\n"
    text += "for step in range(9): worker.report(step=step)\nprint('done')"
    (tmp_path / "s.py").write_text("import worker\n" + text)
    outcome = run_task(Program("script", "s.py"), tmp_path).check()
    assert outcome.out == "done\n"
    if how == "gone":
        assert outcome.err.count("orch: warning: worker.report cannot write to ") == 1
        assert outcome.err.endswith("reports.jsonl: No such file or directory; training goes on without reports\n")
    else:
        assert len((outcome.log_dir / "reports.jsonl").read_bytes()) == 100
