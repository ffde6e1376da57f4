"""Facts about a host that an agent finds before anything starts."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import sys
from collections.abc import Iterable, Mapping

from .import_path import find_module


def free_bytes(path: str) -> float:
    """Bytes that this user may still write below `path`; infinite: unknown."""
    try:
        found = os.statvfs(path)
    except OSError:
        return float("inf")
    return (found.f_bfree if os.geteuid() == 0 else found.f_bavail) * found.f_frsize


def python_version() -> str:
    """Such as ``3.11.7``."""
    return sys.version.split()[0]


def find_tensorflow(envs: Iterable[Mapping[str, str]], cwd: str, *, asks: bool = True) -> str | None:
    """The version of TensorFlow that tasks with these variables import. Empty: none. None: unknown. `asks`: see `find_module`."""
    found = [find_module("tensorflow", env, cwd, asks=asks) for env in envs]
    for path in found:
        if path and not os.path.isdir(path):  # what is left of one that was removed is a directory without code
            return _version_of_tensorflow(os.path.dirname(os.path.dirname(path)))
    return None if None in found else ""


def _version_of_tensorflow(directory: str) -> str:
    found = glob.glob(os.path.join(glob.escape(directory), "t*f*-*.dist-info"))
    versions = [match["version"] for name in found if (match := _PACKAGE.fullmatch(os.path.basename(name)))]
    return versions[0] if versions else UNKNOWN_VERSION


def find_keras(name: str, env: Mapping[str, str], cwd: str, *, asks: bool = True) -> str | None:
    """The version of ``keras`` or ``tf_keras`` by its source. Empty: no such package. None: unknown. `asks`: see `find_module`."""
    if not (path := find_module(name, env, cwd, asks=asks)):
        return path
    for file in (os.path.join(os.path.dirname(path), "src", "version.py"), path):
        with contextlib.suppress(OSError, ValueError), open(file, encoding="utf-8") as lines:
            if match := _OWN_VERSION.search(lines.read()):
                return match["version"]
    return None


UNKNOWN_VERSION = "of unknown version"
_OWN_VERSION = re.compile(r'^__version__ = "(?P<version>[^"]+)"', re.MULTILINE)
"""In keras/src/version.py of Keras 3, and in tf_keras/__init__.py."""
_PACKAGE = re.compile(r"(tensorflow|tensorflow_(cpu|gpu|intel|rocm|macos|cpu_aws)|tf_nightly(_cpu)?)-(?P<version>[^-]+)\.dist-info")
