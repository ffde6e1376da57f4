"""Defines what the shell offers when a user presses TAB: files, runs, tasks, and the words of a choice.

Click asks these functions (its `shell_complete`). They print nothing and raise nothing: a mistake offers nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:  # only a shell that completes needs this import
    from click.shell_completion import CompletionItem

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def files(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The shell's own completion of files."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(begun, type="file")]


def directories(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """The shell's own completion of directories."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(begun, type="dir")]


def one_of(words: tuple[str, ...]) -> Complete:
    """The words that begin as the text does."""
    return lambda ctx, parameter, begun: [word for word in words if word.startswith(begun)]


def assignments(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """The keys of orch.yaml, for ``--set``."""
    from ..model.settings.describe import root
    from ..model.settings.kinds import Struct

    def paths(struct: Struct, around: str) -> Iterator[str]:
        for name, key in struct.keys.items():
            yield from paths(key.kind, f"{around}{name}.") if isinstance(key.kind, Struct) else (f"{around}{name}=",)

    return [path for path in paths(root(), "") if path.startswith(begun)]


def variables(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """The variables of the shell, for ``--env``."""
    return sorted(name for name in os.environ if begun and name.startswith(begun))


def reported(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """The names of the values that runs have reported last, and of columns, for ``orch ps --sort``."""
    from ..record.run_list import COLUMNS, GOODPUT, names, summarise
    from ..record.run_store import list_runs

    known = (*names([summarise(run, 0.0) for run in list_runs(_home(ctx))]), *COLUMNS, GOODPUT)
    return sorted(name for name in known if name.startswith(begun))


def runs(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """The runs, the newest first, each with its state."""
    from ..record.run_store import list_runs

    return [run.run_id for run in reversed(list_runs(_home(ctx))) if run.run_id.startswith(begun)]


def tasks(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """The tasks of the run that the command line names, or of the latest run."""
    from ..errors import OrchError
    from ..record.run_store import find_run, plan_of

    words = ctx.params.get("names") or [ctx.params.get("run")]
    try:
        names = [str(task.id) for task in plan_of(find_run(_home(ctx), words[0] if words else None)).tasks]
    except (OrchError, OSError):
        return []
    return [name for name in names if name.startswith(begun)]


def runs_and_tasks(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """For ``orch logs``: tasks, and before the first word also runs."""
    return [*tasks(ctx, parameter, begun), *([] if ctx.params.get("names") else runs(ctx, parameter, begun))]


def _home(ctx: click.Context) -> Path:
    from ..sources import HOME, nearest

    return Path(ctx.params.get("home") or nearest(HOME) or HOME)
