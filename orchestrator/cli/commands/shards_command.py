"""``orch shards``: the files, bytes and batches of each worker and replica."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from worker.formats.element_counts import KINDS
from worker.values.words import bytes_of

from ...checks import input_files, shards_report
from ...checks.input_files import Found
from ...errors import UsageError
from ...model.planning.sharding import Sharding
from ...model.planning.sharding_advice import Sharded, advise
from ...model.planning.spec_inputs import SpecInput, input_of
from ...model.settings import ClusterSpec
from ...record.text.format import json_text
from ...record.text.lines import clean
from ...sources import read_file, with_program
from ..options import Count
from ..spec_overlays import says

POLICIES = ("auto", "file", "data", "hint", "off")
FORMAT = "The format of the files. [default: from their names and first bytes]"


@click.command("shards")
@click.argument("files", nargs=-1)
@click.option("-n", "--workers", type=Count(1, 100_000), metavar="N", help="The number of workers. [default: as in orch.yaml, or 1]")
@click.option(
    "-r",
    "--replicas-per-worker",
    "replicas",
    type=Count(1, 1024),
    metavar="R",
    help="The number of replicas (such as GPUs) in each worker. [default: 1]",
)
@click.option(
    "-b",
    "--batch",
    "--global-batch-size",
    "batch",
    type=Count(1),
    metavar="B",
    help="The global batch size: the elements of all replicas in one step.",
)
@click.option(
    "-p",
    "--policy",
    "--auto-shard",
    "policy",
    type=click.Choice(POLICIES),
    metavar="|".join(POLICIES),
    help="The AutoShardPolicy. [default: auto]",
)
@click.option("--drop-remainder", is_flag=True, default=None, help="Leave out the last batch if it is not full.")
@click.option("--format", "kind", type=click.Choice(KINDS), metavar="|".join(KINDS), help=FORMAT)
@click.option("--elements-per-file", "elements", type=Count(0), metavar="N", help="Count nothing: each file has N elements.")
@click.option("-f", "--file", "spec_file", metavar="FILE", help="Read other settings from this file. Default without FILES: orch.yaml.")
@click.option("--list", "list_files", is_flag=True, help="List each file with the worker that reads the file.")
@click.option("--batches", "list_batches", is_flag=True, help="List each step with the batch sizes of all replicas.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def shards_command(files: Sequence[str], **given: Any) -> int:
    """Show which of the FILES each worker and replica will read under tf.distribute, before anything runs.

    \b
    Examples:
      orch shards 'data/*.tfrecord' --workers 8 --batch 1024
      orch shards data/*.csv --format text -n 4 -r 2 -b 256 --policy data
      orch shards     the files, tasks and sizes of orch.yaml

    The output has the files, bytes, elements and steps of each worker, and then each problem with a fix. orch counts elements and
    does not decode them; it names a damaged file. orch assumes a dataset that reads these files and ends with batch; orch verify
    measures your script.

    The exit code is 0; 1 if TensorFlow would fail or hang with this input; 2 if files are missing or damaged.
    """
    spec = _spec(given["spec_file"]) if given["spec_file"] is not None or not files else None
    known = input_of(spec) if spec is not None else SpecInput()
    patterns, directory = (files, "") if files or spec is None else (known.files, spec.workdir)
    if not patterns:
        raise UsageError("there are no files to look at: name some, or write input: {files: [data/*.tfrecord]} in orch.yaml")
    names = tuple(f"worker-{worker}" for worker in range(given["workers"])) if given["workers"] else known.names
    asked = {key: given[key] for key in ("policy", "replicas", "batch", "drop_remainder") if given[key] is not None}
    known = replace(known, names=names, sharding=replace(known.sharding, workers=len(names), **asked))
    inspected = input_files.inspect(input_files.find(patterns, directory), given["kind"] or "", given["elements"])
    listed = list(inspected) if given["list_files"] and not given["as_json"] else []
    planned = shards_report.plan(listed or inspected, known)
    for index, one in enumerate(listed):  # the reader of a file depends on the kinds of all files
        _list(one, index, planned.sharding, names)
    _show(planned, given)
    return 1 if any(one.severity == "error" for one in advise(planned)) else 0


def _spec(file: str | None) -> ClusterSpec:
    """The spec in this file; None: in the orch.yaml of this directory. Raises `OrchError`."""
    from ...model.settings import PROGRAM_KINDS
    from ...model.settings.parse import parse

    document, base = read_file(file)
    if not says(document, *PROGRAM_KINDS):  # the spec is not run
        document = with_program(document, "script", "any.py", "orch shards")
    return parse(document, workdir=base)


def _list(one: Found, index: int, sharding: Sharding, names: tuple[str, ...]) -> None:
    reader = names[index % sharding.workers] if sharding.applied == "file" and sharding.workers > 1 else "all"
    elements = "" if one.file.elements is None else f"  {one.file.elements:,} elements"
    click.echo(f"{reader}  {clean(one.file.name)}  {bytes_of(one.file.size)}{elements}")


def _show(planned: Sharded, given: dict[str, Any]) -> None:
    if given["as_json"]:
        click.echo(json_text(shards_report.to_json(planned)))
        return
    if given["list_batches"]:
        if not planned.has_steps:
            raise UsageError("--batches: the steps are not known without --batch, the numbers of elements, and enough files")
        click.echo("\n".join(shards_report.batch_lines(planned)))
    if given["list_files"] or given["list_batches"]:
        click.echo()
    width = shutil.get_terminal_size((100, 24)).columns
    click.echo("\n".join(shards_report.to_text(planned, max(60, min(width, 140)))))
