"""The same command on every node, started by real engines on hosts that are network namespaces. Without TensorFlow."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from orchestrator.model.joining import TOKEN
from tests.backends.test_join import CLEAN, LONG, SEEN, SHORT
from tests.bed import Bed
from tests.conftest import Orch, Running
from tests.live import wait_until, write_script
from tests.slurm_bed import SlurmBed

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(600)]
JOINED = re.compile(r"seen (\S+) (\S+)")
FAILS = f"""{SEEN}
tell(TASK)
wait_for(*(f"worker-{{number}}" for number in range(int(os.environ["WORLD_SIZE"]))))
sys.exit(7 * (TASK == "worker-1"))
"""


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The directory that all hosts see."""
    write_script(tmp_path, SHORT)
    return tmp_path


def _on(orch: Orch, bed: Bed, name: str, *words: str, **env: str) -> Running:
    by = ("ip", "netns", "exec", bed[name].netns, "unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "sh")
    return orch.start("up", "script.py", "--join", *words, by=by, env={**CLEAN, **env})


def test_hosts_that_share_nothing_but_an_address_and_a_secret(orch: Orch, bed: Bed, shared: Path) -> None:
    where = ("--join-at", f"{bed['hostA'].address}:7468", "--nodes", "3")
    names = ("hostA", "hostB", "hostC")
    started = [_on(orch, bed, name, *where, "--node-index", str(index), **{TOKEN: "s" * 64}) for index, name in enumerate(names)]
    assert [each.wait().code for each in started] == [0, 0, 0]
    assert {task for task, _ in JOINED.findall(started[0].out)} == {"worker-0", "worker-1", "worker-2"}
    assert "worker-0..2 on hostA, hostB, hostC" in started[0].err


def test_a_host_whose_cable_is_pulled_is_lost_and_knows_it(orch: Orch, bed: Bed, shared: Path) -> None:
    write_script(shared, LONG)
    where = ("--join-at", f"{bed['hostA'].address}:7468", "--nodes", "2", "--set", "backend.lost_after_s=4")
    pair = [_on(orch, bed, name, *where, "--node-index", str(at), **{TOKEN: "s" * 64}) for at, name in enumerate(("hostA", "hostB"))]
    wait_until(lambda: all((shared / f"worker-{number}.ready").exists() for number in range(2)), "tasks")
    bed["hostB"].cut()
    try:
        assert pair[0].wait().code == 125
        assert "hostB" in pair[0].err
        assert pair[1].wait().code == 125
        assert "node 0 is gone" in pair[1].err
    finally:
        bed["hostB"].join()


def test_srun_starts_one_command_on_every_node(orch: Orch, slurm: SlurmBed, shared: Path) -> None:
    write_script(shared, FAILS)
    srun = ("srun", "--quiet", "-N3", "--ntasks-per-node=1", "--kill-on-bad-exit=0")
    done = orch.start("up", "script.py", "--join", by=srun, env=CLEAN).wait()
    assert done.code == 7, done
    assert "the nodes meet by the file" in done.err
    assert {task for task, _ in JOINED.findall(done.out)} == {"worker-0", "worker-1", "worker-2"}
    assert done.err.count("the run has ended with exit code 7") == 2


@pytest.mark.parametrize(("kind", "name"), [("pmi2", "PMI"), ("pmix", "PMIx")])
def test_srun_with_pmi_needs_no_file(orch: Orch, slurm: SlurmBed, bed: Bed, shared: Path, kind: str, name: str) -> None:
    srun, env = ("srun", "--quiet", f"--mpi={kind}"), {**CLEAN, "SLURM_PMIX_TMPDIR": str(bed.own / "tmp")}
    if "load" in orch.start("--version", by=srun, env=env).wait().err:
        pytest.skip(f"NOT TESTED: Slurm here has no {name}")
    done = orch.start("up", "script.py", "--join", by=(*srun, "-N2", "--ntasks-per-node=2"), env=env).wait()
    assert (done.code, f"the nodes meet by the launcher ({name})" in done.err) == (0, True), done
    assert {task for task, _ in JOINED.findall(done.out)} == {f"worker-{number}" for number in range(4)}


def test_a_signal_of_slurm_ends_the_run_on_all_nodes(orch: Orch, slurm: SlurmBed, shared: Path) -> None:
    write_script(shared, LONG)
    running = orch.start("up", "script.py", "--join", by=("srun", "--quiet", "-N2", "--ntasks-per-node=1"), env=CLEAN)
    wait_until(lambda: all((shared / f"worker-{number}.ready").exists() for number in range(2)), "tasks")
    [job] = slurm.jobs()
    slurm.run("scancel", "--signal=TERM", job)
    running.wait()
    assert "received SIGTERM" in running.err
    assert "the run has ended with exit code 143" in running.err


def by_mpiexec(launcher: str, bed: Bed, directory: Path, each: int, own: str = "") -> tuple[tuple[str, ...], dict[str, str | None]]:
    """The command that starts a program on hostA and hostB, `each` times on each of them, and its environment. `own`: in this directory,
    which no other host sees."""
    program = f"/usr/bin/mpiexec.{launcher}"
    if not Path(program).exists():
        pytest.skip(f"NOT TESTED: there is no {launcher}")
    ssh = directory / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {" ".join(bed.ssh)} "$@"\n')
    ssh.chmod(0o755)
    hosts, here = ",".join(f"{bed[name].address}:{each}" for name in ("hostA", "hostB")), f"{bed.network}.1"
    count = str(2 * each)
    words = {
        "mpich": (program, "-hosts", hosts, "-localhost", here, "-n", count, "-launcher", "ssh", "-launcher-exec", str(ssh)),
        "openmpi": (program, "--allow-run-as-root", "-H", hosts, "-n", count, "--mca", "plm_rsh_agent", str(ssh)),
    }[launcher]
    if own:
        for name in ("hostA", "hostB"):
            (bed[name].files / own).mkdir()
        words += ("-wdir", str(bed.own / own))
    return words, {**CLEAN, "OMPI_ALLOW_RUN_AS_ROOT": "1"}


@pytest.mark.parametrize(("launcher", "way"), [("mpich", "PMI"), ("openmpi", "PMIx")])
def test_mpiexec_starts_one_command_on_every_host(orch: Orch, bed: Bed, shared: Path, launcher: str, way: str) -> None:
    """Two processes on each host: the first is the node, the second waits. mpiexec itself is on none of the hosts."""
    by, env = by_mpiexec(launcher, bed, shared, each=2)
    write_script(shared, FAILS)
    done = orch.start("up", "script.py", "--join", by=by, env=env).wait()
    assert (done.code, f"the nodes meet by the launcher ({way})" in done.err) == (7, True), done
    assert {task for task, _ in JOINED.findall(done.out)} == {f"worker-{number}" for number in range(4)}
    assert "missing" not in done.err, "a node has the index of its first process, which no other node knows"
    assert os.listdir(shared / ".orch" / "runs")
