"""Where a task's interpreter looks for modules. The agent itself runs isolated (``-I``) and sees less: its own `sys.path` has neither
what PYTHONPATH names nor the user's own site-packages (site.py; "sys.path initialization" in Python's documentation).
"""

from __future__ import annotations

import glob
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec

from ...fast_dataclass import dataclass

_ELSEWHERE = ("HOME", "PYTHONHOME", "PYTHONUSERBASE")
"""Where these lead to is not known here, if a spec sets them."""


@dataclass(frozen=True, slots=True)
class ImportPath:
    """`entries`: directories and zip files, without the one that holds the program itself. `is_all`: there is nothing else; code that
    runs when that interpreter starts, and not when ours did, may add what nobody knows."""

    entries: tuple[str, ...]
    is_all: bool

    def find(self, name: str, *first: str) -> ModuleSpec | None:
        """A top-level module, `first` in these directories, without importing it. Raises what an import hook raises."""
        kept = sys.path
        sys.path = [*first, *self.entries]
        try:
            return importlib.util.find_spec(name)
        except (ImportError, ValueError):
            return None
        finally:
            sys.path = kept


def import_path(env: Mapping[str, str], cwd: str) -> ImportPath:
    """That of a task which runs in `cwd` with this environment over the agent's."""
    added: list[str] = [os.path.join(cwd, entry) for entry in python_path(env)]
    is_all = not any(name in env for name in _ELSEWHERE) and not os.environ.get("PYTHONHOME")
    for directory in _users_packages(env):
        added.append(directory)
        for line in _pth_lines(directory):
            if line.startswith(("import ", "import\t")):
                is_all = False
            else:
                added.append(os.path.join(directory, line))
    customs = (os.path.join(entry, f"{name}.py") for entry in added for name in ("sitecustomize", "usercustomize"))
    return ImportPath((*added, *sys.path), is_all and not any(map(os.path.exists, customs)))


def python_path(env: Mapping[str, str]) -> list[str]:
    """The parts of PYTHONPATH; an empty one stands for the working directory, an empty variable for none."""
    text = env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return text.split(os.pathsep) if text else []


def _users_packages(env: Mapping[str, str]) -> Iterator[str]:
    """The user's own site-packages, where Python looks at them: not in a virtual environment, unless that sees the system's packages."""
    if env.get("PYTHONNOUSERSITE", os.environ.get("PYTHONNOUSERSITE")) or not _sees_users_packages():
        return
    import site  # where Python was told not to (-S), it has not

    yield site.getusersitepackages()


def _sees_users_packages() -> bool:
    if sys.prefix == sys.base_prefix:
        return True
    try:
        with open(os.path.join(sys.prefix, "pyvenv.cfg"), encoding="utf-8") as file:
            words = ("".join(line.split()).lower() for line in file)
            return "include-system-site-packages=true" in words
    except OSError:
        return True


def _pth_lines(directory: str) -> Iterator[str]:
    """What the ``.pth`` files there say, which our own interpreter has not read: directories, and lines of code (`site.addpackage`)."""
    for path in sorted(glob.glob(os.path.join(glob.escape(directory), "*.pth"))):
        try:
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                lines = file.read(1 << 20).splitlines()
        except OSError:
            continue
        yield from (line.strip() if not line.startswith("import") else line for line in lines if line.strip() and line[0] != "#")
