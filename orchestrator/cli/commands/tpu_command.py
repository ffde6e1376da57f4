"""``orch tpu``: the layout of replicas and tensors on a TPU, without a TPU."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

import click

from worker.settings.tpu_settings import Partition, TpuSettings

from ...checks import tpu_report as words
from ...checks.tpu_assignment import request_assignment
from ...errors import UsageError
from ...model import tpu_topology
from ...model.settings.kinds import Numbers
from ...model.settings.tree import scalar
from ...record.text.format import json_text
from ...record.text.log_view import wants_color
from ..options import color_option, spec_options
from ..script_command import ScriptCommand
from ..spec_overlays import read_spec

_READ = ("tpu", "python")
"""The keys that are read of an orch.yaml without -f: its other sections may be for tasks without a TPU."""


@click.command("tpu", cls=ScriptCommand)
@functools.partial(spec_options, keys=_READ)
@click.option("--partition", "dims", metavar="N,N,…", help="Split a tensor: the number of parts in each dimension.")
@click.option("--shape", metavar="N,N,…", help="The shape of this tensor, with ? for an unknown size.")
@click.option(
    "--dtype", default="float32", type=click.Choice(words.DTYPES), metavar="TYPE", help="The type of this tensor. [default: float32]"
)
@click.option("--no-tensorflow", is_flag=True, help="Do not ask TensorFlow for the core assignment.")
@color_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def tpu_command(
    ctx: click.Context, /, dims: str | None, shape: str | None, dtype: str, no_tensorflow: bool, color: Any, as_json: bool, **_: Any
) -> int:
    """Show the layout of replicas and tensors on a TPU. This command needs no TPU.

    \b
    Examples:
      orch tpu                                   the topologies that have a name
      orch tpu --topology 2x2x1x2 --computation-shape 1,1,1,2
      orch tpu --topology v4-16 --partition 1,2,4,1 --shape 128,224,224,3

    The output is a table and a picture of the replicas, with the devices that TensorFlow assigns to each replica, and the
    computation shapes that fit. The section tpu of orch.yaml counts too; other sections count only for a file given with -f.
    The exit code is 1 if the tensor cannot be split like this.
    """
    spec = read_spec(ctx, needs_program=False, only=_READ)[0]
    partitions = [*spec.tpu.partition, *_partition(dims, shape, dtype)]
    if not spec.tpu.topology:
        if partitions or spec.tpu.computation_shape:
            raise UsageError("name a topology: --topology v3-8, or --topology 2x2x1x2; orch tpu alone lists those that have a name")
        click.echo(json_text(words.names_json()) if as_json else "\n".join(words.names()))
        return 0
    layout = _layout(spec.tpu, "" if no_tensorflow else spec.python or sys.executable)
    if as_json:
        click.echo(json_text(words.to_json(layout, partitions)))
    else:
        click.echo("\n".join(words.to_text(layout, partitions, color=wants_color(color))), color=True)
    return int(any(words.breaks(one, layout.cores) for one in partitions))


def _layout(settings: TpuSettings, python: str) -> words.Layout:
    """The layout of checked settings. `python` empty: TensorFlow is not asked."""
    mesh = tpu_topology.parse(settings.topology)
    shape = settings.computation_shape or (1,) * tpu_topology.RANK
    replicas = settings.num_replicas or tpu_topology.count_replicas(mesh, shape)
    unasked = words.TpuReplicas(problem="TensorFlow was not asked (--no-tensorflow)")
    return words.Layout(mesh, shape, replicas, request_assignment(python, mesh, shape, replicas) if python else unasked)


def _partition(dims: str | None, shape: str | None, dtype: str) -> Iterator[Partition]:
    if dims is None:
        if shape is not None:
            raise UsageError("--shape is the shape of the tensor that --partition splits: give both")
        return
    parts = Numbers().read(scalar(dims, "--partition"))
    whole = None if shape is None else Numbers(unknown=True).read(scalar(shape, "--shape"))
    yield Partition("", parts, whole, dtype)
