"""How a Python file uses Keras, by its syntax alone: nothing is imported or run, and only certain uses are reported.

A use is a text:

    tf.keras.layers.Dense              a full name
    tf.keras.Sequential().fit          () stands for an object that this call has made
    ?.fit                              ? stands for an object of which nothing is known
    tf.keras.optimizers.Adam(lr=)      an argument by its name
    ?.save_weights('name')             an argument that is a text
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

UNKNOWN = "?"
MODEL = "tf.keras.Model()"
_MODELS = frozenset(
    f"{root}.{name}()" for root in ("tf.keras", "keras") for name in ("Sequential", "Model", "models.Sequential", "models.Model")
)
_TELLING = {"epochs", "steps_per_epoch", "validation_data", "validation_steps", "callbacks"}
"""Arguments of Keras's `fit` that the `fit` of other libraries does not have."""
_LOOPS = ("fit", "evaluate", "predict")
_ENDS = {"exit", "_exit", "quit", "abort"}


class Source:
    """The syntax of one file."""

    def __init__(self, tree: ast.AST) -> None:
        self._tree = tree
        self._scopes: dict[ast.AST, ast.AST | None] = dict(_scopes(tree))
        """The function that each node is in."""
        self._nodes = list(self._scopes)
        self._names: dict[tuple[ast.AST | None, str], str] = {}
        """What the names stand for that are imported or assigned: by the function, and the name or an attribute such as ``self.loss``."""
        self._functions = {node.name: node for node in self._nodes if isinstance(node, ast.FunctionDef)}
        self._made: dict[str, str] = {}
        """What calls of the functions and classes of this file return."""
        self.imports_keras = self.imports_keras_itself = self.imports_keras_2 = self.sets_keras = False
        for node in self._nodes:
            self._add_import(node)
            if isinstance(node, ast.Constant) and node.value == "TF_USE_LEGACY_KERAS":
                self.sets_keras = True
        for node in self._nodes:
            if isinstance(node, ast.ClassDef) and any(f"{self.text(base)}()" in _MODELS for base in node.bases):
                self._made[node.name] = MODEL
        self._imported = dict(self._names)
        for _ in range(2):  # names may be assigned from other assigned names
            self._add_assignments()

    def _add_import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            found = {alias.asname or alias.name.partition(".")[0]: alias.name if alias.asname else "" for alias in node.names}
            found = {name: whole or name for name, whole in found.items()}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        else:
            return
        for name, whole in found.items():
            top, _, rest = whole.partition(".")
            self.imports_keras |= top in ("keras", "tensorflow")
            self.imports_keras_itself |= top == "keras"
            self.imports_keras_2 |= top == "tf_keras"
            self._names[None, name] = ".".join(filter(None, ("tf" if top == "tensorflow" else top, rest)))

    def _add_assignments(self) -> None:
        made: dict[tuple[ast.AST | None, str], set[str]] = {(None, name): {whole} for (_, name), whole in self._imported.items()}
        for node in self._nodes:
            for target, value in _bindings(node):
                made.setdefault(self._key(target), set()).add(UNKNOWN if value is None else self.text(value))
        self._names = {key: _only(texts) for key, texts in made.items()}
        for name, function in self._functions.items():
            values = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
            self._made[name] = _only({self.text(value) for value in values})

    def _key(self, target: ast.AST) -> tuple[ast.AST | None, str]:
        name = _spelled(target)
        return None if "." in name else self._scopes.get(target), name

    def text(self, node: ast.AST) -> str:
        """What an expression stands for."""
        if isinstance(node, ast.Name):
            scope, name = self._key(node)
            return self._names.get((scope, name)) or self._names.get((None, name), UNKNOWN)
        if isinstance(node, ast.Attribute):
            known = self._names.get(self._key(node), UNKNOWN) if isinstance(node.value, ast.Name) else UNKNOWN
            return f"{self.text(node.value)}.{node.attr}" if known == UNKNOWN else known
        if isinstance(node, ast.Call):
            made = self._made.get(node.func.id) if isinstance(node.func, ast.Name) else None
            return made or f"{self.text(node.func)}()"
        return UNKNOWN

    def uses(self) -> Iterator[tuple[int, str]]:
        """The line and the text of everything that may be a use of Keras."""
        for node in self._nodes:
            if isinstance(node, ast.Attribute):
                yield node.lineno, self.text(node)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                module = f"tf{node.module[len('tensorflow') :]}" if node.module.partition(".")[0] == "tensorflow" else node.module
                for alias in node.names:
                    yield node.lineno, f"{module}.{alias.name}"
            elif isinstance(node, ast.Call):
                yield from ((node.lineno, f"{self.text(node.func)}({argument})") for argument in _arguments(node))

    # --- fit ---------------------------------------------------------------------------------------

    def loops(self) -> Iterator[tuple[int, str]]:
        """Each call of `fit`, `evaluate` or `predict` of a Keras model: its line and its name."""
        for node in self._nodes:
            if isinstance(node, ast.Call) and (name := self._loop(node)):
                yield node.lineno, name

    def _loop(self, call: ast.Call) -> str:
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in _LOOPS:
            return ""
        is_telling = self.imports_keras and not _TELLING.isdisjoint(word.arg or "" for word in call.keywords)
        return call.func.attr if is_telling or self.text(call.func.value) in _MODELS else ""

    def certain_loop(self, strategy: str) -> tuple[int, str] | None:
        """The first call of `loops` that is certainly made, of an object that certainly is a model, made in the scope of this strategy.

        `strategy`: the name of its class. A statement is certain if it is in no condition, no loop and no function that may not be called.
        """
        in_scope: set[str] = set()
        for node, scope in self._certain_statements(getattr(self._tree, "body", []), UNKNOWN, set()):
            if isinstance(node, ast.Assign) and scope.endswith(f".{strategy}()") and self.text(node.value) in _MODELS:
                in_scope |= {_spelled(target) for target in node.targets} - {""}
            value = node.value if isinstance(node, (ast.Assign, ast.Expr)) else None
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
                owner = value.func.value
                if value.func.attr in _LOOPS and _spelled(owner) in in_scope and self.text(owner) in _MODELS:
                    return value.lineno, value.func.attr
        return None

    def _certain_statements(self, body: list[ast.stmt], scope: str, inside: set[str]) -> Iterator[tuple[ast.stmt, str]]:
        """The statements that certainly run, each with the strategy in whose scope it runs."""
        for node in body:
            if isinstance(node, ast.With):
                within = next((self.text(item.context_expr) for item in node.items), UNKNOWN)
                entered = within.removesuffix(".scope()") if within.endswith(".scope()") else scope
                yield from self._certain_statements(node.body, entered, inside)
            elif isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) == "__name__ == '__main__'":
                yield from self._certain_statements(node.body, scope, inside)
            elif isinstance(node, (ast.Assign, ast.Expr, ast.AnnAssign, ast.AugAssign)):
                yield node, scope
                if _may_end(node):
                    return
                name = node.value.func.id if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name) else ""
                if name in self._functions and name not in inside:
                    yield from self._certain_statements(self._functions[name].body, scope, inside | {name})
            elif not isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)) and _may_end(node):
                return


def _scopes(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """Each node with the innermost function around it."""
    waiting: list[tuple[ast.AST, ast.AST | None]] = [(tree, None)]
    while waiting:
        node, function = waiting.pop()
        yield node, function
        inside = node if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) else function
        waiting += [(child, inside) for child in ast.iter_child_nodes(node)]


def _bindings(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """The targets that a node binds, each with its value; None: a value that is not examined."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets if not isinstance(target, (ast.Tuple, ast.List)))
        yield from ((part, None) for target in node.targets if isinstance(target, (ast.Tuple, ast.List)) for part in target.elts)
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, (ast.For, ast.comprehension, ast.AugAssign)):
        yield node.target, None
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, None
    elif isinstance(node, ast.arg):
        yield node, None


def _spelled(node: ast.AST) -> str:
    """The text of a name or of an attribute such as ``self.model``; empty for anything longer."""
    if isinstance(node, ast.Attribute):
        return f"{node.value.id}.{node.attr}" if isinstance(node.value, ast.Name) else ""
    return node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""


def _only(texts: set[str]) -> str:
    return next(iter(texts)) if len(texts) == 1 else UNKNOWN


def _may_end(node: ast.stmt) -> bool:
    """Whether the program may end here: by a return, a raise or an exit."""
    for part in ast.walk(node):
        if isinstance(part, (ast.Return, ast.Raise)):
            return True
        if isinstance(part, ast.Call) and (getattr(part.func, "attr", "") or getattr(part.func, "id", "")) in _ENDS:
            return True
    return False


def _arguments(call: ast.Call) -> Iterator[str]:
    """The arguments of a call that matter: names, short texts, and the end of a text that seems to be the name of a file."""
    given = {word.arg: word.value for word in call.keywords}
    weights = getattr(given.get("save_weights_only"), "value", False if "save_weights_only" not in given else None)
    for word in call.keywords:
        if word.arg == "filepath":
            yield from _file(word.value, weights)
        elif word.arg:
            yield f"{word.arg}={_quoted(word.value)}" if word.arg in ("reduction", "save_format") else f"{word.arg}="
    for value in call.args[:2]:
        yield from _file(value, weights)


def _quoted(node: ast.AST) -> str:
    return repr(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _file(node: ast.AST, weights: object) -> Iterator[str]:
    """The name of a file, or the end of the name. `weights`: whether only weights are saved; None: unknown."""
    if weights is None:
        return
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Div)):
        yield from _file(node.right, weights)
    elif isinstance(node, ast.JoinedStr) and node.values:
        yield from _file(node.values[-1], weights)
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("path.join") and node.args:
        yield from _file(node.args[-1], weights)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isprintable():
        yield f"'{node.value}'" + (", save_weights_only=True" if weights else "")
