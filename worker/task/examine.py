"""Describes this interpreter and its TensorFlow, for `orch doctor`: two JSON objects on stdout, a line each.

    python examine.py SECONDS

The first line describes Python and is written at once; the second is written when the import of TensorFlow has succeeded or failed. If the
import takes longer than `SECONDS`, its stack is written to stderr, and there is no second line. At its start, this file imports nothing of
orch, so it also runs in an old Python, which `orch doctor` then reports. The facts are those of `orchestrator.checks.facts`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import platform
import sys
import time
import traceback
from contextlib import nullcontext, suppress
from typing import Any


def describe_python() -> dict[str, Any]:
    return {
        "executable": sys.executable or "",
        "version": platform.python_version(),
        # Before the import: a libtpu of another version ends the process with SIGABRT.
        "tensorflow_tpu": _version_of("tensorflow-tpu"),
        "libtpu": _version_of("libtpu"),
    }


def describe_tensorflow() -> dict[str, Any]:
    """TensorFlow, its build, its Keras and its devices; or why there is no TensorFlow. Imports TensorFlow."""
    began = time.monotonic()
    threads = _of_orch("machine.import_threads")
    try:
        with threads.watched() if threads else nullcontext() as watch:
            import tensorflow as tf

            seconds = time.monotonic() - began
            with suppress(Exception):  # TensorFlow imports Keras at its first use
                tf.keras.__version__  # noqa: B018
    except Exception as error:  # an import may raise anything
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == "tensorflow"
        return {"missing": True} if is_missing else {"problem": _last_words(error)}
    found: dict[str, Any] = {"version": str(getattr(tf, "__version__", "")), "seconds": round(seconds, 2)}
    found["fork_problem"] = (watch.find_thread() if watch else None) or ""
    if not found["version"]:
        return {"problem": f"it has no version: {getattr(tf, '__file__', None) or 'a directory of that name'} is not TensorFlow"}
    try:
        build = dict(tf.sysconfig.get_build_info())
        found["build"] = {str(key): str(value) for key, value in build.items()}
        found["is_cuda_build"] = bool(tf.test.is_built_with_cuda())
        from tensorflow.python.framework import kernels

        found["has_tpu"] = bool(kernels.get_registered_kernels_for_op("_ConfigureDistributedTPU").kernel)
        found["gpus"] = [device.name for device in tf.config.list_physical_devices("GPU")]
    except Exception as error:  # an incomplete build
        found["problem"] = _last_words(error)
    try:
        found["keras"] = str(tf.keras.__version__)
    except Exception as error:  # such as TF_USE_LEGACY_KERAS=1 without tf-keras
        found["keras_problem"] = _last_words(error)
    found["tf_keras"] = _version_of("tf_keras") or _version_of("tf-keras")
    found["off"] = find_off()
    return found


def find_off() -> dict[str, str]:
    """The features of orch that are off with these packages, each with the first reason: `worker.task.patches --check`."""
    patched, table = (_of_orch(f"task.patches.{name}") for name in ("package_sources", "table"))
    if table is None:
        return {}
    sources = patched.Sources()
    return {name: found[0] for name in table.FEATURES if (found := patched.problems_of(name, sources))}


def _of_orch(name: str) -> Any:
    """A module of orch; None in an old Python."""
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    try:
        from importlib import import_module

        return import_module(f"worker.{name}")
    except Exception:
        return None
    finally:
        del sys.path[0]


def _version_of(name: str) -> str:
    try:
        from importlib.metadata import version

        return str(version(name))
    except Exception:  # not installed, or a Python before 3.8
        return ""


def _last_words(error: BaseException) -> str:
    lines = traceback.format_exception_only(type(error), error)
    return " ".join(" ".join(lines).split())[:600]


def main(seconds: float | None) -> None:
    out = os.dup(1)
    os.dup2(2, 1)  # what an import prints is not our answer
    sys.path[:1] = []  # this file's directory, whose modules must not stand in for others
    if seconds:
        faulthandler.dump_traceback_later(seconds, exit=True)
    os.write(out, (json.dumps(describe_python()) + "\n").encode())
    os.write(out, (json.dumps(describe_tensorflow()) + "\n").encode())
    os._exit(0)  # without the interpreter's teardown, which may take TensorFlow a second


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else None)
