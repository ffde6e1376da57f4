"""The names of options, of variables and of what tasks are told."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from orchestrator import cli
from orchestrator.cli.option_lines import IN_ONE_LINE, SETTINGS_ALONE
from orchestrator.cli.script_command import GROUPS, OPTIONS
from orchestrator.model.planning import plan
from orchestrator.model.planning.facts_of_hosts import HostFacts
from orchestrator.model.settings.document import read
from orchestrator.model.settings.parse import parse
from tests.conftest import Orch
from worker.host.forkserver.import_environment import compose_for_template
from worker.protocol.messages import TemplateOrder
from worker.protocol.task_environment import compose


def variables_of(command: click.Command) -> Iterator[str]:
    """All that stand for an option of this command, or of those below it."""
    for parameter in command.params:
        yield from [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or ()
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from variables_of(below)


@pytest.mark.parametrize(
    "wanted",
    [
        "{script: train.py, tasks: {chief: 1, worker: 2, evaluator: 1}, defaults: {devices: {gpus: 1, threads: {intra: 2}}}}",
        "{script: train.py, strategy: parameter_server, serve: true, tasks: {worker: 1, ps: 1}}",
        "{strategy: mirrored, command: train.sh}",
    ],
)
def test_what_a_task_is_told_is_no_option_of_an_orch_in_it(wanted: str) -> None:
    spec = parse(read(wanted, "orch.yaml"), workdir="/w")
    placement = plan.place(spec, {"a": None})
    ports = tuple(range(4000, 4000 + spec.size))
    planned = plan.make("run", spec, placement, [HostFacts("a", "10.0.0.1", 4, ports, "/runs/run", interface="eth0")])
    start = planned.orders("a")
    told = {name for order in start.orders for name in compose({}, start, order, "/runs/run/logs", "{}")}
    told |= compose_for_template(TemplateOrder(("tensorflow",), 1), {}, "run").keys()
    assert {"ORCH_RUN_ID", "ORCH_TASK", "ORCH_RUN_STRATEGY", "ORCH_LOG_DIR"} <= told
    assert told & {*variables_of(cli.orch), *(option.variable for option in OPTIONS)} == set()


def test_each_option_of_up_stands_below_the_heading_of_its_subject() -> None:
    command = cli.orch.get_command(click.Context(cli.orch), "up")
    assert command is not None
    context = click.Context(command, info_name="up", **cli.orch.context_settings)
    parts = command.get_help(context).split("\n\n")
    below = {part.partition(":")[0]: re.findall(r"^  (?:-\w, )?(--[\w[\]-]+)", part, re.MULTILINE) for part in parts if "\n  -" in part}
    assert list(below) == ["This command", *GROUPS]  # and none below OTHER_SETTINGS: a new section is given a heading
    everywhere = [name for names in below.values() for name in names]
    shown = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    assert sorted({*everywhere}) == sorted(
        {each.opts[-1].replace("--", "--[no-]") if each.secondary_opts else each.opts[-1] for each in shown} | {"--help"}
    )
    assert len(shown) <= 45, "a rarer setting is one of SETTINGS_ALONE"
    assert {"--script", "--module", "--prepare"} & set(below["What runs"]) == {"--module", "--prepare"}
    assert below["Limits and restarts"][-2:] == ["--max-restarts", "--[no-]fail-on-nan"]


def test_orch_alone_prints_its_help(orch: Orch) -> None:
    done = orch(check=2)
    assert done.err.startswith("Usage: orch ")
    assert done.err.count("Usage: ") == 1
    assert "error:" not in done.err


def test_the_short_help_has_what_is_used_most_and_the_long_one_a_line_for_each_option(orch: Orch) -> None:
    for command in ("up", "plan", "doctor", "tpu", "warm start"):
        short, whole = (orch.in_process(*command.split(), option, env={"COLUMNS": "80"}, check=0).out for option in ("-h", "--help"))
        assert len(short.splitlines()) <= 50
        shown = re.findall(r"^  (?:-\w, )?(--[\w[\]-]+)", short, re.MULTILINE)
        everything = re.findall(r"^  (?:-\w, )?(--[\w[\]-]+)", whole, re.MULTILINE)
        assert set(shown) <= set(everything)
        left_out = int((re.findall(r"--help shows\s+(\d+)", short) or [0])[0])
        if command in ("plan", "doctor"):  # the settings that they share with orch up stand in its help alone
            assert short == whole
            assert left_out > 20
            continue
        assert left_out == len(everything) - len(shown)
        assert "more options" not in whole
    assert not {"--grace", "--max-restarts", "--hosts"} & set(everything), "they do not matter to orch warm start"
    assert {"--env", "--python", "--keras"} <= set(everything)
    assert "--workers" in orch.in_process("up", "-h").out.partition("Most used:")[2].splitlines()[1]
    long = orch.in_process("up", "--help", env={"COLUMNS": "80"}, check=0).out
    assert re.findall(r"^ {12,}\S.*", long.partition("This command:")[2], re.MULTILINE) == []
    assert "[default: 0]" in long
    assert "--join-at" in long.partition("with --join:")[2]


def test_a_setting_without_an_option_in_the_help_has_its_key_and_its_variable(orch: Orch) -> None:
    known = {option.name: option for option in OPTIONS}
    assert {*known, "--timestamps"} >= SETTINGS_ALONE | IN_ONE_LINE
    refused = orch.in_process("up", "x.py", "--no-xla", check=2).err
    assert f"there is no option --no-xla\n       fix: --set {known['--xla'].path}=false" in refused
    assert "fix: --set ports=A-B" in orch.in_process("plan", "x.py", "--ports=5", check=2).err
    for name in sorted(SETTINGS_ALONE):
        assert known[name].variable in orch.in_process("help", known[name].path, check=0).out


def test_an_option_shows_its_default_where_that_is_short() -> None:
    said = {option.name: option.help for option in OPTIONS}
    assert said["--grace"].endswith(" Default: 5.")
    assert said["--max-restarts"].endswith(" Default: 0.")
    assert said["--start-timeout"].endswith(" Default: no limit.")
    assert "Default: 1; with hosts" in said["--workers"]
    assert said["--chief"].endswith(" Default: one under parameter_server, else none (worker-0 leads).")
    assert "Default" not in said["--hosts"]
    without = {option.name for option in OPTIONS if option.says and "Default: " not in option.help}
    assert without == set(), "an option for yes and no says what is without it"
    assert "Default: TensorFlow's own; with parameter servers workers + 1, at least 4." in said["--inter-threads"]
