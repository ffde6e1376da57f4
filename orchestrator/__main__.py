"""``python -m orchestrator``: the same as ``orch``."""

from __future__ import annotations

if __name__ == "__main__":
    from orchestrator import forget_working_directory

    forget_working_directory()
    from orchestrator.cli import main

    main()
