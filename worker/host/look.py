"""What an agent finds out about its host before anything starts."""

from __future__ import annotations

import ast
import glob
import importlib.util
import os
import platform
import re
import shutil
import stat
import sys
import zipimport
from collections.abc import Iterable, Iterator, Mapping

from ..contract import Gpu, Program, TemplateOrder

MAX_CHECKED = 16 * 1024 * 1024
"""A script of this length or more is not looked into, only run."""


def count_cores() -> int:
    """The cores this process may use, which in a container or a Slurm step are not all there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cores_of(part: int, parts: int) -> list[int] | None:
    """One of so many parts of the cores that this process may use, as the kernel numbers their hardware threads. No core is in two parts
    as long as there are enough of them; then no thread; then several parts have the same one. None: this platform ties nobody to cores.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    threads: dict[tuple[int, int], list[int]] = {}
    for number in sorted(os.sched_getaffinity(0)):
        threads.setdefault(_core_of(number), []).append(number)
    cores = [threads[core] for core in sorted(threads)]
    if parts > len(cores):
        cores = [[number] for core in cores for number in core]
    count = len(cores)
    mine = cores[part * count // parts : (part + 1) * count // parts] if parts <= count else [cores[part % count]]
    return [number for core in mine for number in core]


def _core_of(number: int) -> tuple[int, int]:
    """Its package, and its number there (Linux's Documentation/admin-guide/cputopology.rst)."""
    found = []
    for name in ("physical_package_id", "core_id"):
        try:
            with open(f"/sys/devices/system/cpu/cpu{number}/topology/{name}") as file:
                found.append(int(file.read()))
        except (OSError, ValueError):
            found.append(0 if name == "physical_package_id" else number)
    return found[0], found[1]


def free_bytes(path: str) -> int | None:
    """Bytes that this user may still write below `path`; None where nobody can tell."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return (found.f_bfree if os.geteuid() == 0 else found.f_bavail) * found.f_frsize


_DRIVER_FILES = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")
"""One of these is there if NVIDIA's driver is, the last one under WSL."""


def has_nvidia_driver() -> bool:
    """It is there; whether it works is another question."""
    return any(map(os.path.exists, _DRIVER_FILES))


def find_gpus(env: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs that a program with this environment may use."""
    if not has_nvidia_driver():
        return ()
    from . import gpus  # a host without a driver need not load what asks one

    return gpus.find(env)


def python_version() -> str:
    """Such as ``3.11.7``."""
    return platform.python_version()


def find_tensorflow(env: Mapping[str, str]) -> str:
    """The version of TensorFlow that a task with this environment would import, without importing it; empty if there is none.

    The agent runs isolated; what the tasks get from PYTHONPATH and from the user's own site-packages counts as well, the latter
    not in a virtual environment (site.py: only if it sees the system's packages).
    """
    import site  # wanted on hosts that were reached over a network only

    python_path = env.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    own = [site.getusersitepackages()] if _sees_users_packages() else []
    for entry in [*python_path.split(os.pathsep), *own, *sys.path]:
        if not entry or not os.path.isfile(os.path.join(entry, "tensorflow", "__init__.py")):
            continue
        found = glob.glob(os.path.join(glob.escape(entry), "t*f*-*.dist-info"))
        versions = [match["version"] for name in found if (match := _PACKAGE.fullmatch(os.path.basename(name)))]
        return versions[0] if versions else "of unknown version"
    return ""


def _sees_users_packages() -> bool:
    if sys.prefix == sys.base_prefix:
        return True
    try:
        with open(os.path.join(sys.prefix, "pyvenv.cfg"), encoding="utf-8") as file:
            words = ("".join(line.split()).lower() for line in file)
            return "include-system-site-packages=true" in words
    except OSError:
        return True


_PACKAGE = re.compile(r"(tensorflow|tensorflow_(cpu|gpu|intel|rocm|macos|cpu_aws)|tf_nightly(_cpu)?)-(?P<version>[^-]+)\.dist-info")


def find_problems(programs: Iterable[Program], cwd: str) -> list[str]:
    """Why these programs cannot run here, one sentence each; empty if they can."""
    if not os.path.isdir(cwd):
        return [f"the working directory {cwd!r} does not exist"]
    found = (_find_problem(program, cwd) for program in programs)
    return list(dict.fromkeys(problem for problem in found if problem))


def needs_template(template: TemplateOrder, programs: Iterable[Program], cwd: str) -> bool:
    """Whether one of these programs imports what the template would, itself or through a module that lies beside it.

    A program that never names TensorFlow must not wait for its import; one that comes to it by a longer way only loses the
    head start.
    """
    if template.always or any(program.kind in ("serve", "data_service") for program in programs):
        return True
    wanted = {name.partition(".")[0] for name in template.preload} | _IMPLIED
    return any(not wanted.isdisjoint(_imports(program, cwd)) for program in programs)


_IMPLIED = {"keras", "tf_keras", "worker"}
_MOST_FILES = 200


def _imports(program: Program, cwd: str) -> Iterator[str]:
    """Top-level names that a program imports, and those that its neighbours do which it imports."""
    if program.kind == "command":
        return
    first = os.path.join(cwd, program.target if program.kind == "script" else os.path.join(*program.target.split(".")) + ".py")
    root = os.path.dirname(os.path.realpath(first)) if program.kind == "script" else cwd
    waiting, seen = [first], {first}
    while waiting and len(seen) < _MOST_FILES:
        path = waiting.pop()
        for name, is_relative in _names(path):
            yield name
            neighbours = [os.path.join(os.path.dirname(path), "*.py")] if is_relative else []
            neighbours += [os.path.join(root, f"{name}.py"), os.path.join(root, name, "*.py")]
            found = {match for pattern in neighbours for match in glob.iglob(_escape_but_star(pattern))} - seen
            seen |= found
            waiting += found


def _escape_but_star(pattern: str) -> str:
    directory, name = os.path.split(pattern)
    return os.path.join(glob.escape(directory), name)


def _names(path: str) -> Iterator[tuple[str, bool]]:
    """What a file imports: top-level names, and whether that is relative to its own package."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # see `_check_script`
            return
        with open(path, "rb") as file:
            source = file.read(MAX_CHECKED)
        if len(source) == MAX_CHECKED:
            return
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0], False
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0], node.level > 0


def _find_problem(program: Program, cwd: str) -> str | None:
    if program.kind == "script":
        return _check_script(program.target, cwd)
    if program.kind == "module":
        return _check_module(program.target, cwd)
    if program.kind == "command":
        return _check_command(program.target, cwd)
    return None


def _check_script(target: str, cwd: str) -> str | None:
    path = os.path.join(cwd, target)
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            has_main = os.path.isfile(os.path.join(path, "__main__.py"))
            return None if has_main else f"the script {target!r} is a directory without a __main__.py"
        if not stat.S_ISREG(mode):  # a pipe would keep us waiting, /dev/zero would have no end; and each task has to read it anew
            return f"the script {target!r} is not a file but a pipe or a device; save it to a file first"
        with open(path, "rb") as file:
            source = file.read(MAX_CHECKED)
    except OSError as error:
        return f"the script {target!r} cannot be read in {cwd!r}: {error.strerror}{_suggest(path)}"
    if source.startswith(b"PK") or len(source) == MAX_CHECKED:
        return None
    try:
        compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return f"the script {target!r} is not valid Python {python_version()}: {_describe(error)}"
    except (RecursionError, MemoryError):
        return None  # too deep for a check; Python itself will say it in the task
    return None


def _suggest(path: str) -> str:
    """The file beside a missing one that was probably meant."""
    import difflib  # wanted only now

    directory, name = os.path.split(path)
    try:
        near = difflib.get_close_matches(name, os.listdir(directory), n=1, cutoff=0.75)
    except OSError:
        return ""
    return f"; did you mean {near[0]!r}?" if near and near[0] != name else ""


def _describe(error: Exception) -> str:
    if not isinstance(error, SyntaxError):
        return str(error)
    where = f"line {error.lineno}: " if error.lineno else ""
    text = f"\n    {error.text.strip()}" if error.text else ""
    return f"{where}{error.msg}{text}"


def _check_module(target: str, cwd: str) -> str | None:
    # Only a top-level name can be looked up without importing its parents, that is, without running the user's code.
    # The agent runs isolated; what the tasks get from PYTHONPATH counts as well.
    name = target.partition(".")[0]
    path = sys.path
    sys.path = [cwd, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *path]
    try:
        if importlib.util.find_spec(name) is not None:
            return None
    except (ImportError, ValueError):
        pass
    finally:
        sys.path = path
    return f"no module named {name!r} in {cwd!r} or on the path of {sys.executable}"


def _check_command(target: str, cwd: str) -> str | None:
    if os.path.dirname(target):
        path = os.path.join(cwd, target)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return None
        what = "is not executable" if os.path.isfile(path) else "does not exist"
        return f"the command {target!r} {what} in {cwd!r}"
    if shutil.which(target):
        return None
    return f"the command {target!r} is not on PATH"


def directory_of(program: Program, cwd: str) -> str:
    """What `sys.path[0]` will be: where a program's own modules lie. A directory, or a zip file."""
    if program.kind != "script":
        return cwd
    path = os.path.join(cwd, program.target)
    if os.path.isdir(path) or _is_zip_file(path):
        return path
    return os.path.dirname(os.path.realpath(path))


def directory_of_first(programs: Iterable[Program], cwd: str) -> str:
    """`directory_of` the first of these that has one: where a template looks for modules that are found nowhere else."""
    return directory_of(next((program for program in programs if program.kind in ("script", "module")), Program("serve")), cwd)


def _is_zip_file(path: str) -> bool:
    try:
        zipimport.zipimporter(path)
    except ImportError:
        return False
    return True
