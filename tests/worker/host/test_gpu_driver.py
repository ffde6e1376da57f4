"""How an agent finds GPUs: `nvidia-smi` is a stand-in that prints what NVIDIA's does. No GPU is needed, and none is touched."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from worker.host.facts import gpu_driver
from worker.host.facts.gpu_driver import Driver
from worker.host.processes.loop import Loop
from worker.protocol.messages import Gpu

QUERY = "--query-gpu=driver_version,index,uuid,memory.total,mig.mode.current,name --format=csv,noheader,nounits"
TWO = """\
550.54.15, 0, GPU-a, 143771, Disabled, NVIDIA H200
550.54.15, 1, GPU-b, [N/A], [N/A], NVIDIA GB10, of the second kind
"""
SPLIT = """\
550.54.15, 0, GPU-a, 81559, Enabled, NVIDIA H100 80GB HBM3
550.54.15, 1, GPU-b, 81559, Disabled, NVIDIA H100 80GB HBM3
550.54.15, 2, GPU-c, 81559, Enabled, NVIDIA H100 80GB HBM3
"""
LISTED = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-a)
  MIG 3g.40gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 1g.10gb     Device  1: (UUID: MIG-GPU-a/1/0)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-b)
GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-c)
"""


@pytest.fixture
def find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Driver]:
    """``find(answer, listed)``: what an agent is told where nvidia-smi answers so; `answer` None: it is not installed."""

    def ask(answer: str | None, listed: str = "exit 99", variable: str | None = None) -> Driver:
        program = tmp_path / "nvidia-smi"
        if answer is not None:
            program.write_text(f'#!/bin/sh\ncase "$*" in\n{shlex.quote(QUERY)})\n{answer}\n;;\n-L)\n{listed}\n;;\n*) exit 98;;\nesac\n')
            program.chmod(0o755)
        monkeypatch.setattr(gpu_driver, "_FILES", (str(tmp_path),))
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin"} | ({} if variable is None else {"CUDA_VISIBLE_DEVICES": variable})
        loop, told = Loop(), list[Driver]()

        asked = gpu_driver.request(loop, env, told.append)
        assert asked is not None
        loop.run(lambda: bool(told))
        asked.end()
        return told[0]

    return ask


def prints(text: str, code: int = 0) -> str:
    return f"cat <<'END'\n{text}END\nexit {code}"


def test_each_gpu_has_its_index_uuid_name_and_memory(find: Callable[..., Driver]) -> None:
    both = (Gpu(0, "GPU-a", "NVIDIA H200", 143_771, "GPU-a"), Gpu(1, "GPU-b", "NVIDIA GB10, of the second kind", 0, "GPU-b"))
    assert find(prints(TWO)) == Driver("550.54.15", both)
    assert [gpu.uuid for gpu in find(prints(TWO), variable="1").gpus] == ["GPU-b"]


def test_a_gpu_in_parts_is_its_parts(find: Callable[..., Driver]) -> None:
    assert [(gpu.index, gpu.uuid, gpu.name, gpu.memory_mb, gpu.is_part) for gpu in find(prints(SPLIT), prints(LISTED)).gpus] == [
        (0, "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", 0, True),
        (0, "MIG-GPU-a/1/0", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 0, True),
        (1, "GPU-b", "NVIDIA H100 80GB HBM3", 81_559, False),
    ]


def test_a_gpu_that_is_lost_is_left_out(find: Callable[..., Driver]) -> None:
    lost = "550.54.15, 2, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]\n"
    assert [gpu.index for gpu in find(prints("Warning: persistence mode is off\n" + TWO + lost, code=15)).gpus] == [0, 1]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("echo No devices were found; exit 6", ""),
        (
            "echo Failed to initialize NVML: Driver/library version mismatch; exit 18",
            "nvidia-smi: Failed to initialize NVML: Driver/library",
        ),
        ("echo no permission >&2; exit 4", "nvidia-smi: no permission"),
        ("exit 9", "nvidia-smi: exit code 9"),
        ("exec sleep 1000", "nvidia-smi: it has not answered for 1 s"),
        (None, ""),
    ],
)
def test_a_driver_that_tells_of_no_gpus_says_why(
    find: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch, answer: str | None, problem: str
) -> None:
    """A host with a broken driver, as after an update without a restart, is not one without GPUs. One without nvidia-smi is."""
    if "1 s" in problem:
        monkeypatch.setattr(gpu_driver, "ANSWER_S", 1.0)
    told = find(answer)
    assert (told.gpus, told.problem[: len(problem) or None]) == ((), problem)


FOUR = tuple(Gpu(index, f"GPU-{index}{index}aa", "", 0, f"GPU-{index}{index}aa") for index in range(4))
PARTS = (Gpu(0, "MIG-1", "", 0, "MIG-1"), Gpu(0, "MIG-2", "", 0, "MIG-2"))


@pytest.mark.parametrize(
    ("found", "variable", "left"),
    [
        (FOUR, None, [0, 1, 2, 3]),
        (FOUR, "", []),
        (FOUR, "-1", []),
        (FOUR, "NoDevFiles", []),
        (FOUR, "2,0", [2, 0]),
        (FOUR, " 1 , 3 ", [1, 3]),
        (FOUR, "1,9,2", [1]),
        (FOUR, "1,-1,2", [1]),
        (FOUR, "0,0", []),
        (FOUR, "GPU-22aa,GPU-0", [2, 0]),
        (FOUR, "gpu-22AA", [2]),
        (FOUR, "GPU-", []),
        ((), "0", []),
    ],
)
def test_the_callers_variable_says_which_are_left_as_it_does_to_cuda(found: tuple[Gpu, ...], variable: str | None, left: list[int]) -> None:
    assert [gpu.index for gpu in gpu_driver.visible(found, variable)] == left


def test_what_is_left_goes_by_the_callers_names() -> None:
    assert [gpu.id for gpu in gpu_driver.visible(FOUR, "3,GPU-0")] == ["3", "GPU-0"]
    assert [gpu.id for gpu in gpu_driver.visible(FOUR, None)] == [gpu.uuid for gpu in FOUR]
    assert [gpu.uuid for gpu in gpu_driver.visible(PARTS, "MIG-2")] == ["MIG-2"]
    assert [gpu.uuid for gpu in gpu_driver.visible(PARTS, "0")] == ["MIG-1"]


@pytest.mark.parametrize(("is_there", "variable"), [(False, "0"), (True, ""), (True, "-1")])
def test_where_there_are_none_nobody_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_there: bool, variable: str) -> None:
    monkeypatch.setattr(gpu_driver, "_FILES", (str(tmp_path if is_there else tmp_path / "nvidiactl"),))
    monkeypatch.setitem(sys.modules, "worker.host.processes.async_subprocess", None)
    loop, told = Loop(), list[Driver]()
    assert gpu_driver.request(loop, {"CUDA_VISIBLE_DEVICES": variable}, told.append) is None
    loop.run(lambda: bool(told))
    assert told == [Driver()]
