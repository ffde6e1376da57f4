"""The program ``orch``, and ``python -m orchestrator``, which is the same."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line. A Ctrl-C during the imports, which take a while, waits until the command line acts on it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    from orchestrator.cli import main as run

    run()


if __name__ == "__main__":
    import os
    import sys

    # Started by its path, orch need not be installed, and another orch that is installed does not count.
    home, packages = os.path.dirname(os.path.dirname(os.path.abspath(__file__))), [path.endswith("-packages") for path in sys.path]
    sys.path.insert([*packages, True].index(True), home)
    from orchestrator import forget_working_directory

    forget_working_directory()
    main()
