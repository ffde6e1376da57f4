"""The runtime of a task with TensorFlow itself: strategies, servers, devices."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from orchestrator.testing import cluster
from tests.conftest import Orch
from tests.live import LiveRun
from tests.real.programs import SCHEDULED_SUM
from tests.worker.agent_double import ROOT, run_task
from tests.worker.template_double import template
from worker.protocol.messages import Program
from worker.settings.device_settings import DeviceSettings

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

SCRIPT = Program("script", "s.py")
in_cluster = pytest.mark.usefixtures("warm_tensorflow")


def write(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.py").write_text(text)


def add_up(strategy: Any) -> tuple[str, int, float]:
    """The class of the strategy, the number of replicas, and the sum of what each of them adds."""
    import tensorflow as tf

    import worker

    assert worker.strategy() is strategy

    def step() -> Any:
        return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0 + worker.context().index))

    total = float(strategy.experimental_local_results(strategy.run(tf.function(step)))[0])
    worker.report(step=1, total=total)
    return type(strategy).__name__, strategy.num_replicas_in_sync, total


@in_cluster
def test_two_workers_reduce_under_the_strategy_of_the_spec() -> None:
    with cluster(workers=2) as c:
        assert [*c.run(add_up).values()] == [("CollectiveAllReduceStrategy", 2, 3.0)] * 2
        assert [[report["total"] for report in c[name].reports] for name in c.tasks] == [[3.0]] * 2


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
CHIEF_SAYS = b"only the chief comes here: chief-0\n/job:ps/replica:0/task:0/device:CPU:0\n20.0\n"


@in_cluster
@pytest.mark.parametrize("servers", [(), ("--set", "serve=true")], ids=["the same script", "serve"])
def test_a_parameter_server_cluster(orch: Orch, tmp_path: Path, servers: tuple[str, ...]) -> None:
    write(tmp_path, ONE_SCRIPT_FOR_ALL_ROLES)
    orch("up", "s.py", "-n", "2", "--ps", "1", *servers, timeout=250, check=0)
    run = LiveRun(tmp_path)
    assert {name: run.log(name) for name in ("chief-0", "worker-0", "ps-0")} == {"chief-0": CHIEF_SAYS, "worker-0": b"", "ps-0": b""}
    # They never end by themselves, and they end by SIGTERM.
    codes = {event["task"]: event["code"] for event in run.events() if event["event"] == "task_exited"}
    assert codes == {"chief-0": 0, "worker-0": 143, "worker-1": 143, "ps-0": 143}


@in_cluster
@pytest.mark.parametrize(("strategy", "replicas"), [("mirrored", 4), ("none", 1), ("one_device", 1)])
def test_logical_cpus(strategy: str, replicas: int) -> None:
    def count_devices() -> int:
        import tensorflow as tf

        return len(tf.config.list_logical_devices("CPU"))

    with cluster(workers=1, strategy=strategy, cpus=4) as c:
        assert c.run(add_up)["worker-0"][1:] == (replicas, float(replicas))
        assert c.run(count_devices) == {"worker-0": 4}


@in_cluster
@pytest.mark.parametrize("tasks", [{"workers": 1}, {"workers": 1, "ps": 1, "strategy": "parameter_server"}])
def test_an_evaluator_computes_alone(tasks: dict[str, Any]) -> None:
    def who_it_is(strategy: Any) -> tuple[int, bool]:
        import worker

        return strategy.num_replicas_in_sync, worker.context().is_chief

    with cluster(**tasks, evaluator=True) as c:
        assert c.run(who_it_is, on="evaluator-0") == {"evaluator-0": (1, False)}


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
    hint = "orch: --cpus 4 would give this task CPU:3; soft_placement: true lets TensorFlow take another device"
    assert outcome.failure.traceback.splitlines()[-1] == outcome.err.splitlines()[-1] == hint


@in_cluster
def test_orchs_own_server_has_the_devices_of_its_task() -> None:
    def list_devices_of_workers(strategy: Any) -> list[str]:
        import tensorflow as tf

        return sorted(device.name for device in tf.config.list_logical_devices("CPU") if "/job:worker" in device.name)

    with cluster(workers=1, ps=1, strategy="parameter_server", cpus=2) as c:
        devices = [f"/job:worker/replica:0/task:0/device:CPU:{index}" for index in range(2)]
        assert c.run(list_devices_of_workers) == {"chief-0": devices}


def fit_with_mistakes(strategy: Any) -> dict[str, str]:
    """What a program prints of its own exception that comes out of Keras's `fit`: from a callback, and from an operation."""
    import traceback

    import keras
    import tensorflow as tf

    class Mistaken(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise ValueError("in the callback")

    def loss(wanted: Any, found: Any) -> Any:
        return tf.debugging.check_numerics(wanted - found / 0.0, "in the graph")

    printed = {}
    for name, callbacks, chosen in (("callback", [Mistaken()], "mse"), ("graph", [], loss)):
        with strategy.scope():
            model = keras.Sequential([keras.layers.Input([2]), keras.layers.Dense(1)])
            model.compile("sgd", chosen)
        try:
            model.fit(tf.ones([8, 2]), tf.ones([8, 1]), batch_size=4, callbacks=callbacks, verbose=0)
        except (ValueError, tf.errors.InvalidArgumentError):
            printed[name] = traceback.format_exc()
    operations = tf.function(lambda: tf.random.normal([2])).get_concrete_function().graph.get_operations()
    printed["stacks"] = "\n".join(f'File "{frame.filename}"' for one in operations for frame in one.traceback)
    return printed


@pytest.mark.slow
@in_cluster
def test_an_exception_that_the_program_prints_has_no_frames_of_orch() -> None:
    with cluster(workers=2) as c:
        printed = c.run(fit_with_mistakes)["worker-1"]
    assert printed["callback"].rstrip().endswith("ValueError: in the callback")
    assert "Detected at node compile_loss/loss/CheckNumerics defined at" in printed["graph"]
    assert f'File "{__file__}"' in printed["graph"].partition("Detected at node")[2]
    assert f'File "{__file__}"' in printed["stacks"]
    own = [
        line
        for text in printed.values()
        for line in text.splitlines()
        if f"{ROOT / 'worker'}/" in line or f"{ROOT / 'orchestrator'}/" in line
    ]
    assert own == []
