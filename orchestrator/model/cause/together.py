"""Failures of tasks that run one program at the same time: what they must not share, and calls that all of them must make. Pure.

One task alone cannot fail in these ways, so `find` is asked only about tasks that train together. A remedy names these tasks, because the
error names only one of them: ``{tasks}``, and ``{count}``, their number.
"""

from __future__ import annotations

import re

from worker.protocol.messages import Failure

from .remedies import NONE, Remedy

SHARED, CALLS, ROWS = "what-several-workers-write", "calls-that-only-some-workers-make", "a-model-for-one-size-of-batch"

_DAMAGED = Remedy(
    SHARED,
    "if {tasks} write this file (a download, an archive), write it once before, with --prepare COMMAND; if it is damaged, remove it",
)
_MADE = Remedy(
    SHARED,
    "os.makedirs(path, exist_ok=True), as {tasks} make {path} at the same time; or a path for each, with ORCH_TASK",
)
_REMOVED = Remedy(
    SHARED,
    "if {tasks} run this line at the same time, run it only where ORCH_IS_CHIEF is 1, or before: --prepare COMMAND",
)
_DIFFERENT_CALLS = Remedy(
    CALLS,
    "let all workers call fit, evaluate, predict, run, reduce and gather in the same order: {tasks} differ",
)
# A pattern for ``TYPE: message``, as in `remedies`. The first match counts.
PATTERNS = {
    r"FileExistsError: \[Errno 17\] File exists: '(?P<path>[^']+)'(?! -> )|AlreadyExistsError: (?P<path_2>\S+); File exists": _MADE,
    r"OSError: \[Errno 39\] Directory not empty|\[Errno (?:2|17|39)\] [^:]+: '[^']+' -> '[^']+'": _REMOVED,
    r"(?<![^\s;'\"])(?P<path>[^\s;'\"]+?)(?:_temp/part-\d+-of-\d+|\.(?:index|data-\d+-of-\d+)\.tempstate\d+)": Remedy(
        SHARED,
        "use a directory for each task (ORCH_TASK), --checkpoint or worker.checkpoints(): {tasks} write {path} at the same time",
    ),
    r"[Uu]nable to (?:synchronously )?(?:create|open) file \(unable to (?:lock|truncate)[^)]*|database is locked": Remedy(
        SHARED,
        "use a file for each task (ORCH_TASK), or write only where ORCH_IS_CHIEF is 1: {tasks} write the same file",
    ),
    r"Incomplete or corrupted file detected|BadZipFile|Compressed file ended before the end-of-stream|EOFError: Ran out of input"
    r"|UnpicklingError: (?:pickle data was truncated|invalid load key)|ReadError: (?:unexpected end of data|file could not be opened)"
    r"|Unable to (?:synchronously )?open file \((?:truncated file|file signature not found)|image file is truncated"
    r"|DataLossError: .*(?:(?:truncated|corrupted) record|Unable to open table file)"
    r"|EOF: reading array (?:header|data)|No data left in file|mmap length is greater than file size": _DAMAGED,
    r"Collective instance \d+ expected |Shape mismatch in the collective instance": _DIFFERENT_CALLS,
}
_MISMATCH = re.compile(r"Collective instance \d+ expected |Shape mismatch in the collective instance")
_REMOVES = re.compile(r"\b(?:os\.replace|\w+\.(?:remove|removedirs|unlink|rmdir|rename|rmtree|move))\(")
"""A line of a program that takes a path away."""
_FIXED = Remedy(
    ROWS,
    "if {big} is the batch, build the model for {small} rows, which each of {count} workers gets, or for any number (None)",
)
_SIZES = re.compile(
    r"Incompatible shapes: \[(?P<a>\d+)[\d,]*\] vs\. \[(?P<b>\d+)[\d,]*\]"
    r"|expected shape=\((?P<a_2>\d+),[^)]*\), found shape=\((?P<b_2>\d+),"
    r"|(?:Dimensions|Dimension \d+ in both shapes) must be equal,? but are (?P<a_3>\d+) and (?P<b_3>\d+)"
    r"|Matrix size-incompatible: In\[0\]: \[\d+,(?P<a_5>\d+)\], In\[1\]: \[(?P<b_5>\d+),"
    r"|Input to reshape is a tensor with (?P<a_4>\d+) values, but the requested shape has (?P<b_4>\d+)"
    r"|shape\[0\] = \[(?P<a_6>\d+)[\d,]*\] vs\. shape\[\d+\] = \[(?P<b_6>\d+)"
    r"|variable with shape \[(?P<a_7>\d+)[\d, ]*\][^\[]*\[(?P<b_7>\d+)"
)
"""Two sizes that should be equal. They may be sizes of layers, which are often multiples of one another, too: so the remedy says `if`."""


def every() -> tuple[Remedy, ...]:
    """All remedies, before words are filled in."""
    return *dict.fromkeys(PATTERNS.values()), _FIXED


def find(failure: Failure, tasks: str, count: int, *, all_alike: bool) -> Remedy:
    """The remedy for a failure of one of `tasks`, or `NONE`. `all_alike`: each of them has failed with this error."""
    error, words = f"{failure.type.rpartition('.')[2]}: {failure.message}", {"tasks": tasks, "count": str(count)}
    if (sizes := _SIZES.search(error)) is not None:
        small, big = sorted(int(size) for size in sizes.groups() if size)
        # Each replica gets a share, and each worker has one replica, or as many as the others.
        if small and big % (small * count) == 0:
            return _FIXED._replace(text=_FIXED.text.format(small=small, big=big, **words))
    lines = [line for line in failure.traceback.splitlines() if line.startswith("    ")]
    if error.startswith(("FileNotFoundError: ", "NotFoundError: ")) and any(map(_REMOVES.search, lines)) and not all_alike:
        return _REMOVED._replace(text=_REMOVED.text.format(**words))
    for pattern, remedy in PATTERNS.items():
        if (match := re.search(pattern, error)) and not (all_alike and remedy in (_MADE, _REMOVED)):
            said = {name.removesuffix("_2"): said for name, said in match.groupdict().items() if said}
            return remedy._replace(text=remedy.text.format(**words, **said))
    return NONE


def is_mismatch(failure: Failure | None) -> bool:
    """True if the tasks met in different collectives: which call each of them was in tells why."""
    return failure is not None and _MISMATCH.search(failure.message) is not None
