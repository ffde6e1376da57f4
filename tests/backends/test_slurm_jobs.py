"""The batch script as a whole text, and the words of Slurm's queue: tables, no Slurm."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.backends import RunFacts, load
from orchestrator.backends.engines import Channel
from orchestrator.backends.slurm import queue
from orchestrator.backends.slurm.batch_script import BatchScript
from orchestrator.backends.slurm.engine import SlurmEngine
from orchestrator.control import starting
from orchestrator.errors import OrchError, SpecError, UnansweredError, UsageError
from orchestrator.model.policy.submission import Submission, Word
from orchestrator.model.settings import SlurmSettings
from orchestrator.model.settings import document as documents
from orchestrator.model.settings.parse import parse, to_document
from tests.conftest import Orch

COMMAND = ("/venv/bin/python", "/orch/controller.py", "/home/me/my runs/digits-1", "--submitted")


def script(output: str = "/home/me/digits-1/controller.log", **settings: object) -> str:
    return BatchScript("digits", output, COMMAND, SlurmSettings("slurm", **settings)).text()  # type: ignore[arg-type]


def test_the_shortest_script() -> None:
    assert script() == (
        "#!/bin/sh\n"
        "#SBATCH --job-name=digits\n"
        "#SBATCH --output=/home/me/digits-1/controller.log\n"
        "#SBATCH --open-mode=append\n"
        "#SBATCH --requeue\n"
        "# The controller of one run of orch: it starts the tasks on the nodes (srun), and continues after a requeue.\n"
        "exec /venv/bin/python /orch/controller.py '/home/me/my runs/digits-1' --submitted\n"
    )


def test_a_script_with_everything() -> None:
    settings = SlurmSettings(
        "slurm",
        nodes=3,
        ntasks=6,
        ntasks_per_node=2,
        cpus_per_task=8,
        gpus_per_node="h200:4",
        gres="gpu:4,license:1",
        mem="64G",
        time="1-4:00:00",
        partition="gpu",
        account="ml",
        qos="normal",
        constraint="ib&(a100|h100)",
        options={"exclusive": "true", "mail-type": "END", "comment": 'say "hi"', "hold": "false"},
        requeue="no",
    )
    assert BatchScript("digits", "/runs/100% mine/controller.log", COMMAND, settings).text().splitlines()[1:-2] == [
        "#SBATCH --job-name=digits",
        "#SBATCH --partition=gpu",
        "#SBATCH --account=ml",
        "#SBATCH --qos=normal",
        "#SBATCH --nodes=3",
        "#SBATCH --ntasks=6",
        "#SBATCH --ntasks-per-node=2",
        "#SBATCH --cpus-per-task=8",
        "#SBATCH --gpus-per-node=h200:4",
        "#SBATCH --gres=gpu:4,license:1",
        "#SBATCH --mem=64G",
        "#SBATCH --time=1-4:00:00",
        '#SBATCH --constraint="ib&(a100|h100)"',
        "#SBATCH --exclusive",
        "#SBATCH --mail-type=END",
        '#SBATCH --comment="say \\"hi\\""',
        '#SBATCH --output="/runs/100%% mine/controller.log"',
        "#SBATCH --open-mode=append",
        "#SBATCH --no-requeue",
    ]


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("2h30m", "2:30:00"),
        ("90s", "0:01:30"),
        ("1d", "24:00:00"),
        ("120", "120"),
        ("1-12:00:00", "1-12:00:00"),
        ("UNLIMITED", "UNLIMITED"),
    ],
)
def test_a_time_with_units_is_written_as_sbatch_reads_it(given: str, written: str) -> None:
    assert f"#SBATCH --time={written}\n" in BatchScript("digits", "/o", COMMAND, SlurmSettings("slurm", time=given)).text()


def test_a_script_that_queues_its_job_again() -> None:
    assert script(requeue="always").splitlines()[6:] == [
        "/venv/bin/python /orch/controller.py '/home/me/my runs/digits-1' --submitted &",
        "trap 'kill \"$!\"' TERM",
        'wait "$!"; code=$?',
        'while kill -0 "$!" 2>/dev/null; do wait "$!"; code=$?; done',
        "# 42: the tasks have saved, and the run continues when the job starts again.",
        '[ "$code" = 42 ] && scontrol requeue "$SLURM_JOB_ID"',
        'exit "$code"',
    ]


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("--gpus", "2"), ["--gpus-per-node=2"]),
        (("--gpus", "1", "-n", "5"), ["--gpus-per-node=3"]),
        (("--gpus", "2", "--set", "defaults.devices.share_gpus=true", "-n", "4"), ["--gpus-per-node=2"]),
        (("--gpus", "0"), []),
        ((), []),
        (("--gpus", "1", "--set", "backend.gres=gpu:a100:1"), ["--gres=gpu:a100:1"]),
        (("--gpus", "1", "--set", "backend.options={gpus-per-task: 1}"), ["--gpus-per-task=1"]),
    ],
)
def test_a_job_asks_for_the_gpus_that_its_tasks_want(orch: Orch, tmp_path: Path, words: tuple[str, ...], asked: list[str]) -> None:
    """Unless the settings of the job say which."""
    (tmp_path / "script.py").touch()
    told = orch("up", "script.py", "--backend", "slurm", "--nodes", "2", "-d", "--dry-run", *words, check=0).out
    assert re.findall("#SBATCH (--g.*)", told) == asked


@pytest.mark.parametrize(
    ("words", "backend", "workers"),
    [
        ((), "gpus_per_node: 4", 8),
        (("--gpus", "2"), "gpus_per_node: 4", 4),
        (("--gpus", "0,1"), "gres: 'gpu:4'", 4),
        (("--gpus", "8"), "gpus_per_node: 4", 2),  # which the start refuses: no node has eight
        (("--gpus", "2", "--set", "defaults.devices.share_gpus=true"), "gpus_per_node: 4", 8),
        (("--gpus", "2"), "gpus_per_node: 4, ntasks_per_node: 3", 6),
        (("--gpus", "2"), "job: '7', allocation: {n1: {slots: 4, slots_are_gpus: true}, n2: {slots: 2, slots_are_gpus: true}}", 3),
        (("--gpus", "2"), "job: '7', allocation: {n1: 4, n2: 2}", 6),
    ],
)
def test_a_worker_takes_the_slots_of_all_its_gpus(orch: Orch, tmp_path: Path, words: tuple[str, ...], backend: str, workers: int) -> None:
    """Where a node has a slot for each GPU, and the number of workers is not given."""
    (tmp_path / "orch.yaml").write_text(f"{{script: script.py, backend: {{type: slurm, nodes: 2, {backend}}}}}")
    (tmp_path / "script.py").touch()
    assert f"; {workers} tasks;" in orch("up", "--dry-run", *words, check=0).out


def test_a_line_break_has_no_place_in_a_script() -> None:
    with pytest.raises(UsageError, match="cannot have a value with a line break"):
        script("/runs/a\nb/controller.log")


def read(backend: str) -> SlurmSettings:
    settings = parse(documents.read(f"{{script: a.py, backend: {backend}}}".encode(), "orch.yaml"), workdir="/w").backend
    assert isinstance(settings, SlurmSettings)
    return settings


def test_options_are_read_as_they_are_written() -> None:
    settings = read("{type: slurm, nodes: 2, time: 1:00:00, gpus_per_node: 4, options: {exclusive: true, mail-type: END}}")
    assert (settings.time, settings.gpus_per_node, dict(settings.options)) == ("1:00:00", "4", {"exclusive": "true", "mail-type": "END"})
    spec = parse(documents.read(b"{script: a.py, backend: {type: slurm, nodes: 2, time: 1:00:00}}", "orch.yaml"), workdir="/w")
    assert parse(documents.from_data(to_document(spec), "spec.yaml"), workdir="/w") == spec
    assert spec.counts == {"worker": 2}


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("{type: slurm, options: {output: a.log}}", "is set by orch: the output of a run is in its directory"),
        ("{type: slurm, options: {array: 1-4}}", "makes several jobs, and a run is one job"),
        ("{type: slurm, options: {partition: gpu}}", "is a key of its own: write backend.partition"),
        ("{type: slurm, options: {ntasks-per-node: 4}}", "is a key of its own: write backend.ntasks_per_node"),
        ("{type: slurm, options: {--mail-type: END}}", "must be the long name of an option of sbatch"),
        ("{type: slurm, ntasks: 2, nodes: 3}", "ntasks: 2 is less than nodes: 3"),
        ("{type: slurm, gpus_per_node: many}", "must be 4, or h200:4"),
        ("{type: slurm, job: 7}", "job and allocation describe an allocation together"),
        ("{type: slurm, partitoin: gpu}", "did you mean 'partition'?"),
    ],
)
def test_mistakes_in_the_section(backend: str, message: str) -> None:
    with pytest.raises(SpecError, match=message.replace("(", r"\(").replace("?", r"\?")):
        read(backend)


def test_a_request_has_the_script_and_stands_in_for_the_nodes() -> None:
    spec = parse(documents.read(b"{script: a.py, backend: {type: slurm, nodes: 2}}", "orch.yaml"), workdir="/w")
    request = load(spec).request(RunFacts(spec, "a-1", "/runs/a-1"))
    assert [host.name for host in request.hosts] == ["node-0", "node-1"]
    assert request.texts().keys() == {"job.sbatch", "agent-node-0.txt", "agent-node-1.txt"}
    assert "/runs/a-1 --submitted" in request.files["job.sbatch"]


EARLY = f"its batch step failed before orch could say why; see controller.log in its run directory; {queue.UNSEEN}"
NOW = time.mktime((2026, 11, 24, 12, 0, 0, 0, 0, -1))


def line(state: str, reason: str = "None", start: str = "N/A", limit: str = "1:00:00", nodes: str = "") -> Word:
    return queue.parse_queue(f"7|{state}|{reason}|{start}|{limit}|{nodes}|/runs/a-1/request/job.sbatch\n")["7"].word(NOW)


@pytest.mark.parametrize(
    ("word", "state", "words"),
    [
        (line("PENDING", "Resources", "2026-11-24T14:05:00"), "waiting", "queued in Slurm: Resources, starts about 14:05"),
        (line("PENDING", "Resources", "2026-11-25T14:05:00"), "waiting", "queued in Slurm: Resources, starts about Nov 25 14:05"),
        (line("PENDING", "Resources", "2027-11-25T14:05:00"), "waiting", "queued in Slurm: Resources, starts about 2027-11-25"),
        (line("PENDING", "(Priority)"), "waiting", "queued in Slurm: Priority: other jobs come first"),
        (line("PENDING", "None"), "waiting", "queued in Slurm"),
        (line("PENDING", "SomethingNew"), "waiting", "queued in Slurm: SomethingNew"),
        (line("PENDING", "BeginTime", "2026-11-24T11:00:00").words.partition(":")[0], None, "queued in Slurm"),
        (line("REQUEUED", "None"), "waiting", "queued in Slurm (REQUEUED)"),
        (line("CONFIGURING", "None", nodes="n[1-3]"), "waiting", "Slurm is starting the nodes n[1-3]"),
        (line("RUNNING", "None", nodes="n[1-3]"), "running", "running in Slurm on n[1-3]"),
        (line("COMPLETING", "None", nodes="n1"), "running", "running in Slurm on n1"),
        (line("SUSPENDED", "None", nodes="n1"), "running", "suspended in Slurm on n1"),
    ],
)
def test_the_words_of_a_job_that_is_not_over(word: Word | str, state: str | None, words: str) -> None:
    assert (word.words if isinstance(word, Word) else word) == words
    assert state is None or (isinstance(word, Word) and word.state == state)


@pytest.mark.parametrize(
    ("word", "cause", "code"),
    [
        (line("CANCELLED"), "cancelled (scancel)", 143),
        (line("TIMEOUT"), "its time limit of 1:00:00 was over", 124),
        (line("PREEMPTED"), "preempted by another job", 143),
        (line("NODE_FAIL", nodes="n3"), "a node died (n3)", None),
        (line("OUT_OF_MEMORY"), "a node had no memory left for the job (mem)", None),
        (line("FAILED", "NonZeroExitCode"), EARLY, None),
        (line("FAILED", "JobLaunchFailure", nodes="n3"), f"its batch step was killed, or did not begin, on n3: {queue.UNSEEN}", None),
        (line("COMPLETED"), "its batch step succeeded, but no result.json came into its run directory; see controller.log there", None),
    ],
)
def test_how_a_job_ended_without_a_verdict(word: Word, cause: str, code: int | None) -> None:
    assert (word.state, word.cause, word.exit_code) == ("ended", cause, code)


def test_a_queue_of_many_jobs_and_of_noise() -> None:
    found = queue.parse_queue("7|RUNNING|None|N/A|UNLIMITED|n1|/a|b\nslurm is slow today\n8|PENDING|Resources|N/A|1:00||(null)\n")
    assert {job: one.state for job, one in found.items()} == {"7": "RUNNING", "8": "PENDING"}
    assert found["7"].script == "/a|b"
    endless = queue.parse_queue(f"7|PENDING|{'x' * 5_000_000}|N/A|1:00||\n")["7"]
    assert len(endless.word(NOW).words) < 1000


def test_a_number_may_be_that_of_another_job_or_of_another_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clusters may share a home, and SLURM_CONF may name another one than yesterday."""
    jobs = {number: Submission(number, "", run_id=f"a-{number}", place="red") for number in ("7", "8", "9")}
    lines = ["7|PENDING|Resources|N/A|1:00||/home/me/.orch/runs/a-7/request/job.sbatch", "8|RUNNING|None|N/A|1:00|n1|/home/me/other.sh"]
    for name, text in (("squeue", "\n".join(lines)), ("scontrol", "Configuration\nClusterName             = blue")):
        (tmp_path / name).write_text(f"#!/bin/sh\ncat <<END\n{text}\nEND\n")
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    words = SlurmEngine().ask(jobs)
    assert {number: word.state for number, word in words.items()} == {"7": "waiting", "8": "unknown", "9": "unknown"}
    assert words["9"].words == "job 9 of Slurm's cluster red; Slurm's programs here ask blue (SLURM_CONF)"
    on_blue = {number: replace(one, place="blue") for number, one in jobs.items()}
    assert SlurmEngine().ask(on_blue).keys() == {"7"}, "the right cluster has forgotten them"


@pytest.mark.parametrize(("text", "at"), [("2026-11-24T12:00:00\n", NOW), ("NONE", None), ("N/A", None), ("", None), ("Unknown", None)])
def test_times(text: str, at: float | None) -> None:
    assert queue.parse_time(text) == at


def test_a_squeue_that_fails_once_tells_nothing_of_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "7|RUNNING|None|N/A|1:00|n1|/runs/a-1/request/job.sbatch"
    jobs = {"7": Submission("7", "", run_id="a-1")}
    failing = f"[ -e {tmp_path}/asked ] || {{ touch {tmp_path}/asked; echo 'squeue: error: Socket timed out on send/recv' >&2; exit 1; }}"
    (tmp_path / "squeue").write_text(f"#!/bin/sh\n{failing}\necho '{line}'\n")
    (tmp_path / "squeue").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(OrchError, match=r"cannot ask Slurm: Socket timed out.*\nfix: .*scontrol ping"):
        SlurmEngine().ask(jobs)
    assert SlurmEngine().ask(jobs)["7"].state == "running"


def test_the_run_of_an_sbatch_that_answers_too_late_is_kept_and_its_job_can_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("sbatch", 'case "$*" in *--test-only*) ;; *) exec sleep 100 ;; esac'), ("srun", ""), ("scontrol", "")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o700)
    (tmp_path / "train.py").touch()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("orchestrator.backends.slurm.programs.ANSWER_S", 0.5)
    monkeypatch.setattr("orchestrator.backends.slurm.engine._MEMORY", ())
    spec = parse(documents.from_data({"script": "train.py", "name": "digits", "backend": {"type": "slurm"}}, "test"), workdir=str(tmp_path))
    begun = starting.create(tmp_path / ".orch", spec)
    run = begun.run
    with pytest.raises(UnansweredError, match=f"so its run is kept: {run.path}\nfix: squeue --me --name digits names the job"):
        starting.submit(begun)
    assert run.path.is_dir()
    assert not run.lock.is_held()


def test_a_program_that_closes_its_output_and_goes_on_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.backends.engines.SILENCE_S", 0.5)
    with pytest.raises(OrchError, match="has not answered for"):
        list(Channel(("sh", "-c", "exec sleep 100 >&-"), "/").exchange("", "fetch", b""))
