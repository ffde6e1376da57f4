"""What `orch doctor` is told of a host's GPUs: what `orch up` finds there, or why there are none."""

from __future__ import annotations

import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.live import frozen, wait_for_file, wait_until
from worker.host.facts import gpu_driver as driver_of_host
from worker.host.facts import machine_survey
from worker.machine import kernel_files

LISTS = """#!/bin/sh
echo 'Warning: persistence mode is off'
echo 'Warning, with, three, commas'
echo '550.54.15, 0, GPU-a, 143771, Disabled, NVIDIA H200'
echo '550.54.15, 1, GPU-b, [N/A], [N/A], NVIDIA GB10'
"""
COMPLAINS = "#!/bin/sh\necho the driver cannot be reached\nexit 9\n"


@pytest.fixture
def nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``nvidia(smi, driver)``: what is found with this nvidia-smi on PATH, and with or without a driver's file."""

    def find(smi: str, *, driver: bool) -> dict[str, Any]:
        (tmp_path / "nvidia-smi").write_text(smi)
        (tmp_path / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setattr(driver_of_host, "_FILES", (str(tmp_path) if driver else str(tmp_path / "none"),))
        found: dict[str, Any] = machine_survey.survey(str(tmp_path), None)["nvidia"]
        return found

    return find


def test_the_gpus_are_those_that_orch_up_finds_also_if_they_are_hidden(nvidia: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = nvidia(LISTS, driver=True)
    assert found["problem"] == ""
    assert [tuple(gpu.values()) for gpu in found["gpus"]] == [(0, "NVIDIA H200", 143_771), (1, "NVIDIA GB10", 0)]
    assert found["driver"] == "550.54.15"


def test_where_none_are_found_nvidia_smi_says_why(nvidia: Any) -> None:
    for driver in (True, False):
        found = nvidia(COMPLAINS, driver=driver)
        assert (found["gpus"], found["problem"]) == ([], "nvidia-smi: the driver cannot be reached")


@pytest.mark.root
def test_a_driver_that_lets_no_sigkill_through_holds_up_no_survey(nvidia: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(driver_of_host, "ANSWER_S", 2.0)
    smi = f"#!/bin/sh\ncd {shlex.quote(str(tmp_path))}; echo $$ >part; mv part pid; exec sleep 1000\n"
    with ThreadPoolExecutor() as pool:
        found = pool.submit(nvidia, smi, driver=False)
        pid = int(wait_for_file(tmp_path / "pid"))
        with frozen(pid):
            assert found.result(timeout=100)["problem"] == "nvidia-smi: it has not answered for 2 s"
        wait_until(lambda: not psutil.pid_exists(pid), "end of nvidia-smi")


@pytest.mark.parametrize("version", [1, 2])
def test_what_a_container_has_read_from_files_is_free_again_when_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """The kernel drops those pages first; a group's usage counts them."""
    mb = 1 << 20
    names = ("memory.max", "memory.current") if version == 2 else ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")
    for name, text in zip(names, (f"{64 * mb}\n", f"{60 * mb}\n"), strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(kernel_files, "CGROUPS", str(tmp_path))
    assert kernel_files.memory() == (64 * mb, 4 * mb)
    stat = f"inactive_file {mb}\ntotal_inactive_file {50 * mb}\n" if version == 1 else f"anon {mb}\ninactive_file {50 * mb}\n"
    (tmp_path / names[1]).with_name("memory.stat").write_text(stat)
    assert kernel_files.memory() == (64 * mb, 54 * mb)
    (tmp_path / names[1]).with_name("memory.stat").write_text(f"inactive_file {90 * mb}\ntotal_inactive_file {90 * mb}\n")
    assert kernel_files.memory()[1] == 64 * mb, "the two were not counted at the same moment"
