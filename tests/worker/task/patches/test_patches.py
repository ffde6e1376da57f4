"""The table of patches, and what is made of it (worker/task/patches)."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from worker.settings import releases
from worker.task import patches
from worker.task.patches import features, import_hooks, table
from worker.task.patches.names import NAMES, Name
from worker.task.patches.package_sources import Sources, misfit, problems_of
from worker.task.patches.table import FEATURES

ROOT = Path(__file__).resolve().parents[4]
MOST = 62
"""Names that are replaced."""
MOST_OF_TRIALS = 24


def test_each_name_belongs_to_a_feature_and_each_feature_names_rows() -> None:
    named = {name for feature in FEATURES.values() for name in feature.names}
    assert named == NAMES.keys()
    assert {other for feature in FEATURES.values() for other in feature.needs} <= FEATURES.keys()


def test_the_forms_of_a_name_cover_all_releases_without_a_gap() -> None:
    ends = {
        "keras": (releases.OLDEST_KERAS, releases.NEWEST_KERAS),
        "tensorflow": (releases.OLDEST_TENSORFLOW, releases.NEWEST_TENSORFLOW),
    }
    for key, name in NAMES.items():
        found = [_range(words) for words in name.forms.values()]
        if found:
            first, last = (_minor(release) for release in ends[name.place.partition(".")[0]])
            assert [each[0] for each in found] == [first, *(each[1] + 1 for each in found[:-1])], key
            assert found[-1][1] == last, key


def _range(words: str) -> tuple[int, int]:
    first, *last = words.replace(" and ", " to ").split(" to ")
    return _minor(first), _minor((last or [first])[0])


def _minor(release: str) -> int:
    return int(release.partition(".")[2])


def test_each_replacement_takes_a_row_of_its_feature() -> None:
    """An import hook would catch the error, and the feature would be off with one line."""
    asked = [
        (getattr(features, of.id), call.args[1].value)
        for path in (ROOT / "worker").rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in [f"patches.{way}" for way in ("replace", "add", "give_back", "put")]
        for of in call.args[:1]
        if isinstance(of, ast.Name) and hasattr(features, of.id) and isinstance(call.args[1], ast.Constant)
    ]
    assert len(asked) > 40
    assert [(feature, name) for feature, name in asked if name not in FEATURES[feature].names] == []


def test_few_names_are_replaced() -> None:
    # Only `orch verify`, `orch scale` and functions of tests replace names of these alone.
    alone = (features.VERIFY, features.VERIFY_2, features.NO_SAVES, features.SCALE, features.SCALE_2, features.TESTS)
    trains = {name for feature, each in FEATURES.items() if feature not in alone for name in each.names}
    replaced = {name for name, each in NAMES.items() if not each.is_read}
    assert len(replaced & trains) <= MOST
    assert len(replaced - trains) <= MOST_OF_TRIALS


# --- an installed package ---------------------------------------------------------------------------


def _row(place: str = "library.module:f", **others: Any) -> Name:
    return Name(place, "a test", **others)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (_row(), ""),
        (_row(arguments="a"), ""),
        (_row(arguments="a, b"), ""),
        (_row(arguments="b"), "it has the arguments a, b, and not b"),
        (_row(arguments="a, b, c"), "it has the arguments a, b, and not a, b, c"),
        (_row("library.module:g", arguments="a, b"), ""),  # it takes anything
        (_row("library.module:h|library.module:f"), ""),
        (_row("library.module:h|library.other:f"), "there is no library.module:h and no library.other:f"),
        (_row("library.module:h", is_added=True), ""),
        (_row("another.module:f"), ""),  # not installed
        (_row("library.module:f@library.other"), ""),
        (_row(forms={"0123456789": "1.0"}), "its code is another one, "),
    ],
)
def test_whether_a_row_fits(tmp_path: Path, row: Name, why: str) -> None:
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "module.py").write_text("def f(a, b=1):\n    return a\n\n\ndef g(*everything):\n    pass\n")
    found = misfit(row, Sources(lambda name: str(tmp_path / name) if name == "library" else ""))
    assert found.startswith(why)
    assert bool(found) == bool(why)


@pytest.fixture(scope="module")
def keras(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a copy of the installed Keras's sources."""
    import importlib.util

    spec = importlib.util.find_spec("keras")
    if spec is None or spec.origin is None:
        pytest.skip("needs Keras")
    copied = tmp_path_factory.mktemp("packages")
    shutil.copytree(Path(spec.origin).parent, copied / "keras", ignore=shutil.ignore_patterns("__pycache__", "applications", "*.pyc"))
    return copied


@pytest.fixture
def changed(keras: Path) -> Iterator[Callable[[str, str, str], Sources]]:
    """Changes a text in a module of the copy of Keras, and gives its sources; undone after the test."""
    kept: dict[Path, str] = {}

    def change(module: str, old: str, new: str) -> Sources:
        path = keras.joinpath(*module.split(".")).with_suffix(".py")
        text = kept.setdefault(path, path.read_text())
        assert old in text
        path.write_text(text.replace(old, new))
        return Sources(lambda name: str(keras / name) if name == "keras" else "")

    yield change
    for path, text in kept.items():
        path.write_text(text)


TRAINER, LOSS = "keras.src.backend.tensorflow.trainer", "keras.src.losses.loss"


@pytest.mark.parametrize(
    ("module", "old", "new", "off"),
    [
        (LOSS, "def reduce_values(", "# new words\ndef reduce_values(", set()),
        (LOSS, "    loss = ops.sum(values)", "    loss = ops.sum(values) * 1", {features.STEP, features.FIT, features.WARNINGS}),
        (LOSS, "def apply_mask(", "def apply_a_mask(", {features.STEP, features.FIT, features.WARNINGS}),
        (
            "keras.src.trainers.data_adapters.array_slicing",
            "def train_validation_split(",
            "def split(",
            {features.LOOPS, features.FIT, features.SAVES},
        ),
        ("keras.src.trainers.epoch_iterator", "self._steps_seen = 0", "self._seen = 0", {features.LOOPS, features.FIT, features.SAVES}),
        (
            "keras.src.saving.saving_lib",
            "def save_weights_only(",
            "def save_the_weights(",
            {features.FILES, features.NO_SAVES, features.VERIFY, features.VERIFY_2, features.SCALE, features.SCALE_2},
        ),
        (
            TRAINER,
            "class TensorFlowTrainer(",
            "class Another(",
            {
                features.LOOPS,
                features.FIT,
                features.SAVES,
                features.STEP,
                features.PARTS,
                features.WARNINGS,
                features.REPORTS,
                features.REFUSAL,
                features.VERIFY,
                features.VERIFY_2,
                features.SCALE,
                features.SCALE_2,
            },
        ),
    ],
)
def test_a_changed_name_turns_its_features_off_as_a_whole(
    changed: Callable[[str, str, str], Sources], module: str, old: str, new: str, off: set[str]
) -> None:
    sources = changed(module, old, new)
    assert {feature for feature in FEATURES if problems_of(feature, sources)} == off


def test_the_check_prints_the_rows_that_do_not_fit_and_imports_nothing(keras: Path, changed: Callable[[str, str, str], Sources]) -> None:
    changed("keras.src.trainers.data_adapters.array_slicing", "def train_validation_split(", "def split(")
    checked = _check(str(keras))
    assert checked.returncode == 1
    where = "keras.src.trainers.data_adapters.array_slicing:train_validation_split"
    assert f"off: {features.LOOPS}\n    train_validation_split: there is no {where}\n" in checked.stdout
    installed = _check()
    assert installed.returncode == 0, installed.stdout
    assert f"{len(FEATURES)} of {len(FEATURES)} features are on" in installed.stdout
    assert _check("a", "b").returncode == 2


def _check(*place: str) -> subprocess.CompletedProcess[str]:
    """Run the check, which must import no library, and not orch's controller."""
    program = (
        "import runpy, sys; sys.argv = ['patches', '--check', *sys.argv[1:]]\n"
        "try: runpy.run_module('worker.task.patches', run_name='__main__')\n"
        "finally: assert not {'tensorflow', 'keras', 'tf_keras', 'numpy', 'orchestrator'} & sys.modules.keys()"
    )
    return subprocess.run((sys.executable, "-c", program, *place), cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_form_of_an_installed_function_is_told_by_its_releases(
    changed: Callable[[str, str, str], Sources], monkeypatch: pytest.MonkeyPatch
) -> None:
    last = list(NAMES["Trainer._make_function"].forms.values())
    monkeypatch.setattr(patches, "_sources", [])
    assert patches.form_of("Trainer._make_function") in last
    patches._sources[:] = [changed(TRAINER, "def one_step_on_data(data):", "def one_step_on_data(data, more=0):")]
    assert patches.form_of("Trainer._make_function") == ""


# --- replacing ----------------------------------------------------------------------------------------

OWNED = """
value = 1

class Kind:
    def name(self):
        return "real"

    @staticmethod
    def fixed(a):
        return a
"""


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module `owned`, of which the features "one" and "another" have rows."""
    made: Any = ModuleType("owned")
    exec(OWNED, made.__dict__)
    monkeypatch.setitem(sys.modules, "owned", made)
    rows = {name: _row(f"owned:{name}") for name in ("Kind.name", "Kind.fixed", "value")}
    rows["Kind.new"] = _row("owned:Kind.new", is_added=True)
    for name, row in rows.items():
        monkeypatch.setitem(NAMES, name, row)
    for feature in ("one", "another"):
        monkeypatch.setitem(FEATURES, feature, table.Feature(tuple(rows), "measures", "nothing works"))
        monkeypatch.setitem(patches._problems, feature, [])
    return made


def test_a_feature_replaces_a_name_once_and_two_features_do_so_one_after_the_other(owner: Any) -> None:
    for feature in ("one", "another", "one"):
        patches.replace(feature, "Kind.name", lambda real, self, feature=feature: f"{feature} of {real(self)}")
    assert owner.Kind().name() == "another of one of real"
    patches.give_back("one", "Kind.name")  # not the last one
    assert owner.Kind().name() == "another of one of real"
    patches.give_back("another", "Kind.name")
    assert owner.Kind().name() == "one of real"


def test_a_static_function_stays_one(owner: Any) -> None:
    patches.replace("one", "Kind.fixed", lambda real, a: real(a) + 1)
    assert (owner.Kind.fixed(1), owner.Kind().fixed(1)) == (2, 2)


def test_a_missing_function_is_added_and_a_value_is_changed(owner: Any) -> None:
    patches.add("one", "Kind.new", lambda self: "new")
    patches.add("one", "Kind.new", lambda self: "newer")
    patches.put("one", "value", lambda value: value + 1)
    assert (owner.Kind().new(), owner.value) == ("new", 2)


def test_a_feature_that_is_off_replaces_nothing_and_one_line_says_what_is_lost(
    owner: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(import_hooks, "_printed", set())
    monkeypatch.delenv("ORCH_TASK", raising=False)
    monkeypatch.setitem(patches._problems, "one", ["Kind.name: its code is another one, 0123456789", "and more"])
    for name in ("Kind.name", "Kind.fixed"):
        patches.replace("one", name, lambda real, *args: "ours")
    patches.put("one", "value", lambda value: None)
    assert (owner.Kind().name(), owner.value) == ("real", 1)
    line = capfd.readouterr().err
    assert line.startswith(
        "orch: warning: one: off, because this release is unknown (Kind.name: its code is another one, 0123456789); without it, "
    )
    assert "nothing works. orch knows Keras 3.10 to 3.16" in line
    assert "pip install 'keras>=3.10,<3.17'" in line
    assert line.count("\n") == 1


def test_a_name_without_a_source_turns_its_feature_off_where_it_is_used_first(
    owner: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(import_hooks, "_printed", set())
    monkeypatch.delenv("ORCH_TASK", raising=False)
    del owner.Kind.fixed
    for name in ("Kind.fixed", "Kind.name"):
        patches.replace("one", name, lambda real, *args: "ours")
    assert owner.Kind().name() == "real"
    why = "because this release is unknown (Kind.fixed: owned does not have it);"
    assert capfd.readouterr().err.startswith(f"orch: warning: one: off, {why}")


def test_a_name_that_is_no_row_is_refused(owner: Any) -> None:
    with pytest.raises(AssertionError, match="no row of one"):
        patches.replace("one", "Trainer.fit", lambda real: None)


# --- nothing is patched by another way -------------------------------------------------------------------

OWN_WAYS = {
    ("own_tf_config.py", "os.environ._data"): "the row os.environ, before any import",
    ("own_tf_config.py", "os.environb._data"): "the row os.environ, before any import",
    ("failure.py", "sys.stderr"): "for as long as a traceback is written",
    ("failure.py", "sys.excepthook"): "Python's own hook for this",
    ("failure.py", "sys.__excepthook__"): "Python's own hook for this, in a notebook, whose lines are in no file",
    ("failure.py", "sys.last_traceback"): "as Python sets it",
    ("failure.py", "linecache.cache.…"): "the lines of cells and of functions, which are in no file here",
    ("fixture/debugger.py", "sys.breakpointhook"): "Python's own hook for this",
    ("fixture/resident.py", "vars(sys.modules['tempfile'])['tempdir']"): "Python's own variable for this",
    ("input/input_counter.py", "module.…"): "where the counter of the row input_lib._create_per_replica is",
    ("observe/record_hooks.py", "tempfile.tempdir"): "Python's own variable for this",
    ("patches/import_hooks.py", "sys.meta_path.…"): "Python's own list for this",
    ("program.py", "sys.argv"): "the arguments of the user's program",
    ("program.py", "sys.orig_argv"): "the arguments of the user's program",
    ("program.py", "sys.modules['__main__']"): "the user's program",
    ("program.py", "sys.modules[name]"): "modules that the user's program has under these names",
    ("pythonpath/worker.py", "sys.modules[__name__]"): "orch's own module",
    ("start_task.py", "sys.modules[package.__name__]"): "orch's own module",
    ("sent_function.py", "sys.modules[name]"): "the cloudpickle that has packed the function",
    ("sent_function.py", "sys.modules[f'{name}.{name}']"): "the cloudpickle that has packed the function",
    ("shared.py", "sys.modules.…"): "orch's own module",
    ("sigterm.py", "function.restype"): "of a new object of ctypes",
    ("sigterm.py", "function.argtypes"): "of a new object of ctypes",
}
"""What else of Python is set, and why."""
OPEN_WAYS = re.compile(r"os\.environ(\[|\.…)|sys\.path(\[|\.…|$)")
"""The variables and the path of the user's program."""


_MUTATING = frozenset(
    (
        "append",
        "extend",
        "insert",
        "add",
        "update",
        "setdefault",
        "pop",
        "popitem",
        "remove",
        "discard",
        "clear",
        "__setitem__",
        "__delitem__",
    )
)
_GIVES_MODULE = frozenset(
    ("getattr", "vars", "type", "__import__", "import_module", "importlib.import_module", "sys.modules.get", "reload")
)
"""A call of one of these gives a part of another package, if it is given one, or the name of one."""
_SETTERS = frozenset(("setattr", "delattr", "update_wrapper", "functools.update_wrapper", "patch", "mock.patch.object", "mock.patch.dict"))


class _Foreign:
    """Tells what is a module of another package, or a part of one, in a source: an import, another name for it, or an argument."""

    def __init__(self, tree: ast.AST) -> None:
        nodes = list(ast.walk(tree))
        imports = [node for node in nodes if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and not node.level)]
        self._names = {alias.asname or alias.name.partition(".")[0] for node in imports for alias in node.names}
        arguments = [
            each for node in nodes if isinstance(node, ast.arguments) for each in (*node.posonlyargs, *node.args, *node.kwonlyargs)
        ]
        self._names |= {each.arg for each in arguments if each.arg == "module" or "ModuleType" in ast.unparse(each.annotation or each)}
        while found := {name for node in nodes for name in self._aliases(node)} - self._names:
            self._names |= found

    def has(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self._names
        if isinstance(node, ast.Call):
            gives = ast.unparse(node.func) in _GIVES_MODULE
            return gives and any(self.has(each) or isinstance(each, ast.Constant) for each in node.args[:1])
        if isinstance(node, ast.IfExp):
            return self.has(node.body) or self.has(node.orelse)
        if isinstance(node, (ast.Tuple, ast.List)):
            return any(map(self.has, node.elts))
        return isinstance(node, (ast.Attribute, ast.Subscript, ast.NamedExpr, ast.Starred)) and self.has(node.value)

    def _aliases(self, node: ast.AST) -> Iterator[str]:
        value: ast.AST | None = getattr(node, "iter" if isinstance(node, (ast.For, ast.comprehension)) else "value", None)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if value is not None and self.has(value):
            yield from (each.id for target in targets for each in _flat(target) if isinstance(each, ast.Name))


def _flat(target: Any) -> list[ast.AST]:
    if isinstance(target, (ast.Tuple, ast.List)):
        return [each for part in target.elts for each in _flat(part)]
    return [target.value if isinstance(target, ast.Starred) else target] if target is not None else []


def assignments(source: str) -> Iterator[tuple[int, str]]:
    """The line and the text of each place that sets or removes an attribute or an item of another package's module, or of a part of it."""
    tree = ast.parse(source)
    foreign = _Foreign(tree)
    for node in ast.walk(tree):
        targets: list[Any] = [*getattr(node, "targets", ()), getattr(node, "target", None), getattr(node, "optional_vars", None)]
        places = [each for target in targets for each in _flat(target) if isinstance(each, (ast.Attribute, ast.Subscript))]
        found = [ast.unparse(each) for each in places if foreign.has(each.value)]
        if isinstance(node, ast.Call):
            name, last = ast.unparse(node.func), getattr(node.func, "attr", "")
            if (name in _SETTERS or last in ("__setattr__", "__delattr__")) and any(map(foreign.has, node.args[:1])):
                found = [f"{ast.unparse(node.args[0])}.…"]
            elif name in ("patch", "mock.patch"):
                found = [name]
            elif isinstance(node.func, ast.Attribute) and last in _MUTATING and foreign.has(node.func.value) and name != "os.remove":
                found = [f"{ast.unparse(node.func.value)}.…"]
        yield from ((getattr(node, "lineno", 0), text) for text in found)


def test_nothing_of_another_package_is_replaced_outside_of_the_table() -> None:
    found, ways = {}, set(OWN_WAYS)
    for path in sorted(ROOT.glob("worker/task/**/*.py")):
        name = str(path.relative_to(ROOT / "worker" / "task"))
        for line, text in assignments(path.read_text()):
            if (name, text) not in OWN_WAYS and not OPEN_WAYS.match(text):
                found[f"{name}:{line}"] = text
            ways.discard((name, text))
    assert found == {}
    assert ways == set(), "nothing does this any more"


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("import tensorflow as tf\ntf.random.shuffle = f", ["tf.random.shuffle"]),
        ("def f():\n    from keras.src import ops\n    ops.cond = 1", ["ops.cond"]),
        ("import os\nos.environ._data = os.environb._data = x", ["os.environ._data", "os.environb._data"]),
        ("from keras.src.trainers import trainer\nsetattr(trainer.Trainer, 'fit', f)", ["trainer.Trainer.…"]),
        ("import inspect\ninspect.a, inspect.b = 1, 2", ["inspect.a", "inspect.b"]),
        ("import keras\nkind = keras.Model\nother = kind\nother.fit = f", ["other.fit"]),
        ("import keras\nfor kind in (keras.Model, keras.Sequential):\n    kind.fit = f", ["kind.fit"]),
        ("import keras\nif (kind := keras.Model):\n    kind.fit = f", ["kind.fit"]),
        ("import keras\nvars(keras.Model)['fit'] = f", ["vars(keras.Model)['fit']"]),
        ("import keras\nkeras.Model.__dict__['fit'] = f", ["keras.Model.__dict__['fit']"]),
        ("import keras\nkeras.__dict__.update(fit=f)", ["keras.__dict__.…"]),
        ("import keras\nnames = vars(keras)\nnames.update(fit=f)", ["names.…"]),
        ("import sys\nsys.modules['keras'].Model = f", ["sys.modules['keras'].Model"]),
        ("import sys\nsys.modules['keras'] = f", ["sys.modules['keras']"]),
        ("import sys\nloss = sys.modules.get('keras')\nloss.mean = f", ["loss.mean"]),
        ("import importlib\nimportlib.import_module('keras').Model = f", ["importlib.import_module('keras').Model"]),
        ("__import__('keras').Model = f", ["__import__('keras').Model"]),
        ("import keras\ntype.__setattr__(keras.Model, 'fit', f)", ["keras.Model.…"]),
        ("import keras\nsetattr(getattr(keras, 'Model'), 'fit', f)", ["getattr(keras, 'Model').…"]),
        ("import functools, keras\nfunctools.update_wrapper(keras.Model.fit, f)", ["keras.Model.fit.…"]),
        ("import keras\nkeras.Model.fit.__code__ = f.__code__", ["keras.Model.fit.__code__"]),
        ("import keras\ndel keras.Model.fit", ["keras.Model.fit"]),
        ("import keras\nkeras.src.names.append(f)", ["keras.src.names.…"]),
        ("import keras\nwith f() as keras.Model.fit:\n    pass", ["keras.Model.fit"]),
        ("import keras\n[0 for keras.Model.fit in f]", ["keras.Model.fit"]),
        ("def hook(module):\n    module.value = 1", ["module.value"]),
        ("def hook(keras: ModuleType):\n    keras.Model.fit = 1", ["keras.Model.fit"]),
        ("from unittest.mock import patch\npatch('keras.Model.fit', f)", ["patch"]),
        ("from unittest import mock\nimport keras\nmock.patch.object(keras.Model, 'fit', f)", ["keras.Model.…"]),
        ("from . import own\nown.value = 1", []),
        ("self.value = 1\nsetattr(self, 'a', 1)", []),
        ("import keras\nmodel = keras.Model()\nmodel.value = 1", []),
        ("import os\nos.remove('a')", []),
    ],
)
def test_an_assignment_to_another_package_is_found(source: str, texts: list[str]) -> None:
    assert [text for _, text in assignments(source)] == texts
