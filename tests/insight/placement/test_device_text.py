"""Names of devices, and the explanations of those that do not exist. The errors are TensorFlow 2.21's own, from real runs."""

from __future__ import annotations

import pytest

from orchestrator.insight.placement import device_text


@pytest.mark.parametrize(
    ("name", "task", "short"),
    [
        ("CPU:0", "", "CPU:0"),
        ("cpu:1", "", "CPU:1"),
        ("/GPU:0", "", "GPU:0"),
        ("/gpu:0", "worker-1", "GPU:0"),
        ("/device:CPU:1", "", "CPU:1"),
        ("/job:localhost/replica:0/task:0/device:GPU:1", "worker-3", "GPU:1"),
        ("/job:worker/replica:0/task:1/device:GPU:0", "worker-1", "GPU:0"),
        ("/job:ps/replica:0/task:0/device:CPU:0", "worker-1", "ps-0 CPU:0"),
        ("/job:worker/task:12/device:TPU:3", "chief-0", "worker-12 TPU:3"),
    ],
)
def test_a_name_is_as_short_as_it_can_be(name: str, task: str, short: str) -> None:
    assert device_text.shorten(name, task) == short


@pytest.mark.parametrize("name", ["", "GPU", "GPU:x", "/job:worker/replica:0/task:1", "the GPU:0", "CPU:0:1"])
def test_what_names_no_device_is_refused_with_the_right_form(name: str) -> None:
    with pytest.raises(ValueError, match="write it as GPU:0"):
        device_text.shorten(name)


FULL = "/job:localhost/replica:0/task:0/device:"


def test_a_number_that_no_device_can_have_gets_no_setting() -> None:
    for number in ("9" * 9, "9" * 5000):
        for kind in ("CPU", "GPU"):
            explained = device_text.explain(
                f"was explicitly assigned to /device:{kind}:{number} but available devices are [ /device:GPU:0 ]"
            )
            assert explained is not None
            assert explained.endswith(
                "the task has GPU:0: devices.soft_placement: true (--soft-placement) lets TensorFlow take a device that is there"
            )
    explained = device_text.explain("was explicitly assigned to /device:GPU:99 but available devices are [ /device:GPU:0 ]")
    assert "--gpus 100" in str(explained)
    assert len(str(explained)) < 500


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"Could not satisfy device specification '{FULL}CPU:7'. enable_soft_placement=0. Supported device types [CPU]. "
            f"All available devices [{FULL}CPU:0, {FULL}CPU:1]. [Op:MatMul] name: ",
            ["CPU:7, which does not exist; the task has CPU:0, CPU:1", "devices.cpus: 8 (--cpus 8)"],
        ),
        (
            "Cannot assign a device for operation MatMul: {{node MatMul}} was explicitly assigned to /device:CPU:1 but available devices "
            f"are [ {FULL}CPU:0 ]. Make sure the device specification refers to a valid device.",
            ["CPU:1, which does not exist; the task has CPU:0", "devices.cpus: 2 (--cpus 2)"],
        ),
        (
            f"Could not satisfy device specification '{FULL}GPU:2'. enable_soft_placement=0. Supported device types [CPU]. "
            f"All available devices [{FULL}CPU:0].",
            ["GPU:2", "orch doctor says why TensorFlow sees no GPU", "soft_placement: true"],
        ),
        (
            f"Could not satisfy device specification '{FULL}GPU:1'. enable_soft_placement=0. Supported device types [GPU, CPU]. "
            f"All available devices [{FULL}CPU:0, {FULL}GPU:0].",
            ["the task has CPU:0, GPU:0", "devices.gpus: 2 (--gpus 2)", "devices.logical_gpus: [1024, 1024]"],
        ),
        ("Unable to find any devices for spec /device:CPU:3 [Op:__inference_h_59]", ["CPU:3, which does not exist:", "devices.cpus: 4"]),
        ("RuntimeError: /GPU:1 unknown device.", ["GPU:1", "devices.gpus: 2"]),
        (
            "Cannot assign a device for operation a: Could not satisfy explicit device specification '/device:GPU:0' because no devices "
            f"matching that specification are registered in this process; available devices: {FULL}CPU:0, {FULL}CPU:1",
            ["GPU:0", "the task has CPU:0, CPU:1", "orch doctor"],
        ),
        (
            "was explicitly assigned to /job:ps/replica:0/task:3/device:CPU:0 but available devices are [ "
            "/job:ps/replica:0/task:0/device:CPU:0, /job:worker/replica:0/task:0/device:CPU:0 ]",
            ["CPU:0 of ps-3, which is not in this task's cluster", "ps-0 CPU:0"],
        ),
    ],
)
def test_a_missing_device_is_explained_with_the_setting_that_creates_it(text: str, said: list[str]) -> None:
    explained = device_text.explain(f"some.Error: {text}\nmore")
    assert explained is not None
    assert [words for words in said if words not in explained] == [], explained


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Executing op MatMul in device /job:localhost/replica:0/task:0/device:CPU:0",
        # A device that is there, without a kernel for the op: no setting creates one.
        "Could not satisfy explicit device specification '/device:GPU:0' because no supported kernel for GPU devices is available.",
        "Unknown attribute 'CPUU' is encountered while parsing the device spec: '/CPUU:7'.",
        "my own unknown device.",
    ],
)
def test_other_texts_are_left_alone(text: str) -> None:
    assert device_text.explain(text) is None
