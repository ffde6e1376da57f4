"""The controller on Python 3.14, for which there is no TensorFlow: ``python -m tests.python_3_14 [ARGUMENTS OF PYTEST]``.

Debian's unstable has this Python. In a tree of it the wheel is installed with what it depends on, and runs train with the Python of this
environment, where TensorFlow is. Then the tests that need no TensorFlow run there (`make python-3.14`), unless the arguments begin with
``--brief`` (`make corners`). Root only.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from orchestrator import __version__
from tests.conftest import ROOT
from tests.debian_tree import PATH, Tree
from tests.trial import LAUNCH, LOOK, Place, Wrong

TREE = Tree("sid", ("python3", "python3-venv", "procps", "iproute2"))
TOOLS = ("hypothesis", "jsonschema", "numpy", "pyte", "pytest-timeout", "pytest-xdist")
"""What the tests below need besides the extras `testing`, `report` and `top`."""
TESTS = ("model", "record", "control", "worker/values", "worker/protocol", "worker/machine", "worker/host", "cli")
ORCH = "python -W error -X dev -m orchestrator"
"""A warning in the controller is an error. With PYTHONWARNINGS, a warning of TensorFlow would end the tasks."""
_PROGRAM = """
import os, sys
import worker
print("program on", sys.version.split()[0], worker.context().task, sys.warnoptions)
"""


class PlaceInTree(Place):
    """A `Place` whose programs run in the tree. The directory is in /tmp, which the tree shares."""

    def install(self, wheel: Path) -> None:
        """Install the wheel with what it depends on: only pip of this environment knows the index."""
        here = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--python-version", "3.14", "--only-binary", ":all:"]
        wheels = self.directory / "wheels"
        super()._finish([*here, "--dest", str(wheels), f"{wheel}[testing,report,top]", *TOOLS], dict(os.environ), self.directory)
        self._finish(["python3", "-m", "venv", str(self.python.parents[1])], {"PATH": PATH}, self.directory)
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(wheels)]
        self._finish([*pip, str(wheel)], {"PATH": PATH}, self.directory)

    def add_tools(self) -> None:
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--no-index", "--find-links", "wheels"]
        self._finish([*pip, "orch-tf[testing,report,top]", *TOOLS], {"PATH": PATH}, self.directory)

    def _finish(self, command: list[str], env: dict[str, str], cwd: Path) -> str:
        return super()._finish(TREE.command(*command, cwd=cwd), env, cwd)


def try_controller(place: Place) -> None:
    tasks, examples = shlex.quote(sys.executable), shlex.quote(str(ROOT / "examples"))
    (place.directory / "look.py").write_text(LOOK.format(prefix=str(place.python.parents[1])))
    (place.directory / "hello.py").write_text(_PROGRAM)
    place.run("python look.py")
    place.run("orch --version", __version__)
    place.run(f"{ORCH} --help", "orch up")
    # Without another Python: orch names what is wrong, and a program that needs no TensorFlow runs on 3.14 with its agent and its template.
    place.run(f"{ORCH} doctor; test $? = 1", "there is no TensorFlow for Python 3.14")
    place.run(f"{ORCH} up {examples}/mwms_custom_loop.py -n 2; test $? = 2", "there is no TensorFlow for Python 3.14")
    place.run(f"{ORCH} up hello.py --strategy none", "worker-0 | program on 3.14")
    place.run(f"python -W error -c {shlex.quote(LAUNCH)}", "code 0")
    # The tasks, the template and the agent have the other Python.
    other = f"--python {tasks}"
    place.run(f"{ORCH} doctor {other}", "tensorflow  2.")
    place.run(f"{ORCH} plan {examples}/keras_fit.py -n 2 {other}", "worker-1")
    place.run(f"{ORCH} up {examples}/keras_fit.py -n 2 {other}", "test accuracy 0.9")
    place.run(f"{ORCH} ps", "worker-1  local  succeeded")
    place.run(f"{ORCH} logs", "test accuracy 0.9")
    place.run(f"{ORCH} timeline", "worker-1")
    place.run(f"{ORCH} up -d hello.py --strategy none {other} && {ORCH} wait", "succeeded")
    # The agent has 3.14, and a command the other Python.
    loop = f"{tasks} -- {examples}/mwms_custom_loop.py --steps 30"
    place.run(f"{ORCH} up -n 2 --no-python {loop}", "worker-1 |")


def main() -> int:
    brief, arguments = "--brief" in sys.argv[1:], [word for word in sys.argv[1:] if word != "--brief"]
    if why := TREE.make() or _no_3_14():
        print(f"orch: NOT TESTED: the controller on Python 3.14: {why}", file=sys.stderr)
        return 0
    with tempfile.TemporaryDirectory(prefix="orch-3.14-", dir="/tmp") as name:
        place = PlaceInTree(Path(name))
        try:
            build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", name, str(ROOT)]
            Place._finish(place, build, dict(os.environ), ROOT)
            place.install(place.directory / f"orch_tf-{__version__}-py3-none-any.whl")
            try_controller(place)
            if brief:
                return 0
            place.add_tools()
        except Wrong as error:
            print(error, file=sys.stderr)
            return 1
        tests = arguments or [f"tests/{name}" for name in TESTS]
        return TREE.run_tests(str(place.python), *tests, path=f"{place.python.parent}:{PATH}")


def _no_3_14() -> str:
    program = "import sys; print(*sys.version_info[:2], sep='.')"
    version = subprocess.run(TREE.command("python3", "-c", program), env={"PATH": PATH}, capture_output=True, text=True).stdout.strip()
    return "" if version == "3.14" else f"the tree {TREE.path} has Python {version or 'none'}"


if __name__ == "__main__":
    sys.exit(main())
