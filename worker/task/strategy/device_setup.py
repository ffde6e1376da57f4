"""Device settings, applied before the user's code can touch TensorFlow's runtime.

TensorFlow fixes its devices when its context is made ("Virtual devices cannot be modified after being initialized",
tensorflow/python/eager/context.py). So the settings are applied at once in a task that was forked from a template, and otherwise right
after the program's import of TensorFlow: a program without TensorFlow pays nothing. None of these calls makes the context, so the program
can still change its devices by `tf.config` before it computes, where TensorFlow allows this.

Visible GPUs, numbers of threads and determinism are environment variables, which TensorFlow reads late and a program can override.
"""

from __future__ import annotations

import os
import sys

from .. import failure, patches
from ..patches.features import DEVICES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"


class SettingRefused(Exception):
    """A device setting that cannot be applied. The message names the setting and the reason."""


def apply_soon(settings: dict[str, Any], log_dir: str) -> None:
    """Apply settings, a `DeviceSettings` as JSON data, now or right after TensorFlow's import. A setting that is refused ends the task."""
    wanted = {name: settings[name] for name in _APPLY if settings.get(name) is not None}
    visible = os.environ.get(VISIBLE)

    def apply_now(tf: Any) -> None:
        for name, value in wanted.items():
            try:
                _APPLY[name](tf, value, visible)
            except SettingRefused as error:
                failure.end_process(error, log_dir)
            except Exception as error:  # TensorFlow, or a module of the user with this name, may raise anything
                failure.end_process(_describe_refusal(_format(name, wanted), error), log_dir)
        if wanted.get("log_placement"):
            print(f"orch: this task has {', '.join(_describe_devices(tf))}", file=sys.stderr)

    if wanted:
        patches.after(DEVICES, "tensorflow", apply_now)


def _describe_refusal(what: str, error: Exception) -> SettingRefused:
    said = " ".join(str(error).split())
    if "after being initialized" in said:
        reason = "TensorFlow's runtime was in use before the program began, by something that Python imports at its start"
        return SettingRefused(f"{what} came too late: {reason} ({said})")
    return SettingRefused(f"{what} was refused by TensorFlow: {said}")


def _describe_devices(tf: Any) -> Iterator[str]:
    """The devices of this task: ``CPU:0 as 2 logical devices``, ``GPU:0``. Makes no context."""
    for device in tf.config.list_physical_devices():
        parts = tf.config.get_logical_device_configuration(device) or ()
        name = device.name.rpartition("physical_device:")[2]
        yield f"{name} as {len(parts)} logical devices" if len(parts) > 1 else name


def _split(tf: Any, device: Any, limits: list[int | None]) -> None:
    parts = [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for limit in limits]
    tf.config.set_logical_device_configuration(device, parts)


def _check_gpus(tf: Any, given: int, visible: str | None, *, is_asked: bool) -> None:
    """Compare the GPUs that TensorFlow finds with those that orch has given to the task. The program may have chosen other GPUs.

    `is_asked`: the user has requested this number, which TensorFlow must find. For GPUs that orch has chosen, the program may use another
    number, and a TensorFlow without CUDA uses none.
    """
    has_cuda = tf.test.is_built_with_cuda()
    if not (is_asked or has_cuda):
        return
    found, now = len(tf.config.list_physical_devices("GPU")), os.environ.get(VISIBLE)
    if found == given and now == visible:
        return
    if not has_cuda:
        why = "this TensorFlow is built without CUDA: pip install 'tensorflow[and-cuda]'"
    elif now == visible:
        why = "its log says which of CUDA's libraries it misses"
    else:
        why = f"the program has {'removed that variable' if now is None else f'set that variable to {now!r}'}"
    difference = f"this task was given {given} ({VISIBLE}={visible or ''}), TensorFlow finds {found}; {why}"
    if is_asked and found != given:
        raise SettingRefused(f"devices.gpus: {difference}")
    print(f"orch: {difference}", file=sys.stderr)


def _of_gpus(apply: Callable[[Any, Any, Any], object]) -> Callable[[Any, Any, str | None], None]:
    """A function that applies a setting to each GPU."""

    def apply_to_all(tf: Any, value: Any, visible: str | None) -> None:
        for gpu in tf.config.list_physical_devices("GPU"):
            apply(tf, gpu, value)

    return apply_to_all


_APPLY: dict[str, Callable[[Any, Any, str | None], object]] = {
    "log_placement": lambda tf, on, _: tf.debugging.set_log_device_placement(on),
    "soft_placement": lambda tf, on, _: tf.config.set_soft_device_placement(on),
    "xla": lambda tf, on, _: tf.config.optimizer.set_jit("autoclustering" if on else False),
    "tf32": lambda tf, on, _: tf.config.experimental.enable_tensor_float_32_execution(on),
    "cpus": lambda tf, count, _: _split(tf, tf.config.list_physical_devices("CPU")[0], [None] * count),
    # The following list the GPUs, which starts CUDA.
    "gpus": lambda tf, count, visible: _check_gpus(tf, count, visible, is_asked=True),
    "gpus_given": lambda tf, count, visible: _check_gpus(tf, count, visible, is_asked=False),
    "memory_growth": _of_gpus(lambda tf, gpu, on: tf.config.experimental.set_memory_growth(gpu, on)),
    "memory_limit_mb": _of_gpus(lambda tf, gpu, limit: _split(tf, gpu, [limit])),
    "logical_gpus": _of_gpus(_split),
}
"""The fields of `DeviceSettings` that are applied here, in this order, with their functions: of TensorFlow, the value, and the
``CUDA_VISIBLE_DEVICES`` of the task at its start."""


# --- the program's own settings --------------------------------------------------------------------

# TensorFlow's messages (tensorflow/python/eager/context.py), and the settings that can be the reason.
_CONFLICTS = {
    "Cannot set memory growth on device when virtual devices configured": ("memory_limit_mb", "logical_gpus"),
    "Memory growth cannot differ between GPU devices": ("memory_growth",),
    "Physical devices cannot be modified after being initialized": ("memory_growth",),
    "Virtual devices cannot be modified after being initialized": ("cpus", "memory_limit_mb", "logical_gpus"),
    "Visible devices cannot be modified after being initialized": ("gpus",),
}


def explain(error: BaseException, settings: dict[str, Any]) -> None:
    """Add a note to an exception that leaves the program: the setting that caused it, or a setting that would have helped."""
    hint = _hint_at_device(str(error)) if hasattr(error, "error_code") else _conflict(error, settings)
    if not hint:
        return
    if hasattr(error, "add_note"):
        error.add_note(f"orch: {hint}")
        return
    note = f"\norch: {hint}"  # Python 3.10 has no notes
    if hasattr(error, "_message"):  # what `OpError.__str__` shows, in tensorflow/python/framework/errors_impl.py
        error._message += note
    elif len(error.args) == 1:
        error.args = (f"{error}{note}",)


def _conflict(error: BaseException, settings: dict[str, Any]) -> str:
    names = next((names for said, names in _CONFLICTS.items() if said in str(error)), ())
    set_ = [_format(name, settings) for name in names if settings.get(name) is not None]
    if not set_ or not isinstance(error, (RuntimeError, ValueError)):
        return ""
    holds = f"{' and '.join(set_)} {'holds' if len(set_) == 1 else 'hold'} for this task already"
    return f"{holds}; remove it from orch.yaml, or leave the devices to orch.yaml"


# TensorFlow 2.21's texts, each with the requested device.
# Sources: eager/execute.cc, eager/placement_utils.cc, placer.cc, process_function_library_runtime.cc, eager/context.cc.
_MISSING = (
    r"Could not satisfy device specification '([^']+)'\."
    r"|was explicitly assigned to (\S+) but available devices are "
    r"|Could not satisfy explicit device specification '([^']+)' because no devices matching"
    r"|Unable to find any devices for spec (\S+)"
    r"|((?:/job:\S+|/?(?:device:)?[A-Za-z_]+:\d+)) unknown device\."
)


def missing_device(text: str) -> str:
    """The first missing device in an error of TensorFlow, as TensorFlow writes its name; empty if there is none."""
    import re  # rarely needed

    found = re.search(_MISSING, text)
    return found[found.lastindex or 0].rstrip(".,;'\"") if found else ""


def _hint_at_device(text: str) -> str:
    import re  # rarely needed

    missing = missing_device(text)
    found = re.search(r"(CPU|GPU):([0-9]{1,3})$", missing, re.IGNORECASE) if missing else None  # no host has more
    if found is None:
        return ""
    kind, count = found[1].upper(), int(found[2]) + 1
    makes = (
        f"--cpus {count}"
        if kind == "CPU"
        else f"--gpus {count} on a host that has as many, or --set defaults.devices.logical_gpus=… on one GPU,"
    )
    return f"{makes} would give this task {kind}:{count - 1}; soft_placement: true lets TensorFlow take another device"


def _format(name: str, settings: dict[str, Any]) -> str:
    value = settings[name]
    return f"devices.{name}: {str(value).lower() if isinstance(value, bool) else value}"
