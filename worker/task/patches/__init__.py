"""Replaces names of Keras, tf_keras, TensorFlow and Python: only those of the table, and a feature only as a whole.

`replace`, `add` and `put` take the names of `table`. A feature is on if each of its names fits the installed release, as its
source files tell (`package_sources`). If one does not, the whole feature is off, and one task prints a line about what is lost.

May import: worker.settings, worker.task.failure, worker.task.shared.
"""

from __future__ import annotations

import sys

from . import import_hooks, stand_in
from .guard import as_theirs as as_theirs
from .guard import attempt as attempt
from .guard import guard_hooks as guard_hooks
from .guard import guarded as guarded
from .guard import judge as judge
from .guard import refusal as refusal
from .guard import theirs as theirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_problems: dict[str, list[str]] = {}
"""Why a feature is off, by feature; empty: it is on."""
_sources: list[Any] = []
"""The `Sources` of this process, once they are needed."""


def problems(feature: str) -> list[str]:
    """Why a feature is off in this process; empty: it is on. The sources of its names are read once."""
    if feature not in _problems:
        from .package_sources import Sources, problems_of  # with modules that a task without TensorFlow does not need

        _sources[:] = _sources or [Sources()]
        _problems[feature] = problems_of(feature, _sources[0])
    return _problems[feature]


def form_of(name: str) -> str:
    """The releases that have the form of a name's code that is installed; empty: an unknown form."""
    from .names import NAMES
    from .package_sources import Sources, fingerprint

    _sources[:] = _sources or [Sources()]
    for place in NAMES[name].place.split("|"):
        if block := _sources[0].block(*place.split(":")):
            return NAMES[name].forms.get(fingerprint(block), "")
    return ""


def prepare_forks() -> None:
    """Read the sources of all features, in a template that has imported Keras."""
    from .table import FEATURES

    for feature in FEATURES:
        problems(feature)
    stand_in.compile_once()


def is_on(feature: str) -> bool:
    """True if all names of a feature fit. If not, one task prints a line, the first time that this is asked."""
    if problems(feature):
        import_hooks.print_once(describe(feature, problems(feature)))
    return not problems(feature)


def describe(feature: str, why: list[str]) -> str:
    """A sentence about a feature that is off."""
    from ...settings import releases
    from .table import FEATURES

    return f"{feature}: off, because this release is unknown ({why[0]}); without it, {FEATURES[feature].lost}. {releases.REMEDY}"


def replace(feature: str, name: str, ours: Callable[..., Any]) -> None:
    """Replace a function by `ours`, which gets the replaced function first, then the arguments of the call. A feature does so once.

    In a traceback that the program prints, the call stands as one of the library's function, without the frames of orch below the call.
    `guard` says what becomes of an error of `ours`.
    """
    owner, attribute = _find(feature, name)
    if owner is None or stand_in.is_of(getattr(owner, attribute), feature):
        return
    from .table import FEATURES

    measures = FEATURES[feature].sort == "measures"
    made: Any = stand_in.make(getattr(owner, attribute), attribute, ours, feature, measures=measures)
    setattr(owner, attribute, staticmethod(made) if isinstance(vars(owner).get(attribute), staticmethod) else made)


def after(feature: str, module: str, change: Callable[[ModuleType], None]) -> None:
    """Call `change` with a module: now if the process or its template has imported it, or else once it is imported."""
    import_hooks.after(module, lambda imported: attempt(feature, lambda: change(imported)))


def add(feature: str, name: str, function: Callable[..., Any]) -> None:
    """Add a function that is missing."""
    owner, attribute = _find(feature, name)
    if owner is not None and not hasattr(owner, attribute):
        setattr(owner, attribute, function)


def give_back(feature: str, name: str) -> None:
    """Put back the function that `replace` has replaced last."""
    owner, attribute = _find(feature, name)
    if owner is not None and getattr(getattr(owner, attribute), stand_in.FEATURE, "") == feature:
        setattr(owner, attribute, getattr(owner, attribute).__wrapped__)


def put(feature: str, name: str, change: Callable[[Any], Any]) -> None:
    """Replace a variable of a module by what `change` makes of it."""
    owner, attribute = _find(feature, name)
    if owner is not None:
        setattr(owner, attribute, change(getattr(owner, attribute)))


def _find(feature: str, name: str) -> tuple[Any, str]:
    """The module or class that has a name, and its attribute there; None: the feature is off, or the package is not there."""
    from .table import FEATURES, NAMES  # a program without TensorFlow does not need it

    assert name in FEATURES[feature].names, f"{name} is no row of {feature}"
    if not is_on(feature):
        return None, ""
    modules = []
    for place in NAMES[name].place.split("|"):
        module, _, path = place.partition("@")[0].partition(":")
        module = place.partition("@")[2] or module
        owner: Any = sys.modules.get(module) or _import(module)
        modules += [module] if owner is not None else []
        *parts, attribute = path.split(".")
        for part in parts:
            owner = getattr(owner, part, None)
        if owner is not None and (hasattr(owner, attribute) or NAMES[name].is_added):
            return owner, attribute
    if modules:  # it has no source that could have told
        _problems[feature] = [f"{name}: {modules[0]} does not have it"]
        is_on(feature)
    return None, ""


def _import(module: str) -> Any:
    try:
        __import__(module)
    except ImportError:
        return None
    return sys.modules[module]
