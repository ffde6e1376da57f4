"""``import worker`` in a task imports the user's own module of this name, or else orch's.

This directory is last on the task's `sys.path`. A path entry works better than an import hook, because multiprocessing passes `sys.path` to
the processes that it spawns, which import the script again.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location

_HERE = os.path.dirname(__file__)
_PACKAGE = os.path.dirname(os.path.dirname(_HERE))


def _find() -> ModuleSpec:
    # The path finder has skipped a `worker/` without `__init__.py` (a namespace package), and entries after this directory.
    users = PathFinder.find_spec(__name__, [entry for entry in sys.path if entry != _HERE])
    ours = spec_from_file_location(__name__, os.path.join(_PACKAGE, "__init__.py"), submodule_search_locations=[_PACKAGE])
    found = users or ours
    if found is None:
        raise ImportError(f"cannot load {_PACKAGE}", name=__name__)
    return found


_spec = _find()
_module = module_from_spec(_spec)
sys.modules[__name__] = _module
if _spec.loader is not None:
    _spec.loader.exec_module(_module)
