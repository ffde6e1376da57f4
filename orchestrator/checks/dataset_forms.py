"""Forms of a program's dataset that the planner of ``orch shards`` does not model, found by the program's syntax alone.

The planner (`planning.sharding`) knows files that are read, and `batch` as the last step. For other forms TensorFlow gives other
batches, or fails; tests/real/test_shards.py asks TensorFlow about each form in `CASES` of tests/real/shard_forms.py.
Only a dataset that the program gives to `fit`, to `experimental_distribute_dataset` or to `worker.distribute` is looked at.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator

from worker.values.fast_dataclass import dataclass

from ..model.planning.sharding import Applied
from ..model.planning.sharding_advice import Sharded
from ..model.settings import ClusterSpec


@dataclass(frozen=True, slots=True)
class DatasetStep:
    """One call of the chain that makes a dataset."""

    name: str
    line: int
    words: tuple[str, ...] = ()
    """What the planner needs of the call's arguments: ``drop_remainder``, ``num_parallel_calls``, ``SHARD_HINT``."""
    inside: str = ""
    """A step of the function of an `interleave` or `flat_map` that makes other elements."""


@dataclass(frozen=True, slots=True)
class Form:
    """Why a dataset cannot be judged."""

    line: int
    why: str
    always: bool = True
    """Under every policy; False: under DATA the planner knows the form."""
    is_risky: bool = False
    """A run may fail because of this form."""


_READERS = frozenset(("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset", "CsvDataset", "make_csv_dataset"))
_LISTS = frozenset(("list_files", "from_tensor_slices"))
_SINKS = frozenset(("fit", "experimental_distribute_dataset", "distribute"))
_OF_FILES = frozenset(("interleave", "flat_map"))
_BATCHES = frozenset(("batch", "padded_batch", "ragged_batch"))
_DRAWS = frozenset(("sample_from_datasets", "choose_from_datasets"))
_COUNTS = frozenset(("take", "skip", "shard", "filter", "take_while", "unique", "window", "ignore_errors", "rejection_resample"))
_CUTS = frozenset(("rebatch", "bucket_by_sequence_length", "group_by_window"))
_PASSED = frozenset(("cache", "prefetch", "repeat", "shuffle", "with_options", "apply", "options", "take", "skip", "unbatch"))
"""Steps after `batch` through which TensorFlow finds the batch size: compute_batch_size_op.cc in tensorflow/core/kernels/data."""


def find(script: str, planned: Sharded) -> Form | None:
    """The first form in this script that the planner does not model; None if there is none, or if nothing is divided. Raises `OSError`."""
    if planned.ignored or planned.sharding.all_replicas == 1:
        return None
    with open(script, "rb") as file:
        return unmodelled(file.read(), planned.sharding.applied)


def script_of(spec: ClusterSpec) -> str:
    """The script of the spec if this machine has the file; else empty."""
    path = os.path.join(spec.workdir, spec.program.target)
    return path if spec.program.kind == "script" and os.path.isfile(path) else ""


def unmodelled(source: bytes, applied: Applied) -> Form | None:
    """The first form that the planner does not model under this policy; None: there is none that the syntax shows."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return next((form for chain in _Chains(tree).distributed() if (form := _judge(chain, applied))), None)


def _judge(chain: tuple[DatasetStep, ...], applied: Applied) -> Form | None:
    """Return what the planner does not model in this chain."""
    names = [step.name for step in chain]
    if not any(name in _READERS or name in _LISTS for name in names):
        return None
    is_read, batched = False, None
    for place, step in enumerate(chain):
        name = step.name
        if name in _DRAWS:
            return Form(step.line, f"{name} decides how many elements of each dataset are read, and TensorFlow finds no files behind it")
        if name == "concatenate" and applied == "file":
            return Form(
                step.line,
                f"concatenate joins several readers, and TensorFlow divides the files of each by itself: {_JOINED}",
                False,
                is_risky=True,
            )
        if name == "repeat" and not is_read and not _OF_FILES.isdisjoint(names[place:]):
            return Form(step.line, "repeat comes before the files are read, and TensorFlow divides the repeated list of files")
        if name in _COUNTS and "SHARD_HINT" not in step.words:
            return Form(step.line, f"{name} changes the number of elements, which orch counts in the files")
        if name in _OF_FILES and (is_read or step.inside):
            return Form(
                step.line, f"{name} {f'with {step.inside}' if step.inside else 'after the reader'} makes other elements than the files hold"
            )
        if name in _BATCHES and batched is not None:
            return Form(step.line, f"{name} of batches (line {batched.line}) makes batches of another size")
        is_cut = name in _CUTS or (name == "batch" and "num_parallel_calls" in step.words)
        after = batched is not None and name not in _PASSED and name != "concatenate"
        if (is_cut or after) and applied != "data" and not (batched and "drop_remainder" in batched.words):
            return Form(
                step.line, f"{_after(name, batched)} TensorFlow does not know the batch size, and divides each batch by itself", False
            )
        is_read = is_read or name in _READERS or name in _OF_FILES
        batched = None if name == "unbatch" else step if name in _BATCHES else batched
    return None


_JOINED = "it fails in some workers, while the others wait for them, where one reader has fewer files than there are workers"


def _after(name: str, batched: DatasetStep | None) -> str:
    return f"with {name} after batch" if batched is not None else f"with {name}" + (" in parallel" if name == "batch" else "")


class _Chains:
    """The datasets of one file: what each name stands for, in the order of the text."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._names: dict[str, tuple[DatasetStep, ...]] = {}

    def distributed(self) -> Iterator[tuple[DatasetStep, ...]]:
        """Each dataset that is given to one of `_SINKS`."""
        for _ in range(2):  # the second time, a function that stands below its call is known
            found = [chain for node in _in_order(self._tree) for chain in self._follow(node)]
        yield from found

    def _follow(self, node: ast.AST) -> Iterator[tuple[DatasetStep, ...]]:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self._names[target.id] = self._chain(node.value)
        elif isinstance(node, ast.FunctionDef):
            returned = [one.value for one in ast.walk(node) if isinstance(one, ast.Return) and one.value is not None]
            self._names[node.name] = self._chain(returned[-1]) if returned else ()
        elif isinstance(node, ast.Call) and _name(node.func) in _SINKS:
            given = [*node.args[:1], *(word.value for word in node.keywords if word.arg in ("x", "dataset"))]
            yield from (self._chain(one) for one in given)

    def _chain(self, node: ast.expr) -> tuple[DatasetStep, ...]:
        """The calls that make the value of an expression, the first of them first."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, ())
        if not isinstance(node, ast.Call):
            return ()
        name = _name(node.func)
        if isinstance(node.func, ast.Name) and name in self._names:
            return self._names[name]
        if name in _SINKS:
            return ()
        before = self._chain(node.func.value) if isinstance(node.func, ast.Attribute) else ()
        drawn = node.args[0].elts if name in _DRAWS and node.args and isinstance(node.args[0], ast.List) else ()
        before += tuple(step for one in drawn for step in self._chain(one))
        function = node.args[0] if name in _OF_FILES and node.args else None
        inner = self._chain(function.body if isinstance(function, ast.Lambda) else function) if function is not None else ()
        inside = [step.name for step in inner if step.name in _BATCHES | _COUNTS or step.name in ("concatenate", "repeat")]
        return (*before, DatasetStep(name, node.lineno, _words(node), inside[0] if inside else ""))


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""


def _words(call: ast.Call) -> tuple[str, ...]:
    found = [word.arg for word in call.keywords if word.arg and not (isinstance(word.value, ast.Constant) and not word.value.value)]
    return (*found, *(one.attr for one in call.args if isinstance(one, ast.Attribute)))


def _in_order(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes in the order of the text, each after its parts: a value before its assignment, and a body before its function."""
    for node in ast.iter_child_nodes(tree):
        yield from _in_order(node)
        yield node
