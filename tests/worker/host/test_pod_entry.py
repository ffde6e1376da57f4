"""The first code of a pod that no controller looks after, run on this machine with the files of a manifest's ConfigMap."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.conftest import Orch
from tests.live import wait_until

ROOT = Path(__file__).resolve().parents[3]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(orch: Orch, script: Callable[..., Path], tmp_path: Path) -> Start:
    """``start("print(1)", index=1)``: a task of the training with this program, as a pod starts it."""

    def begin(text: str, *words: str, name: str = "train.py", index: int = 0, **env: str) -> subprocess.Popen[str]:
        script(text, name).chmod(0o755)
        done = orch("plan", name, "--kubernetes", "--workload", "job", "--image", "any:1", *words, check=0)
        objects = {one["kind"]: one for one in yaml.safe_load_all(done.out)}
        files, home = tmp_path / "files", tmp_path / f"home-{index}"
        for directory in (files, home):
            directory.mkdir(exist_ok=True)
        for key, value in objects["ConfigMap"]["data"].items():
            (files / key).write_text(value.replace('"/orch/code"', json.dumps(str(home / "code"))))
        for key, value in objects["ConfigMap"]["binaryData"].items():
            (files / key).write_bytes(base64.b64decode(value))
        container = objects["Job"]["spec"]["template"]["spec"]["containers"][0]
        texts = {one["name"]: one["value"].replace("$(JOB_COMPLETION_INDEX)", str(index)) for one in container["env"] if "value" in one}
        given = {**os.environ, **texts, "HOME": str(home), "JOB_COMPLETION_INDEX": str(index), **env}
        argv = [sys.executable, str(files / "start.py"), str(files), container["command"][-1]]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=given, cwd="/")

    return begin


def test_a_task_knows_what_it_would_know_under_a_controller(start: Start, tmp_path: Path) -> None:
    names = (
        "RANK,WORLD_SIZE,LOCAL_RANK,MASTER_ADDR,MASTER_PORT,ORCH_TASK,ORCH_ATTEMPT,ORCH_IS_CHIEF,ORCH_RUN_ID,no_grpc_proxy,OWN,TF_CONFIG"
    )
    told = f"import json, os, sys\nprint(json.dumps([sys.argv[1:], os.getcwd(), *(os.environ[name] for name in {names.split(',')})]))\n"
    words = ("-n", "2", "--chief", "--env", "OWN=$$1 $(HOME)", "--env", "no_grpc_proxy=mine", "--", "$$one", "two words")
    found = [json.loads(start(told, *words, index=index, JOBSET_RESTART_ATTEMPT="2").communicate()[0]) for index in (1,)]
    peers = "train-chief-0.train,train-worker-0.train,train-worker-1.train"
    config = json.loads(found[0].pop())
    assert found == [
        [
            *(["$$one", "two words"], str(tmp_path / "home-1/code"), "2", "3", "0", "train-chief-0.train", "2222"),
            *("worker-1", "3", "0", "train", f"mine,{peers}", "$$1 $(HOME)"),
        ]
    ]
    assert config["task"] == {"type": "worker", "index": 1}


@pytest.mark.parametrize(
    ("env", "attempt"),
    [
        ({}, "1"),
        ({"JOB_INDEX_FAILURES": "1", "JOB_INDEX_DISRUPTIONS": "2"}, "4"),
        ({"JOBSET_RESTART_ATTEMPT": "1", "JOB_INDEX_FAILURES": ""}, "2"),
    ],
)
def test_each_pod_that_replaces_another_one_is_another_attempt(start: Start, env: dict[str, str], attempt: str) -> None:
    assert start("import os\nprint(os.environ['ORCH_ATTEMPT'])\n", **env).communicate() == (f"{attempt}\n", "")


def test_the_program_ends_the_pod(start: Start) -> None:
    process = start("import sys\nprint('out', flush=True)\nsys.exit(42)\n")
    assert (process.communicate()[0], process.returncode) == ("out\n", 42)
    process = start("import os\nos.kill(os.getpid(), 9)\n")
    assert (process.wait(), process.communicate()) == (137, ("", ""))
    process = start("raise ValueError('no data')\n")
    assert process.communicate()[1].endswith("train.py\", line 1, in <module>\n    raise ValueError('no data')\nValueError: no data\n")
    assert process.returncode == 1


def test_sigterm_reaches_the_program(start: Start, tmp_path: Path) -> None:
    """And what the program has left is reaped: this process is the first of its pod."""
    text = """
        import os, signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        subprocess.Popen(["sh", "-c", "sleep 0.01 &"]).wait()
        open(sys.argv[1], "w").close()
        time.sleep(600)
        """
    process = start(text, "--", str(tmp_path / "up"))
    wait_until((tmp_path / "up").exists, "program")
    process.send_signal(signal.SIGTERM)
    assert (process.communicate(), process.returncode) == (("", ""), 7)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_the_code_is_unpacked_ends_the_pod(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """The first process of a pod gets no signal that it does not handle: Kubernetes would wait for the grace, then kill it."""
    text = (
        "import os, signal, sys, time\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from worker.host import pod_entry\n"
        "pod_entry._load_worker = lambda *_: (print('unpacks', flush=True), time.sleep(600))\n"
        f"signal.signal(signal.{number.name}, signal.SIG_IGN)\n"
        "sys.exit(pod_entry.main('/nowhere', 'worker'))\n"
    )
    unpacking = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, env={**os.environ, "HOME": str(tmp_path)})
    assert unpacking.stdout is not None
    assert unpacking.stdout.readline() == "unpacks\n"
    unpacking.send_signal(number)
    unpacking.stdout.close()
    assert unpacking.wait() == code


def test_programs_that_are_not_python(start: Start) -> None:
    process = start("#!/bin/sh\necho $ORCH_TASK $1\n", "--no-python", "--", "here", name="./train.sh")
    assert process.communicate() == ("worker-0 here\n", "")
    process = start("#!/nowhere/sh\n", "--no-python", name="./bad.sh")
    assert "cannot be run in" in process.communicate()[1]
    assert process.returncode == 127
