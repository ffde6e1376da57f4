"""The tests of Slurm in a tree of Debian 13, whose Slurm is 24.11: ``python -m tests.debian_13 [ARGUMENTS OF PYTEST]`` (`make slurm-24`).

They run with the Python of this environment. Root only.
"""

from __future__ import annotations

import sys

from tests.debian_tree import Tree

PACKAGES = (
    "slurmctld",
    "slurmd",
    "slurm-client",
    "munge",
    "iproute2",
    "procps",
    "openssh-client",
    "openssh-server",
    "util-linux",
    "python3",
)
TESTS = [f"tests/backends/test_slurm_{name}.py" for name in ("inside", "submitted", "unasked", "users")] + ["tests/real/test_slurm.py"]


def main() -> int:
    tree = Tree("trixie", PACKAGES)
    if why := tree.make():
        print(f"orch: NOT TESTED: Slurm 24.11 of Debian 13: {why}", file=sys.stderr)
        return 1
    return tree.run_tests(sys.executable, *(sys.argv[1:] or TESTS))


if __name__ == "__main__":
    sys.exit(main())
