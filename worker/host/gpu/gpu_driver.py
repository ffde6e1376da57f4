"""Finds the GPUs of this host by ``nvidia-smi``, in a process of its own: a broken driver may hang or crash the process that asks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ...fast_dataclass import dataclass
from ...protocol.messages import Gpu, ProgramEnded
from ..loop import Loop
from . import gpu_list

if TYPE_CHECKING:
    from ..async_subprocess import Question

ANSWER_S = 25.0
"""The driver may take this long to list its GPUs, in seconds. A driver takes several seconds for each GPU if persistence mode is off."""
_FILES = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")
"""One of these files exists if a driver is installed. The last one is for WSL."""
_WSL = "/usr/lib/wsl/lib"
NO_DEVICES = 6
"""nvidia-smi(1): "A query to find an object was unsuccessful"."""
NOT_FOUND = 127
"""The shell's exit code for a program that is not installed."""
# Only -L lists the parts of GPUs in MIG mode.
_SCRIPT = f"""\
found=$(nvidia-smi --query-gpu={gpu_list.QUERY} --format=csv,noheader,nounits)
code=$?
echo "$found"
case $found in *", Enabled, "*) nvidia-smi -L || code=$?;; esac
exit $code
"""


@dataclass(frozen=True, slots=True)
class Driver:
    """NVIDIA's driver of this host."""

    version: str = ""
    """Such as ``550.54.15``; empty: unknown."""
    gpus: tuple[Gpu, ...] = ()
    """The GPUs that programs may use."""
    problem: str = ""
    """Why the driver does not list its GPUs; empty: there is no problem."""


def is_installed() -> bool:
    """Whether a driver is installed. The driver may still not work."""
    return any(map(os.path.exists, _FILES))


def command() -> list[str]:
    """The program that prints the GPUs of the host."""
    return ["/bin/sh", "-c", f"PATH=$PATH:{_WSL}\n{_SCRIPT}"]


def read(out: str, err: str, code: int | None, reason: str, variable: str | None) -> Driver:
    """The driver, from the output of `command`.

    `code`: the exit code; None if the program was stopped, for the `reason`. `variable`: the ``CUDA_VISIBLE_DEVICES`` of programs here.
    """
    version, found = gpu_list.read(out)
    if found or code in (0, NO_DEVICES, NOT_FOUND):
        # Without nvidia-smi there are no GPUs: for example in a container without GPUs, on a host that has some.
        return Driver(version, gpu_list.visible(found, variable))
    return Driver(problem=reason or f"nvidia-smi: {' '.join((out + err).split())[:300] or f'exit code {code}'}")


def request(loop: Loop, env: Mapping[str, str], on_answer: Callable[[Driver], None], *, anyway: bool = False) -> Question | Driver:
    """Find the GPUs that programs with this environment may use. Returns the answer at once if no program has to run for it.

    `anyway`: run ``nvidia-smi`` even if no driver is installed. Its message may say why.
    """
    variable = env.get("CUDA_VISIBLE_DEVICES")
    if not (anyway or is_installed()) or variable in ("", "-1"):
        return Driver()
    from ..async_subprocess import Question  # a host without a driver does not need this import

    def on_ended(ending: ProgramEnded) -> None:
        on_answer(read(ending.out, ending.err, ending.code, ending.reason and f"nvidia-smi: {ending.reason}", variable))

    try:
        return Question(loop, command(), env, (ANSWER_S, ANSWER_S), on_ended)
    except OSError as error:
        return Driver(problem=f"nvidia-smi cannot be started: {error.strerror or error}")
