"""A Slurm that nobody can ask: what is said of its runs, and to those who want to start one. No TensorFlow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import IMPATIENT, Orch
from tests.live import LiveRun, wait_until, wait_until_ready
from tests.slurm_bed import SlurmBed
from tests.slurm_runs import SLEEP, Place

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

TROUBLES = {
    "none": "cannot ask Slurm: there is no squeue on PATH here; load Slurm's module, or go to a login node",
    "key": "whose munge key or clock may differ from slurmctld's: munge -n | unmunge tells",
    "munged": "cannot ask Slurm: Munge encode failed: Failed to access",
    "expired": "whose munge key or clock may differ from slurmctld's: munge -n | unmunge tells",
    "slurmctld": "Unable to contact slurm controller (connect failure); is slurmctld up? scontrol ping tells",
}


IN_ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "hostA"}


@pytest.mark.slow
def test_a_slurm_that_cannot_be_asked(
    orch: Orch, slurm: SlurmBed, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, run: LiveRun
) -> None:
    """ps says so, and the last answer, of a job that runs: as a machine sees it to which the shared disk shows no locks. A new run is
    refused, in an allocation with one line. Without slurmctld also on a login node, where a job waits.
    """
    place = Place(orch, slurm, tmp_path)
    place.write(SLEEP)
    waiting, _ = place.submit("--set", "backend.options={hold: true}")
    place.wait_for_words(waiting, "queued in Slurm: JobHeldUser")
    name, _ = place.submit()
    processes = wait_until_ready(tmp_path, "worker-0", "worker-1")
    layers = tmp_path_factory.mktemp("layers")
    for part in ("upper", "work", "none"):
        (layers / part).mkdir()
    # The files are those of the run, and their locks are not.
    mount = f"mount -t overlay overlay -o lowerdir={tmp_path},upperdir={layers}/upper,workdir={layers}/work {tmp_path}"
    by = ("unshare", "--mount", "sh", "-c", f'{mount} && cd {tmp_path} && exec "$@"', "sh")

    def wait_for(told: str, env: dict[str, str], *words: str, of: str = name) -> str:
        said = ""

        def fits() -> bool:
            nonlocal said
            done = orch.start("ps", of, by=(*by, *words), env={**IMPATIENT, **env}).wait(check=0)
            said = " ".join(done.out.split())
            return told in said

        try:
            wait_until(fits, told)
        except pytest.fail.Exception:
            pytest.fail(f"orch ps does not say {told}, but {said}")
        return said

    heard = layers / "upper" / run.path.relative_to(tmp_path) / "engine.json"
    wait_until(lambda: "running since" in wait_for(name, {}) and heard.exists() and "hostA,hostB" in heard.read_text(), "word of Slurm")
    for trouble, told in TROUBLES.items():
        if trouble == "none":
            said = wait_for(told, {}, "env", f"PATH={layers}/none")
        else:
            with slurm.broken(trouble) as config:
                env = {"SLURM_CONF": str(config)}
                said = wait_for(told, env)
                refused = orch("up", "script.py", env={**env, **IN_ALLOCATION}, check=125).err
                assert refused.startswith(("error: cannot ask Slurm for its job 7: ", "error: slurmctld cannot be asked: ")), refused
                assert told.removeprefix("cannot ask Slurm: ").replace("; ", "\n       fix: ") in refused
                assert [line.split()[0] for line in refused.splitlines()] == ["error:", "fix:", "more:"], refused
                if trouble == "slurmctld":
                    assert told.replace("; ", "\n       fix: ") in orch("up", "script.py", env=env, check=125).err
                    assert "queued in Slurm: JobHeldUser" in wait_for(told, env, of=waiting)
        assert "ago: running in Slurm on hostA,hostB" in said
        assert said.count("cannot ask Slurm") == 1
    slurm.mend_daemons()
    wait_until(lambda: "cannot ask" not in wait_for("running since", {}), "answer of Slurm")
    assert all(process.is_running() for process in processes.values())
    place.orch("down", waiting, check=0)
    place.orch("down", name, check=0)
    assert os.path.exists(run.path / "result.json")
