"""A task in no cluster knows it when its program is over; and a TF_CONFIG that the program has written itself is noted."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.worker.agent_double import held_ports, run_task
from worker.host.exit_info import read_ending, read_other_tf_config
from worker.protocol import task_files
from worker.protocol.messages import Program

SCRIPT = Program("script", "s.py")
LISTEN = """
import json, os, socket
config = json.loads(os.environ["TF_CONFIG"])
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.bind(("127.0.0.1", int(config["cluster"]["worker"][0].rpartition(":")[2])))
server.listen()
"""
CONTEXT = """
import sys, types
module = types.ModuleType("tensorflow.python.eager.context")
runtime = types.SimpleNamespace(_server_def={}, _collective_ops_server_def={})
module.context_safe = lambda: runtime
sys.modules[module.__name__] = module
"""
TENSORFLOW = "import sys, types\nsys.modules['tensorflow'] = types.ModuleType('tensorflow')\n"
PARENT = f"""
import subprocess
program = {LISTEN + "import time; print('listens', flush=True); time.sleep(5)"!r}
child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
child.stdout.readline()
"""


def config(*addresses: str) -> str:
    return json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 0}})


def run(directory: Path, text: str, **settings: Any) -> Any:
    (directory / "s.py").write_text(text)
    with held_ports(2) as addresses:
        return run_task(SCRIPT, directory, **{"tf_config": config(*addresses), **settings})


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        ("", True),
        ("sys.exit()", True),
        ("del sys.modules['tensorflow']", False),  # as in a program that never imports it
        (CONTEXT.format(None, None), True),
        (CONTEXT.format(None, "'a server'"), False),
        (CONTEXT.format("'a server'", None), False),
        ("import sys, types\nsys.modules['tensorflow.python.eager.context'] = types.ModuleType('another TensorFlow')", False),
        (LISTEN, False),
        (PARENT, False),
        ("import subprocess; child = subprocess.Popen(['sleep', '5'])", True),
    ],
)
def test_a_task_that_was_in_no_cluster_says_so(tmp_path: Path, text: str, alone: bool) -> None:
    ending = read_ending(str(run(tmp_path, TENSORFLOW + text).check().log_dir))
    assert ending is not None
    assert ending.unclustered is alone


def test_one_that_was_to_be_in_no_cluster_says_nothing(tmp_path: Path) -> None:
    ending = read_ending(str(run(tmp_path, "", tf_config=None).check().log_dir))
    assert ending is not None
    assert not ending.unclustered


SET = "import json, os\n"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("os.environ['TF_CONFIG'] = '{}'", "s.py:2 set it"),
        ("os.environ.update(A='1',\n  TF_CONFIG='{}')", "s.py:2 set it"),
        ("def choose():\n  os.environb[b'TF_CONFIG'] = b'nonsense'\nchoose()", "s.py:3 set it"),
        ("del os.environ['TF_CONFIG']", "s.py:2 removed it"),
        ("os.environ.pop('TF_CONFIG', None)", "s.py:2 removed it"),
        ("os.environ['TF_CONFIG'] += ' '", ""),
        ("config = json.loads(os.environ['TF_CONFIG'])\nconfig['environment'] = 'cloud'\nos.environ['TF_CONFIG'] = json.dumps(config)", ""),
        ("old = os.environ.pop('TF_CONFIG')\nos.environ['TF_CONFIG'] = old", ""),
        ("if os.fork() == 0:\n  os.environ['TF_CONFIG'] = '{}'\n  os._exit(0)\nos.wait()", ""),
        ("import copy\nos.environ['OTHER'] = '1'\nassert os.environb[b'OTHER'] == b'1'\nassert type(os.environ.copy()) is dict", ""),
    ],
)
def test_a_tf_config_of_the_programs_own_is_noted_with_its_place(tmp_path: Path, text: str, place: str) -> None:
    assert read_other_tf_config(str(run(tmp_path, SET + text).check().log_dir)) == place


def test_a_port_of_the_programs_own_is_not_shared_and_orchs_is(tmp_path: Path) -> None:
    """So that TensorFlow says what it says by hand, if two tasks want the same."""
    show = "print(os.environ.get('TF_GRPC_REUSE_PORT'))\n"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        theirs = config(f"127.0.0.1:{free.getsockname()[1]}")
        env = {"TF_GRPC_REUSE_PORT": "true"}
        assert run(tmp_path, f"{SET}{show}os.environ['TF_CONFIG'] = {theirs!r}\n{show}", env=env).check().out == "true\nNone\n"
    swapped = "config = json.loads(os.environ['TF_CONFIG'])\nconfig['task']['index'] = 1\nos.environ['TF_CONFIG'] = json.dumps(config)\n"
    outcome = run(tmp_path, f"{SET}{swapped}{show}", env=env).check()
    assert outcome.out == "true\n"
    assert (outcome.log_dir / task_files.OTHER_TF_CONFIG).read_text() == "s.py:4 set it"


@pytest.mark.parametrize(
    "text",
    [
        "given = os.environ.pop('TF_CONFIG')\nos.environ['TF_CONFIG'] = given",  # as TensorFlow's tutorial on several workers does
        "del os.environ['TF_CONFIG']",
        "given = os.environ['TF_CONFIG']\nos.environ['TF_CONFIG'] = OTHER\nos.environ['TF_CONFIG'] = given",
        "os.environ['TF_CONFIG'] = os.environ['TF_CONFIG'].replace('127.0.0.1', 'localhost')",
        "os.environ['TF_CONFIG'] = '{}'",
    ],
)
def test_a_program_keeps_the_shared_port_unless_it_names_another(tmp_path: Path, text: str) -> None:
    """Without TF_GRPC_REUSE_PORT TensorFlow cannot listen where the agent holds the port."""
    show = "\nprint(os.environ.get('TF_GRPC_REUSE_PORT'))"
    other = f"OTHER = {config('127.0.0.1:1')!r}\n"
    assert run(tmp_path, SET + other + text + show, env={"TF_GRPC_REUSE_PORT": "true"}).check().out == "true\n"


@pytest.mark.parametrize("name", ["socket", "resource"])
def test_no_module_of_the_users_is_run_at_the_end(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("print('the module of the user')\nraise SystemExit(3)\n")
    assert run(tmp_path, TENSORFLOW).check().out == ""
