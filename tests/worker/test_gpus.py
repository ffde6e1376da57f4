"""How an agent finds GPUs: the calls to NVML against a library that answers as NVIDIA's does. No GPU is needed, and none is touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.worker.agent_double import ROOT
from worker.contract import Facts, Gpu, from_json, to_json
from worker.host import driver, gpus
from worker.host.driver import Driver
from worker.host.loop import Loop

NOT_SUPPORTED, NOT_FOUND, GPU_IS_LOST, DRIVER_NOT_LOADED, VERSION_MISMATCH = 3, 6, 15, 9, 18


@dataclass
class Card:
    """What NVML says of one GPU. `parts` None: it cannot be split; empty: it could be and is not."""

    uuid: str
    name: str = "NVIDIA H200"
    memory: int = 143_771 << 20
    parts: list[Card] | None = None
    lost: bool = False


@dataclass
class FakeNvml:
    """The part of libnvidia-ml.so.1 that we call. A handle is a card's place in `known`, from 1 on; arguments are ctypes' own."""

    cards: list[Card]
    init: int = 0
    calls: list[str] = field(default_factory=list)
    known: list[Card] = field(default_factory=list)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answer = getattr(FakeNvml, f"_{name}", None)
        if answer is None:
            raise AttributeError(name)  # as ctypes says it of a symbol that is not there

        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            return answer(self, *[getattr(argument, "_obj", argument) for argument in arguments])

        return call

    def _nvmlInit_v2(self) -> int:
        return self.init

    def _nvmlErrorString(self, code: int) -> bytes:
        return {18: b"Driver/library version mismatch"}.get(code, b"Unknown Error")

    def _nvmlShutdown(self) -> int:
        return 0

    def _nvmlSystemGetDriverVersion(self, buffer: Any, size: Any) -> int:
        buffer.value = b"550.54.15"
        return 0

    def _nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count.value = len(self.cards)
        return 0

    def _hand_out(self, card: Card, handle: Any) -> int:
        self.known.append(card)
        handle.value = len(self.known)
        return 0

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        card = self.cards[index.value]
        return GPU_IS_LOST if card.lost else self._hand_out(card, handle)

    def _nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:
        parts = self.known[handle.value - 1].parts
        current.value = pending.value = int(bool(parts))
        return NOT_SUPPORTED if parts is None else 0

    def _nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, count: Any) -> int:
        count.value = 7
        return 0

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: Any, part: Any) -> int:
        parts = self.known[handle.value - 1].parts or []
        return self._hand_out(parts[index.value], part) if index.value < len(parts) else NOT_FOUND

    def _nvmlDeviceGetUUID(self, handle: Any, buffer: Any, size: Any) -> int:
        buffer.value = self.known[handle.value - 1].uuid.encode()
        return 0

    def _nvmlDeviceGetName(self, handle: Any, buffer: Any, size: Any) -> int:
        buffer.value = self.known[handle.value - 1].name.encode()
        return 0

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory.total = self.known[handle.value - 1].memory
        return 0 if memory.total else NOT_SUPPORTED


def test_each_gpu_has_its_index_uuid_name_and_memory() -> None:
    nvml = FakeNvml([Card("GPU-a"), Card("GPU-b", "Tesla T4", 15_109 << 20, parts=[]), Card("GPU-c", memory=0)])
    assert gpus.list_all(nvml) == (
        Gpu(0, "GPU-a", "NVIDIA H200", 143_771, "GPU-a"),
        Gpu(1, "GPU-b", "Tesla T4", 15_109, "GPU-b"),
        Gpu(2, "GPU-c", "NVIDIA H200", 0, "GPU-c"),
    )
    assert nvml.calls[-1] == "nvmlShutdown"
    assert gpus.driver_version(nvml) == "550.54.15"
    assert (gpus.driver_version(None), gpus.driver_version(FakeNvml([], init=DRIVER_NOT_LOADED))) == ("", "")


def test_a_gpu_in_parts_is_its_parts() -> None:
    nvml = FakeNvml([Card("GPU-a", parts=[Card("MIG-1", "H200 MIG 1g", 9 << 20), Card("MIG-2", "H200 MIG 1g", 9 << 20)]), Card("GPU-b")])
    assert [(gpu.index, gpu.uuid, gpu.memory_mb, gpu.is_part) for gpu in gpus.list_all(nvml)] == [
        (0, "MIG-1", 9, True),
        (0, "MIG-2", 9, True),
        (1, "GPU-b", 143_771, False),
    ]


def test_a_gpu_that_is_lost_is_left_out() -> None:
    assert [gpu.index for gpu in gpus.list_all(FakeNvml([Card("GPU-a", lost=True), Card("GPU-b")]))] == [1]


def test_a_driver_that_does_not_answer_has_no_gpus_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an update of the driver without a restart; the host is not one without GPUs."""
    monkeypatch.setattr(gpus, "load_nvml", lambda: FakeNvml([Card("GPU-a")], init=VERSION_MISMATCH))
    assert gpus.find({}) == Driver(problem="nvmlInit_v2: Driver/library version mismatch, NVML error 18")


SMI = """#!/bin/sh
echo '0, GPU-a, NVIDIA H200, 143771'
echo '1, GPU-b, NVIDIA GB10, [N/A]'
"""


@pytest.mark.parametrize(
    ("program", "found", "problem"),
    [
        (SMI, [(0, 143_771), (1, 0)], ""),
        ("#!/bin/sh\necho No devices were found\nexit 6\n", [], ""),
        ("#!/bin/sh\necho Failed to initialize NVML\nexit 18\n", [], "nvidia-smi: Failed to initialize NVML"),
        ("#!/bin/sh\nexit 9\n", [], "nvidia-smi: exit code 9"),
        ("no program", [], "nvidia-smi: Exec format error"),
        ("#!/bin/sh\nexec sleep 1000\n", [], "nvidia-smi has not answered for 1 s"),
        (None, [], ""),
    ],
)
def test_without_the_library_nvidia_smi_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, found: list[tuple[int, int]], problem: str
) -> None:
    if program is not None:
        (tmp_path / "nvidia-smi").write_text(program)
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if program else str(tmp_path))
    monkeypatch.setattr(gpus, "load_nvml", lambda: None)
    if "1 s" in problem:
        monkeypatch.setattr(gpus, "SMI_S", 1.0)
    told = gpus.find({})
    assert ([(gpu.index, gpu.memory_mb) for gpu in told.gpus], told.problem) == (found, problem)


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
    assert [gpu.index for gpu in gpus.visible(found, variable)] == left


def test_a_program_may_use_those_of_the_driver_that_its_variable_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "load_nvml", lambda: FakeNvml([Card(f"GPU-{index}") for index in range(4)]))
    assert [gpu.uuid for gpu in gpus.find({}).gpus] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    assert [gpu.uuid for gpu in gpus.find({"CUDA_VISIBLE_DEVICES": "2,1"}).gpus] == ["GPU-2", "GPU-1"]
    assert gpus.find({"CUDA_VISIBLE_DEVICES": ""}) == Driver("550.54.15")


def test_what_is_left_goes_by_the_callers_names() -> None:
    assert [gpu.id for gpu in gpus.visible(FOUR, "3,GPU-0")] == ["3", "GPU-0"]
    assert [gpu.id for gpu in gpus.visible(FOUR, None)] == [gpu.uuid for gpu in FOUR]
    assert [gpu.uuid for gpu in gpus.visible(PARTS, "MIG-2")] == ["MIG-2"]
    assert [gpu.uuid for gpu in gpus.visible(PARTS, "0")] == ["MIG-1"]


@pytest.mark.parametrize(("is_there", "variable"), [(False, "0"), (True, ""), (True, "-1")])
def test_where_there_are_none_nobody_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_there: bool, variable: str) -> None:
    monkeypatch.setattr(driver, "_FILES", (str(tmp_path if is_there else tmp_path / "nvidiactl"),))
    monkeypatch.setitem(sys.modules, "worker.host.question", None)
    assert driver.ask(Loop(), {"CUDA_VISIBLE_DEVICES": variable}, lambda _: None) == Driver()


def test_facts_carry_them() -> None:
    facts = Facts(1, "python", "3.11", 4, gpus=FOUR)
    assert from_json(Facts, to_json(facts)) == facts


def test_the_module_prints_what_this_machine_has() -> None:
    """On a machine with a GPU this is the real NVML; without one, an empty list."""
    argv = [sys.executable, "-m", "worker.host.gpus"]
    found = json.loads(subprocess.run(argv, cwd=ROOT, env={**os.environ}, capture_output=True, check=True, timeout=200).stdout)
    assert from_json(Driver, found) == gpus.find(os.environ)
