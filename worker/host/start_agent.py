"""Describes how an agent starts: ``python -I .../worker/host/start_agent.py``, orders on stdin, frames on stdout. For `orch doctor`
the agent runs ``start_agent.py facts.machine_survey`` in a process of its own.

The package is loaded under a private name, from the directory of this file. So nothing has to be installed on the host, and no other
module with the name ``worker`` is imported by mistake.
"""

import gc
import importlib
import os
import sys


def load(name: str = "_orch_worker") -> None:
    """Load the package around this file under this name. Its ``__init__``, which is for scripts of users, is not run."""
    package = type(sys)(name)
    package.__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    sys.modules[name] = package


if __name__ == "__main__":
    if sys.version_info < (3, 10):  # noqa: UP036 - any Python can be named
        sys.stderr.write(f"orch: {sys.executable} is Python {sys.version_info[0]}.{sys.version_info[1]}\n")
        sys.exit(96)  # TOO_OLD in orchestrator/backends/interpreters.py
    gc.set_threshold(50_000)  # an import makes thousands of objects, and none of them is garbage
    load()
    code = importlib.import_module(f"_orch_worker.host.{sys.argv[1] if len(sys.argv) > 1 else 'agent'}").main()
    sys.stderr.flush()
    os._exit(code)  # the controller need not wait for the interpreter's teardown
