"""The keys below `devices`: every spelling of a device, and what contradicts what."""

from __future__ import annotations

import pytest

from orchestrator.errors import SpecError
from orchestrator.model import device_names
from orchestrator.model.settings import ClusterSpec, GpuWish
from orchestrator.model.settings.document import read
from orchestrator.model.settings.parse import parse
from worker.settings.device_settings import DeviceSettings, ThreadSettings


def spec_of(text: str) -> ClusterSpec:
    return parse(read(text, "o"), workdir="/w")


def problems(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        spec_of(text)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("name", "means", "local"),
    [
        ("CPU:0", "CPU:0", True),
        ("/gpu:1", "GPU:1", True),
        ("/device:GPU:1", "GPU:1", True),
        ("/job:localhost/replica:0/task:0/device:GPU:1", "GPU:1", True),
        ("/job:worker/replica:0/task:1/device:GPU:0", "GPU:0", False),
        ("/job:localhost/replica:0/task:1/device:GPU:0", "GPU:0", False),
    ],
)
def test_a_device_has_many_names(name: str, means: str, local: bool) -> None:
    found = device_names.parse(name)
    assert found is not None
    assert (str(found), found.is_local) == (means, local)


@pytest.mark.parametrize(
    "text", ["", "GPU", "GPU:", ":1", "GPU:x", "0", "/device:GPU:*", "/job:/device:GPU:0", "GPU:1 GPU:2", "/job:ps/task:1"]
)
def test_what_is_no_name_of_a_device(text: str) -> None:
    assert device_names.parse(text) is None


def test_a_name_may_stand_for_any_device_or_for_none_that_is_there() -> None:
    """What TensorFlow's logs and errors hold, and no setting may."""
    for text in ("/job:ps/task:1/device:GPU:*", "GPU:" + "9" * 5000):
        assert device_names.parse(text) is None
        found = device_names.read(text)
        assert found is not None
        assert found.index is None
    found = device_names.read("/job:my-job.a/task:1/device:GPU:*")
    assert found is not None
    assert (str(found), found.owner) == ("GPU:*", "my-job.a-1")


@pytest.mark.parametrize(
    ("written", "wish"),
    [
        ("auto", GpuWish()),
        ("0", GpuWish(count=0)),
        ("[]", GpuWish(count=0)),
        ("2", GpuWish(count=2)),
        ("0,2", GpuWish(ids=("0", "2"))),
        ("'0,'", GpuWish(ids=("0",))),
        ("'[0]'", GpuWish(ids=("0",))),
        ("GPU:1", GpuWish(ids=("1",))),
        ("[0, /device:GPU:2, /job:localhost/replica:0/task:0/device:GPU:3]", GpuWish(ids=("0", "2", "3"))),
        ("[GPU-5e8a, MIG-1-2]", GpuWish(ids=("GPU-5e8a", "MIG-1-2"))),
    ],
)
def test_gpus_are_asked_for_in_many_ways(written: str, wish: GpuWish) -> None:
    (tasks,) = spec_of(f"script: a\ndefaults: {{devices: {{gpus: {written if ',' not in written else _quoted(written)}}}}}").tasks
    assert tasks.devices.gpus == wish


def _quoted(written: str) -> str:
    return written if written[0] in "['" else f"'{written}'"


def test_a_type_and_a_single_task_have_the_last_word() -> None:
    spec = spec_of("""
script: a
defaults: {devices: {gpus: 1, memory_growth: true, cpus: 2, threads: {intra: 3}}}
tasks:
  worker:
    count: 3
    devices: {gpus: auto, threads: {inter: 4}}
    overrides:
      2: {devices: {gpus: [GPU:7], share_gpus: true, cpus: 1, memory_growth: false}}
""")
    (workers,) = spec.tasks
    assert workers.devices_of(0).settings == DeviceSettings(cpus=2, threads=ThreadSettings(3, 4), memory_growth=True)
    assert workers.devices_of(0).gpus.is_auto
    assert workers.devices_of(2).settings == DeviceSettings(cpus=1, threads=ThreadSettings(3, 4), memory_growth=False)
    assert (workers.devices_of(2).gpus, workers.devices_of(2).share_gpus) == (GpuWish(ids=("7",)), True)


def test_contradictions_are_found_in_what_holds_in_the_end_with_their_places() -> None:
    text = """script: a
defaults: {devices: {memory_growth: true}}
tasks:
  worker:
    count: 2
    devices: {memory_growth: false, memory_limit_mb: 100}
    overrides:
      0: {devices: {logical_gpus: "10,10"}}
      1: {devices: {cpus: 2}}
      2: {devices: {cpus: 2}}
  evaluator: {devices: {memory_limit_mb: 100}}
"""
    found = problems(text)
    assert [line for line in found if not line.startswith("fix: ")] == [
        "o:8: tasks.worker.overrides.0.devices.logical_gpus: memory_limit_mb and logical_gpus cannot both hold on one GPU",
        "o:10: tasks.worker.overrides.2: there is no worker-2",
        "o:11: tasks.evaluator.devices.memory_limit_mb: memory_growth and memory_limit_mb cannot both hold on one GPU",
    ]


def test_a_number_of_gpus_for_everybody_is_for_those_that_compute() -> None:
    wanted = "script: a\ntasks: {worker: 1, ps: 1}\ndefaults: {devices: {gpus: 1, cpus: 2}}"
    gpus = {tasks.type: (tasks.devices.gpus.count, tasks.devices.settings.cpus) for tasks in spec_of(wanted).tasks}
    assert gpus == {"chief": (None, 2), "worker": (1, 2), "ps": (None, 2)}


@pytest.mark.parametrize("level", ["log_level: error, ", "env: {TF_CPP_MIN_LOG_LEVEL: 1}, ", ""])
def test_placement_is_logged_whatever_the_level_is(level: str) -> None:
    assert spec_of(f"script: a\ndefaults: {{{level}devices: {{log_placement: true}}}}").env == {"TF_CPP_MIN_LOG_LEVEL": "0"}
