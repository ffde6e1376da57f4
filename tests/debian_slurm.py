"""The tests of Slurm in a tree of another Debian: ``python -m tests.debian_slurm SUITE [ARGUMENTS OF PYTEST]``.

`make slurm-24` takes `trixie`, Debian 13 with Slurm 24.11, and `make slurm-26` takes `testing`. The tests run with the Python of this
environment. Root only.
"""

from __future__ import annotations

import subprocess
import sys

from tests.debian_tree import PATH, Tree

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
TESTS = [f"tests/backends/test_slurm_{name}.py" for name in ("inside", "submitted", "unasked", "users")]
TESTS += ["tests/backends/test_join_engines.py", "tests/real/test_slurm.py"]


def main() -> int:
    suite, *arguments = sys.argv[1:]
    tree = Tree(suite, PACKAGES)
    if why := tree.make():
        print(f"orch: NOT TESTED: the Slurm of Debian's {suite}: {why}", file=sys.stderr)
        return 1
    version = subprocess.run(tree.command("slurmctld", "-V"), env={"PATH": PATH}, capture_output=True, text=True).stdout.strip()
    print(f"orch: the tests of Slurm with {version or 'no Slurm that answers'}, of Debian's {suite}", flush=True)
    return tree.run_tests(sys.executable, *(arguments or TESTS))


if __name__ == "__main__":
    sys.exit(main())
