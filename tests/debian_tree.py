"""A tree of another Debian, for tests with what this system does not have: another Slurm, or another Python.

`debootstrap` makes the tree once, in ``~/.cache/orch-tests`` (XDG_CACHE_HOME). Programs run in it in namespaces of their own for mounts and
processes, so that everything ends with them. They see the repository, this environment and its Python under the same paths. Root only.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The shell in the tree stays: it is process 1 there, which has to reap what others leave.
_ENTER = """
set -e
tree=$1; shift
mount --make-rprivate /
mount --bind "$tree" "$tree"  # inside of it, / has to be a mount: ip netns asks for that
mount -t tmpfs none "$tree/run"
mkdir -p "$tree/run/sshd"
for path in /proc /sys /dev /tmp {shared}; do mkdir -p "$tree$path"; mount --rbind "$path" "$tree$path"; done
for file in /etc/hosts /etc/resolv.conf; do touch "$tree$file"; mount --bind "$file" "$tree$file"; done
exec /usr/sbin/chroot "$tree" sh -c 'mount -t proc proc /proc; cd "$1"; shift; "$@"; exit $?' sh "$@"
"""


@dataclass(frozen=True, slots=True)
class Tree:
    suite: str
    """As debootstrap names it: ``trixie``, ``sid``."""
    packages: tuple[str, ...]
    """They include python3: for its libraries, which the Python of this environment also needs."""

    @property
    def path(self) -> Path:
        recipe = hashlib.sha256(" ".join((self.suite, *self.packages)).encode()).hexdigest()[:12]
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "orch-tests", f"debian-{self.suite}-{recipe}")

    def make(self) -> str:
        """Make the tree, unless it is there. Why it cannot be had or used; empty if it can."""
        is_made = (self.path / "made").exists()
        if os.geteuid() != 0:
            return "only root can make namespaces"
        if shutil.which("debootstrap") is None and not is_made:
            return "there is no debootstrap (apt-get install debootstrap)"
        if sys.base_prefix == "/usr":
            return f"the tree cannot borrow {sys.executable}, which belongs to this system; make .venv with a Python outside of /usr"
        return "" if is_made or self._debootstrap() else f"debootstrap could not make {self.path} (see above)"

    def _debootstrap(self) -> bool:
        print(f"orch: making a tree of Debian's {self.suite} in {self.path}: once; two minutes, 350 MB", file=sys.stderr)
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        argv = ["debootstrap", "--variant=minbase", f"--include={','.join(self.packages)}", self.suite, str(self.path)]
        log = self.path.with_suffix(".log")
        with log.open("wb") as file:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        if done.returncode:
            print("\n".join(log.read_text(errors="replace").splitlines()[-5:]), file=sys.stderr)
            return False
        (self.path / "made").touch()
        return True

    def command(self, *words: str, cwd: Path = ROOT) -> list[str]:
        """The command that runs these words in the tree. /tmp is that of this system."""
        script = _ENTER.format(shared=" ".join(map(shlex.quote, (str(ROOT), sys.prefix, sys.base_prefix))))
        return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, "sh", str(self.path), str(cwd), *words]

    def run_tests(self, python: str, *arguments: str, path: str = PATH) -> int:
        """The exit code of pytest, in the tree."""
        command = self.command(python, "-m", "pytest", "-p", "no:cacheprovider", *arguments)
        return subprocess.run(command, env={**os.environ, "PATH": path}).returncode
