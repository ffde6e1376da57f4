"""Where a task's interpreter finds modules. The agent itself runs isolated (``-I``): its own `sys.path` has neither the directories of
PYTHONPATH nor the user's own site-packages (site.py; "sys.path initialization" in Python's documentation).
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
"""If a spec sets one of these, the agent does not know where the task finds modules."""


@dataclass(frozen=True, slots=True)
class ImportPath:
    """Where a task's interpreter finds modules."""

    entries: tuple[str, ...]
    """Directories and zip files, without the directory of the program itself."""
    is_all: bool
    """There are no other places. Code that runs when the task's interpreter starts may add some."""

    def find(self, name: str, *first: str) -> ModuleSpec | None:
        """Find a top-level module without importing it, `first` in these directories. Raises the exceptions of import hooks."""
        kept = sys.path
        sys.path = [*first, *self.entries]
        try:
            return importlib.util.find_spec(name)
        except (ImportError, ValueError):
            return None
        finally:
            sys.path = kept


def import_path(env: Mapping[str, str], cwd: str) -> ImportPath:
    """The path of a task that runs in `cwd`, with the agent's environment and these variables."""
    added: list[str] = [os.path.join(cwd, entry) for entry in python_path(env)]
    is_all = not any(name in env for name in _ELSEWHERE) and not os.environ.get("PYTHONHOME")
    for directory in _user_site_packages(env):
        added.append(directory)
        for line in _pth_lines(directory):
            if line.startswith(("import ", "import\t")):
                is_all = False
            else:
                added.append(os.path.join(directory, line))
    customs = (os.path.join(entry, f"{name}.py") for entry in added for name in ("sitecustomize", "usercustomize"))
    return ImportPath((*added, *sys.path), is_all and not any(map(os.path.exists, customs)))


def python_path(env: Mapping[str, str]) -> list[str]:
    """The parts of PYTHONPATH. An empty part stands for the working directory; an empty variable has no parts."""
    text = env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return text.split(os.pathsep) if text else []


def _user_site_packages(env: Mapping[str, str]) -> Iterator[str]:
    """The user's own site-packages, if Python uses them: not in a virtual environment without the system's packages."""
    if not env.get("PYTHONNOUSERSITE", os.environ.get("PYTHONNOUSERSITE")) and _uses_user_site():
        import site  # Python has not imported it under -S

        yield site.getusersitepackages()


def _uses_user_site() -> bool:
    if sys.prefix == sys.base_prefix:
        return True
    try:
        with open(os.path.join(sys.prefix, "pyvenv.cfg"), encoding="utf-8") as file:
            words = ("".join(line.split()).lower() for line in file)
            return "include-system-site-packages=true" in words
    except OSError:
        return True


def _pth_lines(directory: str) -> Iterator[str]:
    """The lines of a directory's ``.pth`` files: directories and code (`site.addpackage`). The agent's interpreter skips them."""
    for path in sorted(glob.glob(os.path.join(glob.escape(directory), "*.pth"))):
        try:
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                lines = file.read(1 << 20).splitlines()
        except OSError:
            continue
        yield from (line.strip() if not line.startswith("import") else line for line in lines if line.strip() and line[0] != "#")
