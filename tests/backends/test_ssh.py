"""`orch up -H` on hosts with ssh: where tasks run, what they are told, and what is said when a host cannot be reached. No TensorFlow."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bed import Bed
from tests.conftest import Completed, Orch
from tests.live import LiveRun

pytestmark = pytest.mark.root

SHOW = """
import json, os, socket, sys
config = os.environ.get("TF_CONFIG")
print(json.dumps({"host": socket.gethostname(), "cwd": os.getcwd(), "argv": sys.argv, "env": dict(os.environ),
                  "config": config and json.loads(config)}))
"""


def up(orch: Orch, bed: Bed, hosts: str, *options: str, **settings: Any) -> Completed:
    """`orch up script.py` on these hosts, to its end."""
    return orch("up", "script.py", "-H", hosts, "--set", f"backend.ssh={json.dumps(bed.ssh)}", *options, **settings)


def seen(directory: Path) -> dict[str, dict[str, Any]]:
    """What each task of the latest run has printed, by task."""
    found = {}
    for log in (LiveRun(directory).path / "attempt-1").glob("*/stdout.log"):
        found[log.parent.name] = json.loads(log.read_text())
    return found


def test_tasks_run_where_the_slots_are_and_know_each_other(orch: Orch, bed: Bed, script: Callable[..., Path], tmp_path: Path) -> None:
    script(SHOW)
    up(orch, bed, "hostA:1,hostB:2,localhost:1", check=0)
    tasks = seen(tmp_path)
    assert {name: task["host"] for name, task in tasks.items()} == {
        "worker-0": "hostA",
        "worker-1": "hostB",
        "worker-2": "hostB",
        "worker-3": os.uname().nodename,
    }
    addresses = tasks["worker-0"]["config"]["cluster"]["worker"]
    assert [address.rpartition(":")[0] for address in addresses] == [
        bed["hostA"].address,
        bed["hostB"].address,
        bed["hostB"].address,
        f"{bed.network}.1",
    ]
    assert len({json.dumps(task["config"]["cluster"]) for task in tasks.values()}) == 1
    assert {task["cwd"] for task in tasks.values()} == {str(tmp_path)}


def test_what_a_task_is_given_is_data_not_shell(orch: Orch, bed: Bed, script: Callable[..., Path], tmp_path: Path) -> None:
    """Quotes, dollars and newlines arrive as they are, and nobody reads a secret in `ps`."""
    script("import subprocess, sys\nprint(subprocess.check_output(['ps', '-eo', 'args'], text=True), file=sys.stderr)\n" + SHOW)
    # The whole machine's `ps` is looked through, so the word must be nobody else's.
    mark = secrets.token_hex(8)
    nasty = f'{mark} it\'s "$HOME" `id` \\ \n !;& é'
    # In a file: what stands on orch's own command line is there to be read.
    (tmp_path / "orch.yaml").write_text(json.dumps({"args": [nasty, "--flag"], "defaults": {"env": {"SECRET": nasty}}}))
    up(orch, bed, "hostA", check=0)
    task = seen(tmp_path)["worker-0"]
    assert task["argv"][1:] == [nasty, "--flag"]
    assert task["env"]["SECRET"] == nasty
    assert task["env"]["SSH_CONNECTION"].split()[2] == bed["hostA"].address
    shown = (LiveRun(tmp_path).path / "attempt-1/worker-0/stderr.log").read_text()
    assert "io.FileIO(0,closefd=False)" in shown
    assert mark not in shown


def test_a_host_keeps_one_worker_package_and_mends_it(orch: Orch, bed: Bed, script: Callable[..., Path], tmp_path: Path) -> None:
    script(SHOW)
    up(orch, bed, "hostA", check=0)
    (kept,) = (bed["hostA"].files / "home/.cache/orch").glob("worker-*")
    old = kept.with_name("worker-0000000000000000")
    old.mkdir()
    os.utime(old, (0, 0))
    agent = kept / "host/agent.py"
    agent.write_text("raise SystemExit('broken')")
    up(orch, bed, "hostA", check=0)
    assert "class Agent" in agent.read_text()
    assert not old.exists()
    assert kept.stat().st_mode & 0o777 == 0o700


def test_a_host_without_a_cache_uses_a_directory_for_the_time(orch: Orch, bed: Bed, script: Callable[..., Path], tmp_path: Path) -> None:
    script(SHOW)
    cache = bed["hostA"].files / "home/.cache"
    moved = cache.rename(cache.with_name("aside")) if cache.exists() else None
    try:
        cache.write_text("a file is in the way")
        up(orch, bed, "hostA", check=0)  # the fixture looks at the temporary files
    finally:
        cache.unlink()
        if moved:
            moved.rename(cache)


def test_what_a_hosts_shell_prints_is_no_frame(orch: Orch, bed: Bed, script: Callable[..., Path], tmp_path: Path) -> None:
    script(SHOW)
    (bed["hostA"].files / "home/.bashrc").write_text("echo 'Welcome to hostA!'; echo orch >&2\n")
    try:
        up(orch, bed, "hostA", check=0)
    finally:
        (bed["hostA"].files / "home/.bashrc").unlink()
    assert seen(tmp_path)["worker-0"]["host"] == "hostA"
    assert "its shell printed: Welcome to hostA!" in (LiveRun(tmp_path).path / "agents/hostA.log").read_text()


def test_setup_lines_run_before_python_and_may_read_and_print(orch: Orch, bed: Bed, script: Callable[..., Path], tmp_path: Path) -> None:
    script(SHOW)
    setup = ["export FROM_SETUP='a b'", "echo noise", "cat", "PATH=$HOME/bin:$PATH"]
    (bed["hostA"].files / "home/bin").mkdir(exist_ok=True)
    link = bed["hostA"].files / "home/bin/my-python"
    link.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    link.chmod(0o755)
    up(orch, bed, "hostA", "--set", f"backend.setup={json.dumps(setup)}", "--python", "my-python", check=0)
    assert seen(tmp_path)["worker-0"]["env"]["FROM_SETUP"] == "a b"
    done = up(orch, bed, "hostA", "--set", 'backend.setup=["echo broken >&2; false"]', check=125)
    assert "host hostA cannot be reached: a line of setup: failed there: broken" in done.err


def test_a_run_directory_that_a_host_sees_is_named_there(orch: Orch, bed: Bed, script: Callable[..., Path], tmp_path: Path) -> None:
    script(SHOW)
    up(orch, bed, "hostA", check=0)
    assert seen(tmp_path)["worker-0"]["env"]["ORCH_RUN_DIR"] == str(LiveRun(tmp_path).path)
    home = bed.own / "runs"
    try:
        up(orch, bed, "hostA", "--home", str(home), check=0)
        (log,) = home.glob("runs/*/attempt-1/worker-0/stdout.log")
        assert not {"ORCH_RUN_DIR", "ORCH_CHECKPOINT_DIR"} & json.loads(log.read_text())["env"].keys()
    finally:
        shutil.rmtree(home)


def test_a_jump_host_and_a_shared_connection_of_the_users_own_configuration(
    orch: Orch, bed: Bed, script: Callable[..., Path], tmp_path: Path
) -> None:
    """And settings that are for people who log in: a command, a terminal, a forwarding that would fail."""
    script(SHOW)
    control = bed.root / "control-%C"
    failing = f"LocalForward {bed.root}/no/such/directory/socket localhost:22\n  ExitOnForwardFailure yes"
    personal = f"RequestTTY force\n  RemoteCommand echo hello\n  {failing}"
    bed.write_config(f"Host hostB\n  ProxyJump hostA\n  ControlMaster auto\n  ControlPath {control}\n  ControlPersist 60\n  {personal}")
    try:
        for _ in range(2):
            up(orch, bed, "hostB", check=0)
            assert seen(tmp_path)["worker-0"]["env"]["SSH_CONNECTION"].split()[0] == bed["hostA"].address
    finally:
        subprocess.run([*bed.ssh, "-O", "exit", "hostB"], check=True, capture_output=True)


def test_a_dry_run_prints_the_exact_command(orch: Orch, bed: Bed, script: Callable[..., Path]) -> None:
    script(SHOW)
    done = up(orch, bed, "hostA:2,me@hostB", "--python", "/opt/a b/python", "--dry-run", check=0)
    assert "ssh -F " in done.out
    assert "-o BatchMode=yes" in done.out
    assert "-l me -- hostB" in done.out
    assert "'\"'\"'/opt/a b/python'\"'\"' -I -c" in done.out
    assert "no such file" not in done.err


# --- hosts that cannot be reached --------------------------------------------------------------


def test_every_host_that_fails_is_named_with_ssh_s_own_words_and_a_remedy(orch: Orch, bed: Bed, script: Callable[..., Path]) -> None:
    script(SHOW)
    bed.write_config(f"Host stranger\n  HostName {bed['hostC'].address}\n  HostKeyAlias stranger")
    bed["hostA"].stop_sshd()
    bed["hostB"].stop_sshd()
    bed["hostB"].start_sshd(key="hostC")
    done = up(orch, bed, "hostA,hostB,nowhere.invalid,stranger", check=125)
    told = re.findall(r"(host (\S+) cannot be reached: .*\n +fix: .*)", done.err)
    lines = {host: line for line, host in told}
    assert set(lines) == {"hostA", "hostB", "nowhere.invalid", "stranger"}
    assert "Connection refused" in lines["hostA"]
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in lines["hostB"]
    assert re.search(r"ssh-keygen -f \S+ -R", lines["hostB"])
    assert "Could not resolve hostname" in lines["nowhere.invalid"]
    assert "log in once, and compare the key" in lines["stranger"]


def test_a_refused_key_and_a_wrong_user(orch: Orch, bed: Bed, script: Callable[..., Path]) -> None:
    script(SHOW)
    done = up(orch, bed, "nobody-there@hostA", check=125)
    assert re.search(r"host hostA cannot be reached: .*Permission denied \(publickey\)\n +fix: .*ssh-copy-id hostA", done.err)


@pytest.mark.parametrize(
    ("python", "words", "code"),
    [
        ("/no/such/python", "used: there is no such Python: ", 2),
        ("no-such-python", "used: there is no such Python: ", 2),
        ("/bin/false", "reached: what ssh has started there ended with exit code 1", 125),
    ],
)
def test_a_host_without_the_python(orch: Orch, bed: Bed, script: Callable[..., Path], python: str, words: str, code: int) -> None:
    script(SHOW)
    done = up(orch, bed, "hostA", "--python", python, check=code)
    assert f"host hostA cannot be {words}" in done.err
    assert "Traceback" not in done.err


def test_hosts_whose_tensorflow_differs_are_said_before_the_start(
    orch: Orch, bed: Bed, script: Callable[..., Path], tmp_path: Path
) -> None:
    script(SHOW)
    hosts = {}
    for name, version in {"hostA": "2.19.0", "hostB": "2.21.0", "hostC": "2.21.0"}.items():
        packages = tmp_path / f"packages-{name}"
        (packages / "tensorflow").mkdir(parents=True)
        (packages / "tensorflow/__init__.py").touch()
        (packages / f"tensorflow_cpu-{version}.dist-info").mkdir()
        hosts[name] = {"setup": [f"export PYTHONPATH={packages}"], "python": sys.executable}
    done = orch("up", "script.py", "--set", f"backend.hosts={json.dumps(hosts)}", "--set", f"backend.ssh={json.dumps(bed.ssh)}", check=0)
    assert "orch: the hosts' TensorFlow differs: 2.19.0 on hostA; 2.21.0 on hostB, hostC; a cluster of them may hang" in done.err


def test_an_sshd_that_takes_few_connections_is_asked_again(orch: Orch, bed: Bed, script: Callable[..., Path], tmp_path: Path) -> None:
    """MaxStartups drops connections at random; one that was dropped is made again."""
    script(SHOW)
    bed["hostA"].stop_sshd()
    bed["hostA"].start_sshd("MaxStartups 1:100:1")
    aliases = "\n".join(f"Host a{number}\n  HostName {bed['hostA'].address}\n  HostKeyAlias hostA" for number in range(3))
    bed.write_config(aliases)
    up(orch, bed, "a0,a1,a2", check=0)
    assert len(seen(tmp_path)) == 3


def test_a_host_that_does_not_answer_is_named_and_ctrl_c_waits_for_nobody(orch: Orch, bed: Bed, script: Callable[..., Path]) -> None:
    script(SHOW)
    bed["hostB"].filter_ports(22, 22)
    running = orch.start("up", "script.py", "-H", "hostA,hostB", "--set", f"backend.ssh={json.dumps(bed.ssh)}")
    running.wait_for("waiting for hostB to connect (1 of 2 hosts are ready)")
    running.signal(signal.SIGINT)
    running.wait(check=130)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_hosts(orch: Orch, bed: Bed, script: Callable[..., Path], tmp_path: Path, soaks: bool) -> None:
    """Many names for three hosts: each has an agent of its own, and every agent tries every other one."""
    script(SHOW)
    count = 50 if soaks else 12
    names = [f"node{number:02d}" for number in range(count)]
    hosts = list(bed.hosts.values())
    lines = [f"Host {name}\n  HostName {hosts[n % 3].address}\n  HostKeyAlias {hosts[n % 3].name}" for n, name in enumerate(names)]
    bed.write_config(*lines)
    up(orch, bed, ",".join(names), "--strategy", "multi_worker_mirrored", timeout=500, check=0)
    tasks = seen(tmp_path)
    assert [tasks[f"worker-{n}"]["host"] for n in range(count)] == [hosts[n % 3].name for n in range(count)]
    assert len(set(tasks["worker-0"]["config"]["cluster"]["worker"])) == count


# --- between the hosts -------------------------------------------------------------------------


def test_a_port_that_a_firewall_drops_is_named_before_anything_starts(
    orch: Orch, bed: Bed, script: Callable[..., Path], tmp_path: Path
) -> None:
    script(SHOW)
    bed["hostB"].filter_ports(21000, 21099)
    done = up(orch, bed, "hostA,hostB,hostC", "--set", "ports=21000-21099", check=125)
    said = [line for line in done.err.splitlines() if "cannot reach" in line]
    assert [re.findall("host. cannot reach host.", line) for line in said] == [["hostA cannot reach hostB"], ["hostC cannot reach hostB"]]
    assert "timed out" in said[0]
    assert "firewall" in said[0]


def test_an_interface_and_an_address_can_be_chosen(orch: Orch, bed: Bed, script: Callable[..., Path], tmp_path: Path) -> None:
    script(SHOW)
    hosts = {"hostA": {"address": bed["hostA"].address6}, "hostB": {"interface": "eth0"}}
    orch("up", "script.py", "--set", f"backend.hosts={json.dumps(hosts)}", "--set", f"backend.ssh={json.dumps(bed.ssh)}", check=0)
    tasks = seen(tmp_path)
    addresses = [address.rpartition(":")[0] for address in tasks["worker-0"]["config"]["cluster"]["worker"]]
    assert addresses == [f"[{bed['hostA'].address6}]", bed["hostB"].address]
    assert "NCCL_SOCKET_IFNAME" not in tasks["worker-0"]["env"]
    assert {name: tasks["worker-1"]["env"][name] for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")} == {
        "NCCL_SOCKET_IFNAME": "eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
    }


def test_addresses_on_different_networks_are_told_apart(orch: Orch, bed: Bed, script: Callable[..., Path]) -> None:
    script(SHOW)
    bed["hostA"].run("ip", "addr", "add", "10.77.0.1/24", "dev", "lo")
    hosts = {"hostA": {"address": "10.77.0.1"}, "hostB": None}
    try:
        done = orch(
            *("up", "script.py", "--set", f"backend.hosts={json.dumps(hosts)}", "--set", f"backend.ssh={json.dumps(bed.ssh)}"), check=125
        )
    finally:
        bed["hostA"].run("ip", "addr", "del", "10.77.0.1/24", "dev", "lo")
    assert re.search(r"hostB cannot reach hostA:\d+: .* at 10\.77\.0\.1; hostA's 10\.77\.0\.1 is on another network than hostB's", done.err)
    assert "set address: or interface: for hostA" in done.err


def test_an_interface_that_is_not_there(orch: Orch, bed: Bed, script: Callable[..., Path]) -> None:
    script(SHOW)
    hosts = {"hostA": {"interface": "ib0"}, "hostB": None}
    done = orch("up", "script.py", "--set", f"backend.hosts={json.dumps(hosts)}", "--set", f"backend.ssh={json.dumps(bed.ssh)}", check=125)
    assert f"host hostA has no interface 'ib0' with an address; it has {bed['hostA'].address} (eth0)" in done.err


# Each test has ports of its own, and none is one that the kernel gives to connections.


def test_a_firewall_that_lets_only_some_ports_of_a_host_through_is_named_before_anything_starts(
    orch: Orch, bed: Bed, script: Callable[..., Path], tmp_path: Path
) -> None:
    script(SHOW)
    bed["hostB"].filter_ports(22001, 22001)
    done = up(orch, bed, "hostA:1,hostB:3,hostC:1", "--set", "ports=22000-22099", check=125)
    address = bed["hostB"].address
    ending = f"cannot reach hostB:22001: timed out at {address}; a firewall between them? open the ports that ports: allows"
    assert re.findall(f"host. {re.escape(ending)}", done.err) == [f"hostA {ending}", f"hostC {ending}"]
    assert not list(tmp_path.glob(".orch/runs/*/attempt-*"))


def test_a_run_leaves_its_ports_free_for_the_next(orch: Orch, bed: Bed, script: Callable[..., Path], tmp_path: Path) -> None:
    """In a range of exactly as many ports as a host needs: the tries leave no connection in TIME_WAIT."""
    script(SHOW)
    for _ in range(2):
        up(orch, bed, "hostA:2,hostB:2", "--set", "ports=23000-23001", check=0)
    addresses = seen(tmp_path)["worker-0"]["config"]["cluster"]["worker"]
    assert {address.rpartition(":")[2] for address in addresses} == {"23000", "23001"}


def test_each_host_is_prepared_once_before_any_task_starts(orch: Orch, bed: Bed, script: Callable[..., Path], tmp_path: Path) -> None:
    script("import os\nassert set(open('made').read().split()) == {'prepare-0', 'prepare-1'}")
    asked = {"run": "printf '%s ' $ORCH_TASK >> made; hostname"}
    done = up(orch, bed, "hostA:2,hostB:2", "--set", f"prepare={json.dumps(asked)}", check=0)
    assert sorted(done.out.splitlines()) == ["prepare-0 | hostA", "prepare-1 | hostB"]
    asked["hosts"] = "first"
    again = up(orch, bed, "hostB:2,hostA:2", "--set", f"prepare={json.dumps(asked)}", check=0)
    assert again.out == "prepare-0 | hostB\n"
    bad = up(orch, bed, "hostA,hostB", "--prepare", "test $ORCH_TASK = prepare-0 || { echo no disk >&2; exit 4; }", "--max-restarts", "0")
    assert bad.code == 4
    assert "first failure: prepare-1 on hostB: exit code 4\norch:   its last lines on stderr:\norch:     no disk\n" in bad.err
