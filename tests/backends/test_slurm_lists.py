"""What Slurm's variables say of an allocation, and the commands that follow from it: tables, no Slurm."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.backends import StartFailure
from orchestrator.backends.slurm import allocation, time_before
from orchestrator.backends.slurm.allocation import MOST, JobDetails, expand, expand_counts, parse_details
from orchestrator.backends.slurm.complaints import complaint_of, explain_step
from orchestrator.backends.slurm.programs import run_program
from orchestrator.backends.slurm.step_command import step_command
from orchestrator.errors import OrchError, UsageError
from orchestrator.model.settings.backend_sections import NodeSpec, SlurmSettings, count_gpus


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ("n1",)),
        ("n[1-3,07-12],gpu-a", ("n1", "n2", "n3", "n07", "n08", "n09", "n10", "n11", "n12", "gpu-a")),
        ("n[8-11]", ("n8", "n9", "n10", "n11")),  # not n10, n11, n8, n9
        ("b2,b10,a1", ("b2", "b10", "a1")),  # as Slurm gives it, sorted in no way
        ("r[1-2]n[01-02]", ("r1n01", "r1n02", "r2n01", "r2n02")),
        ("rack[0,2]-n[3]x", ("rack0-n3x", "rack2-n3x")),
        ("n[099-101]", ("n099", "n100", "n101")),
        ("ip-10-0-1-7,ip-10-0-1-9", ("ip-10-0-1-7", "ip-10-0-1-9")),
        ("n[1-1000]", tuple(f"n{number}" for number in range(1, 1001))),
    ],
)
def test_node_lists(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["", "n[1-", "n1]", "n[a-b]", "n[1-2", ",", "n[3-1,]", f"n[1-{MOST * 2}]", f"n[1-{MOST}],m"])
def test_what_is_no_node_list(text: str) -> None:
    with pytest.raises(ValueError, match="list of"):
        expand(text)


@pytest.mark.parametrize(("text", "counts"), [("2(x3),1", (2, 2, 2, 1)), ("4", (4,)), ("1,2(x2)", (1, 2, 2))])
def test_counts(text: str, counts: tuple[int, ...]) -> None:
    assert expand_counts(text) == counts


@pytest.mark.parametrize("text", ["", "2(x3", "a", "2(x),1", "-1", f"1(x{MOST * 2})"])
def test_what_is_no_list_of_counts(text: str) -> None:
    with pytest.raises(ValueError, match="no list of numbers"):
        expand_counts(text)


THREE = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[9-11]", "SLURM_TASKS_PER_NODE": "1(x3)"}
NOTHING = JobDetails()


@pytest.mark.parametrize(
    ("variables", "gpus", "slots"),
    [
        ({}, {}, (None, None, None)),  # salloc -N3 says nothing of tasks
        ({"SLURM_NTASKS": "5", "SLURM_TASKS_PER_NODE": "3,1(x2)"}, {}, (3, 1, 1)),
        ({"SLURM_NTASKS": "6", "SLURM_NTASKS_PER_NODE": "2", "SLURM_TASKS_PER_NODE": "2(x3)"}, {}, (2, 2, 2)),
        ({"SLURM_NPROCS": "3"}, {}, (1, 1, 1)),
        ({}, {"n9": 4, "n10": 4, "n11": 4}, (4, 4, 4)),
        ({}, {"n9": 2, "n10": 1}, (2, 1, None)),
        ({"SLURM_NTASKS": "3"}, {"n9": 4, "n10": 4, "n11": 4}, (1, 1, 1)),  # each task has four
    ],
)
def test_the_slots_of_an_allocation(variables: dict[str, str], gpus: dict[str, int], slots: tuple[int | None, ...]) -> None:
    found = allocation.read({**THREE, **variables}, JobDetails(gpus=gpus))
    assert [(node.name, node.slots) for node in found.nodes] == [*zip(("n9", "n10", "n11"), slots, strict=True)]
    assert [node.slots_are_gpus for node in found.nodes] == [not variables and node in gpus for node in ("n9", "n10", "n11")]


SHOWN = """\
   StartTime=2026-11-24T14:58:40 EndTime={end} Deadline=N/A
   NodeList=n[9-11]
   JOB_GRES=gpu:a100:5
     Nodes=n[9-10] CPU_IDs=0-3 Mem=0 GRES=gpu:a100:2(IDX:0,3)
     Nodes=n11 CPU_IDs=0 Mem=4000 GRES=license:3,gpu:a100:1(IDX:0),gpu:v100:1(IDX:1)
   {tres}
"""


@pytest.mark.parametrize(
    ("tres", "steps_share"),
    [
        ("TresPerNode=gres:gpu:2", True),
        ("TresPerNode=gres/gpu:a100:2", True),  # since 23.11
        ("TresPerJob=gres:gpu:5", False),
        ("TresPerTask=cpu=1,gres/gpu=1", False),
        ("TresPerNode=gres:license:3", False),
        ("", False),  # --exclusive: the job has all that its nodes have
    ],
)
def test_the_details_of_a_job(tres: str, steps_share: bool) -> None:
    found = parse_details(SHOWN.format(end="2026-11-24T16:58:40", tres=tres))
    assert found.gpus == {"n9": 2, "n10": 2, "n11": 2}
    assert found.steps_share is steps_share
    assert found.end == time.mktime((2026, 11, 24, 16, 58, 40, 0, 0, -1))
    assert not found.is_newer
    for details, option in ((found, "gpus=2"), (replace(found, is_newer=True), "gres=gpu:2")):
        assert [node.gpus for node in allocation.read(THREE, details).nodes] == ["" if steps_share else option] * 3
    assert parse_details("   ReqTRES=cpu=2,node=2\n   AllocTRES=cpu=2,node=2,billing=2").is_newer


@pytest.mark.parametrize("text", [SHOWN.format(end="Unknown", tres=""), "", "JobId=7 EndTime=NONE"])
def test_a_job_without_a_limit(text: str) -> None:
    assert parse_details(text).end is None


def test_an_allocation_in_words() -> None:
    def words(**variables: str) -> str:
        return allocation.read({**THREE, **variables}, NOTHING).describe()

    assert words() == "the allocation of Slurm's job 7 is used: 3 nodes (n9, n10, n11)"
    assert words(SLURM_NTASKS="6", SLURM_TASKS_PER_NODE="2(x3)").endswith("3 nodes (n9, n10, n11) with 2 slots each")
    assert words(SLURM_NTASKS="4", SLURM_TASKS_PER_NODE="2,1(x2)").endswith("3 nodes (n9, n10, n11) with 4 slots")


def test_variables_that_do_not_fit_are_refused() -> None:
    with pytest.raises(OrchError, match="has 2 numbers for 3 nodes"):
        allocation.read({**THREE, "SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "2,1"}, NOTHING)


def test_an_orch_that_srun_starts_several_times_is_refused() -> None:
    with pytest.raises(UsageError, match="srun has started orch 3 times"):
        allocation.refuse({**THREE, "SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "1"})
    allocation.refuse({**THREE, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"})  # srun --pty bash
    allocation.refuse({**THREE, "SLURM_PROCID": "0"})  # a batch script


@pytest.mark.parametrize(
    ("keys", "slots"),
    [
        ({}, {"n1": None, "n2": None, "n10": 4}),
        ({"nodes": 2}, {"n1": None, "n2": None}),  # fewer than the job has
        ({"ntasks_per_node": 2}, {"n1": 2, "n2": 2, "n10": 4}),  # where the job says nothing
        ({"ntasks": 2}, {"n1": 1, "n2": 1}),
    ],
)
def test_the_nodes_of_an_allocation_that_are_used(keys: dict[str, int], slots: dict[str, int | None]) -> None:
    nodes = (NodeSpec("n1"), NodeSpec("n2"), NodeSpec("n10", 4))
    assert SlurmSettings("slurm", job="7", allocation=nodes, **keys).named_slots == slots  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        (SlurmSettings(nodes=3), (None, None, None)),
        (SlurmSettings(nodes=2, ntasks_per_node=4), (4, 4)),
        (SlurmSettings(ntasks=6, ntasks_per_node=2), (2, 2, 2)),
        (SlurmSettings(ntasks=5, nodes=2), (3, 2)),
        (SlurmSettings(ntasks=5), (5,)),
        (SlurmSettings(nodes=2, gpus_per_node="h200:4"), (4, 4)),
        (SlurmSettings(nodes=2, gres="gpu:a100:2,license:3"), (2, 2)),
        (SlurmSettings(), (None,)),
    ],
)
def test_the_slots_that_a_request_has_room_for(settings: SlurmSettings, slots: tuple[int | None, ...]) -> None:
    assert tuple(settings.named_slots.values()) == slots


@pytest.mark.parametrize(
    ("per_node", "gres", "count"),
    [("4", "", 4), ("h200:4", "", 4), ("", "gpu", 1), ("", "gpu:2", 2), ("", "gpu:a100:2(S:0-1)", 2), ("", "license:1", 0), ("", "", 0)],
)
def test_gpus_are_counted(per_node: str, gres: str, count: int) -> None:
    assert count_gpus(per_node, gres) == count


def test_a_step_gets_no_option_that_was_meant_for_another() -> None:
    variables = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_EXPORT_ENV": "NONE",
        "SLURM_NTASKS": "6",
        "SRUN_CPUS_PER_TASK": "4",
    }
    command = step_command("7", NodeSpec("n10", gpus="gpus=2"), "/venv/bin/python", (), {**variables, "SLURM_JOB_NODELIST": "n[9-11]"})
    before, after = command[: command.index("srun")], command[command.index("srun") :]
    assert before == (*("env", "-u", "SLURM_EXPORT_ENV", "-u", "SLURM_JOB_NODELIST", "-u", "SLURM_NTASKS"), *("-u", "SRUN_CPUS_PER_TASK"))
    assert after[:4] == ("srun", "--jobid=7", "-w", "n10")
    assert {"--overlap", "--mem=0", "--export=ALL", "--no-kill", "--gpus=2", "SLURM_JOB_NODELIST=n[9-11]"} <= {*after}
    assert after[-4:-2] == ("/venv/bin/python", "-I")
    assert "module load cuda" in step_command("7", NodeSpec("n10"), "python3", ("module load cuda",), {})[-1]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("srun: error: Unable to create step for job 7: Invalid job id specified\n", "the allocation has ended: make a new one"),
        (
            "srun: error: Unable to create step for job 7: Unable to contact slurm controller (connect failure)\n",
            "is slurmctld up? scontrol ping tells",
        ),
        (
            'srun: error: If munged is up, restart with --num-threads=10\nsrun: error: Munge encode failed: Failed to access "/x"\n',
            "is munged up on this machine? munge -n tells",
        ),
    ],
)
def test_the_complaints_of_srun_have_remedies(said: str, told: str) -> None:
    diagnosis = explain_step(StartFailure("env", 1, said))
    assert diagnosis is not None
    assert diagnosis.remedy == told


def test_a_notice_of_slurm_is_no_complaint() -> None:
    notice = "srun: cluster configuration lacks support for cpu binding\n"
    assert complaint_of(notice) == ""
    assert explain_step(StartFailure("env", 96, f"{notice}orch: /usr/bin/python3 is Python 3.6\n")) is None
    assert complaint_of(f"{notice}srun: error: hostB: task 0: Exited with exit code 3\n") == "hostB: task 0: Exited with exit code 3"


def test_a_slurmctld_that_is_not_found_is_no_refusal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where no slurm.conf names a cluster, Slurm's programs look for it in the DNS."""
    program = tmp_path / "sbatch"
    program.write_text(
        "#!/bin/sh\n"
        "echo 'sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host' >&2\n"
        "echo 'sbatch: error: fetch_config: DNS SRV lookup failed' >&2\n"
        "echo 'sbatch: fatal: Could not establish a configuration source' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    said = r"slurmctld cannot be asked: resolve_ctls.*Unknown host\nfix: is this a login node of the cluster\?"
    with pytest.raises(OrchError, match=said) as caught:
        run_program((str(program), "--test-only"), "Slurm refuses the job")
    assert caught.value.exit_code == 125


@pytest.mark.parametrize(
    ("asked_s", "left_s", "before_s"), [(None, 3600.0, 120.0), (300.0, 3600.0, 300.0), (300.0, 60.0, 30.0), (None, 60.0, 30.0)]
)
def test_the_tasks_save_as_long_before_the_time_limit_as_asked_and_at_most_half_of_the_time(
    asked_s: float | None, left_s: float, before_s: float
) -> None:
    assert time_before(asked_s, left_s) == before_s
