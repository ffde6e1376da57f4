"""The tests of Slurm in a tree of Debian 13, whose Slurm is 24.11: ``python -m tests.debian_13 [ARGUMENTS OF PYTEST]`` (`make slurm-24`).

`debootstrap` makes the tree, once: some 350 MB in ``~/.cache/orch-tests`` (XDG_CACHE_HOME). The tests run in it with the Python of this
environment, in namespaces of their own for mounts and processes, so that everything ends with this program. Root only.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

SUITE = "trixie"
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
"""python3: for its libraries, which the Python of this environment needs, too."""
_RECIPE = hashlib.sha256(" ".join((SUITE, *PACKAGES)).encode()).hexdigest()[:12]
TREE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "orch-tests", f"debian-{SUITE}-{_RECIPE}")
TESTS = [f"tests/backends/test_slurm_{name}.py" for name in ("inside", "submitted", "unasked", "users")] + ["tests/real/test_slurm.py"]
_ENTER = """
set -e
tree=$1; shift
mount --make-rprivate /
mount --bind "$tree" "$tree"  # inside of it, / has to be a mount: ip netns asks for that
mount -t tmpfs none "$tree/run"
mkdir -p "$tree/run/sshd"
for path in /proc /sys /dev /tmp {shared}; do mkdir -p "$tree$path"; mount --rbind "$path" "$tree$path"; done
for file in /etc/hosts /etc/resolv.conf; do touch "$tree$file"; mount --bind "$file" "$tree$file"; done
exec chroot "$tree" sh -c 'mount -t proc proc /proc; cd "$1"; shift; exec "$@"' sh {root} "$@"
"""


def main() -> int:
    if why := _missing():
        print(f"orch: NOT TESTED: Slurm 24.11 of Debian 13: {why}", file=sys.stderr)
        return 1
    if not (TREE / "made").exists() and not _make():
        print(f"orch: NOT TESTED: Slurm 24.11 of Debian 13: debootstrap could not make {TREE} (see above)", file=sys.stderr)
        return 1
    shared = [str(ROOT), sys.prefix, sys.base_prefix]
    script = _ENTER.format(shared=" ".join(map(shlex.quote, shared)), root=shlex.quote(str(ROOT)))
    tests = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *(sys.argv[1:] or TESTS)]
    env = {**os.environ, "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    return subprocess.run([*apart, "sh", "-c", script, "sh", str(TREE), *tests], env=env).returncode


def _missing() -> str:
    if os.geteuid() != 0:
        return "only root can make namespaces"
    if shutil.which("debootstrap") is None and not (TREE / "made").exists():
        return "there is no debootstrap (apt-get install debootstrap)"
    if sys.base_prefix == "/usr":
        return f"the tree cannot borrow {sys.executable}, which belongs to this system; make .venv with a Python outside of /usr"
    return ""


def _make() -> bool:
    print(f"orch: making a tree of Debian 13 in {TREE}: once; two minutes, 350 MB", file=sys.stderr)
    shutil.rmtree(TREE, ignore_errors=True)
    TREE.parent.mkdir(parents=True, exist_ok=True)
    argv = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(TREE)]
    log = TREE.with_suffix(".log")
    with log.open("wb") as file:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    if done.returncode:
        print("\n".join(log.read_text(errors="replace").splitlines()[-5:]), file=sys.stderr)
        return False
    (TREE / "made").touch()
    return True


if __name__ == "__main__":
    sys.exit(main())
