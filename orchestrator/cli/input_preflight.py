"""The check of `input.files` before `orch up` starts anything."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import click

from ..backends import imagine
from ..checks import input_files, shards_report
from ..errors import UsageError
from ..model.planning.sharding_advice import Advice, advise
from ..model.planning.spec_inputs import input_of
from ..model.settings import ClusterSpec

MOST_BYTES, MOST_FILES = 1_000_000_000, 5_000
"""Above these limits, the elements are not counted before a start."""


def check_input(spec: ClusterSpec) -> None:
    """Prints a line on stderr for each warning. Raises `UsageError` for an input that cannot work.

    Files that are not on this machine may be on the hosts, or `prepare` makes them; these are not checked. Nor are files with a
    scheme, such as gs://.
    """
    known = input_of(spec)
    if not known.files or any(map(input_files.is_remote, known.files)):
        return
    try:
        names = input_files.find(known.files, spec.workdir)
        is_small = len(names) <= MOST_FILES and sum(os.path.getsize(name) for name in names if os.path.exists(name)) <= MOST_BYTES
        advice = advise(shards_report.plan(input_files.inspect(names, counts=is_small), known))
    except UsageError as error:
        if spec.prepare.run or not all(host.is_here for host in imagine(spec).hosts):
            return
        raise UsageError("\n".join(f"input.files: {line}" for line in str(error).splitlines())) from None
    if refused := [one for one in advice if one.topic == "no elements"]:
        raise UsageError("\n".join(f"input: {line}" for line in _lines(refused)))
    for line in _lines(one for one in advice if one.severity != "note"):
        click.echo(f"orch: warning: input: {line}", err=True)


def _lines(advice: Iterable[Advice]) -> Iterator[str]:
    """The advice as text. A script may distribute its files in another way, with `worker.files` or `Dataset.shard`."""
    for one in advice:
        unless = ", unless the script shares them out itself" if one.topic in ("few files", "no reader", "uneven") else ""
        yield f"{one.what}{unless}" + (f". fix: {one.remedy}" if one.remedy else "")
