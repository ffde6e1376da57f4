"""Describes how a Python file uses Keras, by its syntax alone: nothing is imported or run.

A use is a text:

    tf.keras.layers.Dense              a full name
    tf.keras.Sequential().fit          () stands for an object that this call has made
    ?.fit                              ? stands for an object of which nothing is known

One table for the whole file has what each name stands for. A name that is imported or assigned twice, with different values, is unknown.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING

from ...settings.keras_settings import LEGACY

if TYPE_CHECKING:
    from typing import TypeGuard

UNKNOWN = "?"
_MODELS = frozenset(
    f"{root}.{name}()" for root in ("tf.keras", "keras") for name in ("Sequential", "Model", "models.Sequential", "models.Model")
)
_TELLING = {"epochs", "steps_per_epoch", "validation_data", "validation_steps", "callbacks"}
"""Arguments of Keras's `fit` that the `fit` of other libraries does not have."""
LOOPS = ("fit", "evaluate", "predict")
_ENDING = re.compile(r"\b(?:return|raise|exit|_exit|quit|abort)\b")


class Source:
    """The syntax of one file."""

    def __init__(self, path: str, tree: ast.Module, text: bytes = b"") -> None:
        """`path`: for messages."""
        self.path, self._tree, self.text = path, tree, text
        self._nodes = list(ast.walk(tree))
        self.imports = {whole.partition(".")[0] for node in self._nodes for _, whole in _imports(node)}
        """The top-level modules that the file imports."""
        self.imports_neighbours = any(isinstance(node, ast.ImportFrom) and node.level for node in self._nodes)
        self.uses_keras = not self.imports.isdisjoint({"tensorflow", "keras"})
        """Whether the file may use Keras at all."""
        self.sets_keras = any(isinstance(node, ast.Constant) and node.value == LEGACY for node in self._nodes)
        """Whether the file names the variable that chooses Keras 2."""
        self._names: dict[str, str] = {}
        """What a name stands for, if that is one thing alone in this file."""
        if self.uses_keras:
            bindings = list(self._bindings())
            for _ in range(2):  # the second time, a name that is imported is known where its value is assigned
                meanings: dict[str, set[str]] = defaultdict(set)
                for name, value in bindings:
                    meanings[name].add(value if isinstance(value, str) else self._text(value))
                self._names = {name: found.pop() for name, found in meanings.items() if len(found) == 1 and UNKNOWN not in found}

    def _bindings(self) -> Iterator[tuple[str, str | ast.expr | None]]:
        """Each name that the file binds, with the full name of an import, or the value; None: the value is not known."""
        assignments = [node for node in self._nodes if isinstance(node, ast.Assign)]
        values: dict[ast.AST, ast.expr] = {target: node.value for node in assignments for target in node.targets}
        for node in self._nodes:
            yield from ((name, _short(whole)) for name, whole in _imports(node))
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id, values.get(node)
            elif isinstance(node, ast.arg):
                yield node.arg, None
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)) and node.name:
                yield node.name, None

    def _text(self, node: ast.AST | None) -> str:
        """Return what an expression stands for."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, UNKNOWN)
        if isinstance(node, ast.Attribute):
            return f"{self._text(node.value)}.{node.attr}"
        made_by = self._text(node.func) if isinstance(node, ast.Call) else UNKNOWN
        return UNKNOWN if made_by == UNKNOWN else f"{made_by}()"

    def uses(self) -> Iterator[tuple[int, str]]:
        """The line and the text of each name with a dot, and of each name that the file imports from a module."""
        for node in self._nodes:
            if isinstance(node, ast.Attribute):
                yield node.lineno, self._text(node)
            elif isinstance(node, ast.ImportFrom):
                yield from ((node.lineno, _short(whole)) for _, whole in _imports(node))

    # --- fit ---------------------------------------------------------------------------------------

    def loops(self) -> Iterator[tuple[int, str]]:
        """Each call of `fit`, `evaluate` or `predict` that seems to be of a Keras model: its line and its name."""
        for node in self._nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOPS:
                is_telling = self.uses_keras and not _TELLING.isdisjoint(word.arg for word in node.keywords)
                if is_telling or self._text(node.func.value) in _MODELS:
                    yield node.lineno, node.func.attr

    def certain_loop(self, strategy: str, loops: Container[str] = LOOPS) -> tuple[int, str] | None:
        """The first call of one of these loops of a model that is made in the scope of the run's strategy, both outside of any condition.

        `strategy`: the name of its class. `worker.strategy()` makes it too. Returns the line and the name of the loop.
        """
        scopes = (f".{strategy}().scope()", "worker.strategy().scope()")
        in_scope: set[str] = set()
        functions = {node.name: node.body for node in self._tree.body if isinstance(node, ast.FunctionDef)}
        for node, scope in self._certain_statements(self._tree.body, UNKNOWN, functions):
            if isinstance(node, ast.Assign) and scope.endswith(scopes) and self._text(node.value) in _MODELS:
                in_scope |= {target.id for target in node.targets if isinstance(target, ast.Name) and target.id in self._names}
            elif isinstance(value := getattr(node, "value", None), ast.Call):
                owner, _, method = ast.unparse(value.func).rpartition(".")
                if owner in in_scope and method in loops:
                    return node.lineno, method
        return None

    def certain_strategy(self, strategy: str) -> int:
        """The line on which the program makes this strategy outside of any condition; 0: the syntax shows none. `strategy`: its class."""
        functions = {node.name: node.body for node in self._tree.body if isinstance(node, ast.FunctionDef)}
        made = (node for node, _ in self._certain_statements(self._tree.body, UNKNOWN, functions) if isinstance(node, ast.Assign))
        return next((node.lineno for node in made if self._text(node.value).endswith(f".{strategy}()")), 0)

    def _certain_statements(self, body: list[ast.stmt], scope: str, functions: dict[str, list[ast.stmt]]) -> Iterator[tuple[ast.stmt, str]]:
        """The statements in no condition and no loop, up to the first that may end the program, each with the scope that it is in.

        The body of one of `functions` is followed at the function's first call. A ``with`` that may suppress an exception is a condition:
        only those of scopes and of TensorFlow are followed.
        """
        for node in body:
            called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
            entered = [self._text(item.context_expr) for item in node.items] if isinstance(node, ast.With) else []
            if isinstance(node, ast.With) and all(text.endswith(".scope()") or text.startswith("tf.") for text in entered):
                scopes = [scope, *(text for text in entered if text.endswith(".scope()"))]
                yield from self._certain_statements(node.body, scopes[-1], functions)
            elif _is_main(node):
                yield from self._certain_statements(node.body, scope, functions)
            elif isinstance(called, ast.Name) and called.id in functions:
                yield from self._certain_statements(functions.pop(called.id), scope, functions)
            elif not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield node, scope
                if _ENDING.search(ast.unparse(node)):
                    return

    # --- what runs, and what is saved ----------------------------------------------------------------

    def calls(self) -> Iterator[tuple[int, str]]:
        """Each call that the program makes when it runs, in conditions too, with its line: outside of functions, and in those it calls."""
        functions = {node.name: node for node in self._tree.body if isinstance(node, ast.FunctionDef)}
        waiting: list[ast.AST] = [node for node in self._tree.body if not isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        while waiting:
            for node in ast.walk(waiting.pop(0)):
                if isinstance(node, ast.Call):
                    yield node.lineno, ast.unparse(node.func)
                    if isinstance(node.func, ast.Name) and node.func.id in functions:
                        waiting.append(functions.pop(node.func.id))

    def late_imports(self, called: Container[str]) -> Iterator[tuple[int, str]]:
        """The line and the top-level module of each import that is after a statement that does something, or in one of these functions.

        Imports in a condition, a loop or a ``try`` are left out.
        """
        is_late = False
        for node in _certain(self._tree.body):
            yield from _certain_imports([node], called, is_late=is_late)
            is_late = is_late or (isinstance(node, (ast.Expr, ast.With, ast.For, ast.While)) and not _is_text(node))

    def certain_import(self, name: str) -> int:
        """The line of an import of a top-level module in no condition and before the program does anything; 0: the syntax shows none."""
        for node in self._tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                if any(whole.partition(".")[0] == name for _, whole in _imports(node)):
                    return node.lineno
            elif not (_is_text(node) or isinstance(node, (ast.FunctionDef, ast.ClassDef))):
                return 0
        return 0

    def functions(self) -> Iterator[tuple[str, list[ast.stmt]]]:
        """The name and the body of each function and method; the name of a program's own statements is empty."""
        yield "", self._tree.body
        for node in self._nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node.name, node.body

    def saves(self) -> Iterator[tuple[int, str, str]]:
        """Each call of `save` or `save_weights` of a Keras model: its line, its name, and the end of the path; empty: unknown."""
        trained = {ast.unparse(method.value) for _, method in self._method_calls("compile", "fit")}
        for call, method in self._method_calls("save", "save_weights"):
            if self.uses_keras and call.args and (self._text(method.value) in _MODELS or ast.unparse(method.value) in trained):
                yield call.lineno, method.attr, self._end_of(call.args[0])

    def _method_calls(self, *names: str) -> Iterator[tuple[ast.Call, ast.Attribute]]:
        for node in self._nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names:
                yield node, node.func

    def _end_of(self, path: ast.expr) -> str:
        """The last constant part of a path; empty: unknown."""
        if isinstance(path, ast.Constant):
            return path.value if isinstance(path.value, str) else ""
        if isinstance(path, ast.JoinedStr):
            return self._end_of(path.values[-1]) if path.values else ""
        if isinstance(path, ast.BinOp) and isinstance(path.op, (ast.Add, ast.Div)):
            return self._end_of(path.right)
        if isinstance(path, ast.Call) and ast.unparse(path.func) in ("os.path.join", "Path", "pathlib.Path", "str") and path.args:
            return self._end_of(path.args[-1])
        if isinstance(path, ast.Name):
            values = [value for name, value in self._bindings() if name == path.id]
            if len(values) == 1 and isinstance(values[0], ast.expr) and not isinstance(values[0], ast.Name):
                return self._end_of(values[0])
        return ""


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _certain_imports(body: list[ast.stmt], called: Container[str], *, is_late: bool) -> Iterator[tuple[int, str]]:
    for node in _certain(body):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and is_late:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""] * (not node.level)
            yield from ((node.lineno, name.partition(".")[0]) for name in names)
        elif isinstance(node, ast.ClassDef) or (isinstance(node, ast.FunctionDef) and node.name in called):
            yield from _certain_imports(node.body, called, is_late=is_late or isinstance(node, ast.FunctionDef))
        elif (isinstance(node, ast.With) and not _suppresses(node)) or _is_main(node):
            yield from _certain_imports(node.body, called, is_late=is_late)


def _suppresses(node: ast.stmt) -> bool:
    """True if this is a `with` that may catch an error."""
    return isinstance(node, ast.With) and any("suppress" in ast.unparse(item.context_expr) for item in node.items)


def _certain(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements up to the first that may leave this body, such as ``if not args.plot: return``."""
    for node in body:
        yield node
        is_loop = isinstance(node, (ast.For, ast.AsyncFor, ast.While))
        leaves = (ast.Return, ast.Raise) if is_loop else (ast.Return, ast.Raise, ast.Break, ast.Continue)
        is_definition = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        if not is_definition and any(isinstance(part, leaves) or _ends(part) for part in ast.walk(node)):
            return


def _ends(node: ast.AST) -> bool:
    """True if this is a call that ends the program."""
    return isinstance(node, ast.Call) and _ENDING.fullmatch(ast.unparse(node.func).rpartition(".")[2]) is not None


def called_in(sources: Sequence[Source]) -> set[str]:
    """The names of the functions and methods that the first of these files calls outside of any condition, also through another function.

    A method counts if any method of its name is called.
    """
    functions = [function for source in sources for function in source.functions()]
    found: set[str] = set()
    waiting = [next((body for name, body in functions if not name), [])]
    while waiting:
        for name in {*_certain_calls(waiting.pop())} - found:
            found.add(name)
            waiting += [body for other, body in functions if other == name]
    return found


def _certain_calls(body: list[ast.stmt]) -> Iterator[str]:
    """The last part of the name of each call in these statements. What may not be reached is left out, and so is a ``try`` that may catch
    an error of the call.
    """
    for node in _certain(body):
        if isinstance(node, (ast.With, ast.For, ast.While, ast.Try)) or _is_main(node):
            yield from _certain_calls([] if (isinstance(node, ast.Try) and node.handlers) or _suppresses(node) else node.body)
            parts: list[ast.AST] = [child for child in ast.iter_child_nodes(node) if isinstance(child, (ast.expr, ast.withitem))]
        elif isinstance(node, (ast.If, ast.Match, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            parts = []
        else:
            parts = [node]
        calls = (call.func for part in parts for call in _evaluated(part) if isinstance(call, ast.Call))
        yield from (func.id if isinstance(func, ast.Name) else func.attr for func in calls if isinstance(func, (ast.Name, ast.Attribute)))


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of an expression that are evaluated with it, whatever the values are: not ``f()`` in ``f() if x else y``."""
    yield node
    parts: list[ast.AST] = [*ast.iter_child_nodes(node)]
    if isinstance(node, ast.IfExp):
        parts = [node.test]
    elif isinstance(node, ast.BoolOp):
        parts = [node.values[0]]
    elif isinstance(node, ast.Lambda):
        parts = []
    elif isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        parts = [node.generators[0].iter]
    for part in parts:
        yield from _evaluated(part)


def _is_main(node: ast.stmt) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def _imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that an import binds, each with its full name."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            whole = alias.name if alias.asname else alias.name.partition(".")[0]
            yield alias.asname or whole, whole
    elif isinstance(node, ast.ImportFrom) and not node.level:
        for alias in node.names:
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _short(whole: str) -> str:
    return re.sub(r"^tensorflow\b", "tf", whole)
