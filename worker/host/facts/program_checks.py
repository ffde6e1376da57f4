"""Defines what an agent finds in the programs of a run before it starts them: whether they can run here, and what they import."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence

from ...protocol.messages import Hello, Program, TemplateOrder
from ...values import notebook_cells
from ...values.fast_dataclass import dataclass
from . import host_facts, keras_use, program_notes
from .import_path import find_module
from .program_files import MAX_CHECKED, Source, read_sources


@dataclass(frozen=True, slots=True)
class Checks:
    """Holds what was found in the programs of the tasks, before one of them runs."""

    problems: list[str]
    """Why the tasks cannot run here, a sentence for each."""
    notes: list[str]
    tensorflow: str
    """The version of TensorFlow; empty: there is none, or no program needs it."""
    keras: str
    """The version of Keras, likewise."""
    code: dict[str, str]
    """The beginning of the SHA-256 of each file of the programs, by its path."""
    template: TemplateOrder | None
    """The template that the tasks need; None: they need none."""


def _describe_left_out(source: Source) -> str:
    """Return the note about the lines of a notebook's cell that do not run. Each line names its cell, so the path does not."""
    return f"{source.path.rpartition(' cell ')[0] or source.path}: left out, as only Jupyter runs it: {'; '.join(source.left_out)}"


def check(hello: Hello) -> Checks:
    """Read the tasks' programs and the working directory, and find TensorFlow."""
    cwd, envs, template = hello.cwd, hello.search_envs, hello.template
    problems = [*find_problems(hello.programs, cwd, envs), *find_no_room_for_saves(hello.saves_to, cwd)]
    sources = read_sources(hello.programs, cwd, envs[0])
    notes = program_notes.find_notes(sources, hello.has_servers) if hello.ports else []  # only a task of a cluster needs a port
    notes += program_notes.find_missing(sources, cwd, envs)
    notes += [_describe_left_out(source) for source in sources if source.left_out]
    if hello.compare is not None and not problems:
        from ...machine.workdir import compare  # most agents compare nothing

        problems, differences = compare(hello.compare, cwd)
        notes += differences
    problems += keras_use.find_problems(sources, cwd, envs)
    if template is not None and not needs_template(template, hello.programs, sources):
        template = None
    tensorflow = host_facts.find_tensorflow(envs, cwd) if hello.word or hello.lost_after_s is not None else None
    if tensorflow == "" and template is not None:
        problems.append(f"there is no TensorFlow for {sys.executable}: pip install it there, or choose another Python with python:")
    if not problems:
        problems += program_notes.find_no_tensorflow(sources, cwd, envs)
    if template is not None and not problems:
        problems, more, sets_keras = keras_use.find_uses(sources, hello)
        notes += more
        if sets_keras:  # a template cannot import Keras for the tasks
            template = None
    keras = ""
    if any(source.uses_keras for source in sources):  # for the record
        tensorflow = tensorflow or host_facts.find_tensorflow(envs, cwd, asks=False)
        keras = host_facts.find_keras("keras", envs[0], cwd, asks=False) or ""
    code = {source.path: hashlib.sha256(source.text).hexdigest()[:12] for source in sources}
    return Checks(problems, notes, tensorflow or "", keras, code, template)


_IMPLIED = {"keras", "tf_keras", "worker"}


def needs_template(template: TemplateOrder, programs: Iterable[Program], sources: Iterable[Source]) -> bool:
    """True if one of these programs imports a module that the template imports, itself or through a module next to the program.

    A program without TensorFlow must not wait for TensorFlow's import. A program that imports TensorFlow in another way starts more slowly.
    """
    if template.always or any(program.kind in ("serve", "data_service", "function") for program in programs):
        return True
    wanted = {name.partition(".")[0] for name in template.preload} | _IMPLIED
    return any(not wanted.isdisjoint(source.imports) for source in sources)


def find_problems(programs: Iterable[Program], cwd: str, envs: Sequence[Mapping[str, str]] = ({},)) -> list[str]:
    """Why these programs cannot run here, a sentence for each; empty if they can run with at least one of the environments."""
    if not os.path.isdir(cwd):
        return [f"the working directory {cwd!r} does not exist"]
    found = []
    for program in programs:
        if program.kind == "script":
            found.append(_check_script(program.target, cwd))
        elif program.kind == "module":
            found.append(_check_module(program.target, cwd, envs))
        elif program.kind == "command":
            found.append(_check_command(program.target, cwd, envs))
    return [problem for problem in found if problem]


def find_no_room_for_saves(directory: str, cwd: str) -> list[str]:
    """Why checkpoints cannot be written to a directory, which need not be there yet; empty if they can, or no directory is given."""
    path = os.path.join(cwd, directory) if directory else ""
    while path and not os.path.lexists(path):
        path = os.path.dirname(path)
    if not path or (os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)):
        return []
    why = f"you may not write in {path!r}" if os.path.isdir(path) else f"{path!r} is not a directory"
    return [f"checkpoints.dir: {directory!r} cannot be used: {why}\nfix: --set checkpoints.dir=DIR, on a disk that all hosts share"]


def _check_script(target: str, cwd: str) -> str | None:
    path = os.path.join(cwd, target)
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            has_main = os.path.isfile(os.path.join(path, "__main__.py"))
            return None if has_main else f"the script {target!r} is a directory without a __main__.py"
        if not stat.S_ISREG(mode):  # reading a pipe or /dev/zero may never end, and each task must read the script again
            return f"the script {target!r} is not a file but a pipe or a device; save it to a file first"
        with open(path, "rb") as file:
            source = file.read(MAX_CHECKED)
    except OSError as error:
        return f"the script {target!r} cannot be read in {cwd!r}: {error.strerror}{_suggest(path, cwd)}"
    if source.startswith(b"PK") or len(source) == MAX_CHECKED:
        return None
    if source.startswith(b"\x7fELF"):
        return f"the script {target!r} is a compiled program, and not Python: add --no-python"
    first = source.partition(b"\n")[0]
    if first.startswith(b"#!") and b"python" not in first:
        return f"the script {target!r} is a program for {first[2:80].decode('utf-8', 'replace').strip()}, and not Python: add --no-python"
    try:
        for part in notebook_cells.parts(path, source):
            place = f"{part.name}, " if part.name else ""
            # Python reads the line of an error from a file of this name, if there is one: a notebook has other lines.
            compile(part.source, f"{path} {part.name}" if part.name else path, "exec", dont_inherit=True)
    except SyntaxError as error:
        place += f"line {error.lineno}: " if error.lineno else ""
        text = f"\n    {error.text.strip()}" if error.text else ""
        return f"the script {target!r} is not valid Python {host_facts.python_version()}: {place}{error.msg}{text}"
    except ValueError as error:  # a null byte, or no notebook
        what = "" if path.endswith(".ipynb") else f" is not valid Python {host_facts.python_version()}"
        return f"the script {target!r}{what}: {error}"
    except (RecursionError, MemoryError):
        return None  # too deep for a check; Python will report it in the task
    return None


def _suggest(path: str, cwd: str) -> str:
    """A file that the user may have meant instead of a missing one: with its name in the working directory, or next to it."""
    import difflib  # rarely needed

    directory, name = os.path.split(path)
    if f"{os.sep}~" in path:
        return "; ~ is not replaced here: write the whole path"
    if os.path.isfile(there := os.path.join(cwd, name)):
        return f"; did you mean {there!r}?"
    near = difflib.get_close_matches(name, os.listdir(directory) if os.path.isdir(directory) else (), n=1, cutoff=0.75)
    return f"; did you mean {near[0]!r}?" if near and near[0] != name else ""


def _check_module(target: str, cwd: str, envs: Sequence[Mapping[str, str]]) -> str | None:
    # A top-level name can be found without running the user's code. Other names need the import of their parents.
    name = target.partition(".")[0]
    if any(find_module(name, env, cwd) != "" for env in envs):
        return None
    return f"no module named {name!r} in {cwd!r} or on the path of {sys.executable}"


def _check_command(target: str, cwd: str, envs: Sequence[Mapping[str, str]]) -> str | None:
    if os.path.dirname(target):
        path = os.path.join(cwd, target)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return None
        if os.path.isfile(path):
            return f"the command {target!r} is not executable in {cwd!r}; chmod +x {target} makes it so"
        return f"the command {target!r} does not exist in {cwd!r}"
    import shutil  # rarely needed

    # As `os.execvpe` will find the command in the task.
    texts = [env.get("PATH", os.environ.get("PATH", os.defpath)) for env in envs]
    if any(shutil.which(os.path.join(cwd, entry, target)) for text in texts for entry in text.split(os.pathsep)):
        return None
    if os.path.isfile(os.path.join(cwd, target)):
        return f"the command {target!r} is not on PATH, and a file of this name lies here: write ./{target}"
    first, *words = target.split() or [""]
    if words:
        runs_file = first.startswith("python") and words[0].endswith(".py")
        instead = f"script: {words[0]}" if runs_file else f"command: {first}"
        args = f" and args: [{', '.join(words[runs_file:])}]" if words[runs_file:] else ""
        return f"the command {target!r} is not on PATH, and is one name with blanks: write {instead}{args}"
    return f"the command {target!r} is not on PATH: {' or '.join(dict.fromkeys(texts))}"
