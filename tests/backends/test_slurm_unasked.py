"""A run that goes on in a Slurm that nobody can ask, as a machine sees it to which the shared disk shows no locks. No TensorFlow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import IMPATIENT, Orch
from tests.live import LiveRun, wait_until, wait_until_ready
from tests.slurm_bed import SlurmBed
from tests.slurm_runs import SLEEP, Place

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

TROUBLES = {
    "none": "cannot ask Slurm: there is no squeue on PATH here; load Slurm's module, or go to a login node",
    "munged": "cannot ask Slurm: Munge encode failed: Failed to access",
    "key": "whose munge key or clock may differ from slurmctld's: munge -n | unmunge tells",
    "expired": "whose munge key or clock may differ from slurmctld's: munge -n | unmunge tells",
    "slurmctld": "Unable to contact slurm controller (connect failure); is slurmctld up? scontrol ping tells",
}


def test_ps_of_a_running_job_says_that_it_cannot_ask(
    orch: Orch, slurm: SlurmBed, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, run: LiveRun
) -> None:
    place = Place(orch, slurm, tmp_path)
    place.write(SLEEP)
    name, _ = place.submit()
    processes = wait_until_ready(tmp_path, "worker-0", "worker-1")
    layers = tmp_path_factory.mktemp("layers")
    for part in ("upper", "work", "none"):
        (layers / part).mkdir()
    # The files are those of the run, and their locks are not.
    mount = f"mount -t overlay overlay -o lowerdir={tmp_path},upperdir={layers}/upper,workdir={layers}/work {tmp_path}"
    by = ("unshare", "--mount", "sh", "-c", f'{mount} && cd {tmp_path} && exec "$@"', "sh")

    def wait_for(told: str, env: dict[str, str], *words: str) -> str:
        said = ""

        def fits() -> bool:
            nonlocal said
            done = orch.start("ps", name, by=(*by, *words), env={**IMPATIENT, **env}).wait(check=0)
            said = " ".join(done.out.split())
            return told in said

        try:
            wait_until(fits, told, 30)
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
                said = wait_for(told, {"SLURM_CONF": str(config)})
        assert "ago: running in Slurm on hostA,hostB" in said
        assert said.count("cannot ask Slurm") == 1
    slurm.mend_daemons()
    wait_until(lambda: "cannot ask" not in wait_for("running since", {}), "answer of Slurm")
    assert all(process.is_running() for process in processes.values())
    place.orch("down", name, check=0)
    assert os.path.exists(run.path / "result.json")
