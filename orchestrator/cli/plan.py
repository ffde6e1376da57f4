"""``orch plan``: what a spec means, before anything starts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import click

from worker.contract import to_json

from ..backends import load
from ..model import plan
from ..model.parse import parse
from ..model.plan import HostFacts, Plan
from ..model.spec import ClusterSpec
from .options import ScriptCommand, read_document, spec_options


@click.command("plan", cls=ScriptCommand)
@spec_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def plan_command(ctx: click.Context, /, as_json: bool, **_: Any) -> int:
    """Print the tasks, hosts and each TF_CONFIG that a spec means. Takes what orch up takes, and starts nothing."""
    document, base = read_document(ctx)
    print_plan(parse(document, workdir=base), as_json=as_json)
    return 0


def print_plan(spec: ClusterSpec, *, as_json: bool) -> None:
    """The plan as far as it is known before any host was asked: ports are only held when a run starts."""
    for text in _json_parts(_imagine(spec)) if as_json else _lines(_imagine(spec)):
        click.echo(text, nl=not as_json)


def print_dry_run(spec: ClusterSpec, *, as_json: bool) -> None:
    """What `orch up` would run, and the plan."""
    if not as_json:
        for name, text in load(spec.backend.type).request(spec).items():
            click.echo(f"# {name}\n{text}")
    print_plan(spec, as_json=as_json)


def _imagine(spec: ClusterSpec) -> Plan:
    backend = load(spec.backend.type)
    hosts = backend.hosts(spec)
    placement = plan.place(spec, [host.name for host in hosts])
    facts = [
        HostFacts(host.name, host.address or f"<address of {host.name}>", os.cpu_count() or 1, run_dir="<run directory>") for host in hosts
    ]
    return plan.make("<run>", spec, placement, facts)


def _lines(planned: Plan) -> Iterator[str]:
    spec = planned.spec
    program = spec.program
    yield f"strategy {spec.strategy}; {len(planned.tasks)} tasks; working directory {spec.workdir}"
    yield f"each runs {program.kind} {program.target}".rstrip()
    shared = _shared_environments(planned)
    for task in planned.tasks:
        yield ""
        yield f"{task.id} on {task.host}"
        if task.order.program != program:
            yield f"  {task.order.program.kind} {task.order.program.target}".rstrip()
        if task.order.program.args:
            yield f"  arguments {json.dumps(list(task.order.program.args))}"
        for name, value in sorted(to_json(task.order.devices).items()):
            yield f"  devices.{name}: {json.dumps(value)}"
        for name, value in to_json(task.order.collectives).items():
            yield f"  collectives.{name}: {json.dumps(value)}"
        for name, value in sorted({**shared[task.host], **task.order.env}.items()):
            yield f"  {name}={value}"
        text = planned.tf_config(task)
        if text:
            yield f"  TF_CONFIG={text}"


def _shared_environments(planned: Plan) -> dict[str, dict[str, str]]:
    """What all tasks of a host are given, by host."""
    starts = {host.name: planned.orders(host.name) for host in planned.hosts}
    return {host: {**start.env_defaults, **start.env} for host, start in starts.items()}


def _json_parts(planned: Plan) -> Iterator[str]:
    """One JSON document in pieces: ten thousand TF_CONFIGs are not held at once."""
    head = {"strategy": planned.spec.strategy, "name": planned.spec.name, "workdir": planned.spec.workdir}
    yield json.dumps(head)[:-1] + ', "tasks": ['
    shared = _shared_environments(planned)
    for position, task in enumerate(planned.tasks):
        text = planned.tf_config(task)
        program = task.order.program
        found = {
            "task": str(task.id),
            "host": task.host,
            "address": task.address,
            "program": {"kind": program.kind, "target": program.target, "args": list(program.args)},
            "devices": to_json(task.order.devices),
            "collectives": to_json(task.order.collectives),
            "env": {**shared[task.host], **task.order.env},
            "tf_config": json.loads(text) if text else None,
        }
        yield (", " if position else "") + json.dumps(found)
    yield "]}\n"
