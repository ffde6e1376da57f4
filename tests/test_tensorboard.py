"""`--tensorboard`: TensorBoard beside the tasks of a run, and a run that does not depend on it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from orchestrator.model.planning import plan
from orchestrator.model.planning.facts_of_hosts import HostFacts
from orchestrator.model.settings import ClusterSpec, TaskSpec
from orchestrator.model.state import events as ev
from orchestrator.model.state.cluster import Phase
from tests.bed import Bed
from tests.conftest import Orch
from tests.live import LiveRun, wait_until, wait_until_ready, write_script
from tests.model.run.test_lifecycle import History
from worker.protocol.messages import Program

HOLD = 'ready()\nwait_for("go")\n'


def test_tensorboard_is_on_the_first_host_on_a_port_of_its_own() -> None:
    spec = ClusterSpec("t", "multi_worker_mirrored", Program("script", "t.py"), (TaskSpec("worker", 2),), "/w", tensorboard="logs")
    hosts = [HostFacts("a", "10.0.0.1", 4, (4000, 4001), is_here=False), HostFacts("b", "10.0.0.2", 4, (5000,), is_here=False)]
    planned = plan.make("run", spec, plan.place(spec, {"a": None, "b": None}), hosts)
    board = planned.tasks[-1]
    assert (str(board.id), board.host, board.address) == ("tensorboard-0", "a", "127.0.0.1:4001")
    assert board.order.program == Program("tensorboard", args=("logs", "4001"))
    assert board.order.cluster is None
    assert [task.order.port for task in planned.tasks] == [4000, 5000, 4001]
    assert "tensorboard" not in planned.clusters["training"]
    assert planned.notes[-1] == ("TensorBoard for logs: http://127.0.0.1:4001/ on a; from another machine: ssh -L 4001:127.0.0.1:4001 a")


@pytest.mark.parametrize("code", [0, 1, 137])
def test_the_training_goes_on_without_it_and_ends_it(code: int) -> None:
    history = History(tasks={"worker-0": "a", "tensorboard-0": "a"}).start_all(up=False)
    history.happen(ev.TaskUp("worker-0", 1, 103.0))
    assert history.cluster.phase is Phase.RUNNING, "the cluster waits for no TensorBoard"
    assert history.end("tensorboard-0", code) == []
    assert history.cluster.phase is Phase.RUNNING
    history.end("worker-0")
    assert history.sweep_all().exit_code == 0

    history = History(tasks={"worker-0": "a", "tensorboard-0": "a"}).start_all()
    assert history.end("worker-0") == [ev.Stop(("tensorboard-0",), 5.0)]


def test_a_network_of_its_own_has_no_browser(orch: Orch, tmp_path: Path) -> None:
    write_script(tmp_path, "")
    refused = orch.in_process("plan", "script.py", "--tensorboard", "logs", "--network", "private", check=2)
    assert "tensorboard: with network: private no browser reaches it" in refused.err


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="TensorBoard is not installed")
def test_a_browser_finds_it_while_the_run_lasts_and_its_death_ends_no_run(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, HOLD)
    running = orch.start("up", "script.py", "-n", "2", "--tensorboard", "logs")
    wait_until_ready(tmp_path, "worker-0", "worker-1")
    url = running.wait_for(re.compile(r"orch: TensorBoard for logs: (http://127\.0\.0\.1:\d+/)\n"))[1]
    run.event("task_up", task="tensorboard-0")
    with urllib.request.urlopen(f"{url}data/environment", timeout=60) as answer:
        assert json.load(answer)["data_location"].endswith("logs")
    assert "tensorboard-0" in orch("ps", check=0).out
    os.kill(run.event("task_started", task="tensorboard-0")["pid"], signal.SIGKILL)
    running.wait_for(re.compile(r"tensorboard-0 failed \(.*SIGKILL.*\); the training goes on"))
    (tmp_path / "go").touch()
    done = running.wait(check=0)
    assert "succeeded" in done.err
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=5)


@pytest.mark.timeout(600)
def test_without_the_package_one_message_says_so_and_the_run_goes_on(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, HOLD)
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text("import sys\nsys.modules['tensorboard'] = None\n")
    running = orch.start("up", "script.py", "-n", "1", "--tensorboard", "logs", "--env", f"PYTHONPATH={tmp_path / 'hide'}")
    running.wait_for("tensorboard-0 failed (exit code 1); the training goes on")
    (tmp_path / "go").touch()
    done = running.wait(check=0)
    assert done.err.count(f"{sys.executable} -m pip install tensorboard\n") == 1
    assert "Traceback" not in done.err
    wait_until(lambda: "tensorboard-0" in orch("ps", check=0).out, "the task in orch ps")


@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("pkg_resources") is not None, reason="NOT TESTED: setuptools here is older than 82")
def test_a_tensorboard_that_this_setuptools_breaks_is_given_another_setuptools(orch: Orch, tmp_path: Path, run: LiveRun) -> None:
    """TensorBoard 2.20 imports pkg_resources."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(tmp_path / "old")]
    if subprocess.run([*pip, "tensorboard==2.20.0"], check=False).returncode:
        pytest.skip("NOT TESTED: pip cannot install TensorBoard 2.20")
    write_script(tmp_path, HOLD)
    running = orch.start("up", "script.py", "-n", "1", "--tensorboard", "logs", "--env", f"PYTHONPATH={tmp_path / 'old'}")
    running.wait_for("tensorboard-0 failed (exit code 1); the training goes on")
    (tmp_path / "go").touch()
    said = running.wait(check=0).err
    assert f"cannot be imported (No module named 'pkg_resources'): {sys.executable} -m pip install 'setuptools<82'\n" in said


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="TensorBoard is not installed")
def test_on_hosts_with_ssh_it_answers_on_the_first_one_alone(orch: Orch, bed: Bed, tmp_path: Path, run: LiveRun) -> None:
    write_script(tmp_path, 'print("on", os.uname().nodename, flush=True)\nwait_for("go")\n')
    options = ("-H", "hostA,hostB", "--set", f"backend.ssh={json.dumps(bed.ssh)}", "--tensorboard", "logs")
    running = orch.start("up", "script.py", *options)
    said = re.compile(
        r"orch: TensorBoard for logs: (http://127\.0\.0\.1:(\d+)/) on hostA; from another machine: ssh -L \2:127\.0\.0\.1:\2 hostA\n"
    )
    url = running.wait_for(said)[1]
    run.event("task_up", task="tensorboard-0")
    ask = (
        sys.executable,
        "-c",
        f"import urllib.request; print(urllib.request.urlopen({url + 'data/environment'!r}, timeout=60).read().decode())",
    )
    assert json.loads(bed["hostA"].run(*ask))["data_location"].endswith("logs")
    with pytest.raises(RuntimeError, match="refused"):
        bed["hostB"].run(*ask)
    (tmp_path / "go").touch()
    assert "succeeded" in running.wait(check=0).err
    with pytest.raises(RuntimeError, match="refused"):
        bed["hostA"].run(*ask)
