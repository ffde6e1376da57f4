"""Where a task's interpreter finds modules. The agent itself runs isolated (``-I``): its own `sys.path` has neither the directories of
PYTHONPATH nor the user's own site-packages (site.py; "sys.path initialization" in Python's documentation).
"""

from __future__ import annotations

import glob
import importlib.util
import os
import sys
from collections.abc import Mapping
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
    if (own := _user_site_packages(env)) is not None:
        added.append(own)
        # The .pth files there name directories, or hold code. The agent does not read them.
        is_all = is_all and not glob.glob(os.path.join(glob.escape(own), "*.pth"))
    customs = (os.path.join(entry, f"{name}.py") for entry in added for name in ("sitecustomize", "usercustomize"))
    return ImportPath((*added, *sys.path), is_all and not any(map(os.path.exists, customs)))


def python_path(env: Mapping[str, str]) -> list[str]:
    """The parts of PYTHONPATH. An empty part stands for the working directory; an empty variable has no parts."""
    text = env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return text.split(os.pathsep) if text else []


def _user_site_packages(env: Mapping[str, str]) -> str | None:
    """The user's own site-packages; None if Python does not use them: in a virtual environment without the system's packages."""
    if env.get("PYTHONNOUSERSITE", os.environ.get("PYTHONNOUSERSITE")) or not _uses_user_site():
        return None
    import site  # Python has not imported it under -S

    return site.getusersitepackages()


def _uses_user_site() -> bool:
    if sys.prefix == sys.base_prefix:
        return True
    try:
        with open(os.path.join(sys.prefix, "pyvenv.cfg"), encoding="utf-8") as file:
            words = ("".join(line.split()).lower() for line in file)
            return "include-system-site-packages=true" in words
    except OSError:
        return True
