"""Device settings, applied before the user's code can touch TensorFlow's runtime.

TensorFlow fixes its devices when its context is made ("Virtual devices cannot be modified after being
initialized", tensorflow/python/eager/context.py). Thread counts need nothing here: they are environment variables.
"""

from __future__ import annotations


class SettingRefused(Exception):
    """A device setting that cannot be applied. The message names it and says why."""


def apply(cpus: int) -> None:
    """Split the CPU into `cpus` logical devices. Imports TensorFlow. Raises `SettingRefused`."""
    setting = f"devices.cpus: {cpus}"
    try:
        import tensorflow as tf
    except Exception as error:  # whatever an import may run into
        raise SettingRefused(f"{setting} needs TensorFlow, which {_python()} cannot import: {error}") from error
    try:
        physical = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(physical[0], [tf.config.LogicalDeviceConfiguration()] * cpus)
    except (RuntimeError, ValueError, IndexError) as error:
        raise SettingRefused(f"{setting} was refused by TensorFlow, or came too late: {_one_line(error)}") from error


def _python() -> str:
    import sys

    return sys.executable


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
