"""The environment of a cell, made by uv from the package index, with an interpreter that this machine has."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from .cells import LOWEST_TENSORFLOW, Cell

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / ".cache" / "matrix"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
KERAS = ("keras", "keras-nightly")
TOOLS = ("hypothesis", "jsonschema", "pytest-timeout", "pytest-xdist")
"""What the tests need besides the extra `testing`."""
KERAS_TESTS = ("grain", "pandas", "requests")
"""What Keras's own tests import besides. jax and torch are large, and the tests that use them are not about TensorFlow."""
AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", "/bin/sh", "-c", 'exec "$@"', "sh")
"""Starts a program as the ordinary user that every Linux has. setpriv itself can still execute what only root can read."""


class NotPossible(Exception):
    """A cell cannot be checked on this machine. The message says why."""


class NotMade(Exception):
    """uv could not make an environment, though there is an interpreter. The message says why."""


def user_of(cell: Cell) -> tuple[str, ...]:
    if not cell.ordinary or os.geteuid() != 0:
        return ()
    if shutil.which(AS_NOBODY[0]) is None:
        raise NotPossible("only setpriv (util-linux) starts a program as an ordinary user")
    return AS_NOBODY


def _candidates(version: str) -> Iterator[str]:
    """The interpreters of this version: of pyenv, of PATH, of this program."""
    if shutil.which("pyenv"):
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=True).stdout.strip()
        yield from (str(path) for path in sorted(Path(root, "versions").glob(f"{version}.*/bin/python{version}"), reverse=True))
    on_path = (shutil.which(f"python{version}"), shutil.which("python3"), shutil.which("python3", path="/usr/bin"))
    yield from filter(None, (*on_path, sys.executable))


def find_python(version: str, user: Sequence[str] = ()) -> str:
    """An interpreter of this version that this user can run; empty if the machine has none."""
    program = "import sys; print('%d.%d' % sys.version_info[:2], sys._base_executable)"
    for python in _candidates(version):
        done = subprocess.run([*user, python, "-I", "-c", program], cwd="/", capture_output=True, text=True)
        found, _, base = done.stdout.strip().partition(" ")
        if found == version:
            return base
    return ""


def fit(cell: Cell) -> Cell:
    """A corner for this machine: with its lowest, or with its newest, Python where the one that is asked for is missing."""
    if find_python(cell.python):
        return cell
    there = [version for version in PYTHONS if find_python(version)]
    if not there:
        raise NotPossible(f"no Python from {PYTHONS[0]} to {PYTHONS[-1]}")
    python = there[0] if cell.lowest else there[-1]
    lowest = LOWEST_TENSORFLOW.get(python, cell.tensorflow)
    return replace(cell, python=python, tensorflow=lowest if cell.lowest else cell.tensorflow)


def make(cell: Cell) -> Path:
    """The interpreter of the environment of this cell, which is made if it is not there."""
    place = PLACE / cell.name
    python, stamp = place / "bin" / "python", place / "ready.json"
    newest = find_newest(cell.python) if cell.is_next else {}
    wanted = requirements(cell, newest)
    if stamp.exists() and json.loads(stamp.read_text()) == wanted:
        return python
    base = find_python(cell.python, user_of(cell))
    if not base:
        who = " that an ordinary user can run" if user_of(cell) else ""
        raise NotPossible(f"no Python {cell.python}{who}: install it with pyenv, or have it on PATH")
    PLACE.mkdir(parents=True, exist_ok=True)
    _uv("venv", "--clear", "--seed", "--python", base, str(place))
    # An ordinary user cannot write into the environment, and would compile TensorFlow at each import.
    words = ["--compile-bytecode"] if user_of(cell) else []
    if newest:
        overrides = place / "overrides.txt"
        overrides.write_text("\n".join(wanted["overrides"]))
        words = ["--overrides", str(overrides)]
    _uv("pip", "install", *words, "--python", str(python), *wanted["install"])
    try:
        _uv("pip", "install", "--no-deps", "--python", str(python), *wanted["alone"])
    except NotMade:
        print(f"orch: NOT TESTED: {cell.name}: --keras legacy: there is no tf-keras for this TensorFlow", file=sys.stderr)
    stamp.write_text(json.dumps(wanted))
    return python


def find_newest(python: str) -> dict[str, str]:
    """The newest releases on the index, final or not, by name."""
    asked = ("--no-deps", "--prerelease=allow", "--no-header", "--no-annotate", "--python-version", python)
    said = _uv("pip", "compile", *asked, "-", given="\n".join(("tensorflow-cpu", *KERAS)))
    return dict(line.split("==") for line in said.split())


def requirements(cell: Cell, newest: Mapping[str, str]) -> dict[str, list[str]]:
    """What is installed, with its dependencies and alone. `newest`: the releases of the cell that is the next one."""
    own = [f"{ROOT}[examples,testing]", "--editable", str(ROOT), *TOOLS, *(KERAS_TESTS if cell.tests_of_keras else ())]
    if cell.is_next:
        # TensorFlow has not brought TensorBoard since 2.22.
        # The newer of two packages that pip writes into one directory, whichever of them TensorFlow requires; the other one is left out.
        *_, keras = sorted(KERAS, key=lambda name: Version(newest[name]))
        pinned = [f"{name}=={newest[name]}" for name in ("tensorflow-cpu", keras)]
        left_out = [f"{name}; sys_platform == 'none'" for name in KERAS if name != keras]
        minor = ".".join(newest["tensorflow-cpu"].split(".")[:2])
        return {"install": [*own, *pinned, "tensorboard"], "overrides": [*pinned, *left_out], "alone": [f"tf-keras~={minor}.0"]}
    own.append(f"tensorflow-cpu=={cell.tensorflow}.*")
    if cell.keras:
        own.append(f"keras=={cell.keras}.*")
    if cell.lowest:
        text = (ROOT / "pyproject.toml").read_text().partition("\ndependencies = [")[2].partition("]")[0]
        own += [line.replace(">=", "==") for line in re.findall(r'"(.*)"', text)]
    # tf-keras depends on `tensorflow`, which would be installed over `tensorflow-cpu`.
    return {"install": own, "alone": [f"tf-keras~={cell.tensorflow}.0"]}


def _environment() -> dict[str, str]:
    """uv's: as pip is set up, with a cache inside the repository, and no interpreter from the network."""
    said = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    found = dict(re.findall(r"^(?:global|install|:env:)\.([\w-]+)='(.*)'$", said, re.MULTILINE))
    known = {"index-url": "UV_DEFAULT_INDEX", "cert": "SSL_CERT_FILE"}
    pip = {known[name]: value for name, value in found.items() if name in known}
    own = {"UV_CACHE_DIR": str(ROOT / ".cache" / "uv"), "UV_PYTHON_DOWNLOADS": "never"}
    return {**pip, **own, **os.environ}


def _uv(*words: str, given: str = "") -> str:
    """What uv has printed for these words and this standard input."""
    command = [sys.executable, "-m", "uv", *words, "--quiet"]
    done = subprocess.run(command, env=_environment(), input=given, capture_output=True, text=True)
    if done.returncode:
        raise NotMade(f"uv {' '.join(words[:2])} failed: {done.stderr.strip()}")
    return done.stdout
