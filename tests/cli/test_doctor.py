"""`orch doctor` with interpreters and TensorFlows that are not as they should be, each a real process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Completed, Orch
from worker.settings.releases import NEWEST_PYTHON


def diagnose(orch: Orch, *words: str, check: int = 0, **env: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(orch("doctor", "--json", *words, env=env, check=check).out)
    assert found["exit_code"] == check
    return found


def of_topic(found: dict[str, Any], topic: str) -> dict[str, Any]:
    findings: list[dict[str, Any]] = [one for one in found["findings"] if one["topic"] == topic]
    assert len(findings) == 1, found["findings"]
    return findings[0]


@pytest.fixture
def without_tensorflow(tmp_path: Path) -> str:
    """An interpreter of this Python's version that has no packages."""
    path = tmp_path / "bare-python"
    path.write_text(f'#!/bin/sh\nexec {os.path.realpath(sys.executable)} -S "$@"\n')
    path.chmod(0o755)
    return str(path)


def shadow(directory: Path, text: str) -> dict[str, str]:
    """An environment in which `import tensorflow` runs this text."""
    directory.mkdir()
    (directory / "tensorflow.py").write_text(text)
    return {"PYTHONPATH": str(directory)}


def test_a_host_without_tensorflow_is_told_how_to_get_it(orch: Orch, without_tensorflow: str) -> None:
    done = orch("doctor", "--python", without_tensorflow, check=1)
    assert "asking local; importing TensorFlow there may take up to 120 s" in done.err
    assert "tensorflow  not installed" in done.out
    remedy = "-m pip install tensorflow-cpu;" if sys.version_info[:2] <= NEWEST_PYTHON else "there is no TensorFlow for Python 3."
    assert remedy in " ".join(done.out.split())
    assert done.out.endswith("a run would fail here\n")
    assert max(len(line) for line in done.out.splitlines() if "/" not in line) <= 80
    assert "\x1b" not in done.out


LIMITED = ("unshare", "--user", "--map-root-user", "sh", "-c", 'echo 0 >/proc/sys/user/max_net_namespaces; exec "$@"', "sh")


@pytest.mark.skipif(subprocess.run([*LIMITED, "true"], capture_output=True).returncode != 0, reason="NOT TESTED: no user namespaces here")
def test_a_private_network_is_tried_before_a_run_and_refused_in_words(tmp_path: Path, without_tensorflow: str) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [*LIMITED, sys.executable, "-m", "orchestrator", *words, "--python", without_tensorflow, "--no-python", "/bin/true"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    why = "a private network cannot be made here: the kernel's limit of namespaces is reached"
    done = run("doctor", "--json", "--network", "private")
    finding = of_topic(json.loads(done.stdout), "network")
    assert (done.returncode, finding["severity"], finding["what"]) == (1, "error", why)
    assert "user.max_net_namespaces" in finding["remedy"]
    assert [one for one in json.loads(run("doctor", "--json").stdout)["findings"] if one["topic"] == "network"] == []
    done = run("up", "--network", "private")
    assert (done.returncode, f"host local: {why}; " in done.stderr) == (125, True)


def test_a_program_that_is_not_python_needs_no_tensorflow(orch: Orch, without_tensorflow: str) -> None:
    found = diagnose(orch, "--no-python", "true", "--python", without_tensorflow)
    assert of_topic(found, "tensorflow")["severity"] == "note"
    found = diagnose(orch, "--no-python", "true", "--python", without_tensorflow, "--set", "tasks.data_worker=1", check=1)
    assert of_topic(found, "tensorflow")["severity"] == "error"  # orch's own servers do


def test_a_warning_ends_it_with_1_only_if_it_is_to_be_strict(orch: Orch, without_tensorflow: str) -> None:
    for words, code in (([], 0), (["--strict"], 1)):
        found = diagnose(orch, "--no-python", "true", "--python", without_tensorflow, "-n", "60000", *words, check=code)
        assert {one["severity"] for one in found["findings"]} == {"note", "warning"}
        assert of_topic(found, "memory")["severity"] == "warning"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/sh\necho I am a shell\n", "it does not answer as a Python does"),
        ("#!/bin/sh\nexit 0\n", "it ended with exit code 0"),
        ("#!/bin/sh\necho no such library >&2; exit 127\n", "exit code 127: no such library"),
        ("#!/bin/sh\nkill -SEGV $$\n", "it was killed by SIGSEGV"),
        ("#!/bin/sh\nexec yes\n", "it was killed by SIGXFSZ"),
        ("not a program", "it cannot be run"),
        (None, "it cannot be run: No such file or directory"),
    ],
)
def test_an_interpreter_that_is_none_is_named_with_the_reason(orch: Orch, tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "interpreter"
    if text is not None:
        path.write_text(text)
        path.chmod(0o755)
    found = diagnose(orch, "--python", str(path), check=1)
    problem = of_topic(found, "python")
    assert said in problem["why"]
    assert "--python" in problem["remedy"]
    assert found["hosts"][0]["machine"]["cores"] >= 1, "the machine is looked at all the same"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ImportError('numpy.core.multiarray failed to import')", "numpy.core.multiarray failed to import"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGILL)", "it was killed by SIGILL"),
        ("import sys\nprint('first words', file=sys.stderr)\nsys.exit(3)", "it ended with exit code 3: first words"),
        ("x = 1", "is not TensorFlow"),
        ("import nothing_of_this_name", "No module named 'nothing_of_this_name'"),
        ("print('{}')\nraise ImportError('loud')", "ImportError: loud"),
    ],
)
def test_an_import_that_fails_is_told_with_its_last_words(orch: Orch, tmp_path: Path, text: str, said: str) -> None:
    problem = of_topic(diagnose(orch, check=1, **shadow(tmp_path / "shadow", text)), "tensorflow")
    assert said in problem["why"]


def test_an_import_that_hangs_is_cut_off_and_its_stack_shown(orch: Orch, tmp_path: Path) -> None:
    env = shadow(tmp_path / "shadow", "import time\ndef wait_for_nobody():\n    time.sleep(600)\nwait_for_nobody()\n")
    problem = of_topic(diagnose(orch, "--import-timeout", "4", check=1, **env), "tensorflow")
    assert "it has not ended after 4 s" in problem["why"]
    assert "in wait_for_nobody" in problem["why"]


def test_ctrl_c_ends_it_and_what_it_had_started(orch: Orch, tmp_path: Path) -> None:
    env = shadow(tmp_path / "shadow", "import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(600)\n")
    process = orch.start("doctor", env=env)
    process.wait_for("importing TensorFlow")
    process.signal(signal.SIGINT)
    done: Completed = process.wait(check=130)  # conftest looks for what is left
    assert "Traceback" not in done.err


def test_the_spec_s_ports_are_tried_and_secrets_are_not_shown(orch: Orch, without_tensorflow: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        words = ["--python", without_tensorflow, "--set", f"ports={port}-{port}", "-n", "1"]
        for said in ("API_TOKEN=secret", "TF_KEY=secret", "all_proxy=http://me:secret@proxy:1", "TF_USE_LEGACY_KERAS=1"):
            words += ["--env", said]
        found = diagnose(orch, *words, check=1, http_proxy="http://me:secret@proxy:3128", TF_TOKEN="secret")
    errors = {one["topic"]: one for one in found["findings"] if one["severity"] == "error"}
    assert errors["ports"]["what"] == f"0 of the ports {port}-{port} are free"
    assert "secret" not in json.dumps(found)
    assert found["wanted"]["env"] == {"TF_USE_LEGACY_KERAS": "1", "all_proxy": "http://…@proxy:1"}


def test_a_wrong_spec_is_refused_as_everywhere(orch: Orch) -> None:
    assert "did you mean 'mirrored'" in orch("doctor", "--strategy", "mirored", check=2).err


def test_a_script_that_cannot_run_is_told(orch: Orch, tmp_path: Path) -> None:
    assert "the script 'none.py' cannot be read in" in orch("doctor", "none.py", check=2).err
    (tmp_path / "bad.py").write_text("def f(:")
    assert "the script 'bad.py' is not valid Python" in orch("doctor", "bad.py", check=2).err


def test_a_run_directory_that_cannot_be_written_to(orch: Orch, tmp_path: Path, without_tensorflow: str) -> None:
    (tmp_path / "file").touch()
    found = diagnose(orch, "--python", without_tensorflow, "--home", str(tmp_path / "file" / "runs"), check=1)
    assert of_topic(found, "disk")["severity"] == "error"


@pytest.mark.tensorflow
def test_the_real_tensorflow_is_described_and_judged_for_a_strategy(orch: Orch, tmp_path: Path) -> None:
    import importlib.metadata

    (tmp_path / "no-driver").mkdir()
    env: dict[str, Any] = {"PATH": f"{Path(sys.executable).parent}:{tmp_path / 'no-driver'}", "CUDA_VISIBLE_DEVICES": ""}
    found = diagnose(orch, "--strategy", "parameter_server", "--ps", "1", "-n", "2", "--gpus", "2", check=1, **env)
    tensorflow = found["hosts"][0]["tensorflow"]
    installed = {str(dist.metadata["Name"]).replace("_", "-"): dist.version for dist in importlib.metadata.distributions()}
    assert tensorflow["version"] == installed.get("tensorflow-cpu", installed.get("tensorflow"))
    assert tensorflow["keras"] == installed["keras"]
    assert of_topic(found, "keras")["severity"] == "warning"
    assert [one["topic"] for one in found["findings"] if one["severity"] == "error"] == ["gpu"]
