"""A shared working directory: by which of its files hosts are to know that it is the same one, most telling first.

Compared are what git tracks, and code and settings whether tracked or not. What a program may itself have written on one side
(logs, checkpoints, tables) is not: it differs rightly. JSON may be either, so without git a difference is only told.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePath

from worker.contract import LikeHere, Likeness, Program, few

from .code import is_gits, listed_by_git, tracked_by_git

MOST_FILES = 5_000
"""Files that are compared: each is looked at on every host."""
MOST_WALKED = 20_000
"""Files that are looked at to find them where there is no git: a home directory may be the working directory."""
MOST_IMPORTED = 200
LARGE = 4_000_000
"""Bytes from which a file is compared by its size."""
MOST_BYTES = 64_000_000
"""Bytes that are read here; every host whose disk is another reads as many."""
CODE = {".py", ".pyi", ".pyx", ".sh", ".bash", ".c", ".cc", ".cpp", ".cu", ".h", ".hpp", ".proto"}
SETTINGS = {".yaml", ".yml", ".toml", ".cfg", ".ini", ".conf", ".gin"}
DOUBTFUL = {".json"}
OUTPUTS = {"checkpoints", "lightning_logs", "logs", "mlruns", "outputs", "results", "runs", "wandb"}
"""Directories in which settings that git does not track are a program's own record of what it ran with."""


def describe(workdir: str, program: Program) -> Likeness:
    """What `workdir` is like here, for hosts to compare. Files that cannot be read are left out."""
    root = Path(workdir)
    target = _target(root, program)
    found, is_cut = _found(root)
    must = {path: how for path in found if (how := _how(path, is_tracked=found[path])) is not None}
    names = sorted(must, key=lambda path: (not _is_source(path), path.count("/"), path))
    if target and (len(names) > MOST_FILES or os.path.isabs(target)):
        names = [*_imported(root, target), *names]
    names = [name for name in dict.fromkeys([target, *names] if target else names) if name in must or _is_named(root, name, target)]
    files = tuple(_files(root, names[:MOST_FILES], must))
    return Likeness(files, _told_of_rest(workdir, names[MOST_FILES:], len(names), is_cut=is_cut))


def _is_named(root: Path, name: str, target: str) -> bool:
    """It is compared whatever it is: the program, and what a script from elsewhere imports there."""
    return name == target or os.path.isabs(name)


def _target(root: Path, program: Program) -> str:
    """The program's own file as the hosts are to look for it; empty if it is none of this directory."""
    if program.kind == "module":
        module = program.target.replace(".", "/")
        return next((file for file in (f"{module}.py", f"{module}/__main__.py") if (root / file).is_file()), "")
    if program.kind not in ("script", "command") or (program.kind == "command" and "/" not in program.target):
        return ""
    path = os.path.relpath(root / program.target, root)
    if not path.startswith(".."):
        return path
    return os.path.abspath(root / program.target) if program.kind == "script" else ""  # each host has its own /bin/sh


def _found(root: Path) -> tuple[dict[str, bool], bool]:
    """Each file, and whether git tracks it; and whether there are more that nobody has looked at."""
    if is_gits(root):
        tracked = tracked_by_git(root)
        return {path: path in tracked for path in listed_by_git(root)}, False
    found: dict[str, bool] = {}
    for path in _walked(root):
        if len(found) >= MOST_WALKED:
            return found, True
        found[path] = False
    return found, False


def _walked(root: Path) -> Iterator[str]:
    """Files, those of the upper directories first; nothing that is hidden, and no environment of packages."""
    waiting = [""]
    for directory in waiting:
        try:
            entries = sorted(os.scandir(root / directory), key=lambda entry: entry.name)
        except OSError:
            continue
        if directory and any(entry.name in ("pyvenv.cfg", "conda-meta") for entry in entries):
            continue
        for entry in entries:
            if entry.name.startswith(".") or entry.name in ("__pycache__", "node_modules"):
                continue
            path = os.path.join(directory, entry.name)
            if entry.is_dir(follow_symlinks=False):
                waiting.append(path)
            else:
                yield path


def _is_source(path: str) -> bool:
    return os.path.splitext(path)[1] in CODE | SETTINGS


def _how(path: str, *, is_tracked: bool) -> bool | None:
    """Whether the file must be the same; None: it is not compared."""
    kind = os.path.splitext(path)[1]
    if any(part.startswith(".") for part in PurePath(path).parts):
        return None
    if is_tracked or kind in CODE:
        return True
    if kind not in SETTINGS | DOUBTFUL or not OUTPUTS.isdisjoint(PurePath(path).parts[:-1]):
        return None
    return kind in SETTINGS


def _files(root: Path, names: list[str], must: dict[str, bool]) -> Iterator[LikeHere]:
    left = MOST_BYTES
    for name in names:
        with contextlib.suppress(OSError):
            path = root / name
            state = path.stat()
            if not stat.S_ISREG(state.st_mode):
                continue
            is_read = state.st_size <= min(LARGE, left)
            left -= state.st_size if is_read else 0
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if is_read else ""
            yield LikeHere(name, state.st_size, digest, state.st_ino, state.st_mtime_ns, must.get(name, True))


def _told_of_rest(workdir: str, rest: list[str], number: int, *, is_cut: bool) -> str:
    more = f", and what lies beyond the first {MOST_WALKED:,} files that were found" if is_cut else ""
    if rest:
        return f"only {MOST_FILES:,} of {number:,} files of {workdir!r} were compared; not: {few(rest)}{more}"
    return f"not all of {workdir!r} was compared: not what lies beyond the first {MOST_WALKED:,} files that were found" if is_cut else ""


# --- what a script imports ----------------------------------------------------------------------


def _imported(root: Path, target: str) -> list[str]:
    """The script, and what lies beside it and is imported by it, or by what it imports: at most `MOST_IMPORTED` files."""
    beside = os.path.dirname(target)
    found = {target: None}
    for path in (waiting := [target]):
        for name, level in _names(root / path):
            near = os.path.normpath(os.path.join(os.path.dirname(path), *[os.pardir] * (level - 1))) if level else beside
            parts = name.split(".")
            modules = [os.path.normpath(os.path.join(near, *parts[: end + 1])) for end in range(len(parts))]
            files = [file for module in modules for file in (f"{module}.py", os.path.join(module, "__init__.py"))]
            new = [file for file in files if file not in found and (root / file).is_file()]
            if len(found) + len(new) > MOST_IMPORTED:
                return list(found)
            found |= dict.fromkeys(new)
            waiting += new
    return list(found)


def _names(path: Path) -> Iterator[tuple[str, int]]:
    """Modules that a file imports, and from how far up in its own package: 0 is from the top, 1 from beside it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}" if node.module else alias.name, node.level) for alias in node.names)
