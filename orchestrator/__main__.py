"""``python -m orchestrator``: the same as ``orch``."""

from __future__ import annotations

import os
import sys


def _forget_the_working_directory() -> None:
    """Take the entry that ``-m`` put first out of `sys.path`, unless this package itself comes from there.

    The installed ``orch`` has no such entry. With it, a user's own ``worker.py`` in the working
    directory would be imported in place of our `worker` package.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not getattr(sys.flags, "safe_path", False) and sys.path[0] != home:
        del sys.path[0]


if __name__ == "__main__":
    _forget_the_working_directory()

    from orchestrator.cli import main

    main()
