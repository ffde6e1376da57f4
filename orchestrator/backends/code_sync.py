"""The working directory of the tasks: its files on the way to hosts that get a copy, and its state for hosts that share a disk."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import subprocess
from collections.abc import Iterator, Set
from pathlib import Path

from worker.machine.workdir import digest_of, read_state
from worker.protocol.messages import Code, CodeFile, CodePart, CodeWanted, Program, WorkdirState
from worker.values.fast_dataclass import dataclass
from worker.values.words import bytes_of, count_of, few

from ..errors import OrchError, UsageError
from .connection.agent_link import AgentLink

MOST_FILES = 20_000
PART_BYTES = 1024 * 1024
SCHEMA = ".orch.schema.json"
COPIES = "code"
"""The directory of a run with the files that its hosts get, until the end of the run."""
_NEVER = {".git", ".orch", "__pycache__", ".venv", "node_modules", ".mypy_cache", ".pytest_cache", ".ruff_cache"}


_SECRET = re.compile(
    r"(?:^|/)(?:\.env(?:\.(?!(?:example|sample|template|dist)$)[^/]*)?|id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?|\.netrc|_netrc|\.pgpass|\.pypirc|"
    r"\.npmrc|\.git-credentials|\.dockercfg|(?:[^/]*\.)?kubeconfig|credentials(?:\.json)?|(?:service[_-]account|client[_-]secret)[^/]*\.json|"
    r"[^/]+\.(?:pem|key|p12|pfx|keytab|ppk)|\.docker/config\.json|\.(?:aws|ssh|gnupg|kube)/.*)$"
)
"""Paths of files that usually hold a secret. docs/security.md has the same list."""


@dataclass(frozen=True, slots=True)
class WorkingDirectory:
    root: Path
    files: tuple[CodeFile, ...]
    secret: tuple[str, ...] = ()
    """The paths of the files that are left out because their names are those of secrets."""
    copies: Path | None = None
    """The directory with a copy of each file, by its digest: what `send` sends, to the hosts of later attempts, too."""

    def describe(self, way: str, instead: str) -> Iterator[str]:
        """Lines for the user. `way`: ``go into the ConfigMap``. `instead`: where a secret belongs."""
        if self.files:
            largest = max(self.files, key=lambda file: file.size)
            size = bytes_of(sum(file.size for file in self.files))
            shown = f"the largest: {largest.path}, {bytes_of(largest.size)}"
            yield f"{count_of(len(self.files), 'file')}, {size} together, of the working directory {way} ({shown})"
        if self.secret:
            how = f"put a secret into {instead}; backend.code_secrets: true copies these files, too"
            yield f"left out, as secrets have such names: {few(self.secret)}; {how}"

    @property
    def order(self) -> Code:
        import hashlib  # a slow import that most runs do not need

        text = json.dumps([(file.path, file.digest, file.executable) for file in self.files]).encode()
        return Code(hashlib.sha256(text).hexdigest(), self.files)

    async def send(self, link: AgentLink) -> None:
        """Send a host the files that it lacks, as they were found. Raises `OrchError` if a copy is gone, or the host can keep none."""
        wanted = await link.request(self.order, CodeWanted)
        if wanted.trouble:
            raise OrchError(f"host {link.host.name}: {wanted.trouble}")
        if not {file.digest for file in self.files}.issuperset(wanted.digests):  # any other word could be a path of this machine
            raise OrchError(f"host {link.host.name} asks for files that are not in {self.root}: its agent is not to be trusted")
        assert self.copies is not None
        for digest in wanted.digests:
            try:
                with open(self.copies / digest, "rb") as file:
                    data = file.read(PART_BYTES)
                    while True:
                        following = file.read(PART_BYTES)
                        link.order(CodePart(digest, last=not following), data)
                        if not following:
                            break
                        data = following
                        await link.drain()  # otherwise all files would be in memory, once for each host
            except OSError as error:
                raise OrchError(f"a file of {self.root} cannot be sent: {error}") from None


def collect(
    workdir: str, limit_mb: float, *, runs: Path, needed: str = "", secrets: bool = False, copies: Path | None = None
) -> WorkingDirectory:
    """Every file that git does not ignore; if git does not know the directory, every file outside the directories of `_NEVER`.

    `runs`: the directory of the runs, which is not copied. `needed`: a file that must be among the others, if it exists. `secrets`: also
    files whose names are those of secrets. Files that orch has written are left out. `copies`: the directory in which a copy of each file
    is made, for `WorkingDirectory.send`. Of a file that grows meanwhile, such as a log, it is the beginning. Raises `UsageError`.
    """
    root = Path(workdir)
    sizes: dict[str, int] = {}
    secret: list[str] = []
    printed = _printed()
    for path in itertools.islice(_listed(root, runs), MOST_FILES + 1):
        with contextlib.suppress(OSError):
            if not (root / path).is_file() or _is_own(root / path, printed):
                continue
            if not secrets and path != os.path.normpath(needed) and _is_secret(root, path):
                secret.append(path)
            else:
                sizes[path] = (root / path).stat().st_size
    _refuse_too_much(workdir, sizes, limit_mb)
    if needed and os.path.normpath(needed) not in sizes and (root / needed).is_file():
        reasons = f"git ignores it (add !/{needed} to .gitignore), or it lies where runs are kept (name another directory with --home)"
        raise UsageError(f"{needed} would not be copied to the hosts: {reasons}")
    files = []
    for path, size in sizes.items():
        try:
            source = root / path if copies is None else _copy(root / path, size, copies)
            files.append(CodeFile(path, digest_of(str(source), size), min(size, source.stat().st_size), os.access(root / path, os.X_OK)))
            if copies is not None:
                source.replace(copies / files[-1].digest)
        except OSError as error:
            raise UsageError(f"{root / path} cannot be copied to the hosts: {error.strerror}") from None
    return WorkingDirectory(root, tuple(files), tuple(secret), copies)


def _copy(path: Path, size: int, directory: Path) -> Path:
    """Copy the first bytes of a file into a directory, under a name of its own."""
    directory.mkdir(mode=0o700, exist_ok=True)
    copy = directory / "copying"
    with open(path, "rb") as file, open(copy, "wb") as kept:
        while size > 0 and (data := file.read(min(PART_BYTES, size))):
            kept.write(data)
            size -= len(data)
    return copy


def _is_secret(root: Path, path: str) -> bool:
    """True if the name of a file, or that of the file to which it or a directory above it leads as a link, is that of a secret."""
    real = os.path.relpath(os.path.realpath(root / path), os.path.realpath(root))
    return _SECRET.search(path) is not None or _SECRET.search(real) is not None


def _printed() -> set[tuple[int, int]]:
    """The files into which this process prints: they grow while they are copied."""
    found = set()
    for fd in (1, 2):
        with contextlib.suppress(OSError):
            told = os.fstat(fd)
            found.add((told.st_dev, told.st_ino))
    return found


def _is_own(path: Path, printed: Set[tuple[int, int]]) -> bool:
    """True if orch wrote this file: its output, or the schema of `orch init`."""
    told = os.stat(path)
    return path.name == SCHEMA or (told.st_dev, told.st_ino) in printed


def _refuse_too_much(workdir: str, sizes: dict[str, int], limit_mb: float) -> None:
    total = sum(sizes.values())
    if total <= limit_mb * 1e6 and len(sizes) <= MOST_FILES:
        return
    largest = sorted(sizes, key=lambda path: -sizes[path])[:3]
    shown = ", ".join(f"{path} ({sizes[path] / 1e6:.1f} MB)" for path in largest)
    raise UsageError(
        f"{workdir} is too much to send to every host: {total / 1e6:.1f} of {limit_mb:g} MB, {len(sizes):,} of {MOST_FILES:,} files\n"
        f"the largest: {shown}",
        "name data in .gitignore, raise backend.code_limit_mb, or use a shared directory",
    )


def _is_gits(root: Path) -> bool:
    """True if git knows the directory, and does not ignore it."""
    try:
        ignored = subprocess.run(["git", "-C", str(root), "check-ignore", "-q", "."], capture_output=True, check=False)
    except OSError:
        return False
    return ignored.returncode == 1  # 0: the directory is ignored; 128: it is in no repository


def _listed(root: Path, runs: Path) -> Iterator[str]:
    """All files to copy, and those behind links to directories, which git and `os.walk` name by the link alone.

    Not those of `runs`, which contain secrets and output, and grow; but if `root` itself lies in a run, the user wants its files.
    """
    directory = os.path.realpath(root)
    of_runs = os.path.join(os.path.relpath(os.path.realpath(runs), directory), "")
    found = _listed_by_git(root) if _is_gits(root) else _walked(root)
    listed = dict.fromkeys(path for path in found if not path.startswith(of_runs))
    for path in listed:
        yield path
        if (root / path).is_symlink():
            target = os.path.join(os.path.relpath(os.path.realpath(root / path), directory), "")
            if not path.startswith(target):  # a directory that contains the link would have no end
                yield from (os.path.join(path, behind.removeprefix(target)) for behind in listed if behind.startswith(target))


def _listed_by_git(root: Path) -> Iterator[str]:
    """All files that git does not ignore, tracked or not."""
    argv = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(argv, capture_output=True, check=False)
    if done.returncode:
        raise UsageError(f"git cannot list {root}: {os.fsdecode(done.stderr).strip()}")
    for path in (os.fsdecode(name).rstrip("/") for name in done.stdout.split(b"\0") if name):
        yield path
        # Of a submodule, or of a repository of its own, git names the directory alone.
        if (root / path / ".git").exists() and not (root / path).is_symlink():
            yield from (os.path.join(path, name) for name in _listed_by_git(root / path))


def _walked(root: Path) -> Iterator[str]:
    for directory, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in _NEVER)
        links = (name for name in names if os.path.islink(os.path.join(directory, name)))
        yield from (os.path.relpath(os.path.join(directory, name), root) for name in sorted([*files, *links]))


def describe_workdir(workdir: str, program: Program) -> WorkdirState:
    """The state of `workdir` on this machine, which hosts with a shared disk compare with their own."""
    return read_state(workdir, _program_file(Path(workdir), program))


def _program_file(root: Path, program: Program) -> str:
    """The path by which hosts look for the program's file; empty: the program has none in this directory."""
    if program.kind == "module":
        module = program.target.replace(".", "/")
        return next((file for file in (f"{module}.py", f"{module}/__main__.py") if (root / file).is_file()), "")
    path = os.path.relpath(root / program.target, root) if program.file else ""
    if not path.startswith(".."):
        return path
    return os.path.abspath(root / program.target) if program.kind == "script" else ""  # each host has its own /bin/sh
