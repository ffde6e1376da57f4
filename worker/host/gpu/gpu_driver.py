"""NVIDIA's driver, asked for its GPUs by ``nvidia-smi`` in a process of its own: a broken driver may hang or crash whoever asks."""

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
"""How long the driver may take to tell of its GPUs, in seconds. It takes several for each GPU if persistence mode is off."""
_FILES = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")
"""One of these is there if the driver is, the last one under WSL."""
_WSL = "/usr/lib/wsl/lib"
NO_DEVICES = 6
"""nvidia-smi(1): "A query to find an object was unsuccessful"."""
NOT_FOUND = 127
"""The shell's exit code for a program that is not installed."""
# The parts of GPUs in MIG mode are only listed by -L.
_SCRIPT = f"""\
found=$(nvidia-smi --query-gpu={gpu_list.QUERY} --format=csv,noheader,nounits)
code=$?
echo "$found"
case $found in *", Enabled, "*) nvidia-smi -L || code=$?;; esac
exit $code
"""


@dataclass(frozen=True, slots=True)
class Driver:
    """`version`: such as ``550.54.15``, or empty. `gpus`: the GPUs that programs may use. `problem`: why the driver tells of none."""

    version: str = ""
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""


def is_there() -> bool:
    """Whether a driver is installed. Whether the driver works is another question."""
    return any(map(os.path.exists, _FILES))


def command() -> list[str]:
    """The program that prints the GPUs of the host."""
    return ["/bin/sh", "-c", f"PATH=$PATH:{_WSL}\n{_SCRIPT}"]


def read(out: str, err: str, code: int | None, reason: str, variable: str | None) -> Driver:
    """The driver, as `command` has printed it before its end.

    `code`: the exit code; None if the program was stopped, for the `reason`. `variable`: the ``CUDA_VISIBLE_DEVICES`` of programs here.
    """
    version, found = gpu_list.read(out)
    if found or code in (0, NO_DEVICES, NOT_FOUND):
        # Without nvidia-smi there are no GPUs, as in a container that was given none on a host that has some.
        return Driver(version, gpu_list.visible(found, variable))
    return Driver(problem=reason or f"nvidia-smi: {' '.join((out + err).split())[:300] or f'exit code {code}'}")


def ask(loop: Loop, env: Mapping[str, str], on_told: Callable[[Driver], None], *, anyway: bool = False) -> Question | Driver:
    """Ask for the GPUs that programs with this environment may use. Where this is known without asking, the answer is returned instead.

    `anyway`: ask also where no driver is installed. ``nvidia-smi`` may say why.
    """
    variable = env.get("CUDA_VISIBLE_DEVICES")
    if not (anyway or is_there()) or variable in ("", "-1"):
        return Driver()
    from ..async_subprocess import Question  # a host without a driver need not load what starts processes

    def on_ended(ending: ProgramEnded) -> None:
        on_told(read(ending.out, ending.err, ending.code, ending.reason and f"nvidia-smi: {ending.reason}", variable))

    try:
        return Question(loop, command(), env, (ANSWER_S, ANSWER_S), on_ended)
    except OSError as error:
        return Driver(problem=f"nvidia-smi cannot be started: {error.strerror or error}")
