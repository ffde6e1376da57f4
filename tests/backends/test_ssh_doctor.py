"""`orch doctor -H`: all hosts at once, what differs between them, and what is said of those that cannot be reached."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bed import Bed
from tests.conftest import Completed, Orch
from tests.live import wait_until

pytestmark = pytest.mark.root

TENSORFLOW = """
class sysconfig:
    get_build_info = staticmethod(dict)
class test:
    is_built_with_cuda = staticmethod(bool)
class config:
    list_physical_devices = staticmethod(lambda kind: [])
class keras:
    __version__ = "2.15.0"
__version__ = "2.{}.0"
"""


def doctor(orch: Orch, bed: Bed, hosts: object, *words: str, **settings: Any) -> Completed:
    """`hosts` as the document has them, which no -H can say in full."""
    options = ("--set", f"backend.hosts={json.dumps(hosts)}", "--set", f"backend.ssh={json.dumps(bed.ssh)}")
    return orch("doctor", *options, *words, **settings)


def interpreter(bed: Bed, name: str, minor: int | None, ahead_s: float = 0) -> str:
    """A Python of this host's own whose TensorFlow says that it is 2.`minor` (None: it has none), and by which the clock is ahead."""
    home = bed[name].files / "home"
    (home / "site").mkdir(parents=True, exist_ok=True)
    if minor is None:
        (home / "site/tensorflow.py").unlink(missing_ok=True)
    else:
        (home / "site/tensorflow.py").write_text(TENSORFLOW.format(minor))
    text = f"import sys,time;f=time.time;time.time=lambda:f()+{ahead_s};exec(sys.argv[-1])"
    (home / "python").write_text(f'#!/bin/sh\nexport PYTHONPATH=~/site\nexec {os.path.realpath(sys.executable)} -c "{text}" "$@"\n')
    (home / "python").chmod(0o755)
    return "~/python"


def findings(found: dict[str, Any], topic: str) -> list[tuple[str, str, list[str]]]:
    return [(one["severity"], one["what"], one["hosts"]) for one in found["findings"] if one["topic"] == topic]


def test_three_hosts_at_once_each_with_its_own_trouble(orch: Orch, bed: Bed) -> None:
    """One cannot be reached, two have different versions; what two have in common is said once, with both names."""
    hosts = {
        "hostA": {"slots": 2, "python": interpreter(bed, "hostA", 21)},
        "hostB": {
            "slots": 1,
            "python": interpreter(bed, "hostB", 19, ahead_s=100),
            "setup": ["export http_proxy=http://me:secret@proxy:3128"],
        },
        "hostC": {"slots": 1},
    }
    bed["hostC"].stop_sshd()
    done = doctor(orch, bed, hosts, "--strategy", "multi_worker_mirrored", "--json", check=1)
    found = json.loads(done.out)
    assert "asking hostA, hostB, hostC" in done.err
    assert [facts["host"] for facts in found["hosts"]] == ["hostA", "hostB", "hostC"]
    a, b, c = found["hosts"]
    assert (a["machine"]["hostname"], b["machine"]["hostname"], c["machine"]) == ("hostA", "hostB", None)
    assert (a["tensorflow"]["version"], b["tensorflow"]["version"]) == ("2.21.0", "2.19.0")
    assert not a["is_here"]
    assert findings(found, "host") == [("error", "this host cannot be reached", ["hostC"])]
    (unreached,) = [one for one in found["findings"] if one["topic"] == "host"]
    assert "Connection refused" in unreached["why"]
    assert "check the port" in unreached["remedy"]
    assert ("error", "the hosts have different versions of TensorFlow", ["hostA", "hostB"]) in findings(found, "tensorflow")
    assert b["machine"]["environment"]["http_proxy"] == "http://…@proxy:3128"
    assert findings(found, "ports") == [("note", "TensorFlow's servers listen on every interface", ["hostA", "hostB"])]
    assert [one for one in findings(found, "clock") if "this machine" in one[1]] == [
        ("warning", "its clock is 100 s ahead of this machine's", ["hostB"])
    ]
    assert "secret" not in done.out
    severities = [one["severity"] for one in found["findings"]]
    assert severities == sorted(severities, key=["error", "warning", "note"].index)
    assert found["wanted"]["shares"] == {"hostA": 2, "hostB": 1, "hostC": 1}


def test_a_host_without_tensorflow_and_this_machine_beside_it(orch: Orch, bed: Bed, tmp_path: Path) -> None:
    here = tmp_path / "python"
    (tmp_path / "tensorflow.py").write_text(TENSORFLOW.format(21))
    here.write_text(f'#!/bin/sh\nexport PYTHONPATH={tmp_path}\nexec {os.path.realpath(sys.executable)} -S "$@"\n')
    here.chmod(0o755)
    hosts = {"localhost": {"python": str(here)}, "hostA": {"python": interpreter(bed, "hostA", None)}}
    done = doctor(orch, bed, hosts, check=1)
    said = " ".join(done.out.split())
    assert done.out.startswith("localhost\n  machine     ")
    assert "\nhostA\n  machine     hostA: " in done.out
    assert "tensorflow 2.21.0, CPU build" in said
    assert "has no TensorFlow (hostA) every task would fail at its import" in said
    assert "1 error" in done.out
    assert done.out.endswith("a run would fail here\n")
    interpreter(bed, "hostA", 21)
    found = json.loads(doctor(orch, bed, hosts, "--json", check=0).out)
    assert "error" not in {one["severity"] for one in found["findings"]}


def test_a_link_that_is_cut_and_ctrl_c_leave_nothing_on_a_host(orch: Orch, bed: Bed) -> None:
    """What was asked ends with the one who asks; the fixture looks for what is left on the host."""
    slow = interpreter(bed, "hostA", 21)
    module = bed["hostA"].files / "home/site/tensorflow.py"
    module.write_text(f"import pathlib, time\npathlib.Path({str(bed.root / 'importing')!r}).touch()\ntime.sleep(600)\n")
    hosts = {"hostA": {"python": slow}}
    options = ("--set", f"backend.hosts={json.dumps(hosts)}", "--set", f"backend.ssh={json.dumps(bed.ssh)}")
    running = orch.start("doctor", *options)
    wait_until((bed.root / "importing").exists, "import on a host")
    (bed.root / "importing").unlink()
    running.signal(signal.SIGINT)
    running.wait(timeout=60, check=130)
    running = orch.start("doctor", "--json", "--set", "backend.lost_after_s=8", *options)
    wait_until((bed.root / "importing").exists, "import on a host")
    bed["hostA"].cut()
    done = running.wait(timeout=200, check=1)
    assert findings(json.loads(done.out), "host") == [("error", "this host was lost before it had answered everything", ["hostA"])]
    assert "no message from it for 8 s" in done.out
    bed["hostA"].join()
    bed["hostA"].end_sessions()
