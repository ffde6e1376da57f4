"""The arrows, the purity and the size budget of docs/how-it-works.md, asserted from the source; and what `orch --help` imports.

The checker is a function from one module's text to its complaints, and is tested on bad snippets below.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import get_type_hints

import pytest

from orchestrator import backends
from orchestrator.model.settings import BACKENDS
from orchestrator.model.settings.task_sections import TaskDevices
from orchestrator.model.strategies import STRATEGIES
from worker.settings.declare import settings_of
from worker.settings.task_settings import TaskSettings

ROOT = Path(__file__).resolve().parent.parent

BELOW = ("orchestrator.errors", "worker.protocol", "worker.settings")
MODEL = ("orchestrator.model", *BELOW)
# Tables and names that all rooms of the model use.
LEAVES = tuple(f"orchestrator.model.{name}" for name in ("device_names", "slots", "strategies", "task_names", "tpu_topology"))
PLACES = ("orchestrator.backends", "orchestrator.record", "worker.machine", *MODEL)
# The pure part of the rooms that answer questions: modules that count, judge and word. Their other modules read files and start processes.
ANSWERS = (
    *(
        f"orchestrator.checks.{name}"
        for name in (
            "doctor_report",
            "facts",
            "finding",
            "rules",
            "same_training",
            "scaling",
            "tensorflow_rules",
            "tpu_report",
            "training_rows",
            "training_steps",
        )
    ),
    *(
        f"orchestrator.views.{name}"
        for name in ("charts", "cross_device_reads", "frame", "goodput", "keys", "placement_log", "run_story", "top_state")
    ),
)
MODULES: dict[str, tuple[str, ...]] = {
    # Of the record, only the functions that wrap and clean text.
    **dict.fromkeys(ANSWERS, (*ANSWERS, "orchestrator.record.text.lines", "orchestrator.record.text.format", *MODEL)),
    "orchestrator.__main__": ("orchestrator.cli", "orchestrator.forget_working_directory"),
    "orchestrator.controller": (
        *("orchestrator.end_process", "orchestrator.forget_working_directory", "orchestrator.import_asyncio"),
        *("orchestrator.import_own_worker", "orchestrator.control", *PLACES),
    ),
    "orchestrator.functions": ("orchestrator.errors",),
    "orchestrator.api": ("orchestrator.control", "orchestrator.functions", "orchestrator.handle", "orchestrator.sources", *PLACES),
    **dict.fromkeys(
        ("orchestrator.scale", "orchestrator.verify"), ("orchestrator.api", "orchestrator.checks", "orchestrator.handle", *PLACES)
    ),
    "orchestrator.cell_magic": ("orchestrator.api", "orchestrator.cli", "orchestrator.errors", "worker.machine"),
    "orchestrator.handle": ("orchestrator.control.requests", "orchestrator.functions", *PLACES),
    "orchestrator.sources": MODEL,
    "orchestrator.control.requests": ("orchestrator.control.engine_jobs", "orchestrator.control.supervisor", *PLACES),
    "orchestrator.control.signals": ("orchestrator.errors",),
    **dict.fromkeys(LEAVES, (*LEAVES, *BELOW)),
    "orchestrator.errors": (),
    "worker.protocol.task_files": (),
    # The interfaces for programs, whose docstrings are theirs.
    "orchestrator": ("orchestrator.api", "orchestrator.handle", "worker", *MODEL),
    "worker": ("worker.protocol", "worker.task"),
}
"""Modules that may import less than their room, or that are in none."""
_MAY_IMPORT = re.compile(r"^May import: (.*)\.$", re.MULTILINE | re.DOTALL)


def _rooms() -> Iterator[tuple[str, str]]:
    """The name and the docstring of each room, without the two tops."""
    for path in sorted((*ROOT.glob("orchestrator/*/**/__init__.py"), *ROOT.glob("worker/*/**/__init__.py"))):
        yield ".".join(path.parent.relative_to(ROOT).parts), ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def _may_import(docstring: str) -> tuple[str, ...]:
    """The names after ``May import:``, at the end of the docstring of a room."""
    found = _MAY_IMPORT.search(docstring)
    assert found is not None, docstring
    names = tuple(name.strip() for name in found[1].split(","))
    return () if names == ("nothing",) else names


ROOMS = dict(_rooms())
# Part of the house -> what it may import of the house. A part may always import itself.
# A module belongs to the longest name that fits it; the name must be listed.
ARROWS = {**{room: _may_import(docstring) for room, docstring in ROOMS.items()}, **MODULES}

EVERYWHERE = ("worker.values", "worker.settings.declare")
"""What every part may import, for these are to all of them what the standard library is."""

# These two stand for the package's own module: as a prefix they would let everything in.
EXACT = ("orchestrator", "worker")

PURE = (
    *(room for room, docstring in ROOMS.items() if docstring.partition("\n\n")[0].endswith("Pure.")),
    *("orchestrator.errors", "worker.settings.declare", *LEAVES, *ANSWERS),
)
PURE_IMPORTS = {
    *(
        [
            "__future__",
            "abc",
            "ast",
            "base64",
            "bisect",
            "collections",
            "copy",
            "dataclasses",
            "difflib",
            "enum",
            "fractions",
            "functools",
            "graphlib",
            "hashlib",
            "zlib",
            "heapq",
        ]
    ),
    *(
        [
            "ipaddress",
            "itertools",
            "json",
            "keyword",
            "math",
            "operator",
            "re",
            "shlex",
            "statistics",
            "string",
            "struct",
            "textwrap",
            "types",
            "typing",
            "typing_extensions",
            "unicodedata",
        ]
    ),
}
PURE_NAMES = {"pathlib": {"PurePath", "PurePosixPath", "PureWindowsPath"}, "signal": {"Signals", "strsignal"}}
PURE_LATE_IMPORTS = {"yaml"}
"""Reading YAML from a text is pure, and slow to import: inside a function."""
IMPURE_BUILTINS = {"open", "print", "input", "exec", "eval", "breakpoint", "__import__"}

TENSORFLOW = {"tensorflow", "keras", "tf_keras"}
# The name under which worker/ runs inside a task, where `worker` may be the user's own.
PRIVATE_NAME = "_orch_worker"

LONGEST_MODULE, LONGEST_FUNCTION = 500, 52
MOST_MODULES = 20
"""In one directory of the product, without `__init__`."""

HEAVY = ("tensorflow", "keras", "numpy", "yaml", "psutil", "asyncio", "jinja2", "textual", "rich")


# --- the checker -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Import:
    """One imported module, absolute; `names` of a ``from`` import. `relative`: works under any name of the package.
    `deferred`: inside a function."""

    module: str
    names: tuple[str, ...]
    relative: bool
    deferred: bool
    line: int

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]

    def targets(self) -> Iterator[str]:
        """Each dotted name that may be a module: ``from a import b`` may mean ``a.b``."""
        yield from (f"{self.module}.{name}" for name in self.names) if self.names else (self.module,)


def imports(tree: ast.Module, module: str, is_package: bool) -> Iterator[Import]:
    package = module if is_package else module.rpartition(".")[0]
    pending: list[tuple[ast.AST, bool]] = [(tree, False)]
    while pending:
        node, deferred = pending.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, (), False, deferred, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) + 1 - node.level]) if node.level else ""
            name = ".".join(part for part in (base, node.module) if part)
            private = name.partition(".")[0] == PRIVATE_NAME
            name = f"worker{name.removeprefix(PRIVATE_NAME)}" if private else name
            yield Import(name, tuple(alias.name for alias in node.names), private or node.level > 0, deferred, node.lineno)
        inside = deferred or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        pending.extend((child, inside) for child in ast.iter_child_nodes(node))


def part_of(module: str) -> str | None:
    """The entry of `ARROWS` that a module belongs to; None for a module of the house that has no place in it."""
    fitting = [part for part in ARROWS if module == part or (part not in EXACT and module.startswith(f"{part}."))]
    return max(fitting, key=len, default=None)


def allowed(part: str, target: str) -> bool:
    return any(target == to or (to not in EXACT and target.startswith(f"{to}.")) for to in (part, *ARROWS[part], *EVERYWHERE))


def complaints(module: str, source: str, is_package: bool = False) -> list[str]:
    tree = ast.parse(source)
    part = part_of(module)
    if part is None:
        return [f"{module}: has no place in the house; give it one in docs/how-it-works.md and in ARROWS"]
    found = []
    for item in imports(tree, module, is_package):
        found += [f"{module}:{item.line}: {text}" for text in _import_complaints(part, item)]
    if part in PURE:
        found += [f"{module}:{line}: pure code calls {name}()" for name, line in _impure_calls(tree)]
    return found


def _import_complaints(part: str, item: Import) -> Iterator[str]:
    if item.top in ("orchestrator", "worker"):
        for target in item.targets():
            if not allowed(part, target):
                yield f"{part} must not import {target}"
        if part.startswith("worker") and not item.relative:
            yield f"worker/ is also loaded under another name: import {item.module} relatively"
        return
    if item.top in TENSORFLOW and not (_may_use_tensorflow(part) and item.deferred):
        yield f"{item.top} is imported inside functions of worker/__init__ and worker/task only"
    if item.module == "dataclasses" and "dataclass" in item.names and part not in EVERYWHERE:
        yield "dataclasses are made by worker.values.fast_dataclass: those of the standard library take their time at every start"
    if item.top == "click" and not f"{part}.".startswith("orchestrator.cli."):
        yield "only orchestrator/cli imports click"
    if part.startswith("worker") and item.top not in sys.stdlib_module_names and not (item.deferred and _may_use_tensorflow(part)):
        yield f"worker/ starts with the standard library alone: {item.top}"
    if part in PURE and not _is_pure(item):
        yield f"pure code imports {item.top}"


def _may_use_tensorflow(part: str) -> bool:
    return part == "worker" or f"{part}.".startswith("worker.task.")


def _is_pure(item: Import) -> bool:
    if item.module in PURE_NAMES:
        return bool(item.names) and PURE_NAMES[item.module].issuperset(item.names)
    return item.top in PURE_IMPORTS or (item.deferred and item.top in PURE_LATE_IMPORTS)


def _impure_calls(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Calls of builtins that touch the world, with their lines; what runs only under ``python -m`` may."""
    pending: list[ast.AST] = [node for node in tree.body if not _asks_for_main(node)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_BUILTINS:
            yield node.func.id, node.lineno
        pending.extend(ast.iter_child_nodes(node))


def _asks_for_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def sizes(module: str, source: str) -> Iterator[tuple[str, int, int]]:
    """(what, its lines, the limit), for the module and each function. A docstring does not count for its function."""
    yield module, len(source.splitlines()), LONGEST_MODULE
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0]
            doc = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
            documented = (first.end_lineno or 0) - first.lineno + 1 if doc else 0
            yield f"{module}.{node.name}", (node.end_lineno or 0) - node.lineno + 1 - documented, LONGEST_FUNCTION


# --- the house ---------------------------------------------------------------------------------


def modules() -> Iterator[tuple[str, str, bool]]:
    """(dotted name, text, is it a package) of every module of the product."""
    for path in sorted((*ROOT.glob("orchestrator/**/*.py"), *ROOT.glob("worker/**/*.py"))):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        yield ".".join(parts[:-1] if is_package else parts), path.read_text(encoding="utf-8"), is_package


def test_the_arrows_run_downwards_and_pure_code_is_pure() -> None:
    found = [text for module in modules() for text in complaints(*module)]
    assert not found, "\n".join(found)


def circles(house: Mapping[str, tuple[str, bool]]) -> list[list[str]]:
    """The circles of imports, also those inside functions and for types. `house`: each module's text, and whether it is a package."""
    graph: dict[str, set[str]] = {}
    for module, (source, is_package) in house.items():
        targets = (target for item in imports(ast.parse(source), module, is_package) for target in item.targets())
        graph[module] = {target if target in house else target.rpartition(".")[0] for target in targets} & (house.keys() - {module})
    found = []
    while graph:  # a module that imports nothing of the rest is in no circle, and neither is one that nothing of the rest imports
        used = set().union(*graph.values())
        free = {module for module, targets in graph.items() if not targets or module not in used}
        if not free:
            found.append(sorted(graph))
            break
        graph = {module: targets - free for module, targets in graph.items() if module not in free}
    return found


def test_no_import_leads_back() -> None:
    house = {module: (source, is_package) for module, source, is_package in modules()}
    assert circles(house) == []


def test_a_circle_is_found_wherever_its_imports_stand() -> None:
    late = {"a": ("import b", False), "b": ("def f():\n    import c", False), "c": ("if TYPE_CHECKING:\n    from a import X", False)}
    assert circles({**late, "d": ("import a", False), "e": ("", False)}) == [["a", "b", "c"]]
    assert circles({"a": ("import b", False), "b": ("import c", False), "c": ("", False)}) == []


def test_nothing_has_grown_out_of_its_limit() -> None:
    sized = (size for module, source, _ in modules() for size in sizes(module, source))
    over = [f"{what}: {lines} lines, at most {limit}" for what, lines, limit in sized if lines > limit]
    assert not over, "\n".join(over)


def test_a_name_of_a_module_is_given_once() -> None:
    """A traceback and the tab of an editor show the file's name only."""
    places: dict[str, list[str]] = {}
    for module, _, is_package in modules():
        if not is_package and not module.endswith(".__main__"):
            places.setdefault(module.rpartition(".")[2], []).append(module)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def room_of(module: str, house: Mapping[str, tuple[str, bool]]) -> str:
    return module if house[module][1] else module.rpartition(".")[0]


def test_no_room_leads_back() -> None:
    house = {module: (source, is_package) for module, source, is_package in modules()}
    arrows: dict[str, set[str]] = {room_of(module, house): set() for module in house}
    for module, (source, is_package) in house.items():
        room = room_of(module, house)
        for item in imports(ast.parse(source), module, is_package):
            found = {target if target in house else target.rpartition(".")[0] for target in item.targets()} & house.keys()
            others = {room_of(one, house) for one in found} - {room}
            arrows[room] |= {other for other in others if not f"{other}.".startswith(f"{room}.") and not f"{room}.".startswith(f"{other}.")}
    assert circles({room: ("\n".join(f"import {other}" for other in sorted(others)), False) for room, others in arrows.items()}) == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_is_for_and_what_it_may_import(room: str) -> None:
    """In the docstring of its ``__init__``, of which the arrows are made. What it may import exists, and a module of it does import it."""
    assert re.match(r"[A-Z].{20,}?\.(\s|$)", ROOMS[room], re.DOTALL), ROOMS[room]
    own = [(module, source, is_package) for module, source, is_package in modules() if part_in(module) == room]
    used = {
        target for module, source, is_package in own for item in imports(ast.parse(source), module, is_package) for target in item.targets()
    }
    assert [name for name in _may_import(ROOMS[room]) if not any(f"{target}.".startswith(f"{name}.") for target in used)] == []


def part_in(module: str) -> str:
    return module if module in ROOMS else module.rpartition(".")[0]


def test_no_room_is_crowded() -> None:
    rooms = Counter(module.rpartition(".")[0] for module, _, is_package in modules() if not is_package)
    assert {room: count for room, count in rooms.items() if count > MOST_MODULES} == {}


STRATEGY_TABLES = ("orchestrator.model.strategies", "worker.task.strategy.strategy_builder", "worker.task.strategy.pasted_cluster")
WORDS = ("none", "tpu")
"""Names of strategies that also are words, which texts may say therefore: nothing, and the section and the command that are about TPUs.
A comparison of a strategy with one of them is found all the same."""
_STRATEGY = re.compile(rf"(?<![/\w])(?:{'|'.join(name for name in STRATEGIES if name not in WORDS)})(?![/.\w])")


def strategy_names(module: str, source: str) -> Iterator[str]:
    """Where a module names a strategy in a text, or compares one with a constant: each should ask a row instead. Docstrings may."""
    tree = ast.parse(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone and _STRATEGY.search(node.value):
            yield f"{module}:{node.lineno}: names a strategy: {node.value!r}"
        if isinstance(node, ast.Compare) and "strategy" in (said := ast.unparse(node)):
            constants = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
            if any(isinstance(value, str) and value for value in constants):
                yield f"{module}:{node.lineno}: compares a strategy: {said}"


def test_only_their_tables_know_the_strategies() -> None:
    found = [text for module, source, _ in modules() if module not in STRATEGY_TABLES for text in strategy_names(module, source)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "times"),
    [
        ("x = spec.strategy == 'none'", 1),
        ("x = strategy in ('', 'mirrored')", 2),
        ("FIT = {'parameter_server': 1}", 1),
        ("def f(x):\n    return f'{x}: write parameter_server'", 1),
        ('def f(x):\n    """Of mirrored."""\n    return x.strategy == ""', 0),
        ("HINT = 'see examples/parameter_server.py'", 0),
    ],
)
def test_a_strategy_that_is_named_elsewhere_is_found(source: str, times: int) -> None:
    assert len(list(strategy_names("orchestrator.model.planning.plan", source))) == times


# In worker.settings.tpu_settings "local" is TensorFlow's word for a TPU.
PLACE_TABLES = (
    "orchestrator.model.settings.backend_sections",
    "orchestrator.backends",
    "worker.settings.tpu_settings",
    *backends.MODULES.values(),
)
SETTINGS = {field.name for section in BACKENDS.values() for field in fields(section)} - {"type"}


def place_names(module: str, source: str) -> Iterator[str]:
    """Where a module names a backend in a text, reads a backend's settings or imports its module: each should ask the backend instead."""
    tree = ast.parse(source)
    foreign = {name for name in BACKENDS if not module.startswith(f"{backends.MODULES.get(name)}.")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in foreign:
            yield f"{module}:{node.lineno}: names a backend: {node.value!r}"
        if isinstance(node, ast.Attribute) and node.attr in SETTINGS and ast.unparse(node.value).endswith(".backend"):
            yield f"{module}:{node.lineno}: reads a backend's settings: {ast.unparse(node)}"
    for item in imports(tree, module, is_package=False):
        own = {item.module, *item.targets()} & {*backends.MODULES.values()}
        if own and not module.startswith(tuple(f"{one}." for one in own)):
            yield f"{module}:{item.line}: imports {own.pop()}"


def test_only_their_modules_know_the_backends() -> None:
    found = [text for module, source, _ in modules() if module not in PLACE_TABLES for text in place_names(module, source)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "times"),
    [
        ("if spec.backend.type == 'ssh': pass", 1),
        ("for host in spec.backend.hosts: pass", 1),
        ("from .backends.ssh import OPTIONS", 1),
        ("from .backends import local", 1),
        ("hosts = imagine(spec).hosts\nkind = spec.backend.type", 0),
    ],
)
def test_a_backend_that_is_named_elsewhere_is_found(source: str, times: int) -> None:
    assert len(list(place_names("orchestrator.controller", source))) == times


LISTED = re.compile(r"^  ([a-z][a-z-]*)(?:  |$)", re.MULTILINE)

IN_A_FRESH_INTERPRETER = """
import sys, json
sys.argv[0] = "orch"
try:
    from orchestrator.cli import main
    main(sys.argv[1:])
except SystemExit as end:
    code = end.code or 0
sys.stdout.flush()
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


def help_of(*command: str) -> tuple[str, set[str]]:
    """What ``orch COMMAND --help`` prints, and the modules it has imported."""
    done = subprocess.run(
        [sys.executable, "-c", IN_A_FRESH_INTERPRETER, *command, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    code, imported = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stdout + done.stderr
    return done.stdout, set(imported)


def test_help_imports_nothing_heavy() -> None:
    text, imported = help_of()
    commands = LISTED.findall(text.partition("Run:")[2])
    assert {"up", "down", "ps", "logs"} <= set(commands), text
    found = [f"orch --help imports {name}" for name in HEAVY if name in imported]
    for command in commands:
        imported = help_of(command)[1]
        found += [f"orch {command} --help imports {name}" for name in HEAVY if name in imported]
    assert not found, "\n".join(found)


SLOW_IMPORTS = {
    *("click.shell_completion", "ctypes", "hashlib", "multiprocessing", "orchestrator.checks", "orchestrator.views", "tensorflow"),
    *("orchestrator.record.run_metrics", "urllib.request"),
}
"""What the controller of a run on this machine does not need: each of them takes milliseconds."""


def test_a_run_on_this_machine_imports_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    command = [sys.executable, "-X", "importtime", "-m", "orchestrator", "up", "script.py", "-n", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "orchestrator.controller" in imported, done.stderr
    assert imported & SLOW_IMPORTS == set()


FOREIGN = {"_pytest", "asyncio", "dataclasses", "glob", "os", "pytest", "site", "sys", "tensorflow", "tf", "time"}
"""Modules of others that docstrings and comments name."""
KEYS = {"backend", "input", "restart", "strategy", "tpu"}
"""Keys of orch.yaml, and objects of TensorFlow, that a dotted name may begin with."""
FILES = (".json", ".jsonl", ".log", ".py", ".txt", ".yaml")


def stale_names(source: str, inside: dict[str, str]) -> Iterator[str]:
    """Dotted names in backticks, in docstrings and comments, that are no module of the house or nothing in one.

    `inside`: the source of each module of the house. A name may leave out the packages around its module.
    """
    texts = [
        node.value.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    texts += [token.string for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type == tokenize.COMMENT]
    for name in re.findall(r"(?<!`)`([a-z_]\w*(?:\.\w+)+)`(?!`)", "\n".join(map(str, texts))):
        if name.partition(".")[0] in FOREIGN | KEYS or name.endswith(FILES):
            continue
        owner, _, last = name.rpartition(".")
        owners = [text for module, text in inside.items() if f".{module}".endswith(f".{owner}")]
        is_module = any(f".{module}".endswith(f".{name}") for module in inside)
        if not is_module and not any(re.search(rf"\b{last}\b", text) for text in owners):
            yield name


def test_dotted_names_in_docstrings_and_comments_exist() -> None:
    inside = {module: source for module, source, _ in modules()}
    found = [f"{module}: {name}" for module, source in inside.items() for name in stale_names(source, inside)]
    assert not found, "\n".join(found)


def test_a_name_that_a_rename_left_behind_is_found() -> None:
    inside = {"house.room.thing": "def made(): ..."}
    said = '"""`thing.made`, `room.thing`, `sys.path`, `a.json`, ``x.y``."""\n# `old.thing`, `thing.gone`\n'
    assert list(stale_names(said, inside)) == ["old.thing", "thing.gone"]


def test_each_setting_of_a_task_is_applied() -> None:
    """A field of a task's section is used by the code of the task, by its environment, by the agent or by the plan."""
    rooms = ("worker.task", "worker.host.processes", "orchestrator.model.planning")
    used = "\n".join(source for module, source, _ in modules() if module.startswith(rooms))
    pending: list[type] = [TaskSettings, TaskDevices]
    missing = []
    while pending:
        section = pending.pop()
        hints = get_type_hints(section)
        pending += [hints[field.name] for field in fields(section) if hasattr(hints[field.name], "__dataclass_fields__")]
        names = [field.name for field, _ in settings_of(section)]
        missing += [f"{section.__name__}.{name}" for name in names if not re.search(rf"\b{name}\b", used)]
    assert not missing


# --- the checker, checked ----------------------------------------------------------------------

BAD = {
    "model imports a backend": (
        "orchestrator.model.planning.plan",
        "import orchestrator.backends",
        "must not import orchestrator.backends",
    ),
    "model imports it relatively": (
        "orchestrator.model.planning.plan",
        "from ...record import run_directory",
        "must not import orchestrator.record",
    ),
    "model imports it for types": ("orchestrator.model.planning.plan", "if TYPE_CHECKING:\n    import orchestrator.record", "plan:2: "),
    "model imports os": ("orchestrator.model.planning.plan", "import os.path", "pure code imports os"),
    "model imports Path": ("orchestrator.model.settings", "from pathlib import Path", "pure code imports pathlib"),
    "model imports YAML early": ("orchestrator.model.settings", "import yaml", "pure code imports yaml"),
    "a slow dataclass": ("worker.protocol.messages", "from dataclasses import dataclass, field", "made by worker.values.fast_dataclass"),
    "model opens a file": ("orchestrator.model.settings", "def f(p):\n    return open(p).read()", "settings:2: pure code calls open()"),
    "model prints beside main": (
        "orchestrator.model.settings",
        "if __name__ == '__main__':\n    print(1)\nprint(2)",
        "settings:3: pure code calls print()",
    ),
    "the controller imports TensorFlow": (
        "orchestrator.control.supervisor",
        "def f():\n    import tensorflow as tf",
        "tensorflow is imported",
    ),
    "worker imports orchestrator": ("worker.host.agent", "from orchestrator import errors", "must not import orchestrator.errors"),
    "worker imports itself absolutely": (
        "worker.host.agent",
        "import worker.protocol.messages",
        "import worker.protocol.messages relatively",
    ),
    "worker imports psutil late": ("worker.host.agent", "def f():\n    import psutil", "standard library alone: psutil"),
    "task imports TensorFlow early": ("worker.task.strategy.strategy_builder", "import tensorflow as tf", "inside functions"),
    "task imports the host privately": ("worker.task.start_task", "from _orch_worker.host import agent", "must not import worker.host"),
    "a room nobody planned": ("orchestrator.utils", "", "has no place in the house"),
}

GOOD = {
    "cli": (
        "orchestrator.cli.completion",
        "import click\nfrom orchestrator.record.text import run_table\nfrom orchestrator import __version__",
    ),
    "model reads YAML late": ("orchestrator.model.settings.document", "def f(text):\n    import yaml\n    return yaml.parse(text)"),
    "model joins paths": ("orchestrator.model.settings.parse", "from pathlib import PurePosixPath"),
    "model as a program": ("orchestrator.model.settings.describe", "if __name__ == '__main__':\n    print(1)"),
    "start, under the private name": ("worker.task.start_task", "from _orch_worker.task import bootstrap"),
    "task": ("worker.task.strategy.strategy_builder", "def f():\n    import tensorflow as tf\n    import numpy"),
}


@pytest.mark.parametrize(("module", "source", "complaint"), BAD.values(), ids=BAD)
def test_the_checker_bites(module: str, source: str, complaint: str) -> None:
    found = complaints(module, source)
    assert any(complaint in text for text in found), found


@pytest.mark.parametrize(("module", "source"), GOOD.values(), ids=GOOD)
def test_the_checker_lets_good_code_pass(module: str, source: str) -> None:
    assert complaints(module, source) == []


def test_a_relative_import_in_a_package_starts_at_the_package() -> None:
    (item,) = imports(ast.parse("from .task import context"), "worker", is_package=True)
    assert item.module == "worker.task"
    assert complaints("worker", "def f():\n    from .task import context", is_package=True) == []
