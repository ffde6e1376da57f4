"""Finds which of the notes that hosts gave before the start explains the failure: the report repeats it, after all that was printed
meanwhile.
"""

from __future__ import annotations

import re

from worker.protocol.frames import OWN_CLUSTER

from ..state.cluster import Cluster, TaskStatus
from .remedies import Remedy

_PLACE = re.compile(r"(?P<path>\S+):(?P<line>\d+)\b")
"""The place in a program at the beginning of a note: ``train.py:12``."""


def add(remedy: Remedy, cluster: Cluster, task: TaskStatus) -> Remedy:
    """The remedy for the failure of `task`, with the note about the line that has failed, or about why no task came to a cluster.

    Of an import that has failed, the remedy says more than the note.
    """
    trace = task.failure.traceback if task.failure is not None else ""
    if task.failure is not None and task.failure.type.endswith(("ImportError", "ModuleNotFoundError")):
        return remedy
    for note in cluster.notes:
        said = f"as a line before the start said: {note}"
        if place := _PLACE.match(note):
            frame = rf'File "(?:[^"]*/)?{re.escape(place["path"].removeprefix("./"))}", line {place["line"]}\b'
            if re.search(frame, trace):
                return remedy._replace(text=said)
        elif OWN_CLUSTER in note and task.code and all(other.up_at is None for other in cluster.members):
            return remedy._replace(text="; ".join(filter(None, (said, remedy.text))))
    return remedy
