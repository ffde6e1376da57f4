"""`worker.strategy()` on a TPU and `worker.split`, with TensorFlow itself; only the one call that takes a TPU is doubled."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model import tpu_topology
from tests.conftest import Orch
from tests.live import wait_for_file
from tests.worker.agent_double import ROOT
from tests.worker.template_double import ForkedTask
from worker.protocol.messages import Program
from worker.settings.input_settings import InputSettings
from worker.settings.task_settings import VARIABLE, TaskSettings
from worker.settings.tpu_settings import Partition, TpuSettings
from worker.values.codec import to_json

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

SCRIPT = Program("script", "s.py")
Fork = Callable[..., ForkedTask]
DOUBLE = """
import json, sys
import tpu_double
tpu_double.install(*json.loads(sys.argv[1]))
import tensorflow as tf
import worker
"""


@pytest.fixture
def on_tpu(tmp_path: Path, fork_task: Fork) -> Callable[..., list[Any]]:
    """``on_tpu(code, topology, computation_shape=…)``: what the code prints last, as JSON, in a task of a TPU that is doubled."""

    def run(code: str, topology: str = "v2-8", expect: int = 0, input: InputSettings | None = None, **settings: Any) -> list[Any]:
        (tmp_path / "s.py").write_text(DOUBLE + code)
        shutil.copy(ROOT / "tests/real/tpu_double.py", tmp_path)
        mesh = tpu_topology.parse(topology)
        program = Program("script", "s.py", (json.dumps([mesh.shape, mesh.coordinates()]),))
        asked = TpuSettings(tpu="local", **settings)
        env = {VARIABLE: json.dumps(to_json(TaskSettings("tpu", tpu=asked, input=input)))} if input else None
        done = fork_task(program, tmp_path, strategy="tpu", tpu=asked, env=env).wait()
        assert done.code == expect, done.err
        return list(json.loads(done.out.splitlines()[-1])) if done.out else [done.err]

    return run


# --- the guide's code, on a topology that has its eight devices ----------------------------------

GUIDE = """
from tensorflow.python.compiler.xla.experimental import xla_sharding

strategy = worker.strategy()

@tf.function
def step_fn(inputs):
    def model(inputs):
        inputs = worker.split(inputs, "image")
        output = worker.replicate(inputs) * 2
        return output
    return strategy.run(model, args=(inputs,))

graph = step_fn.get_concrete_function(tf.TensorSpec([128, 224, 224, 3])).graph
left = [op for op in graph.get_operations() if op.type == "XlaSharding"]

def by_hand(inputs):
    inputs = strategy.experimental_split_to_logical_devices(inputs, [1, 2, 4, 1])
    return strategy.experimental_replicate_to_logical_devices(inputs)

plain = tf.function(by_hand).get_concrete_function(tf.TensorSpec([128, 224, 224, 3])).graph
wanted = [op for op in plain.get_operations() if op.type == "XlaSharding"]
split = xla_sharding.get_op_sharding(left[0])
metadata = next(op for op in graph.get_operations() if op.type == "TPUReplicateMetadata")
print(json.dumps([
    strategy.num_replicas_in_sync,
    [op.get_attr("sharding").hex() for op in left],
    [op.get_attr("sharding").hex() for op in wanted],
    list(xla_sharding.get_sharding_tile_shape(split)),
    metadata.get_attr("num_cores_per_replica"),
    bool(metadata.get_attr("use_spmd_for_xla_partitioning")),
    strategy.extended._device_assignment.core_assignment[0].tolist(),
]))
"""


def test_the_guides_model_is_traced_with_the_annotations_of_tensorflows_own_calls(on_tpu: Callable[..., list[Any]]) -> None:
    """C2 to C4: a device assignment of shape [1, 2, 2, 2], SPMD, an image split by [1, 2, 4, 1] over 8 logical devices."""
    image = Partition("image", (1, 2, 4, 1), (128, 224, 224, 3))
    replicas, left, wanted, tiles, cores, spmd, places = on_tpu(
        GUIDE, "1x2x2x2", computation_shape=(1, 2, 2, 2), num_replicas=1, spmd=True, partition=(image,)
    )
    assert replicas == 1
    assert left == wanted
    assert tiles == [1, 2, 4, 1]
    assert (cores, spmd) == (8, True)
    assert sorted(places) == [[0, y, z, core] for y in (0, 1) for z in (0, 1) for core in (0, 1)]


REPLICAS = """
strategy = worker.strategy()
broken = []
with strategy.scope():
    try:
        worker.replicate(tf.zeros([2]))
    except RuntimeError as error:
        broken.append(str(error))
with strategy.scope(), tf.Graph().as_default():
    for dims, shape in (([1, 2], [4, 4]), ([1, 3, 1], [4, 4]), ([1, 4], [4, 6])):
        try:
            broken.append(worker.split(tf.zeros(shape), dims).shape.as_list())
        except ValueError as error:
            broken.append(str(error))
    try:
        worker.assign(tf.zeros([2]), 2)
    except ValueError as error:
        broken.append(str(error))
print(json.dumps([strategy.num_replicas_in_sync, strategy.extended._tpu_devices.tolist(), broken]))
"""


def test_replicas_are_as_many_as_fit_and_the_rules_hold_before_tensorflow_is_asked(on_tpu: Callable[..., list[Any]]) -> None:
    replicas, devices, (eager, fits, rank, divides, assign) = on_tpu(REPLICAS, computation_shape=(1, 1, 1, 2))
    assert replicas == 4
    assert [len(one) for one in devices] == [2, 2, 2, 2]
    assert len({name for one in devices for name in one}) == 8
    assert eager.startswith("worker.replicate: works in a tf.function only")
    assert fits == [4, 4]
    assert rank.startswith("worker.split: [1, 3, 1] has 3 numbers, and the tensor has 2 dimensions, [4, 4]: ")
    assert rank.endswith("; [1, 3, 1] makes 3 parts, and a replica has 2 logical devices: the product of the numbers must be 2")
    assert divides.startswith("worker.split: dimension 1 has the size 6, which cannot be divided into 4 equal parts; [1, 4] makes 4 parts")
    assert assign == "worker.assign: there is no logical device 2: a replica has 2, from 0 to 1"


@pytest.mark.slow
def test_without_a_layout_each_device_is_a_replica(on_tpu: Callable[..., list[Any]]) -> None:
    code = "strategy = worker.strategy()\nprint(json.dumps([strategy.num_replicas_in_sync, type(strategy).__name__]))"
    assert on_tpu(code, "v3-32") == [32, "TPUStrategyV2"]


@pytest.mark.slow
def test_a_layout_that_does_not_fit_the_tpu_says_so(on_tpu: Callable[..., list[Any]]) -> None:
    (said,) = on_tpu("worker.strategy()", expect=1, computation_shape=(1, 2, 2, 2))
    assert (
        "TpuError: the layout in orch.yaml does not fit this TPU, whose topology is [2, 2, 1, 2]: "
        "computation footprint [1 2 2 2] does not fit in TPU topology shape [2 2 1 2]; orch tpu --topology 2x2x1x2 shows what fits"
    ) in said
    assert "device_assignment.py" not in said


DISTRIBUTED = """
strategy = worker.strategy()
batches = worker.distribute(tf.data.Dataset.range(20))
parts = [[part.numpy().tolist() for part in strategy.experimental_local_results(batch)] for batch in batches]
print(json.dumps(parts))
"""


def test_the_settings_of_input_hold_under_it(on_tpu: Callable[..., list[Any]]) -> None:
    settings = InputSettings(global_batch_size=8, drop_remainder=True, auto_shard="data")
    parts = on_tpu(DISTRIBUTED, input=settings, computation_shape=(1, 1, 1, 2))
    assert parts == [[[0, 1], [2, 3], [4, 5], [6, 7]], [[8, 9], [10, 11], [12, 13], [14, 15]]]


# --- no TPU --------------------------------------------------------------------------------------

BUILD = "import worker\nprint(worker.strategy())"


BY_HAND = """
from tensorflow.python.distribute.cluster_resolver.tpu import tpu_cluster_resolver
resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu='')
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
found = []
class Client:
    def __init__(self, **asked):
        found.append({name: asked[name] for name in ("tpu", "zone", "project")})
    def name(self):
        return "other"
tpu_cluster_resolver.client.Client = Client
other = tf.distribute.cluster_resolver.TPUClusterResolver("other", project="mine")
print(json.dumps([strategy.num_replicas_in_sync, resolver.master(), found]))
"""


def test_the_guides_own_resolver_finds_the_tpu_of_the_spec_and_a_script_may_name_another(on_tpu: Callable[..., list[Any]]) -> None:
    other = {"tpu": "other", "zone": None, "project": "mine"}
    assert on_tpu(BY_HAND, topology="v3-8", zone="a-zone") == [8, "", [other]]


def refusal(tmp_path: Path, fork_task: Fork, settings: TpuSettings, env: dict[str, str] | None = None) -> str:
    """What a task says that asks for a TPU and has none: the error, after its own line of the script and nothing of ours but one."""
    (tmp_path / "s.py").write_text(BUILD)
    done = fork_task(SCRIPT, tmp_path, strategy="tpu", tpu=settings, env=env or {}).wait()
    assert done.code == 1, done.out + done.err
    assert done.err.count('  File "') <= 2
    assert "IndexError" not in done.err
    return done.err.splitlines()[-1]


def test_no_tpu_on_this_host(tmp_path: Path, fork_task: Fork) -> None:
    said = refusal(tmp_path, fork_task, TpuSettings(tpu="local"))
    assert said.startswith(
        "worker.NoTpu: no TPU was found on this machine: it shows no TPU chip (a PCI device of Google's in /sys/bus/pci/devices)"
    )
    assert "is built without TPU support, which no release after 2.20 has: " in said
    assert "-m pip install tensorflow-tpu==2.20.0 libtpu==0.0.14" in said
    assert said.endswith("; to try the script on the CPU: --set tpu.fallback=cpu")


NOT_USED = " does not go on without it: fallback: cpu is for a machine without a TPU where no other is named"


@pytest.mark.slow
def test_the_cpu_only_if_it_is_asked_for_and_there_is_no_tpu_and_split_leaves_tensors_whole(tmp_path: Path, fork_task: Fork) -> None:
    (tmp_path / "s.py").write_text("""
import tensorflow as tf
import worker
from worker.machine import tpu_host
count_chips, tpu_host.count_chips = tpu_host.count_chips, lambda: 1
try:
    worker.strategy()
except Exception as error:
    print(str(error).partition("; the task")[2])
tpu_host.count_chips = count_chips
strategy = worker.strategy()
@tf.function
def step():
    def replica():
        image = worker.split(tf.ones([4, 6]), [1, 2])
        return tf.reduce_sum(worker.assign(worker.replicate(image), 1)) + tf.reduce_sum(worker.split(image, [2, 1]))
    return strategy.run(replica)
print(type(strategy).__name__, float(step()))
try:
    worker.split(tf.ones([4, 6]), [1, 3])
except ValueError as error:
    print(error)
""")
    asked = TpuSettings(tpu="local", computation_shape=(1, 1, 1, 2), fallback="cpu")
    done = fork_task(SCRIPT, tmp_path, strategy="tpu", tpu=asked).wait().check()
    said = "worker.split: [1, 3] makes 3 parts, and a replica has 2 logical devices: the product of the numbers must be 2"
    assert done.out.splitlines() == [NOT_USED, "OneDeviceStrategy 48.0", said]
    assert "orch: no TPU was found on this machine" in done.err
    assert "orch: fallback: cpu: the task trains without a TPU" in done.err
    assert done.err.count("orch: note: worker.split: each replica has one device here, so tensors stay whole") == 1
    assert "AutoGraph" not in done.err


SERVER = """
import os, time
import tensorflow as tf
server = tf.distribute.Server.create_local_server()
with open("address.new", "w") as file:
    file.write(server.target)
os.rename("address.new", "address")
time.sleep(600)
"""


@pytest.fixture
def server(tmp_path: Path, fork_task: Fork) -> Iterator[str]:
    """The address of a `tf.distribute.Server`, which is no TPU's."""
    (tmp_path / "server.py").write_text(SERVER)
    task = fork_task(Program("script", "server.py"), tmp_path)
    yield wait_for_file(tmp_path / "address")
    task.kill()


def test_an_address_behind_which_there_is_no_tpu(tmp_path: Path, fork_task: Fork, server: str) -> None:
    said = refusal(tmp_path, fork_task, TpuSettings(tpu=server))
    assert said.startswith(f"worker.NoTpu: there is no TPU at the TPU '{server}' (the spec): ")
    assert "was reached, and is no TPU's runtime, or its TPU does not start" in said
    said = refusal(tmp_path, fork_task, TpuSettings(tpu="auto"), {"TPU_NAME": server})
    assert said.startswith(f"worker.NoTpu: there is no TPU at the TPU '{server}' (TPU_NAME): ")


def test_an_address_that_does_not_answer_ends_with_the_stacks(tmp_path: Path, fork_task: Fork) -> None:
    """TensorFlow itself tries again for ever."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"grpc://127.0.0.1:{silent.getsockname()[1]}"
        (tmp_path / "s.py").write_text(BUILD)
        done = fork_task(SCRIPT, tmp_path, strategy="tpu", tpu=TpuSettings(tpu=address, timeout_s=2.0)).wait()
    assert done.code == 1
    assert f"orch: connecting to the TPU '{address}' (the spec) takes longer than 2 s" in done.err
    assert 's.py", line 2 in <module>' in done.err
    kept = json.loads((done.log_dir / "error.json").read_text())
    assert kept["message"].startswith("connecting to the TPU")


NAMED_BY = "ORCH_TENSORFLOW_TPU_PYTHON"
PYTHON_WITH_TPU = os.environ.get(NAMED_BY, "")


@pytest.mark.tensorflow_tpu
@pytest.mark.skipif(not PYTHON_WITH_TPU, reason=f"NOT TESTED: tensorflow-tpu without a TPU: {NAMED_BY} names no Python that has it")
def test_tensorflow_for_tpus_without_a_tpu(orch: Orch, script: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A download of 400 MB: pip install tensorflow-tpu==2.20.0 libtpu==0.0.14. Its import does not wait for the metadata server."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{taken.getsockname()[1]}")
    script(f"import os\nprint(os.environ['TPU_SKIP_MDS_QUERY'])\n{BUILD}", "s.py")
    done = orch("up", "s.py", "--tpu", "local", "--python", PYTHON_WITH_TPU, timeout=250, check=1)
    assert "worker.NoTpu: no TPU was found on this machine: it shows no TPU chip" in done.err
    assert "TensorFlow says: InternalError: RET_CHECK failure" in done.err
    assert "TPU support" not in done.err


class _Metadata(http.server.BaseHTTPRequestHandler):
    """Google's metadata server, as far as TensorFlow's client of the TPU API asks it."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        known = {"/computeMetadata/v1/project/project-id": "my-project", "/computeMetadata/v1/instance/zone": "projects/1/zones/zone-b"}
        self.send_response(200 if self.path in known else 404)
        self.end_headers()
        self.wfile.write(known.get(self.path, "").encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def metadata() -> Iterator[http.server.HTTPServer]:
    server = http.server.HTTPServer(("127.0.0.1", 0), _Metadata)
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_name_is_looked_up_by_tensorflow_itself(tmp_path: Path, fork_task: Fork, metadata: http.server.HTTPServer) -> None:
    env = {"GCE_METADATA_HOST": f"127.0.0.1:{metadata.server_port}"}
    said = refusal(tmp_path, fork_task, TpuSettings(tpu="my-tpu"), env)
    assert metadata.asked == ["/computeMetadata/v1/project/project-id", "/computeMetadata/v1/instance/zone"]  # type: ignore[attr-defined]
    assert said.startswith("worker.NoTpu: the TPU 'my-tpu' (the spec) cannot be looked up by its name: a package is not installed")
    assert "-m pip install cloud-tpu-client, or give the address: tpu: grpc://HOST:8470" in said


def test_nobody_is_asked_what_the_spec_says(tmp_path: Path, fork_task: Fork, metadata: http.server.HTTPServer) -> None:
    env = {"GCE_METADATA_HOST": f"127.0.0.1:{metadata.server_port}"}
    said = refusal(tmp_path, fork_task, TpuSettings(tpu="my-tpu", zone="z", project="p", fallback="cpu"), env)
    assert "cannot be looked up by its name" in said
    assert said.endswith(NOT_USED)  # the name may be wrong: that is no reason for the CPU
    assert "tpu.fallback" not in said
    assert metadata.asked == []  # type: ignore[attr-defined]


def test_no_metadata_server(tmp_path: Path, fork_task: Fork) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        host = f"127.0.0.1:{taken.getsockname()[1]}"
    said = refusal(tmp_path, fork_task, TpuSettings(tpu="my-tpu"), {"GCE_METADATA_HOST": host})
    assert f"http://{host}, asked for the project and the zone, gave no answer" in said
    assert "fix: set tpu.zone and tpu.project" in said
