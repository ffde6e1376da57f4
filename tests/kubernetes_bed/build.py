"""Builds the Kubernetes of the tests, once: ``python -m tests.kubernetes_bed.build`` (`make kubernetes`).

The source is Debian 12's package `kubernetes` (1.20.2, whole, with its dependencies), built with Debian 12's Go; etcd, containerd, runc,
the network plugins and kubectl are Debian 12's packages. All of them are downloaded by apt, which checks their signatures, and unpacked
below one directory outside the repository: nothing is installed into the system, and no package source is added to it. The directory is
keyed by `RECIPE`, and appears only when it is whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
TOOLS = ("etcd-server", "containerd", "runc", "containernetworking-plugins", "kubernetes-client")
BUILDERS = ("golang-1.19-go", "golang-1.19-src", "rsync", "libpopt0")
NEEDED = ("apt-get", "dpkg", "gzip", "make", "nsenter", "setpriv", "tar", "unshare", "ip")
"""The programs of the system that the build and the bed call."""
KEPT = (
    *("usr/bin/etcd", "usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/bin/ctr", "usr/bin/kubectl", "usr/sbin/runc"),
    *("usr/lib/cni/bridge", "usr/lib/cni/host-local", "usr/lib/cni/loopback"),
)
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PAUSE = """\
package main

import (
	"os"
	"os/signal"
	"syscall"
)

// What every pod's first container does: it holds the namespaces, and reaps.
func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for got := range signals {
		if got != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}
"""
GIT_VERSION = """\
KUBE_GIT_COMMIT='faecb196815e248d3ecfb03c680a4507229c2a56'
KUBE_GIT_TREE_STATE='archive'
KUBE_GIT_VERSION='v1.20.2'
KUBE_GIT_MAJOR='1'
KUBE_GIT_MINOR='20'
"""
RECIPE = "\n".join((*SERVERS, *TOOLS, *BUILDERS, *KEPT, PAUSE, GIT_VERSION))


def cache() -> Path:
    """The directory of the programs, which is there once they are built."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "orch-tests" / f"kubernetes-1.20-{platform.machine()}-{hashlib.sha256(RECIPE.encode()).hexdigest()[:12]}"


CLIENT = "BED_CLIENT"
"""The variable with the directory of another kubectl than that of the server."""


def client() -> Path:
    """The directory of the kubectl of the tests."""
    return Path(os.environ.get(CLIENT) or cache() / "client")


def missing() -> str:
    """Why nothing can be built here; empty if it can."""
    release = Path("/etc/os-release").read_text() if Path("/etc/os-release").exists() else ""
    if "VERSION_CODENAME=bookworm" not in release or "ID=debian" not in release:
        return "this is not Debian 12 (bookworm), of which the source of Kubernetes is a part"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if absent := [program for program in NEEDED if shutil.which(program, path=path) is None]:
        return f"not installed: {', '.join(absent)}"
    return ""


def build() -> Path:
    """The directory of the programs, built if they are not there. Raises RuntimeError with the last words of what has failed."""
    target = cache()
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            for left in target.parent.glob("unfinished-*"):
                shutil.rmtree(left)
            work = Path(tempfile.mkdtemp(prefix="unfinished-", dir=target.parent))
            try:
                _Build(work).run()
                (work / "whole").rename(target)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return target


class _Build:
    def __init__(self, work: Path) -> None:
        self.work = work
        self.whole = work / "whole"
        self.apt = work / "apt"
        go = work / "builders/usr/lib/go-1.19"
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("GO")} | {
            "CGO_ENABLED": "0",
            "GOCACHE": str(work / "gocache"),
            "GOPROXY": "off",
            "GOROOT": str(go),
            "KUBE_GIT_VERSION_FILE": str(work / "version"),
            "LD_LIBRARY_PATH": ":".join(str(path) for path in (work / "builders/usr/lib").glob("*-linux-gnu*")),
            "PATH": f"{go}/bin:{work}/builders/usr/bin:{os.environ.get('PATH', '')}",
        }

    def run(self) -> None:
        (self.whole / "bin").mkdir(parents=True)
        (self.whole / "cni").mkdir()
        self._write_apt()
        self._say("downloading the source of Kubernetes, Go and the programs of Debian: 170 MB")
        self._apt("update")
        (self.work / "source").mkdir()
        self._apt("source", "--download-only", "kubernetes", cwd=self.work / "source")
        self._unpack_packages("builders", BUILDERS)
        self.env["LD_LIBRARY_PATH"] = ":".join(str(path) for path in (self.work / "builders/usr/lib").glob("*-linux-gnu*"))
        self._unpack_packages("tools", TOOLS)
        for name in KEPT:
            place = self.whole / ("cni" if "/cni/" in name else "bin")
            shutil.copy2(self.work / "tools" / name, place / Path(name).name)
        (self.whole / "client").mkdir()
        (self.whole / "client/kubectl").symlink_to("../bin/kubectl")
        self._build_servers()
        (self.work / "pause.go").write_text(PAUSE)
        self._call("go", "build", "-ldflags=-s -w", "-o", str(self.whole / "bin/pause"), str(self.work / "pause.go"), cwd=self.work)

    def _build_servers(self) -> None:
        [archive] = (self.work / "source").glob("kubernetes_*.orig.tar.*")
        self._call("tar", "-xf", str(archive), cwd=self.work / "source")
        [tree] = (path for path in (self.work / "source").iterdir() if path.is_dir())
        (self.work / "version").write_text(GIT_VERSION)
        self._say("generating Go code: about a minute and a half on two cores")
        self._call("make", "generated_files", cwd=tree)
        self._say("compiling the API server, controller manager, scheduler and kubelet: about six minutes on two cores")
        self._call("make", f"WHAT={' '.join(f'cmd/{name}' for name in SERVERS)}", "GOLDFLAGS=-s -w", cwd=tree)
        for name in SERVERS:
            shutil.copy2(tree / "_output/bin" / name, self.whole / "bin" / name)

    # --- Debian's packages ---------------------------------------------------------------------

    def _write_apt(self) -> None:
        """apt with lists and sources of its own: the system's mirrors of Debian 12, with their source packages."""
        sources = self._find_sources()
        if not sources and os.geteuid() == 0:
            self._call("apt-get", "-q", "update", cwd=self.work)  # apt names only the mirrors whose lists it has
            sources = self._find_sources()
        if not sources:
            raise RuntimeError("apt knows no mirror of Debian 12 (bookworm main) here: see /etc/apt/sources.list.d")
        for name in ("lists/partial", "archives/partial"):
            (self.apt / name).mkdir(parents=True)
        (self.apt / "sources.list").write_text("".join(sorted(sources)))

    @staticmethod
    def _find_sources() -> set[str]:
        """The lines of a sources.list for the system's mirrors."""
        argv = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
        listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        sources: set[str] = set()
        for uri, release, component in map(str.split, listed.splitlines()):
            if release.startswith("bookworm") and component == "main":
                signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
                sources.update(f"{kind} {signed}{uri} {release} main\n" for kind in ("deb", "deb-src"))
        return sources

    def _apt(self, *words: str, cwd: Path | None = None) -> None:
        options = {
            "Dir::Etc::sourcelist": self.apt / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State::Lists": self.apt / "lists",
            "Dir::Cache": self.apt,
            "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
        }
        self._call("apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items()), *words, cwd=cwd or self.work)

    def _unpack_packages(self, name: str, packages: tuple[str, ...]) -> None:
        place = self.work / name
        place.mkdir()
        self._apt("download", *packages, cwd=place)
        for package in sorted(place.glob("*.deb")):
            self._call("dpkg", "--extract", str(package), str(place), cwd=place)

    # --- programs ------------------------------------------------------------------------------

    def _call(self, *argv: str, cwd: Path) -> None:
        done = subprocess.run(argv, cwd=cwd, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            last = done.stdout.decode(errors="replace").strip().splitlines()[-30:]
            raise RuntimeError("\n".join((f"{' '.join(argv)} ended with {done.returncode}:", *last)))

    @staticmethod
    def _say(text: str) -> None:
        print(f"orch: {text}", flush=True)


def main(argv: Sequence[str]) -> int:
    if argv == ["--check"]:
        if not cache().is_dir():
            print("orch: NOT TESTED: Kubernetes: make kubernetes builds it, once, in some ten minutes", file=sys.stderr)
        return 0
    if cache().is_dir():
        print(f"orch: the Kubernetes of the tests is there: {cache()}")
        return 0
    if why := missing():
        print(f"orch: NOT TESTED: Kubernetes: {why}", file=sys.stderr)
        return 1
    began = time.monotonic()
    try:
        print(f"orch: the Kubernetes of the tests is built: {build()} ({time.monotonic() - began:.0f} s)")
    except RuntimeError as error:
        print(f"orch: NOT TESTED: Kubernetes could not be built: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
