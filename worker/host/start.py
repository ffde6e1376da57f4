"""How an agent starts: ``python -I .../worker/host/start.py``, orders on stdin, frames on stdout; ``start.py inquiry`` answers
`orch doctor`, and asks ``start.py survey`` in a process of its own.

The package is loaded under a private name, from wherever this file lies, so that nothing on the host has to be
installed and nothing there called ``worker`` can be taken for ours.
"""

import importlib
import importlib.util
import os
import sys


def load(name: str = "_orch_worker") -> None:
    """Import the package around this file as `name`."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = importlib.util.spec_from_file_location(name, os.path.join(root, "__init__.py"), submodule_search_locations=[root])
    if spec is None or spec.loader is None:
        raise ImportError(f"no worker package in {root}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    load()
    code = importlib.import_module(f"_orch_worker.host.{sys.argv[1] if len(sys.argv) > 1 else 'agent'}").main()
    sys.stderr.flush()
    os._exit(code)  # whoever waits for our end need not wait for the interpreter's teardown as well
