"""Finds where a task would find a module. The agent itself runs isolated (``-I``): its own `sys.path` has neither the directories of
PYTHONPATH nor the user's own site-packages (site.py; "sys.path initialization" in Python's documentation)."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

ANSWER_S = 10.0
"""How long an interpreter may take to say where it finds a module."""
_ASK = """
import importlib.util, sys
spec = importlib.util.find_spec(sys.argv[1])
print(spec and (spec.origin or next(iter(spec.submodule_search_locations))) or "")
"""


def find_module(name: str, env: Mapping[str, str], cwd: str, *, asks: bool = True) -> str | None:
    """The file of a top-level module that a task with these variables would import in `cwd`; the module is not imported.

    `asks`: an interpreter is asked where this process does not find the module, which may take `ANSWER_S`. A directory stands for a package
    without a file of its own. Empty: there is no such module. None: unknown.
    """
    for place in (cwd, *(os.path.join(cwd, entry) for entry in python_path(env)), *sys.path):
        for path in (os.path.join(place, name, "__init__.py"), os.path.join(place, f"{name}.py")):
            if os.path.isfile(path):
                return path
    if not asks:
        return None
    # In a zip file, in the user's own site-packages, behind an import hook: an interpreter of the task knows, and takes its time.
    import subprocess

    argv = (sys.executable, "-c", _ASK, name)
    try:
        asked = subprocess.run(
            argv, cwd=cwd, env={**os.environ, **env}, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError):  # the task will show what is wrong
        return None
    return os.fsdecode(asked.stdout).removesuffix("\n").rpartition("\n")[2]


def python_path(env: Mapping[str, str]) -> list[str]:
    """The parts of PYTHONPATH. An empty part stands for the working directory; an empty variable has no parts."""
    text = env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    return text.split(os.pathsep) if text else []
