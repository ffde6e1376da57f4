"""The examples, on the real digits: by hand, and a cluster of two against one process."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.worker.agent_double import ROOT, Outcome, clean_environment, run_plainly
from tests.worker.template_double import ForkedTask
from worker.protocol.messages import Program
from worker.settings.device_settings import DeviceSettings
from worker.settings.tpu_settings import TpuSettings

needs_keras_2 = pytest.mark.skipif(importlib.util.find_spec("tf_keras") is None, reason="NOT TESTED: tf-keras is not installed here")
EXAMPLES = ROOT / "examples"
Fork = Callable[..., ForkedTask]

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        importlib.util.find_spec("sklearn") is None,
        reason="NOT TESTED: scikit-learn is not installed here (pip install 'orch-tf[examples]')",
    ),
]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of all examples: one directory of data, written once."""
    return {"ORCH_EXAMPLES_DATA": str(tmp_path_factory.mktemp("data")), "PYTHONPATH": str(ROOT)}


def check_accuracy(outcome: Outcome) -> None:
    word, accuracy = outcome.check().out.splitlines()[-1].rsplit(" ", 1)
    assert word == "test accuracy"
    assert float(accuracy) > 0.9


@pytest.mark.slow
def test_by_hand_it_learns_the_digits(settings: dict[str, str], tmp_path: Path) -> None:
    check_accuracy(run_plainly([str(EXAMPLES / "tf_config_only.py")], tmp_path, env=settings))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mwms_custom_loop", "parameter_server", "mirrored_cpus", "data_service"])
def test_alone_it_learns_the_digits(settings: dict[str, str], tmp_path: Path, fork_task: Fork, name: str) -> None:
    check_accuracy(fork_task(Program("script", str(EXAMPLES / f"{name}.py")), tmp_path, env=settings).wait())


@pytest.mark.slow
def test_where_there_is_no_tpu_the_cpu_learns_the_digits_only_if_it_is_asked_to(
    settings: dict[str, str], tmp_path: Path, fork_task: Fork
) -> None:
    program = Program("script", str(EXAMPLES / "tpu_digits.py"))
    done = fork_task(program, tmp_path, env=settings, strategy="tpu", tpu=TpuSettings("local", fallback="cpu")).wait()
    check_accuracy(done)
    assert "orch: fallback: cpu: the task trains without a TPU" in done.err
    done = fork_task(program, tmp_path, env=settings, strategy="tpu", tpu=TpuSettings("local")).wait()
    assert done.code == 1
    assert "worker.NoTpu: no TPU was found on this machine" in done.err


@pytest.mark.slow
def test_a_program_launches_workers_that_learn_the_digits(settings: dict[str, str], tmp_path: Path) -> None:
    check_accuracy(run_plainly([str(EXAMPLES / "from_python.py"), "--epochs", "4"], tmp_path, env=settings))
    assert (tmp_path / ".orch/latest/result.json").exists()


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.usefixtures("warm_tensorflow")
def test_two_workers_take_the_steps_of_one_process(orch: Any, settings: dict[str, str], tmp_path: Path) -> None:
    import numpy as np

    # 30 steps: the second epoch has begun, with another order of the images.
    for workers, *words in (("1", "--single", "--dump-weights", "one.npz"), ("2", "--dump-weights", "two.npz")):
        orch("up", str(EXAMPLES / "mwms_custom_loop.py"), "-n", workers, "--", "--steps", "30", *words, timeout=250, check=0, env=settings)
    with np.load(tmp_path / "one.npz") as one, np.load(tmp_path / "two.npz") as two:
        assert one.files == two.files
        assert len(one.files) == 4
        for name in one.files:
            assert np.abs(one[name]).max() > 0
            np.testing.assert_allclose(two[name], one[name], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("warm_tensorflow")
def test_two_workers_learn_from_what_two_data_workers_make(orch: Any, settings: dict[str, str]) -> None:
    options = ("-n", "2", "--set", "tasks.data_worker=2")
    done = orch("up", str(EXAMPLES / "data_service.py"), *options, timeout=250, check=0, env=settings)
    assert "worker-0      | input from grpc://127.0.0.1:" in done.out
    assert {line.split("|")[0].strip() for line in done.out.splitlines() if "test accuracy" in line} == {"worker-0", "worker-1"}


@pytest.mark.slow
@pytest.mark.usefixtures("warm_tensorflow")
def test_two_workers_learn_from_files_that_were_prepared(orch: Any, settings: dict[str, str]) -> None:
    program = str(EXAMPLES / "digits_files.py")
    done = orch("up", program, "-n", "2", "--prepare", f"python {program} --write", timeout=250, check=0, env=settings)
    assert "prepare-0 | 1,437 images in 8 files" in done.out
    assert "8 files with 1,437 elements; each of 2 workers reads its own share of them" in done.err
    assert {line.split("|")[0].strip() for line in done.out.splitlines() if "test accuracy" in line} == {"worker-0", "worker-1"}


@pytest.mark.slow
@pytest.mark.usefixtures("warm_tensorflow")
def test_a_killed_training_goes_on_and_learns_the_digits(orch: Any, settings: dict[str, str]) -> None:
    options = ("-n", "2", "--max-restarts", "1")
    done = orch("up", str(EXAMPLES / "resume_loop.py"), *options, "--", "--die-at", "34", timeout=250, check=0, env=settings)
    at = re.search(r"loop-1 continues at step (\d+) ", done.err)
    assert at is not None
    assert 0 < int(at[1]) <= 34  # the newest snapshot in memory, or a save that is newer
    saves = ("--checkpoint", "--set", "checkpoints.every=10")
    again = orch("up", str(EXAMPLES / "resume_fit.py"), *options, *saves, "--", "--die", timeout=250, check=0, env=settings)
    at = re.search(r"fit-1 continues at step (\d+) ", again.err)
    assert at is not None
    assert 0 < int(at[1]) <= 39
    for text in (done.out, again.out):
        assert {line.split("|")[0].strip() for line in text.splitlines() if "test accuracy" in line} == {"worker-0", "worker-1"}


@pytest.mark.slow
@pytest.mark.usefixtures("warm_tensorflow")
def test_any_number_of_workers_has_the_same_batches(orch: Any, settings: dict[str, str]) -> None:
    """What an elastic run needs; tests/real/test_elastic.py loses a host, and gets it back."""
    shown = []
    for workers in ("1", "3"):
        options = ("-n", workers, "--set", "checkpoints.order=one")
        done = orch("up", str(EXAMPLES / "elastic.py"), *options, timeout=250, check=0, env=settings)
        shown.append(re.findall(r"step (\d): its images have the sum (\d+)", done.out))
        assert f"{workers} workers, step 1" in done.out
    assert [step for step, _ in shown[0]] == ["1", "2", "3"]
    assert shown[1] == shown[0]


@pytest.mark.slow
@pytest.mark.usefixtures("warm_tensorflow")
def test_two_workers_use_the_forms_of_the_guide(orch: Any, settings: dict[str, str]) -> None:
    done = orch("up", str(EXAMPLES / "input_forms.py"), "-n", "2", timeout=250, check=0, env=settings)
    lines = [line.partition("| ")[2] for line in done.out.splitlines()]
    assert lines[0] == "images counted: 360"
    assert lines[1].endswith(", traced 1 time")
    assert lines[2:] == [f"doubled: {list(range(0, 48, 2))}", "seeds, summed: 10", "squares, summed: 140"]


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.usefixtures("warm_tensorflow")
@pytest.mark.parametrize(
    ("example", "options", "tasks"),
    [
        ("keras_fit", ("-n", "2"), ["worker-0", "worker-1"]),
        pytest.param(
            "keras_parameter_server",
            ("--strategy", "parameter_server", "-n", "2", "--ps", "1", "--keras", "legacy"),
            ["chief-0"],
            marks=needs_keras_2,
        ),
    ],
)
def test_fit_learns_the_digits(orch: Any, settings: dict[str, str], example: str, options: tuple[str, ...], tasks: list[str]) -> None:
    done = orch("up", str(EXAMPLES / f"{example}.py"), *options, timeout=250, check=0, env=settings)
    found = dict(re.findall(r"^(\S+) +\| test accuracy ([\d.]+)$", done.out, re.MULTILINE))
    assert sorted(found) == tasks
    assert len(set(found.values())) == 1  # the workers have one model
    assert float(found[tasks[0]]) > 0.9
    own = [line for line in done.err.splitlines() if line.startswith("orch: ")]
    assert len(own) <= 8, "a good run says little of its own"


@pytest.mark.slow
def test_four_processes_write_the_digits_at_once(tmp_path: Path) -> None:
    env = clean_environment({"ORCH_EXAMPLES_DATA": str(tmp_path / "new" / "data")})
    argv = [sys.executable, str(EXAMPLES / "digits.py")]
    writers = [subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    outputs = [writer.communicate()[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * 4
    assert outputs == [f"{tmp_path / 'new' / 'data' / 'digits'}\n"] * 4
    assert [path.name for path in (tmp_path / "new" / "data").iterdir()] == ["digits"]
    names = {path.name for path in (tmp_path / "new" / "data" / "digits").iterdir()}
    assert names == {"test.npz", "train.npz", *(f"train-{shard}.csv" for shard in range(4))}


def test_the_text_says_what_the_arrays_say(settings: dict[str, str], tmp_path: Path) -> None:
    import numpy as np

    run_plainly([str(EXAMPLES / "digits.py")], tmp_path, env=settings).check()
    directory = Path(settings["ORCH_EXAMPLES_DATA"]) / "digits"
    rows = np.concatenate([np.loadtxt(directory / f"train-{shard}.csv", delimiter=",") for shard in range(4)])
    with np.load(directory / "train.npz") as train, np.load(directory / "test.npz") as test:
        assert len(train["y"]) + len(test["y"]) == 1797
        expected = np.column_stack([train["x"], train["y"]])

    def key(row: np.ndarray) -> str:
        return hashlib.sha256(row.astype("float32").tobytes()).hexdigest()

    assert sorted(map(key, rows)) == sorted(map(key, expected))


@pytest.mark.slow
def test_operations_are_placed_by_hand(settings: dict[str, str], tmp_path: Path, fork_task: Fork) -> None:
    """`tf.device`, logical devices, a product on each and their sum on the CPU."""
    script = Program("script", str(EXAMPLES / "manual_placement.py"))
    outcome = fork_task(script, tmp_path, devices=DeviceSettings(cpus=3), env=settings).wait().check()
    *lines, last = outcome.out.splitlines()
    assert lines == ["devices: CPU:0, CPU:1, CPU:2", "products on: CPU:0, CPU:1, CPU:2", "sum on: CPU:0"]
    assert float(last.rpartition(" ")[2]) < 1e-4


@pytest.mark.slow
def test_layers_on_two_devices_are_saved_and_restored_on_one(settings: dict[str, str], tmp_path: Path, fork_task: Fork) -> None:
    def run(devices: DeviceSettings, option: str) -> Outcome:
        script = Program("script", str(EXAMPLES / "layers_on_devices.py"), (option, "model"))
        return fork_task(script, tmp_path, devices=devices, env=settings).wait()

    saved = run(DeviceSettings(cpus=2), "--save").check().out.splitlines()
    assert saved[0] == "layers on: CPU:0, CPU:1"
    restored = run(DeviceSettings(cpus=1), "--restore").check().out.splitlines()
    # The operations still ask for the second device, and the same network computes without it.
    assert restored == ["placed on: CPU:0, CPU:1", "computed on: CPU:0", saved[-1]]
    refused = run(DeviceSettings(cpus=1, soft_placement=False), "--restore").check(1)
    assert "was explicitly assigned to /device:CPU:1 but available devices are" in refused.err
    assert refused.err.splitlines()[-1].startswith("orch: --cpus 2 would give this task CPU:1")
