"""Device settings, applied before the user's code can touch TensorFlow's runtime.

TensorFlow fixes its devices when its context is made ("Virtual devices cannot be modified after being initialized",
tensorflow/python/eager/context.py). So they are set at once in a task that has TensorFlow already, forked from a template, and
otherwise as soon as the program has imported it: one that never does pays nothing. None of the calls here makes the context, so
what the program itself says to `tf.config` before it computes still counts, where TensorFlow allows that.

Which GPUs there are, thread counts and determinism need nothing here: they are environment variables, which TensorFlow reads late
and which a program's own word beats.
"""

from __future__ import annotations

import os
import sys

from .. import import_hooks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"
SETTINGS = (
    "cpus",
    "gpus",
    "gpus_given",
    "memory_growth",
    "memory_limit_mb",
    "logical_gpus",
    "soft_placement",
    "log_placement",
    "xla",
    "tf32",
)
"""The fields of `messages.DeviceSettings` that are applied here."""


class SettingRefused(Exception):
    """A device setting that cannot be applied. The message names it and says why."""


def apply_soon(settings: dict[str, Any], on_refused: Callable[[SettingRefused], None]) -> None:
    """Apply settings, the JSON of a `messages.DeviceSettings`, now or right after TensorFlow's import."""
    wanted = {name: settings[name] for name in SETTINGS if settings.get(name) is not None}
    visible = os.environ.get(VISIBLE)

    def apply_now(tensorflow: ModuleType) -> None:
        try:
            apply(tensorflow, wanted, visible)
        except SettingRefused as error:
            on_refused(error)

    if not wanted:
        return
    import_hooks.after("tensorflow", apply_now)


def apply(tf: Any, settings: dict[str, Any], visible: str | None) -> None:
    """Set what is asked for. `visible`: the ``CUDA_VISIBLE_DEVICES`` that the task was given. Raises `SettingRefused`."""
    for name, call in _calls(tf, settings, visible):
        try:
            call()
        except SettingRefused:
            raise
        except Exception as error:  # whatever TensorFlow, or what the user has in its place, may run into
            what = _say(name, settings)
            if "after being initialized" in str(error):
                reason = "TensorFlow's runtime was in use before the program began, by something that Python imports at its start"
                raise SettingRefused(f"{what} came too late: {reason} ({_one_line(error)})") from error
            raise SettingRefused(f"{what} was refused by TensorFlow: {_one_line(error)}") from error
    if settings.get("log_placement"):
        print(f"orch: this task has {', '.join(_describe_devices(tf))}", file=sys.stderr)


def _describe_devices(tf: Any) -> Iterator[str]:
    """``CPU:0 as 2 logical devices``, ``GPU:0``: what is there to place on. Makes no context."""
    for device in tf.config.list_physical_devices():
        parts = tf.config.get_logical_device_configuration(device) or ()
        name = device.name.rpartition("physical_device:")[2]
        yield f"{name} as {len(parts)} logical devices" if len(parts) > 1 else name


def _calls(tf: Any, settings: dict[str, Any], visible: str | None) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each setting with what applies it. Cheap ones first; listing GPUs starts CUDA and is only done for a setting of theirs."""
    config = tf.config
    simple = {
        "log_placement": lambda on: tf.debugging.set_log_device_placement(on),
        "soft_placement": lambda on: config.set_soft_device_placement(on),
        "xla": lambda on: config.optimizer.set_jit("autoclustering" if on else False),
        "tf32": lambda on: config.experimental.enable_tensor_float_32_execution(on),
        "cpus": lambda count: _split(tf, config.list_physical_devices("CPU")[0], [None] * count),
    }
    for name, call in simple.items():
        if name in settings:
            yield name, lambda call=call, name=name: call(settings[name])  # type: ignore[misc]
    if "gpus" in settings:
        yield "gpus", lambda: _demand_gpus(tf, settings["gpus"], visible)
    if "gpus_given" in settings:
        yield "gpus_given", lambda: _mention_gpus(tf, settings["gpus_given"], visible)
    for name in ("memory_growth", "memory_limit_mb", "logical_gpus"):
        if name in settings:
            yield name, lambda name=name: _set_up_gpus(tf, name, settings[name])  # type: ignore[misc]


def _set_up_gpus(tf: Any, name: str, value: Any) -> None:
    for gpu in tf.config.list_physical_devices("GPU"):
        if name == "memory_growth":
            tf.config.experimental.set_memory_growth(gpu, value)
        else:
            _split(tf, gpu, [value] if name == "memory_limit_mb" else value)


def _split(tf: Any, device: Any, limits: list[int | None]) -> None:
    parts = [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for limit in limits]
    tf.config.set_logical_device_configuration(device, parts)


def _demand_gpus(tf: Any, wanted: int, visible: str | None) -> None:
    """For GPUs that were asked for: as many must be there. That they are others may be what the program wants."""
    differs = _compare_gpus(tf, wanted, visible)
    if differs and len(tf.config.list_physical_devices("GPU")) != wanted:
        raise SettingRefused(f"devices.gpus: {differs}")
    _mention(differs)


def _mention_gpus(tf: Any, given: int, visible: str | None) -> None:
    """For GPUs that nobody asked for: any other number may be what the program wants, and a TensorFlow without CUDA uses none."""
    if tf.test.is_built_with_cuda():
        _mention(_compare_gpus(tf, given, visible))


def _mention(differs: str) -> None:
    if differs:
        print(f"orch: {differs}", file=sys.stderr)


def _compare_gpus(tf: Any, given: int, visible: str | None) -> str:
    """What differs between the GPUs that the task was given and those that TensorFlow finds, and why; empty: nothing."""
    found, now = len(tf.config.list_physical_devices("GPU")), os.environ.get(VISIBLE)
    if found == given and now == visible:
        return ""
    if not tf.test.is_built_with_cuda():
        why = "this TensorFlow is built without CUDA: pip install 'tensorflow[and-cuda]'"
    elif now == visible:
        why = "its log says which of CUDA's libraries it misses"
    else:
        why = f"the program has {'removed that variable' if now is None else f'set that variable to {now!r}'}"
    return f"this task was given {given} ({VISIBLE}={visible or ''}), TensorFlow finds {found}; {why}"


# --- the program's own word --------------------------------------------------------------------

# What TensorFlow says (tensorflow/python/eager/context.py), and the settings that can be the reason.
_IN_THE_WAY = {
    "Cannot set memory growth on device when virtual devices configured": ("memory_limit_mb", "logical_gpus"),
    "Memory growth cannot differ between GPU devices": ("memory_growth",),
    "Physical devices cannot be modified after being initialized": ("memory_growth",),
    "Virtual devices cannot be modified after being initialized": ("cpus", "memory_limit_mb", "logical_gpus"),
    "Visible devices cannot be modified after being initialized": ("gpus",),
}


def explain(error: BaseException, settings: dict[str, Any]) -> None:
    """Add to an exception that leaves the program which setting stood in the way, or which would have helped, if one did."""
    hint = _missing_device(str(error)) if hasattr(error, "error_code") else _in_the_way(error, settings)
    if not hint:
        return
    if hasattr(error, "add_note"):
        error.add_note(f"orch: {hint}")
    elif len(error.args) == 1:  # Python 3.10
        error.args = (f"{error}\norch: {hint}",)


def _in_the_way(error: BaseException, settings: dict[str, Any]) -> str:
    names = next((names for said, names in _IN_THE_WAY.items() if said in str(error)), ())
    set_ = [_say(name, settings) for name in names if settings.get(name) is not None]
    if not set_ or not isinstance(error, (RuntimeError, ValueError)):
        return ""
    holds = f"{' and '.join(set_)} {'holds' if len(set_) == 1 else 'hold'} for this task already"
    return f"{holds}; take it out of the spec, or leave the devices to the spec"


def _missing_device(text: str) -> str:
    import re  # wanted only now, as is what follows

    from ...tensorflow_facts import missing_devices

    missing = missing_devices.find(text)
    found = re.search(r"(CPU|GPU):([0-9]{1,3})$", missing.asked, re.IGNORECASE) if missing else None  # nobody has more
    if found is None:
        return ""
    kind, count = found[1].upper(), int(found[2]) + 1
    makes = f"--cpus {count}" if kind == "CPU" else f"--gpus {count} on a host that has as many, or --logical-gpus on one GPU,"
    return f"{makes} would give this task {kind}:{count - 1}; --soft-placement lets TensorFlow take another device"


def _say(name: str, settings: dict[str, Any]) -> str:
    value = settings[name]
    return f"devices.{name}: {str(value).lower() if isinstance(value, bool) else value}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
