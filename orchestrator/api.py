"""`orchestrator.launch` starts a run from a Python program, and `orchestrator.find` finds one."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from worker.values.words import count_of

from .backends import imagine
from .backends.allocations import use_allocation
from .control import engine_jobs
from .control.starting import create, start_controller, submit
from .errors import Problem, SpecError, UsageError
from .handle import Run
from .model.settings import PROGRAM_KINDS, ClusterSpec
from .model.settings import document as documents
from .model.settings.derive import struct_of
from .model.settings.describe import options
from .model.settings.document import Node
from .model.settings.findings import nearest
from .model.settings.gpu_wish import GpuWish
from .model.settings.parse import parse, to_document
from .model.settings.tree import refusal
from .sources import as_seen_from, chooses_backend, read_file, tasks_directory, with_program, with_value

FLAGS = {option.name.lstrip("-").replace("-", "_"): option for option in options()}
"""The options and variables of `orch up`, as keywords: ``memory_growth=False`` is ``--no-memory-growth``, ``grace=5`` ORCH_GRACE."""
OTHERS = {"env": "defaults.env", "devices": "defaults.devices"}
"""Two more keywords. Any other keyword is a key of orch.yaml."""

_ENV = OTHERS["env"].split(".")

Program = str | os.PathLike[str] | Mapping[str, Any] | ClusterSpec | Callable[..., Any]


def launch(
    program: Program | None = None,
    /,
    *words: Any,
    args: Sequence[Any] | None = None,
    workers: int | None = None,
    ps: int | None = None,
    chief: int | bool | None = None,
    evaluator: int | bool | None = None,
    data_workers: int | None = None,
    strategy: str | None = None,
    env: Mapping[str, str | int | float] | None = None,
    devices: Mapping[str, Any] | None = None,
    python: str | os.PathLike[str] | None = None,
    workdir: str | os.PathLike[str] | None = None,
    hosts: str | Sequence[str | Mapping[str, Any]] | None = None,
    start_timeout: float | None = None,
    hang_timeout: float | None = None,
    timeout: float | None = None,
    grace: float | None = None,
    max_restarts: int | None = None,
    home: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Run:
    """Start a cluster, and return the handle of its run at once, before any task has started. `Run.wait` returns the result::

        with orchestrator.launch("train.py", workers=2) as run:
            run.wait().check()

    `program`: a script (``"train.py"``), a settings file (.yaml, .yml or .json), a mapping with the keys of orch.yaml, or a `ClusterSpec`.
    `words`: the arguments of the script or function, which may also be given as ``args=[…]``.
    A function is called in each task, and `Result.values` has what it returns; orch sends it, and the modules next to the script. Each
    host needs the same minor version of Python. A parameter ``strategy`` gets the cluster's strategy.
    The other keywords are the flags of `orch up` and the keys of orch.yaml (``module``, ``restart``, …); a flag wins. `launch` reads no
    `orch.yaml` by itself, and no ORCH_* variable but ORCH_HOME.
    `home`: the directory of the runs; default: ORCH_HOME, or `.orch`. The run ends with this program, unless an engine runs its controller.

    Raises `SpecError` with all mistakes in the settings, `UsageError` without the script, and `OrchError` without a directory for the run.
    """
    named = {name: value for name, value in locals().items() if name not in ("program", "words", "home", "settings")}
    if words and args is not None:
        raise UsageError("launch: the arguments of the script are given twice, after the program and as args=")
    named["args"] = words or args
    if callable(program) and not isinstance(program, ClusterSpec):
        from .functions import settings_of  # most programs launch scripts

        settings |= settings_of(program, named.pop("args") or ())
        program = None
    spec = read_spec(program, {**settings, **named}, os.environ)
    return start(spec, home or os.environ.get("ORCH_HOME") or ".orch")


def _in_python(text: str) -> str:
    """A message with the keywords of `launch` in place of options: ``backend="slurm"`` for ``--backend slurm``."""

    def keyword(option: re.Match[str]) -> str:
        name, value = option[1].replace("-", "_"), option[2]
        return f'{name}="{value}"' if name in FLAGS and value else f"{name}=" if name in FLAGS else option[0]

    return re.sub(r"--([a-z][a-z-]*)(?: (\w+)(?=$|[,;)]))?", keyword, re.sub(r"^write backend: \{.*\}, or add ", "write ", text))


def start(spec: ClusterSpec, home: str | os.PathLike[str], env: Mapping[str, str] | None = None) -> Run:
    """`launch` for a spec. `env`: the environment of the controller and its agents; default: this process's. Raises `OrchError`."""
    check_script(spec)
    warn_of_held_gpus(spec)
    if spec.checkpoints.resume:
        from .record.saves_of_run import resumed  # most runs resume none

        spec = resumed(Path(os.path.abspath(home)), spec, engine_jobs.find)
    made = create(Path(os.path.abspath(home)), spec)
    if submit(made) is not None:
        return Run(engine_jobs.attach(made.run))
    return Run(made.run, start_controller(made.run, tied=True, env=env))


def warn_of_held_gpus(spec: ClusterSpec) -> None:
    """Warn where TensorFlow in this process, such as a notebook's kernel, holds GPUs of this machine that the run may want."""
    made = getattr(sys.modules.get("tensorflow.python.eager.context"), "context_safe", lambda: None)()
    if getattr(made, "_initialized", False) and (held := sys.modules["tensorflow"].config.list_logical_devices("GPU")):
        wants = any(tasks.devices.gpus != GpuWish(0) for tasks in spec.tasks)
        if wants and any(host.is_here for host in imagine(spec).hosts):
            what = f"warning: TensorFlow in this process holds {count_of(len(held), 'GPU')}, whose memory the tasks may lack"
            print(f"{what}\nfix: import TensorFlow in the tasks only (restart the kernel), or --gpus 0", file=sys.stderr)


def find(run: str | None = None, home: str | os.PathLike[str] | None = None) -> Run:
    """Return the handle of a run that any program has started. The run does not end with this program.

    `run`: the id of the run, or the beginning of its id; None: the latest run. `home`: as for `launch`.

    Raises `UsageError` if there is no such run, or if several ids have this beginning.
    """
    return Run(engine_jobs.find(Path(os.path.abspath(home or os.environ.get("ORCH_HOME") or ".orch")), run))


def check_script(spec: ClusterSpec) -> None:
    """Raise `UsageError` if a host of the run is this machine, and lacks the script."""
    path = os.path.join(spec.workdir, spec.program.target)
    if spec.program.kind != "script" or os.path.exists(path) or not any(host.is_here for host in imagine(spec).hosts):
        return
    directory, name = os.path.split(path)
    near = nearest(name, os.listdir(directory), cutoff=0.75) if os.path.isdir(directory) else ""
    raise UsageError(f"there is no script {name!r} in {directory}" + (f"; did you mean {near!r}?" if near else ""))


def read_spec(program: Program | None, keywords: Mapping[str, Any], env: Mapping[str, str] | None = None) -> ClusterSpec:
    """The spec that the arguments of `launch` describe. Raises `SpecError`, `UsageError`.

    `env`: the variables that may tell of an allocation of an engine, whose hosts are then used; None: no allocation is looked for.
    """
    try:
        return _parse(program, keywords, env)
    except SpecError as error:
        raise SpecError(*(replace(one, message=_in_python(one.message), hint=_in_python(one.hint)) for one in error.problems)) from None


def _parse(program: Program | None, keywords: Mapping[str, Any], env: Mapping[str, str] | None) -> ClusterSpec:
    document, base, script = _read(program)
    for path, value in sorted(_overlays(keywords), key=lambda one: not chooses_backend(one[0])):
        if value.value != {} or not documents.has(document, path):  # an empty mapping has no key to change
            document = with_value(document, path, value)
    programs = {kind: keywords[kind] for kind in PROGRAM_KINDS if keywords.get(kind) is not None}
    for kind, target in programs.items():
        place = f"launch({kind}=…)"
        document = with_program(document, kind, _file_name(target, place), place)
    if script is not None:
        document = with_program(document, "script", as_seen_from(tasks_directory(document, base), script, "script"), "launch")
    named = [*(["a script"] if script is not None else []), *programs]
    if len(named) > 1:
        raise UsageError(f"launch is given {' and '.join(named)}; only one program can run")
    if not (isinstance(document.value, dict) and any(kind in document.value for kind in PROGRAM_KINDS)):
        raise UsageError("there is nothing to run; name a script, as in launch('train.py', workers=2), or settings")
    return parse(use_allocation(document, env)[0] if env is not None else document, workdir=base)


def _read(program: Program | None) -> tuple[Node, str, str | None]:
    """From the first argument of `launch`: the document, the directory that its paths start from, and the script if it names one."""
    if isinstance(program, (ClusterSpec, Mapping)):
        data = to_document(program) if isinstance(program, ClusterSpec) else program
        return documents.from_data(data, "launch"), os.getcwd(), None
    name = None if program is None else _file_name(program, "launch")
    if name is not None and name.endswith((".yaml", ".yml", ".json")):
        return *read_file(name), None
    return documents.empty(), os.getcwd(), name


def _overlays(keywords: Mapping[str, Any]) -> Iterator[tuple[list[str], Node]]:
    """The changes that the keywords make: first the keys of orch.yaml, then the flags, which override them."""
    keys = struct_of(ClusterSpec).keys  # the parser knows these alone
    unknown = {name: nearest(name, [*keys, *FLAGS, *OTHERS]) for name in keywords if name.partition(".")[0] not in (*keys, *FLAGS, *OTHERS)}
    problems = [
        Problem(f"launch({name}=…)", f"unknown keyword {name!r}", f"did you mean {near!r}?")
        for name, near in unknown.items()
        if near and near not in keys
    ]
    if problems:
        raise SpecError(*problems)
    for name, value in sorted(keywords.items(), key=lambda item: item[0] in FLAGS):
        if value is None or name in PROGRAM_KINDS:
            continue
        place, flag = f"launch({name}=…)", FLAGS.get(name)
        if flag is None or isinstance(value, Mapping):  # backend="ssh" is the flag, backend={"type": "ssh"} the key
            yield from _leaves(OTHERS.get(name, name).split("."), value, place)
        else:
            yield from _leaves(flag.path.split("."), int(value) if isinstance(value, bool) and "1" in flag.says else value, place)


def _file_name(value: Any, place: str) -> str:
    try:
        return os.fsdecode(value)
    except TypeError:
        raise refusal(place, f"must be a text, not a value of type {type(value).__name__}") from None


def _leaves(path: list[str], value: Any, place: str) -> Iterator[tuple[list[str], Node]]:
    """The values at `path` and below: a mapping changes only the keys that it has."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            if item is None and path == _ENV:
                raise refusal(place, f"{key} has no value", "give a text")
            yield from _leaves([*path, str(key)], item, place)
    else:
        yield path, documents.from_data(os.fspath(value) if isinstance(value, os.PathLike) else value, place)
