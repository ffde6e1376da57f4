"""`orch up` with real TensorFlow clusters, from the command line to the verdict."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, Orch
from tests.real.programs import SCHEDULED_SUM

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(300)]

Script = Callable[..., Path]
EXAMPLES = ROOT / "examples"

ALL_REDUCE = """
    import os, sys
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    @tf.function
    def total():
        return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0)))

    print("total", float(strategy.experimental_local_results(total())[0]))
    {then}
"""


def all_reduce(then: str = "") -> str:
    return ALL_REDUCE.format(then=then)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of all examples: one directory of data, written once."""
    return {"ORCH_EXAMPLES_DATA": str(tmp_path_factory.mktemp("data"))}


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.usefixtures("warm_tensorflow")
@pytest.mark.parametrize(
    ("example", "options", "learners"),
    [
        ("mwms_custom_loop", ["--workers", "4"], 4),
        ("tf_config_only", ["--workers", "2"], 2),
        ("parameter_server", ["--workers", "2", "--ps", "1"], 1),
        ("mirrored_cpus", ["--strategy", "mirrored", "--cpus", "4"], 1),
    ],
)
def test_an_example_learns_the_digits(orch: Orch, data: dict[str, str], example: str, options: list[str], learners: int) -> None:
    done = orch("up", EXAMPLES / f"{example}.py", *options, env=data, timeout=240, check=0)
    found = [float(text) for text in re.findall(r"test accuracy ([\d.]+)", done.out)]
    assert len(found) == learners
    assert min(found) > 0.9
    assert "succeeded" in done.err
    assert "tasks are forked from the warm process" in done.err, "or each test of this directory imports TensorFlow again"


@pytest.mark.usefixtures("warm_tensorflow")
def test_a_proxy_in_the_environment_does_not_hang_the_cluster(orch: Orch, script: Script) -> None:
    script(all_reduce(), "train.py")
    proxies = dict.fromkeys(["http_proxy", "https_proxy", "HTTP_PROXY", "grpc_proxy"], "http://127.0.0.1:9")
    assert orch("up", "train.py", "-n", "2", env=proxies, timeout=250, check=0).out.count("total 2.0") == 2


@pytest.mark.usefixtures("warm_tensorflow")
def test_the_worker_that_raised_is_named_and_its_waiting_peer_is_ended(orch: Orch, script: Script, tmp_path: Path) -> None:
    then = """
    if strategy.cluster_resolver.task_id == 1:
        raise RuntimeError("the shard is empty")
    total()
    """
    script(all_reduce(then), "train.py")
    done = orch("up", "train.py", "-n", "2", "--set", "timeouts.grace_s=1", timeout=250, check=1)
    assert "first failure: worker-1 on local: exit code 1" in done.err
    assert "RuntimeError: the shard is empty" in done.err.partition("first failure")[2]
    result = json.loads((tmp_path / ".orch" / "latest" / "result.json").read_text())
    assert result["cause"]["task"] == "worker-1"
    assert result["cause"]["failure"]["message"] == "the shard is empty"


@pytest.mark.usefixtures("warm_tensorflow")  # the deadline would count the import, too
def test_a_missing_peer_is_named_and_the_deadline_shows_where_everybody_is(orch: Orch, script: Script) -> None:
    text = all_reduce().replace(
        "    strategy =", "    if os.environ['ORCH_TASK'] == 'worker-1':\n        import time\n        time.sleep(1000)\n    strategy =", 1
    )
    script(text, "train.py")
    done = orch("up", "train.py", "-n", "2", "--set", "timeouts.grace_s=1", "--set", "timeouts.start_s=20", timeout=250, check=124)
    assert "waiting for worker-1: no port is open yet (1 of 2 up)" in done.err
    last = done.err.partition("timed out")[2]
    assert "(timeouts.start_s); waiting for worker-1: no port is open yet" in last
    assert re.search(r"worker-0: in \S*MultiWorkerMirroredStrategy \(train\.py:\d+\)\n", last), done
    assert re.search(r"worker-1: in time\.sleep \(train\.py:\d+\)\n", last), done


@pytest.mark.usefixtures("warm_tensorflow")
def test_a_lone_worker_that_waits_for_peers_is_ended_by_one_ctrl_c(orch: Orch, script: Script) -> None:
    # TensorFlow's C++ runtime swallows SIGTERM there (preemption_notifier.cc): only SIGKILL after the grace period ends it.
    script(
        all_reduce().replace("strategy =", "strategy = None if os.environ['RANK'] == '1' and __import__('time').sleep(1000) else", 1),
        "train.py",
    )
    running = orch.start("up", "train.py", "-n", "2", "--set", "timeouts.grace_s=1")
    running.wait_for("(1 of 2 up)")
    running.signal(2)
    done = running.wait(check=130)
    assert "stopping worker-0..1" in done.err


@pytest.mark.usefixtures("warm_tensorflow")
def test_servers_that_a_script_does_not_start_are_run_and_ended(orch: Orch, script: Script) -> None:
    head = """
import tensorflow as tf
strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
"""
    script(head + SCHEDULED_SUM + 'print("total", float(total))', "chief.py")
    done = orch("up", "chief.py", "--workers", "2", "--ps", "1", "--set", "serve=true", "--set", "timeouts.grace_s=1", timeout=250, check=0)
    assert "chief-0  | total 20.0" in done.out
    assert "stopping worker-0..1, ps-0" in done.err


@pytest.mark.usefixtures("warm_tensorflow")
def test_servers_that_wait_for_a_chief_that_the_run_does_not_have_are_named_at_once_and_at_the_end(
    orch: Orch, script: Script, tmp_path: Path
) -> None:
    (tmp_path / "serving").mkdir()
    serve = """
        import tensorflow as tf

        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        server = tf.distribute.Server(resolver.cluster_spec(), resolver.task_type, resolver.task_id, protocol="grpc")
        server.join()
    """
    script(serve, "serving/__init__.py")  # an imported package: the syntax of the script shows nothing
    script("import serving", "train.py")
    running = orch.start("up", "train.py", "-n", "2", "--set", "timeouts.grace_s=1")
    line = "worker-0..1 stand in Server.join(), and this run has no chief that gives them work: a script for parameter servers needs --ps 1"
    running.wait_for(line, timeout=200)
    running.signal(2)
    assert f"orch:   {line} (or more)\n" in running.wait(check=130).err.partition("cancelled after")[2]


@pytest.mark.usefixtures("warm_tensorflow")
def test_runs_side_by_side_do_not_meet(orch: Orch, script: Script) -> None:
    script(all_reduce(), "train.py")
    runs = [orch.start("up", "train.py", "-n", "2") for _ in range(3)]
    for run in runs:
        assert run.wait(200, check=0).out.count("total 2.0") == 2
