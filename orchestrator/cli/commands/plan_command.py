"""``orch plan``: the tasks, hosts and variables of a spec, before anything starts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any

import click

from worker.host.facts import program_checks
from worker.machine.cpu_cores import count_cores
from worker.protocol.task_environment import compose
from worker.settings.task_settings import VARIABLE
from worker.values.codec import to_json
from worker.values.words import count_of

from ...backends import imagine, load_checked, slots_of
from ...errors import Problem, SpecError
from ...model.planning import plan
from ...model.planning.facts_of_hosts import HostFacts
from ...model.planning.gpu_assignment import NONE_VISIBLE
from ...model.planning.plan import Plan, PlannedTask
from ...model.settings import ClusterSpec
from ...model.settings.device_rules import VISIBLE
from ...model.strategies import named
from ...record.text.format import aligned, json_text
from ..options import spec_options
from ..script_command import ScriptCommand
from ..spec_overlays import read_spec

RUN_DIR = "<run directory>"
SEEN_RUN_DIR = "<run directory, if this host sees it>"


@click.command("plan", cls=ScriptCommand)
@spec_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def plan_command(ctx: click.Context, /, as_json: bool, **_: Any) -> int:
    """Print the tasks, the hosts and each TF_CONFIG of a cluster, and start nothing. Takes the settings of orch up.

    With Slurm the output ends with the batch script that orch up would submit, and with Kubernetes with the objects.

    \b
    Examples:
      orch plan                                  the cluster of orch.yaml
      orch plan train.py --workers 2 --evaluator
      orch plan train.py -H hostA:2,hostB:2 --json

    The output contains the values of the variables that orch.yaml and --env set, also secrets.
    """
    print_plan(read_spec(ctx)[0], as_json=as_json)
    return 0


def print_plan(spec: ClusterSpec, *, as_json: bool, with_commands: bool = False) -> None:
    """Prints the plan as known before a start, and the script or the manifest for an engine: the ports are known only when a run starts.

    `with_commands`: also the commands by which `orch up` starts the agents, and of the variables of each task only TF_CONFIG.
    """
    planned, request = _imagine(spec), imagine(spec)  # a spec that has no plan prints nothing
    _print(planned, request.files, as_json=as_json, is_short=with_commands)
    if not as_json:
        for name, text in (request.texts() if with_commands else request.files).items():
            click.echo(f"\n# {name}\n{text}", nl=not text.endswith("\n"))


def _imagine(spec: ClusterSpec) -> Plan:
    load_checked(spec)
    hosts, facts = imagine(spec).hosts, []
    if any(host.is_here for host in hosts):  # another host may have other files
        refuse_programs(spec)
    for host in hosts:
        address, run_dir = host.address or f"<address of {host.name}>", RUN_DIR if host.sees_run_dir else SEEN_RUN_DIR
        facts.append(HostFacts(host.name, address, count_cores() if host.is_here else None, run_dir=run_dir, is_here=host.is_here))
    return plan.make("<run>", spec, plan.place(spec, slots_of(hosts)), facts)


def refuse_programs(spec: ClusterSpec) -> None:
    """Raises `SpecError` if a program cannot run in the working directory, in the words of the agent that would look at the start."""
    if problems := program_checks.find_problems(plan.programs(spec), spec.workdir, plan.search_envs(spec)):
        raise SpecError(*(Problem("", problem) for problem in problems))


def _print(planned: Plan, files: Mapping[str, str], *, as_json: bool, is_short: bool) -> None:
    for note in () if as_json else planned.notes:
        click.echo(f"orch: {note}", err=True)
    for text in _json_parts(planned, files) if as_json else _lines(planned, is_short):
        click.echo(text, nl=not as_json)


def _lines(planned: Plan, is_short: bool) -> Iterator[str]:
    spec = planned.spec
    yield f"strategy {spec.strategy}; {count_of(len(planned.members), 'task')}; working directory {spec.workdir}"
    if spec.network == "private":
        yield "the tasks have a network of their own"
    yield ""
    envs = list(_environments(planned))
    yield from _table(planned, envs)
    told = [] if is_short else [list(_variables(task, env)) for task, env in zip(planned.tasks, envs, strict=True)]
    alike = set(told[0]).intersection(*told) if len(told) > 1 else set()
    if alike:
        yield from ("", "all tasks", *(line for line in told[0] if line in alike))
    for task, lines in zip(planned.tasks, told or [[]] * len(planned.tasks), strict=True):
        yield ""
        yield f"{task.id} on {task.host}"
        if text := planned.tf_config(task):
            yield f"  TF_CONFIG={text}"
        yield from (line for line in lines if line not in alike)


def _variables(task: PlannedTask, env: Mapping[str, str]) -> Iterator[str]:
    """The lines about the settings of a task, and about its variables."""
    for section, values in _sections(task).items():
        for name, value in sorted(values.items()):
            yield f"  {section}.{name}: {json_text(value)}"
    for name, value in sorted(env.items()):
        yield f"  {name}={value}"
    for name in task.order.unset:
        yield f"  without {name}"


def _table(planned: Plan, envs: Sequence[Mapping[str, str]]) -> list[str]:
    """A row for each task. The numbers of ports and GPUs are chosen when a run starts."""
    ports = "-".join(map(str, planned.spec.ports)) if planned.spec.ports else "any that is free"
    rows = [("TASK", "HOST", "PORT", "DEVICES")]
    for task, env in zip(planned.tasks, envs, strict=True):
        has_port = named(planned.spec.strategy).opens_port(task.id.type)
        cpus, gpus = task.order.settings.devices.cpus, env.get(VISIBLE)
        devices = [f"cpus: {cpus}"] if cpus else []
        if gpus is not None:
            devices.append(f"GPUs: {'none' if gpus in ('', NONE_VISIBLE) else gpus}")
        rows.append((str(task.id), task.host, ports if has_port else "-", ", ".join(devices) or "-"))
    return aligned(rows)


def _sections(task: PlannedTask) -> dict[str, dict[str, Any]]:
    settings = task.order.settings
    sections = {field.name: to_json(getattr(settings, field.name)) for field in fields(settings) if is_dataclass(field.default)}
    return {"program": asdict(task.order.program), **sections}


def _environments(planned: Plan) -> Iterator[dict[str, str]]:
    """The variables that orch sets for each task. ``<…>`` stands for a value that is known only in a run."""
    starts = dict(planned.all_orders(names=()))
    here = {host.name for host in planned.hosts if host.is_here}
    for task in planned.tasks:
        start, order = starts[task.host], task.order
        env = compose(os.environ if task.host in here else {}, start, order, f"{RUN_DIR}/{order.log_dir}", None)
        own = {*start.env_defaults, *start.env, *order.env, "MASTER_PORT", "ORCH_LOG_DIR", VARIABLE, "TF_GRPC_REUSE_PORT", "no_grpc_proxy"}
        yield {name: value for name, value in env.items() if name in own}


def _json_parts(planned: Plan, files: Mapping[str, str]) -> Iterator[str]:
    """One JSON document in pieces: ten thousand TF_CONFIGs need not be in memory at once. `files`: what an engine would get."""
    head = {"strategy": planned.spec.strategy, "name": planned.spec.name, "workdir": planned.spec.workdir}
    yield json_text(head)[:-1] + ', "tasks": ['
    separator = ""
    for task, env in zip(planned.tasks, _environments(planned), strict=True):
        text = planned.tf_config(task)
        found = {
            "task": str(task.id),
            "host": task.host,
            "address": task.address,
            **_sections(task),
            "env": env,
            "unset": task.order.unset,
            "tf_config": json.loads(text) if text else None,
        }
        yield separator + json_text(found)
        separator = ", "
    yield f'], "request": {json_text(dict(files))}}}\n'
