"""``--mlflow`` and ``--wandb``: one run of a tracker for all tasks and attempts, that the result closes. No TensorFlow."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.conftest import Orch
from tests.live import LiveRun, wait_until
from tests.own_environment import python_with

Script = Callable[..., Path]
UP = ("up", "script.py", "-n", "2", "--set", "preload=[]")
TELL = """
import json, os, sys, time
names = ("MLFLOW_RUN_ID", "MLFLOW_RUN_CONTEXT", "MLFLOW_TRACKING_URI", "WANDB_RUN_ID", "WANDB_RESUME", "WANDB_MODE")
found = {name: os.environ[name] for name in names if name in os.environ}
print(json.dumps(found), file=open(f"{os.environ['ORCH_TASK']}-{os.environ['ORCH_ATTEMPT']}.json", "w"))
"""


class Mlflow(ThreadingHTTPServer):
    """As much of an MLflow server as orch asks of. `asked`: the paths with what was sent; `others`: runs that tasks have made."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.proofs: set[str] = set()
        self.others: list[dict[str, Any]] = []

    @property
    def env(self) -> dict[str, str]:
        return {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{self.server_port}"}

    def sent(self, path: str) -> dict[str, Any]:
        (found,) = [data for asked, data in self.asked if asked == path]
        return found


class Answers(BaseHTTPRequestHandler):
    server: Mlflow

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        path = self.path.removeprefix("/api/2.0/mlflow/")
        data = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        self.server.asked.append((path, data))
        self.server.proofs.add(self.headers.get("Authorization", ""))
        own = {"info": {"run_id": "abc"}, "data": {"tags": []}}
        answers: dict[str, Any] = {
            "runs/create": {"run": own},
            "experiments/create": {"experiment_id": "7"},
            "experiments/search": {"experiments": [{"experiment_id": "0"}, {"experiment_id": "7"}]},
            "runs/search": {"runs": [own, *self.server.others]},
        }
        self.send_response(404 if "get-by-name" in path else 200)
        self.end_headers()
        self.wfile.write(json.dumps(answers.get(path, {})).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Mlflow]:
    made = Mlflow()
    thread = threading.Thread(target=made.serve_forever, args=[0.01])
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def told(place: Path, task: str, attempt: int = 1) -> dict[str, str]:
    found: dict[str, str] = json.loads((place / f"{task}-{attempt}.json").read_text())
    return found


def test_one_run_over_all_attempts_that_the_result_closes(orch: Orch, script: Script, server: Mlflow, run: LiveRun, tmp_path: Path) -> None:
    fails = "if (os.environ['ORCH_ATTEMPT'], os.environ['ORCH_TASK']) == ('1', 'worker-1'):\n"
    waits = "    while not os.path.exists('worker-0-1.json') or not os.path.getsize('worker-0-1.json'):\n        time.sleep(0.01)\n"
    script(f"{TELL}{fails}{waits}    sys.exit(3)\n")
    orch(*UP, "--max-restarts", "1", "--mlflow", "--wandb", env=server.env, check=0)
    name = run.path.name
    for attempt in (1, 2):
        context = {"orch.run": name, "orch.task": "worker-0"}
        chief = told(tmp_path, "worker-0", attempt)
        assert json.loads(chief.pop("MLFLOW_RUN_CONTEXT")) == context
        assert chief == {**server.env, "MLFLOW_RUN_ID": "abc", "WANDB_RUN_ID": name, "WANDB_RESUME": "allow"}
        other = told(tmp_path, "worker-1", attempt)
        assert json.loads(other.pop("MLFLOW_RUN_CONTEXT")) == {**context, "orch.task": "worker-1"}
        assert other == {**server.env, "WANDB_MODE": "disabled"}
    made = server.sent("runs/create")
    assert (made["experiment_id"], made["run_name"], made["tags"][0]) == ("0", name, {"key": "orch.run", "value": name})
    assert server.sent("runs/update")["status"] == "FINISHED"
    assert abs(server.sent("runs/update")["end_time"] / 1000 - time.time()) < 60
    assert server.sent("runs/set-tag")["value"] == "0"
    assert server.proofs == {""}


@pytest.mark.parametrize(("does", "code", "state"), [("sys.exit(3)", 3, "FAILED"), ("os.kill(os.getpid(), 9)", 137, "FAILED")])
def test_a_failure_closes_it_as_failed(orch: Orch, script: Script, server: Mlflow, does: str, code: int, state: str) -> None:
    script(f"import os, sys\n{does}\n")
    orch(*UP, "--mlflow", env=server.env, check=code)
    assert server.sent("runs/update")["status"] == state
    assert server.sent("runs/set-tag")["value"] == str(code)


def test_a_run_that_is_cancelled_is_killed(orch: Orch, script: Script, server: Mlflow, tmp_path: Path) -> None:
    script("import os, time\nopen('ready', 'w').close()\ntime.sleep(1000)\n")
    running = orch.start(*UP, "--mlflow", env=server.env)
    wait_until((tmp_path / "ready").exists, "the tasks")
    running.signal(signal.SIGINT)
    running.wait(60, 130)
    assert server.sent("runs/update")["status"] == "KILLED"


def test_what_the_user_has_set_stays(orch: Orch, script: Script, server: Mlflow, tmp_path: Path) -> None:
    script(TELL)
    own = {"MLFLOW_RUN_ID": "mine", "WANDB_RUN_ID": "own", "WANDB_MODE": "offline", "MLFLOW_RUN_CONTEXT": "{}"}
    done = orch(*UP, "--mlflow", "--wandb", env={**server.env, **own}, check=0)
    for number in range(2):
        assert told(tmp_path, f"worker-{number}").items() >= own.items()
    assert server.asked == [], "it is the user's run"
    assert "--mlflow: MLFLOW_RUN_ID is set, so orch neither makes an MLflow run nor closes that one" in done.err
    assert "--wandb: WANDB_MODE is set, so orch turns W&B off in no task" in done.err


def test_a_login_in_the_address_is_used_and_shown_nowhere(orch: Orch, script: Script, server: Mlflow, run: LiveRun, tmp_path: Path) -> None:
    script(TELL)
    uri = server.env["MLFLOW_TRACKING_URI"].replace("//", "//bob:pass%40word@")
    server.others = [{}]
    done = orch(*UP, "--mlflow", env={"MLFLOW_TRACKING_URI": uri}, check=0)
    assert f"warning: --mlflow: {server.env['MLFLOW_TRACKING_URI']} does not say which tasks" in done.err
    assert server.proofs == {f"Basic {base64.b64encode(b'bob:pass@word').decode()}"}
    assert told(tmp_path, "worker-1")["MLFLOW_TRACKING_URI"] == uri
    assert [path for path in run.path.rglob("*") if path.is_file() and b"pass%40word" in path.read_bytes()] == []
    done = orch(*UP, "--mlflow", env={"MLFLOW_TRACKING_URI": "postgresql://bob:pass%40word@db/x"}, check=2)
    assert "MLFLOW_TRACKING_URI is postgresql://db/x, and not" in done.err


def test_a_run_without_trackers_has_none_of_it(orch: Orch, script: Script, server: Mlflow, tmp_path: Path) -> None:
    script(TELL)
    orch(*UP, env=server.env, check=0)
    assert told(tmp_path, "worker-0") == told(tmp_path, "worker-1") == server.env
    assert server.asked == []


@pytest.mark.parametrize(("uri", "said"), [(None, "is not set, and not http://SERVER"), ("sqlite:///a", "is sqlite:///a, and not")])
def test_without_a_server_nothing_is_started(orch: Orch, script: Script, tmp_path: Path, uri: str | None, said: str) -> None:
    script(TELL)
    done = orch(*UP, "--mlflow", env={"MLFLOW_TRACKING_URI": uri}, check=2)
    assert f"error: --mlflow: MLFLOW_TRACKING_URI {said}" in done.err
    assert "a file is for one process\n       fix: mlflow server" in done.err
    assert not (tmp_path / "worker-0-1.json").exists()


def test_a_server_that_does_not_answer_is_a_warning(orch: Orch, script: Script, server: Mlflow, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{free.getsockname()[1]}"
    script(TELL)
    done = orch(*UP, "--mlflow", env={"MLFLOW_TRACKING_URI": uri}, check=0)
    assert f"warning: --mlflow: {uri} has made no run: " in done.err
    assert "Connection refused; this run is not tracked" in done.err
    assert "MLFLOW_RUN_ID" not in told(tmp_path, "worker-0")


def test_a_server_that_is_gone_at_the_end_is_a_warning(orch: Orch, script: Script, server: Mlflow, tmp_path: Path) -> None:
    script("import os, time\nopen('ready', 'w').close()\nwhile not os.path.exists('go'):\n    time.sleep(0.05)\n")
    running = orch.start(*UP, "--mlflow", env=server.env)
    wait_until((tmp_path / "ready").exists, "the tasks")
    server.shutdown()
    server.server_close()
    (tmp_path / "go").touch()
    done = running.wait(60, 0)
    assert "may not show the end of the MLflow run abc: " in done.err


def test_a_server_that_shows_no_other_runs_is_a_warning(orch: Orch, script: Script, server: Mlflow) -> None:
    script("")
    server.others = [{}]
    done = orch(*UP, "--mlflow", env=server.env, check=0)
    assert "does not say which tasks made runs of their own: 'info'" in done.err
    assert server.sent("runs/update")["status"] == "FINISHED"


def test_tasks_that_log_as_well_are_named(orch: Orch, script: Script, server: Mlflow, run: LiveRun) -> None:
    script("")
    server.others = [{"info": {"run_id": f"r{i}"}, "data": {"tags": [{"key": "orch.task", "value": f"worker-{i}"}]}} for i in (1, 2)]
    done = orch(*UP, "--mlflow", env={**server.env, "MLFLOW_EXPERIMENT_NAME": "a b", "MLFLOW_TRACKING_TOKEN": "secret"}, check=0)
    assert "warning: worker-1..2 logged to MLflow runs of their own, not to abc\n" in done.err
    assert "fix: call MLflow only where worker.context().is_chief\n" in done.err
    asked = server.sent("runs/search")
    assert (asked["experiment_ids"], asked["filter"]) == (["0", "7"], f"tags.`orch.run` = '{run.path.name}'")
    assert server.asked[0][0] == "experiments/get-by-name?experiment_name=a%20b"
    assert server.sent("runs/create")["experiment_id"] == "7"
    assert server.proofs == {"Bearer secret"}
    assert not [path for path in run.path.rglob("*") if path.is_file() and b"secret" in path.read_bytes()]


# --- the real ones ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trackers_python() -> str:
    return python_with("trackers", "mlflow>=3", "wandb>=0.19")


@pytest.fixture
def mlflow(trackers_python: str, tmp_path: Path) -> Iterator[str]:
    """The address of a real server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["-m", "mlflow", "server", "--port", str(port), "--workers", "1", "--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db"]
    env = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with open(tmp_path / "server.log", "wb") as log:
        process = subprocess.Popen([trackers_python, *words], cwd=tmp_path, stdout=log, stderr=log, env=env, start_new_session=True)
    uri = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _answers(f"{uri}/health"), "server of MLflow")
        yield uri
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def _answers(address: str) -> bool:
    try:
        with urlopen(address, timeout=5):
            return True
    except OSError:
        return False


TRAIN = """
import os, signal, sys
import mlflow

chief, attempt = os.environ["ORCH_IS_CHIEF"] == "1", int(os.environ["ORCH_ATTEMPT"])
if chief or "all" in sys.argv:
    mlflow.start_run()
    mlflow.log_metric("loss", 1.0 / attempt, step=attempt)
if attempt == 1 and chief:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def runs_of(uri: str) -> list[dict[str, Any]]:
    body = json.dumps({"experiment_ids": ["0"]}).encode()
    with urlopen(Request(f"{uri}/api/2.0/mlflow/runs/search", body, {"Content-Type": "application/json"})) as answer:
        found: list[dict[str, Any]] = json.load(answer).get("runs", [])
    return found


@pytest.mark.slow
def test_a_real_mlflow_has_one_run_after_a_killed_attempt(
    orch: Orch, script: Script, mlflow: str, trackers_python: str, run: LiveRun
) -> None:
    script(TRAIN)
    words = (*UP, "--mlflow", "--python", trackers_python, "--env", "PYTHONPATH=")
    env = {"MLFLOW_TRACKING_URI": mlflow}
    orch(*words, env=env, check=137)
    (killed,) = runs_of(mlflow)
    assert killed["info"]["status"] == "FAILED", "MLflow itself would show RUNNING for ever"
    done = orch(*words, "--max-restarts", "1", "--", "all", env=env, check=0)
    own, *others = sorted((one for one in runs_of(mlflow) if one != killed), key=lambda one: one["info"]["run_name"] != run.path.name)
    assert (own["info"]["run_name"], own["info"]["status"]) == (run.path.name, "FINISHED")
    assert own["data"]["metrics"][0]["step"] == 2
    assert others
    assert {tag["value"] for one in others for tag in one["data"]["tags"] if tag["key"] == "orch.task"} == {"worker-1"}
    assert f"warning: worker-1 logged to MLflow runs of their own, not to {own['info']['run_id']}" in done.err


WATCH = """
import os, signal
import wandb

run = wandb.init(project="a")
run.log({"loss": 1.0})
print("id", run.id, "disabled", run.disabled)
run.finish()
if os.environ["ORCH_ATTEMPT"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_real_wandb_has_one_run_and_the_others_are_off(
    orch: Orch, script: Script, trackers_python: str, run: LiveRun, tmp_path: Path
) -> None:
    script(WATCH)
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb/settings").write_text("[default]\nmode = offline\n")  # as `wandb offline` writes it
    words = (*UP, "--wandb", "--max-restarts", "1", "--python", trackers_python, "--env", "PYTHONPATH=")
    env = {"WANDB_SILENT": "true", "HOME": str(tmp_path), "WANDB_DIR": str(tmp_path)}
    done = orch(*words, env=env, check=0)
    ids = {path.name.rpartition("-run-")[2].partition("-")[2] for path in (tmp_path / "wandb").glob("offline-run-*")}
    # W&B adds a number where two attempts began in the same second.
    assert {found[: len(run.path.name)] for found in ids} == {run.path.name}, done.out
    said = [line for line in done.out.splitlines() if " disabled " in line]
    assert all(f"id {run.path.name} disabled False" in line for line in said if "worker-0" in line)
    assert all("disabled True" in line for line in said if "worker-1" in line)
    assert len(said) >= 2
