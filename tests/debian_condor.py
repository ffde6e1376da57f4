"""`orch up --join` with a real HTCondor, that of Debian 13: ``python -m tests.debian_condor [ARGUMENTS OF PYTEST]`` (`make nightly`).

Debian 12 has none. Root only.
"""

from __future__ import annotations

import sys

from tests.debian_tree import Tree

PACKAGES = ("condor", "procps", "python3", "python3-cffi-backend", "util-linux")


def main() -> int:
    tree = Tree("trixie", PACKAGES)
    if why := tree.make():
        print(f"orch: NOT TESTED: HTCondor: {why}", file=sys.stderr)
        return 0
    (tree.path / "root").chmod(0o711)  # jobs, which are not root's, find the Python of this environment there
    return tree.run_tests(sys.executable, *(sys.argv[1:] or ["tests/backends/test_join_condor.py"]))


if __name__ == "__main__":
    sys.exit(main())
