"""What an agent finds in the programs of a run before it starts them: whether they can run here, and what they import."""

from __future__ import annotations

import ast
import glob
import os
import re
import stat
import sys
import zipimport
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...fast_dataclass import dataclass
from ...protocol.messages import Program, TemplateOrder
from ...settings.keras_settings import is_legacy
from .. import host_facts
from . import keras_use
from .import_path import import_path, python_path
from .keras_source import KERAS, Source

MAX_CHECKED = 16 * 1024 * 1024
"""A script of this length (bytes) or more is run without checks."""


def find_problems(programs: Sequence[Program], cwd: str, envs: Sequence[Mapping[str, str]] = ({},)) -> list[str]:
    """Why these programs cannot run here, a sentence for each; empty if they can run with at least one of the environments."""
    if not os.path.isdir(cwd):
        return [f"the working directory {cwd!r} does not exist"]
    found = [_find_problem(program, cwd, envs) for program in programs]
    missing = [keras_use.find_problem(env, cwd) for env in envs]
    sources = (Source(tree) for program in programs for _, tree in _sources(program, cwd, envs[0]))
    if all(missing) and any(not source.imports.isdisjoint(KERAS) for source in sources):
        found += missing
    return list(dict.fromkeys(problem for problem in found if problem))


def find_notes(programs: Iterable[Program], cwd: str) -> list[str]:
    """Notes about programs that seem to make a cluster of their own, which may be intended."""
    found = []
    for program in programs:
        path = _first_file(program, cwd, {})[0] if program.kind in ("script", "module") else ""
        match = _OWN_CLUSTER.search(_read(path)) if path else None
        if match is not None:
            word = match[1].decode()
            found.append(f"{program.target} seems to make a cluster of its own in one process ({word}): then start it with --strategy none")
    return found


# Names from TensorFlow's guide to ParameterServerStrategy, which starts servers in threads, and from helpers of TensorFlow's tests.
_OWN_CLUSTER = re.compile(
    rb"^(?!\s*#).*?\b(portpicker|create_in_process_cluster|create_local_cluster|multi_process_runner|MultiProcessRunner)\b", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class KerasFindings:
    """What `check_keras` finds."""

    problems: tuple[str, ...] = ()
    """A sentence for each use that certainly fails."""
    notes: tuple[str, ...] = ()
    """A sentence for each use that is likely to fail."""
    sets_keras: bool = False
    """Whether a program itself sets the variable that chooses Keras."""


def check_keras(programs: Iterable[Program], cwd: str, envs: Sequence[Mapping[str, str]], no_fit_under: str) -> KerasFindings:
    """How the programs use Keras, if any of them may run with Keras 3.

    `no_fit_under`: the class of the run's strategy, if `fit` of Keras 3 cannot work under it.
    """
    full = [{**os.environ, **env} for env in envs]
    if all(map(is_legacy, full)):
        return KerasFindings()
    sources = [(os.path.relpath(path, cwd), Source(tree)) for one in programs for path, tree in _sources(one, cwd, envs[0])]
    own = next((path for path, source in sources if source.sets_keras), "")
    if own:
        note = f"{own} sets TF_USE_LEGACY_KERAS, so each task imports TensorFlow by itself; with --keras legacy they start faster"
        return KerasFindings(notes=(note,), sets_keras=True)
    problems: list[str] = []
    notes: list[str] = []
    remedy = keras_use.describe_keras_2(envs[0], cwd)
    for path, source in sources:
        if "tf_keras" in source.imports:
            continue
        if no_fit_under:
            sentence, is_certain = keras_use.find_loop(path, source, no_fit_under, remedy)
            (problems if is_certain and not any(map(is_legacy, full)) else notes).append(sentence)
        notes.append(keras_use.find_keras_2(path, source, remedy))
    return KerasFindings(tuple(filter(None, dict.fromkeys(problems))), tuple(filter(None, dict.fromkeys(notes))))


def needs_template(template: TemplateOrder, programs: Iterable[Program], cwd: str) -> bool:
    """Whether one of these programs imports a module that the template imports, itself or through a module beside the program.

    A program without TensorFlow must not wait for TensorFlow's import. A program that imports TensorFlow in another way starts more slowly.
    """
    if template.always or any(program.kind in ("serve", "data_service") for program in programs):
        return True
    wanted = {name.partition(".")[0] for name in template.preload} | _IMPLIED
    trees = (tree for program in programs for _, tree in _sources(program, cwd, template.env))
    return any(name in wanted for tree in trees for name, _ in _names(tree))


_IMPLIED = {"keras", "tf_keras", "worker"}
_MOST_FILES = 200


def _sources(program: Program, cwd: str, env: Mapping[str, str]) -> Iterator[tuple[str, ast.Module]]:
    """The readable files of a program, each with its syntax: the first file, and the files beside it that are imported."""
    if program.kind not in ("script", "module"):
        return
    first, root = _first_file(program, cwd, env)
    waiting, seen = [first], {first}
    while waiting and len(seen) < _MOST_FILES:
        path = waiting.pop()
        tree = _syntax(path)
        if tree is None:
            continue
        yield path, tree
        for name, is_relative in _names(tree):
            neighbours = [(os.path.dirname(path), "*.py")] if is_relative else []
            neighbours += [(root, f"{name}.py"), (os.path.join(root, name), "*.py")]
            found = {
                match for directory, pattern in neighbours for match in glob.iglob(os.path.join(glob.escape(directory), pattern))
            } - seen
            seen |= found
            waiting += found


def _first_file(program: Program, cwd: str, env: Mapping[str, str]) -> tuple[str, str]:
    """The first file of a program, and the directory of the program's own modules."""
    if program.kind == "script":
        first = os.path.join(cwd, program.target)
        return first, os.path.dirname(os.path.realpath(first))
    name = os.path.join(*program.target.split("."))
    roots = [cwd, *(os.path.join(cwd, entry) for entry in python_path(env))]
    places = [(os.path.join(root, name + ending), root) for root in roots for ending in ("/__main__.py", ".py")]
    return next((place for place in places if os.path.isfile(place[0])), places[0])


def _syntax(path: str) -> ast.Module | None:
    """The syntax of a Python file; None if the file cannot be read or parsed."""
    try:
        return ast.parse(_read(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _names(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """The top-level names that a file imports, each with whether the import is relative."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0], False
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0], node.level > 0


def _read(path: str) -> bytes:
    """The content of a source file; empty if the file cannot be read or is too long."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # see `_check_script`
            return b""
        with open(path, "rb") as file:
            source = file.read(MAX_CHECKED)
    except OSError:
        return b""
    return source if len(source) < MAX_CHECKED else b""


def _find_problem(program: Program, cwd: str, envs: Sequence[Mapping[str, str]]) -> str | None:
    if program.kind == "script":
        return _check_script(program.target, cwd)
    if program.kind == "module":
        return _check_module(program.target, cwd, envs)
    if program.kind == "command":
        return _check_command(program.target, cwd, envs)
    return None


def _check_script(target: str, cwd: str) -> str | None:
    path = os.path.join(cwd, target)
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            has_main = os.path.isfile(os.path.join(path, "__main__.py"))
            return None if has_main else f"the script {target!r} is a directory without a __main__.py"
        if not stat.S_ISREG(mode):  # reading a pipe or /dev/zero may never end, and each task must read the script again
            return f"the script {target!r} is not a file but a pipe or a device; save it to a file first"
        if path.endswith(".ipynb"):
            how = f"jupyter nbconvert --to script {target} (then delete the lines with get_ipython())"
            return f"the script {target!r} is a notebook; make a script of it: {how}"
        with open(path, "rb") as file:
            source = file.read(MAX_CHECKED)
    except OSError as error:
        return f"the script {target!r} cannot be read in {cwd!r}: {error.strerror}{_suggest(path, cwd)}"
    if source.startswith(b"PK") or len(source) == MAX_CHECKED:
        return None
    try:
        compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return f"the script {target!r} is not valid Python {host_facts.python_version()}: {_describe(error)}"
    except (RecursionError, MemoryError):
        return None  # too deep for a check; Python will report it in the task
    return None


def _suggest(path: str, cwd: str) -> str:
    """A file that the user may have meant instead of a missing one: with its name in the working directory, or beside it."""
    import difflib  # rarely needed

    directory, name = os.path.split(path)
    if os.path.isfile(there := os.path.join(cwd, name)):
        return f"; did you mean {there!r}?"
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


def _check_module(target: str, cwd: str, envs: Sequence[Mapping[str, str]]) -> str | None:
    # A top-level name can be found without running the user's code. Other names need the import of their parents.
    name = target.partition(".")[0]
    for path in (import_path(env, cwd) for env in envs):
        try:
            if path.find(name, cwd) is not None or not path.is_all:
                return None
        except Exception:  # an error of an import hook; the task will show it
            return None
    return f"no module named {name!r} in {cwd!r} or on the path of {sys.executable}"


def _check_command(target: str, cwd: str, envs: Sequence[Mapping[str, str]]) -> str | None:
    if os.path.dirname(target):
        path = os.path.join(cwd, target)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return None
        what = "is not executable" if os.path.isfile(path) else "does not exist"
        return f"the command {target!r} {what} in {cwd!r}"
    import shutil  # rarely needed

    # As `os.execvpe` will find the command in the task.
    texts = [env.get("PATH", os.environ.get("PATH", os.defpath)) for env in envs]
    if any(shutil.which(os.path.join(cwd, entry, target)) for text in texts for entry in text.split(os.pathsep)):
        return None
    whose = dict.fromkeys(f"as the spec sets it ({env['PATH']!r})" if "PATH" in env else "as the host has it" for env in envs)
    return f"the command {target!r} is not on PATH, {' or '.join(whose)}"


def directory_of(program: Program, cwd: str) -> str:
    """The program's `sys.path[0]`: the directory or the zip file of its own modules."""
    if program.kind != "script":
        return cwd
    path = os.path.join(cwd, program.target)
    if os.path.isdir(path) or _is_zip_file(path):
        return path
    return os.path.dirname(os.path.realpath(path))


def directory_of_first(programs: Iterable[Program], cwd: str) -> str:
    """`directory_of` the first script or module: where a template finds modules that are nowhere else."""
    return directory_of(next((program for program in programs if program.kind in ("script", "module")), Program("serve")), cwd)


def _is_zip_file(path: str) -> bool:
    try:
        zipimport.zipimporter(path)
    except ImportError:
        return False
    return True
