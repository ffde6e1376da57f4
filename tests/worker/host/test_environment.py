"""What a task finds in its environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worker.agent_double import run_task
from worker.host.forkserver import import_environment
from worker.protocol import task_environment
from worker.protocol.messages import Program, StartTasks, TaskOrder, TemplateOrder
from worker.protocol.task_environment import tf_config_of

SCRIPT = Program("script", "s.py")
CLUSTER = json.dumps({"worker": [f"10.0.0.1:{port}" for port in range(20_000, 30_000)]})


def order(program: Program = SCRIPT, **fields: object) -> TaskOrder:
    return TaskOrder("worker-0", 1, program, "/w", "attempt-1/worker-0", **fields)  # type: ignore[arg-type]


def compose(
    host: dict[str, str], start: StartTasks | None = None, task: TaskOrder | None = None, config: str | None = None
) -> dict[str, str]:
    return task_environment.compose(host, start or StartTasks(()), task or order(), "/log", config)


def test_a_tasks_own_words_win_over_orchs_and_those_over_the_hosts() -> None:
    start = StartTasks((), env={"B": "orch", "C": "orch"}, env_defaults={"A": "default", "D": "default"})
    weak = dict.fromkeys("ABCDE", "default of the task")
    found = compose({"A": "host", "B": "host", "C": "host"}, start, order(env={"C": "task"}, env_defaults=weak))
    assert [found[name] for name in "ABCDE"] == ["host", "orch", "task", "default of the task", "default of the task"]


def test_sets_of_texts_have_one_order_in_executed_and_forked_tasks_unless_the_user_says_otherwise() -> None:
    started = StartTasks((), env_defaults=task_environment.default_environment(8, 2))
    for said, seed in (({}, "0"), ({"PYTHONHASHSEED": "random"}, "random")):
        template = import_environment.compose_for_template(TemplateOrder(("tensorflow",), 2), said, "run-1")
        assert compose(said, started)["PYTHONHASHSEED"] == template["PYTHONHASHSEED"] == seed
        assert ("PYTHONHASHSEED", seed) in import_environment.frozen(template)


def test_another_runs_data_service_never_reaches_a_task() -> None:
    old = {"ORCH_DATA_SERVICE": "grpc://outer:1"}
    assert "ORCH_DATA_SERVICE" not in compose(old)
    assert compose(old, StartTasks((), env={"ORCH_DATA_SERVICE": "grpc://a:1"}))["ORCH_DATA_SERVICE"] == "grpc://a:1"


@pytest.mark.parametrize("old", ["", "{", '{"cluster": {"worker": ["x:1", "y:2"]}}'])
def test_a_tf_config_of_the_host_never_reaches_a_task(old: str) -> None:
    assert "TF_CONFIG" not in compose({"TF_CONFIG": old}, task=order(unset=("TF_CONFIG",)))
    assert compose({"TF_CONFIG": old}, config="{}")["TF_CONFIG"] == "{}"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ({}, "localhost,10.0.0.1"),
        ({"no_proxy": "example.org"}, "example.org,localhost,10.0.0.1"),
        ({"no_grpc_proxy": "a,localhost", "no_proxy": "b"}, "a,localhost,10.0.0.1"),
    ],
)
def test_peers_are_reached_without_a_proxy_and_nobody_elses_exception_is_lost(host: dict[str, str], expected: str) -> None:
    assert compose(host, StartTasks((), peers=("localhost", "10.0.0.1")))["no_grpc_proxy"] == expected


def test_a_tf_config_too_long_for_exec_is_left_to_the_bootstrap() -> None:
    start = StartTasks((), clusters={"training": CLUSTER})
    config = tf_config_of(start, order(cluster="training"))
    assert config is not None
    assert len(config) > 128 * 1024
    assert "TF_CONFIG" not in compose({}, start, config=config)


def test_a_task_of_ten_thousand_has_its_tf_config(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("import json, os\nprint(len(json.loads(os.environ['TF_CONFIG'])['cluster']['worker']))")
    config = f'{{"cluster": {CLUSTER}, "task": {{"type": "worker", "index": 0}}}}'
    assert run_task(SCRIPT, tmp_path, tf_config=config).check().out == "10000\n"


def test_what_imports_look_at_tells_templates_apart() -> None:
    base = {"PATH": "/bin", "TF_CPP_MIN_LOG_LEVEL": "0", "TF_CONFIG": "{}"}
    assert import_environment.frozen(base) == import_environment.frozen({**base, "PATH": "/usr/bin", "TF_CONFIG": "{ }", "RANK": "1"})
    assert import_environment.frozen(base) == import_environment.frozen(
        {**base, "CUDA_VISIBLE_DEVICES": "GPU-1", "TF_DETERMINISTIC_OPS": "1"}
    )
    assert import_environment.frozen(base) != import_environment.frozen({**base, "TF_CPP_MIN_LOG_LEVEL": "1"})
    assert import_environment.frozen(base) != import_environment.frozen({**base, "OMP_NUM_THREADS": "2"})
