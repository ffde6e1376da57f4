"""The task's runtime with TensorFlow itself: strategies, servers, devices. The clusters are started by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.real.programs import SCHEDULED_SUM
from tests.worker.agent_double import ROOT, run_task, start_cluster
from tests.worker.template_double import ForkedTask, template
from worker.protocol.messages import Program
from worker.protocol.task_id import TaskId
from worker.settings.device_settings import DeviceSettings
from worker.task_environment import tf_config_text

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

SCRIPT = Program("script", "s.py")
Fork = Callable[..., ForkedTask]


def write(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.py").write_text(text)


def test_two_workers_reduce_under_the_strategy_of_the_spec(tmp_path: Path, fork_task: Fork) -> None:
    write(
        tmp_path,
        """
import worker
strategy = worker.strategy()
assert worker.strategy() is strategy
import tensorflow as tf
def step():
    return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0 + worker.context().index))
total = strategy.run(tf.function(step))
worker.report(step=1, total=total)
print(isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy), strategy.num_replicas_in_sync, float(total))
""",
    )
    with start_cluster(SCRIPT, tmp_path, "multi_worker_mirrored", "worker", "worker", start=fork_task) as tasks:
        outcomes = [task.wait(200).check() for task in tasks.values()]
    assert [outcome.out for outcome in outcomes] == ["True 2 3.0\n"] * 2
    assert [json.loads((outcome.log_dir / "reports.jsonl").read_bytes())["total"] for outcome in outcomes] == [3.0, 3.0]


ONE_SCRIPT_FOR_ALL_ROLES = (
    """
import worker
strategy = worker.strategy()
print("only the chief comes here:", worker.context().task)
"""
    + SCHEDULED_SUM
    + """
print(total.device)
print(total.numpy())
"""
)
CHIEF_SAYS = "only the chief comes here: chief-0\n/job:ps/replica:0/task:0/device:CPU:0\n20.0\n"


@pytest.mark.parametrize("servers", [SCRIPT, Program("serve")], ids=["the same script", "serve"])
def test_a_parameter_server_cluster(tmp_path: Path, fork_task: Fork, servers: Program) -> None:
    write(tmp_path, ONE_SCRIPT_FOR_ALL_ROLES)
    types = ("chief", "worker", "worker", "ps")
    with start_cluster(SCRIPT, tmp_path, "parameter_server", *types, servers=servers, start=fork_task) as tasks:
        assert tasks["chief-0"].wait(200).check().out == CHIEF_SAYS
        # They never end by themselves, and they end by SIGTERM.
        for name in ("worker-0", "worker-1", "ps-0"):
            task = tasks[name]
            assert task.process.poll() is None
            task.process.terminate()
            assert task.wait().check(-15).out == ""


@pytest.mark.parametrize("strategy", ["mirrored", "none", "one_device"])
def test_logical_cpus(tmp_path: Path, fork_task: Fork, strategy: str) -> None:
    write(
        tmp_path,
        """
import worker, tensorflow as tf
strategy = worker.strategy()
print(strategy.num_replicas_in_sync, len(tf.config.list_logical_devices("CPU")))
total = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))
print(float(strategy.experimental_local_results(total)[0]))
""",
    )
    outcome = fork_task(SCRIPT, tmp_path, strategy=strategy, devices=DeviceSettings(cpus=4)).wait().check()
    replicas = 4 if strategy == "mirrored" else 1
    assert outcome.out == f"{replicas} 4\n{float(replicas)}\n"


def test_an_evaluator_computes_alone(tmp_path: Path, fork_task: Fork) -> None:
    write(tmp_path, "import worker\nprint(worker.strategy().num_replicas_in_sync, worker.context().is_chief)")
    for strategy in ("multi_worker_mirrored", "parameter_server"):
        tf_config = tf_config_text('{"evaluator": ["127.0.0.1:1"]}', TaskId("evaluator", 0))
        task = fork_task(SCRIPT, tmp_path, task="evaluator-0", strategy=strategy, tf_config=tf_config)
        assert task.wait().check().out == "1 False\n"


def test_a_setting_that_comes_too_late_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text("import tensorflow as tf\ntf.constant(1) + 1\n")
    write(tmp_path, "print('never')")
    outcome = run_task(SCRIPT, tmp_path, devices=DeviceSettings(cpus=3), start=late_start(tmp_path)).check(1)
    assert outcome.out == ""
    assert outcome.failure is not None
    assert outcome.failure.type.endswith("SettingRefused")
    last = outcome.err.splitlines()[-1]
    assert last == f"orch: {outcome.failure.message}"
    assert last.startswith("orch: devices.cpus: 3 came too late: TensorFlow's runtime was in use before the program began")


PHANTOMS = """
from tensorflow.python.eager import context

def _initialize_physical_devices(self, reinitialize=False, real=context.Context._initialize_physical_devices):
    is_first = self._physical_devices is None
    real(self, reinitialize)
    for index in range(2 if is_first else 0):
        gpu = context.PhysicalDevice(f"/physical_device:GPU:{index}", "GPU")
        self._physical_devices.append(gpu)
        self._visible_device_list.append(gpu)
        self._memory_growth_map[gpu] = None

context.Context._initialize_physical_devices = _initialize_physical_devices
"""


def test_gpus_are_set_up_by_tensorflows_own_rules(tmp_path: Path) -> None:
    """Two GPUs that are only names: TensorFlow's Python takes every setting and keeps its rules, and nothing is computed."""
    (tmp_path / "phantoms.py").write_text(PHANTOMS)
    write(
        tmp_path,
        """
import tensorflow as tf
from tensorflow.python.eager import context
options = context.context().config.gpu_options
print([options.allow_growth, [list(map(int, gpu.memory_limit_mb)) for gpu in options.experimental.virtual_devices]])
tf.config.experimental.set_memory_growth(tf.config.list_physical_devices("GPU")[1], True)
""",
    )
    cases: tuple[tuple[DeviceSettings, bool, list[list[int]], str], ...] = (
        (DeviceSettings(gpus=2, memory_growth=True), True, [], ""),
        (DeviceSettings(logical_gpus=(16, 32)), False, [[16, 32]] * 2, "devices.logical_gpus: [16, 32]"),
        (DeviceSettings(memory_limit_mb=64), False, [[64]] * 2, "devices.memory_limit_mb: 64"),
    )
    with template(tmp_path, "tensorflow", "phantoms") as found:
        for devices, growth, limits, hint in cases:
            outcome = found.fork(SCRIPT, tmp_path, devices=devices).wait().check(1 if hint else 0)
            assert outcome.out == f"{[growth, limits]}\n"
            if hint:
                assert "Cannot set memory growth on device when virtual devices configured" in outcome.err
                assert outcome.err.splitlines()[-1].startswith(f"orch: {hint} holds for this task already; ")


def late_start(tmp_path: Path) -> Path:
    """The real start, after ``early.py`` has been imported into this process."""
    path = tmp_path / "late_start.py"
    start = ROOT / "worker" / "task" / "start_task.py"
    path.write_text(f"import early, runpy, sys\nsys.path.insert(0, '')\nrunpy.run_path({str(start)!r}, run_name='__main__')\n")
    return path


def test_the_settings_hold_before_the_programs_first_line_and_its_own_word_comes_last(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled
config = tf.config
print(len(config.get_logical_device_configuration(config.list_physical_devices("CPU")[0])))
print(config.get_soft_device_placement(), config.optimizer.get_jit(), config.experimental.tensor_float_32_execution_enabled())
print(is_op_determinism_enabled())
config.set_logical_device_configuration(config.list_physical_devices("CPU")[0], [config.LogicalDeviceConfiguration()] * 3)
print(len(config.list_logical_devices("CPU")))
with tf.device("/CPU:1"):
    tf.matmul([[1.0]], [[2.0]])
with tf.device("/CPU:3"):
    tf.constant([1.0]) * 2
""",
    )
    settings = DeviceSettings(
        cpus=2, soft_placement=False, log_placement=True, xla=True, tf32=False, memory_growth=True, memory_limit_mb=64
    )
    env = {"CUDA_VISIBLE_DEVICES": "-1", "TF_DETERMINISTIC_OPS": "1", "TF_CPP_MIN_LOG_LEVEL": "0"}
    outcome = run_task(SCRIPT, tmp_path, devices=settings, env=env).check(1)
    assert outcome.out.splitlines()[:4] == ["2", "False autoclustering False", "True", "3"]
    assert outcome.failure is not None
    # _MklMatMul on processors with AVX-512
    assert re.search("Executing op (_Mkl)?MatMul in device /job:localhost/replica:0/task:0/device:CPU:1", outcome.err)
    assert "orch: this task has CPU:0 as 2 logical devices\n" in outcome.err
    hint = "orch: --cpus 4 would give this task CPU:3; --soft-placement lets TensorFlow take another device"
    assert outcome.failure.traceback.splitlines()[-1] == outcome.err.splitlines()[-1] == hint


def test_orchs_own_server_has_the_devices_of_its_task(tmp_path: Path, fork_task: Fork) -> None:
    write(
        tmp_path,
        """
import worker
strategy = worker.strategy()
import tensorflow as tf
print(sorted(device.name for device in tf.config.list_logical_devices("CPU") if "/job:worker" in device.name))
""",
    )
    types = ("chief", "worker", "ps")
    job = (SCRIPT, tmp_path, "parameter_server", *types)
    with start_cluster(*job, servers=Program("serve"), devices=DeviceSettings(cpus=2), start=fork_task) as tasks:
        out = tasks["chief-0"].wait(200).check().out
    assert out == f"{[f'/job:worker/replica:0/task:0/device:CPU:{index}' for index in range(2)]}\n"
