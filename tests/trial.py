"""Tries a release as its first user would: ``python -m tests.trial dist``, which `make dist` runs.

The wheel is installed into an empty environment, away from the source tree: first without TensorFlow, then with the TensorFlow of this
environment (a large download otherwise). The README's commands are run with the examples of the source distribution, and tests with the
pytest fixture.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from orchestrator import __version__

LOOK = """
import importlib.metadata, pathlib, orchestrator, worker
found = importlib.metadata.distribution("orch-tf")
assert found.version == orchestrator.__version__, found.version
for package in (orchestrator, worker):
    home = pathlib.Path(package.__file__).parent
    assert pathlib.Path({prefix!r}) in home.parents, home
    assert (home / "py.typed").exists(), home
assert found.metadata["License-Expression"] == "Apache-2.0"
assert any(file.name == "LICENSE" for file in found.files)
"""
LAUNCH = 'from orchestrator import launch; print("code", launch("hello.py", strategy="none").wait().exit_code)'


class Wrong(Exception):
    """The release has failed. The message says in what."""


class Place:
    """An empty environment in a directory of its own, with nothing of this process's variables but PATH's programs of the system."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.python = directory, directory / "venv" / "bin" / "python"
        self._env = {name: str(directory) for name in ("HOME", "TMPDIR", "XDG_RUNTIME_DIR", "KERAS_HOME")}
        self._env |= {"PATH": f"{self.python.parent}:/usr/bin:/bin", "LANG": "C.UTF-8", "TF_CPP_MIN_LOG_LEVEL": "2"}

    def install(self, wheel: Path) -> None:
        """Install the wheel with what it depends on, and with what the pytest fixture depends on."""
        self._finish([sys.executable, "-m", "venv", "--without-pip", str(self.python.parents[1])], dict(os.environ), self.directory)
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "--quiet", "--no-input"]
        self._finish([*pip, f"{wheel}[testing]"], dict(os.environ), self.directory)

    def borrow_tensorflow(self) -> None:
        """Add the packages of this environment behind the installed ones. Files that name other directories (.pth) have no effect there."""
        (packages,) = self.python.parents[1].glob("lib/python3*/site-packages")
        (packages / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")

    def run(self, line: str, said: str = "", cwd: str = ".") -> None:
        """Run a command line. It must end with 0, and print this."""
        began = time.monotonic()
        text = self._finish(["/bin/sh", "-c", line], self._env, self.directory / cwd)
        if said not in text:
            raise Wrong(f"{line}: does not say {said!r}:\n{text[-4000:]}")
        print(f"ok  {time.monotonic() - began:5.1f} s  {line.splitlines()[0]}", flush=True)

    def _finish(self, command: list[str], env: dict[str, str], cwd: Path) -> str:
        done = subprocess.run(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode:
            raise Wrong(f"{' '.join(command)[:200]}: exit code {done.returncode}\n{done.stdout[-4000:]}")
        return done.stdout


def readme_commands(readme: str) -> Iterator[str]:
    """The commands of orch in the blocks of the README that begin with the installation, with the run and with a look at it."""
    for first in ("python3 -m venv ", "orch up examples/", "orch ps "):
        found = re.search(rf"^```console\n(\$ {first}.*?)^```", readme, re.MULTILINE | re.DOTALL)
        assert found is not None
        commands = re.findall(r"^\$ (orch .*?)(?:  +#.*)?$", found[1], re.MULTILINE)
        yield from (command for command in commands if " train.py" not in command)


def try_release(dist: Path) -> None:
    wheel, source = dist / f"orch_tf-{__version__}-py3-none-any.whl", dist / f"orch_tf-{__version__}.tar.gz"
    program = dist / "orch.pyz"
    if sorted(dist.iterdir()) != sorted((wheel, source, program)):
        raise Wrong(f"{dist} has not just {wheel.name}, {source.name} and {program.name}")
    with tempfile.TemporaryDirectory(prefix="orch-trial-") as name:
        place = Place(Path(name))
        with tarfile.open(source) as archive:
            archive.extractall(name)
        tree = source.name.removesuffix(".tar.gz")
        (place.directory / "look.py").write_text(LOOK.format(prefix=str(place.python.parents[1])))
        (place.directory / "hello.py").write_text("print('hello')\n")
        place.install(wheel)
        # Without TensorFlow.
        place.run("python look.py")
        place.run("orch --version", __version__)
        place.run("cat venv/share/man/man1/orch.1", r"\fB\-\-max\-restarts")
        place.run("orch help kubernetes", "site-packages/orchestrator/cli/pages/kubernetes.md")
        place.run("orch up --no-python /bin/echo -n 2 -- hello", "worker-1 | hello")
        place.run(f"python -c '{LAUNCH}'", "code 0")
        # The archive, for whose Python no package is installed.
        place.run(f"python -S {program} up --no-python /bin/echo -n 2 -- hello", "worker-1 | hello")
        # With TensorFlow, from a directory with the examples and without the packages. One import serves all.
        place.borrow_tensorflow()
        for package in ("orchestrator", "worker"):
            (place.directory / tree / package).rename(place.directory / f"removed-{package}")
        place.run("orch warm start", "has imported tensorflow")
        try:
            for line in readme_commands((place.directory / tree / "README.md").read_text()):
                place.run(line, cwd=tree)
            place.run("python -m pytest -q -p no:cacheprovider -k share_of_each_batch", "1 passed", cwd=f"{tree}/examples/testing")
        finally:
            place.run("orch warm stop")


def main() -> int:
    try:
        try_release(Path(sys.argv[1]).resolve())
    except Wrong as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
