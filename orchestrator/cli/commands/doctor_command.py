"""``orch doctor``: checks whether this machine, or the hosts, can start a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from worker.protocol.messages import Examine
from worker.values.words import few

from ...backends import Host, RunFacts, load_checked, slots_of
from ...checks import doctor_report
from ...checks.finding import Wanted
from ...checks.rules import judge
from ...model.planning import plan
from ...model.settings import PROGRAM_KINDS, ClusterSpec
from ...record.text.format import json_text
from ...record.text.log_view import wants_color
from ..options import color_option, import_timeout_option, new_home_option, spec_options
from ..script_command import ScriptCommand
from ..spec_overlays import read_spec, says
from .plan_command import refuse_programs


@click.command("doctor", cls=ScriptCommand)
@spec_options
@new_home_option
@import_timeout_option("TensorFlow's import")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@color_option
@click.option("--json", "as_json", is_flag=True, help="Print facts and findings as JSON.")
@click.pass_context
def doctor_command(ctx: click.Context, /, home: Path, import_timeout: float, strict: bool, color: Any, as_json: bool, **_: Any) -> int:
    """Check whether this machine, or all hosts of -H, can run a cluster. Each problem comes with a fix.

    \b
    Examples:
      orch doctor
      orch doctor train.py --strategy parameter_server --ps 1 -n 4
      orch doctor -H hostA:2,hostB:2 --strict
      orch doctor --join      what an engine tells this node of the others

    orch doctor looks at the interpreter, TensorFlow, Keras, GPUs, ports, host names, disk space and limits. With several hosts, orch
    doctor also compares their versions and clocks.

    The options of orch up describe the planned run; orch doctor checks what this run needs. Without a script or orch.yaml it checks
    what any run needs. The exit code is 0 if a run can start, and 1 if not.
    """
    from ...control.examination import examine  # --help need not load asyncio

    spec, document = read_spec(ctx, needs_program=False)
    if spec.backend.IS_EVERYWHERE:
        from ...backends import module_of

        lines, is_complete = module_of(spec).describe(spec, str(home))
        click.echo(json_text({"lines": lines, "exit_code": int(not is_complete)}) if as_json else "\n".join(lines))
        return int(not is_complete)
    spec = replace(spec, backend=spec.backend.attached())
    strategy = spec.strategy if says(document, "strategy", "tasks", "tpu", *PROGRAM_KINDS) else ""  # empty: nothing describes a run
    request = load_checked(spec).request(RunFacts(spec, f"doctor-{os.urandom(4).hex()}", ""))
    hosts_asked = request.hosts
    if says(document, *PROGRAM_KINDS) and any(host.is_here for host in hosts_asked):
        refuse_programs(spec)
    wanted = _wanted(spec, strategy, hosts_asked)
    env = {**({"TPU_SKIP_MDS_QUERY": "1"} if wanted.tpu else {}), **wanted.env}  # or libtpu holds the import up for minutes
    order = Examine("machine", ports=wanted.ports, env=env, import_s=import_timeout)
    importing = f"; importing TensorFlow there may take up to {import_timeout:g} s" if wanted.needs_tensorflow else ""
    doing = f"orch: asking {few([host.name for host in hosts_asked])}{importing}"
    hosts = examine(
        request, order, str(home), on_begin=lambda: click.echo(doing, err=True), on_waiting=lambda why: click.echo(f"orch: {why}", err=True)
    )
    findings = judge(hosts, wanted)
    code = doctor_report.exit_code(findings, strict=strict)
    if as_json:
        click.echo(json_text(doctor_report.to_json(hosts, findings, wanted, code)))
        return code
    click.echo("\n".join(doctor_report.to_text(hosts, findings, wanted, color=wants_color(color))), color=True)
    return code


def _wanted(spec: ClusterSpec, strategy: str, hosts: Sequence[Host]) -> Wanted:
    env = dict(spec.env)
    for tasks in spec.tasks:
        env.update(tasks.env)
    asked = [tasks.devices_of(index).gpus for tasks in spec.tasks for index in (0, *tasks.overrides)]
    return Wanted(
        strategy,
        spec.size,
        shares={name: len(tasks) for name, tasks in plan.place(spec, slots_of(hosts)).items()},
        ports=spec.ports,
        private_network=spec.network == "private",
        gpus=any(wish.count or wish.ids for wish in asked),
        needs_tensorflow=bool(spec.data_workers) or spec.program.kind != "command",
        data_service=bool(spec.data_workers),
        env=env,
        tpu=spec.tpu.tpu if strategy else "",
        falls_back=spec.tpu.fallback != "none",
    )
