"""The working directory on hosts with ssh: shared and compared, or copied by content. No TensorFlow."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.backends import code_sync
from orchestrator.backends.code_sync import collect
from orchestrator.backends.connection.agent_link import AgentLink
from orchestrator.errors import OrchError, UsageError
from tests.bed import Bed
from tests.conftest import Completed, Orch, needs_git
from tests.live import LiveRun, wait_until
from worker.protocol.messages import Code, CodePart, CodeWanted

pytestmark = [pytest.mark.root, needs_git]

PROGRAM = "import helper, os, sys\nprint(helper.WORD, os.getcwd(), os.path.exists('data.bin'))\nopen('left-here', 'w').close()\n"


def up(orch: Orch, bed: Bed, hosts: str, *options: str, at: Path | None = None, **settings: Any) -> Completed:
    """`at`: the working directory, if it is not the one here, and where the script lies."""
    words = ("script.py",) if at is None else (str(at / "script.py"), "--set", f"workdir={at!s}")
    return orch("up", *words, "-H", hosts, "--set", f"backend.ssh={json.dumps(bed.ssh)}", *options, **settings)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A git repository with a program of two files, and data that git ignores."""
    (tmp_path / "script.py").write_text(PROGRAM)
    (tmp_path / "helper.py").write_text("WORD = 'first'\n")
    (tmp_path / ".gitignore").write_text("*.bin\nleft-here\n")
    (tmp_path / "data.bin").write_bytes(b"\0" * 5_000_000)
    (tmp_path / "run.sh").write_text("#!/bin/sh\nexec echo from-a-shell\n")
    (tmp_path / "run.sh").chmod(0o755)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def printed(directory: Path, task: str = "worker-0") -> list[str]:
    return LiveRun(directory).log(task).decode().split()


def test_a_directory_that_is_copied(orch: Orch, bed: Bed, project: Path) -> None:
    up(orch, bed, "hostA,hostB", "--set", "backend.code=ship", check=0)
    word, cwd, has_data = printed(project)
    assert (word, has_data) == ("first", "False")
    assert cwd.startswith(f"{bed.own}/home/.cache/orch/code/")
    assert printed(project, "worker-1")[:2] == [word, cwd]
    cache = bed["hostA"].files / "home/.cache/orch"
    kept = {path.name: path.stat().st_ino for path in (cache / "files").iterdir()}

    (project / "helper.py").write_text("WORD = 'second'\n")
    up(orch, bed, "hostA,hostB", "--set", "backend.code=ship", check=0)
    assert printed(project)[0] == "second"
    assert printed(project)[1] != cwd  # what runs elsewhere keeps its own
    now = {path.name: path.stat().st_ino for path in (cache / "files").iterdir()}
    assert len(now) == len(kept) + 1  # only what had changed was sent
    assert now.items() >= kept.items()
    assert {path.stat().st_mode & 0o777 for path in (cache / "code").iterdir()} == {0o700}


def test_a_restart_after_the_loss_of_a_host_runs_the_files_of_the_start(orch: Orch, bed: Bed, project: Path) -> None:
    waits = f"import time\nwhile os.environ['ORCH_ATTEMPT'] == '1': open({str(project / 'begun')!r}, 'w').close(); time.sleep(0.1)\n"
    (project / "script.py").write_text(f"import os\n{waits}{PROGRAM}")
    options = (
        "-H",
        "hostA,hostB",
        "--set",
        f"backend.ssh={json.dumps(bed.ssh)}",
        "--set",
        "backend.code=ship",
        "--max-restarts",
        "1",
        "--set",
        "restart.lost_host=retry",
    )
    running = orch.start("up", "script.py", *options)
    wait_until((project / "begun").exists, "file of the first attempt")
    (project / "helper.py").write_text("WORD = 'second'\n")
    run = LiveRun(project)
    agent = next(event["pid"] for event in run.events() if event["event"] == "host_ready" and event["host"] == "hostA")
    os.kill(agent, signal.SIGKILL)
    running.wait(check=0)
    assert [log.read_text().split()[0] for log in run.path.glob("attempt-2/worker-*/stdout.log")] == ["first", "first"]
    assert not (run.path / "code").exists()


def test_what_is_copied_is_said_and_secrets_stay_here(orch: Orch, bed: Bed, project: Path) -> None:
    (project / ".env").write_text("TOKEN=abc\n")
    (project / "script.py").write_text("import os\nprint('seen', os.path.exists('.env'), 'here')\n")
    done = up(orch, bed, "hostA", "--set", "backend.code=ship", check=0)
    assert printed(project)[1] == "False"
    assert "orch: 4 files, 120 B together, of the working directory are copied to the hosts (the largest: " in done.out + done.err
    assert "orch: left out, as secrets have such names: .env; put a secret into a variable (--env NAME)" in done.out + done.err
    up(orch, bed, "hostA", "--set", "backend.code=ship", "--set", "backend.code_secrets=true", check=0)
    assert printed(project)[1] == "True"


def test_what_has_been_spoiled_on_a_host_is_mended_and_what_is_old_goes(orch: Orch, bed: Bed, project: Path) -> None:
    up(orch, bed, "hostA", "--set", "backend.code=ship", check=0)
    directory = bed["hostA"].files / "home" / Path(printed(project)[1]).relative_to(bed.own / "home")
    assert (directory / "left-here").exists()
    (directory / "helper.py").write_text("WORD = 'spoiled'\n")
    for path in (directory.parent.parent / "files").iterdir():
        path.write_bytes(b"spoiled")
    old = directory.with_name("0" * 16)
    old.mkdir()
    unused = directory.parent.parent / "files" / ("0" * 64)
    unused.touch()
    for path in (old, unused):
        os.utime(path, (0, 0))
    up(orch, bed, "hostA", "--set", "backend.code=ship", check=0)
    assert printed(project)[0] == "first"
    assert not old.exists()
    assert not unused.exists()


def test_programs_keep_their_permission(orch: Orch, bed: Bed, project: Path) -> None:
    orch(
        *("up", "--no-python", "./run.sh", "-H", "hostA", "--set", "backend.code=ship", "--set", f"backend.ssh={json.dumps(bed.ssh)}"),
        check=0,
    )
    assert printed(project) == ["from-a-shell"]


def copied(root: Path, runs: Path = Path("/nowhere")) -> list[str]:
    return sorted(file.path for file in collect(str(root), 100, runs=runs).files)


def git(root: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a", "-c", "protocol.file.allow=always", *words], cwd=root, check=True)


def test_what_git_names_by_its_directory_alone_is_copied(tmp_path: Path) -> None:
    """Submodules, repositories within the repository, and links to directories; not what any of them ignores."""
    other, root = tmp_path / "other", tmp_path / "root"
    for directory in (other, root, root / "nested"):
        directory.mkdir()
        git(directory, "init", "-q")
        (directory / "code.py").touch()
        (directory / "ignored.bin").touch()
        (directory / ".gitignore").write_text("*.bin\n")
    git(other, "add", ".")
    git(other, "commit", "-qm", "first")
    git(root, "submodule", "add", "-q", str(other), "module")
    (root / "lib").mkdir()
    (root / "lib/used.py").touch()
    (root / "lib/ignored.bin").touch()
    for link, target in {
        "alias": "lib",
        "file.py": "lib/used.py",
        "loop": ".",
        "out": "/etc",
        "gone": "nowhere",
        "nested/up": "..",
    }.items():
        os.symlink(target, root / link)
    found = [path for path in copied(root) if not path.startswith(".git")]
    of_all = ["code.py", "file.py", "lib/used.py", "module/.gitignore", "module/code.py", "nested/.gitignore", "nested/code.py"]
    assert found == sorted(["alias/used.py", *of_all])


def test_links_to_directories_are_followed_without_git(tmp_path: Path) -> None:
    (tmp_path / "lib/deep").mkdir(parents=True)
    (tmp_path / "lib/deep/used.py").touch()
    for link, target in {"alias": "lib", "loop": ".", "out": "/etc", "lib/deep/up": "../.."}.items():
        os.symlink(target, tmp_path / link)
    assert copied(tmp_path) == ["alias/deep/used.py", "lib/deep/used.py"]


@pytest.mark.parametrize("home", ["", "results", "results/mine"])
@pytest.mark.parametrize("with_git", [False, True])
def test_runs_that_are_kept_in_the_directory_are_not_copied(tmp_path: Path, with_git: bool, home: str) -> None:
    """They hold variables of the spec and whatever tasks have printed, and this very run's files are being written. What lies beside
    them is the user's."""
    root = tmp_path / "root"
    beside = root / home
    (beside / "runs/one").mkdir(parents=True)
    (beside / "runs/one/events.jsonl").touch()
    (beside / "latest").symlink_to("runs/one")
    (root / "alias").symlink_to(beside / "runs")
    (beside / "data.csv").touch()
    if with_git:
        git(root, "init", "-q")
    assert copied(root, runs=beside / "runs") == [os.path.join(home, "data.csv")]
    assert os.path.join(home, "runs/one/events.jsonl") in copied(root, runs=tmp_path / "elsewhere")
    assert copied(beside / "runs/one", runs=beside / "runs") == ["events.jsonl"], "what is asked for is not hidden"


def test_names_that_are_odd_arrive(orch: Orch, bed: Bed, tmp_path: Path) -> None:
    names = [b"with space", b"tab\t and \n newline", "\N{SNOWMAN}".encode(), b"not utf-8 \xff", b"-dash", b"'quote\"$HOME"]
    for name in names:
        (tmp_path / os.fsdecode(name)).touch()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "script.py").write_text("import os\nprint(sorted(os.listdir(b'.')))\n")
    up(orch, bed, "hostA", "--set", "backend.code=ship", check=0)
    assert set(ast.literal_eval(LiveRun(tmp_path).log("worker-0").decode())) == {*names, b"script.py", b".lock"}


def test_a_script_that_git_ignores_is_refused(orch: Orch, bed: Bed, project: Path) -> None:
    (project / ".gitignore").write_text("script.py\n")
    done = up(orch, bed, "hostA", "--set", "backend.code=ship", check=2)
    assert "script.py would not be copied to the hosts: git ignores it (add !/script.py to .gitignore), or" in done.err
    (project / "runs").mkdir()
    (project / "script.py").rename(project / "runs/script.py")
    settings = ("--set", "backend.code=ship", "--set", f"backend.ssh={json.dumps(bed.ssh)}", "--home", ".")
    done = orch("up", "runs/script.py", "-H", "hostA", *settings, check=2)
    assert "runs/script.py would not be copied to the hosts: " in done.err


def test_too_much_is_counted(orch: Orch, bed: Bed, project: Path) -> None:
    (project / ".gitignore").unlink()
    done = up(orch, bed, "hostA", "--set", "backend.code=ship", "--set", "backend.code_limit_mb=4", check=2)
    assert "5.0 of 4 MB, 4 of " in done.err
    assert "the largest: data.bin (5.0 MB)" in done.err
    assert "\n       fix: name data in .gitignore, " in done.err


def test_a_shared_directory_is_compared(orch: Orch, bed: Bed, tmp_path: Path) -> None:
    """`bed.own` is a directory of which every host has another one."""
    for place in (bed.own, bed["hostA"].files, bed["hostB"].files):
        (place / "work").mkdir()
        (place / "work/script.py").write_text("VALUE = 1\n")
    (bed["hostB"].files / "work/script.py").write_text("VALUE = 2\n")
    try:
        done = up(orch, bed, "hostA,hostB", at=bed.own / "work", check=2)
        assert f"host hostB: '{bed.own}/work' is not what it is where orch runs: script.py is different; make it the same" in done.err
        assert "code: ship" in done.err
        assert "hostA" not in done.err
        up(orch, bed, "hostA,hostB", "--set", "backend.code=unchecked", at=bed.own / "work", check=0)
        (bed["hostB"].files / "work/script.py").write_text("VALUE = 1\n")
        done = up(orch, bed, "hostA,hostB", at=bed.own / "work", check=0)
        only = f"'{bed.own}/work' could not be compared as a whole with the directory where orch runs: git does not know it"
        assert f"hosts hostA, hostB: {only}" in done.err
        done = up(orch, bed, "hostA", "--set", f"workdir={tmp_path / 'nowhere'!s}", check=2)
        assert "does not exist" in done.err
    finally:
        for place in (bed.own, bed["hostA"].files, bed["hostB"].files):
            subprocess.run(["rm", "-rf", str(place / "work")], check=True)


def test_the_commits_of_a_shared_directory_are_compared(orch: Orch, bed: Bed) -> None:
    old, new = (place / "work" for place in (bed["hostA"].files, bed.own))
    git = ("git", "-c", "user.name=a", "-c", "user.email=a", "-C", str(new))
    try:
        new.mkdir()
        (new / "script.py").touch()
        for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "work")):
            subprocess.run([*git, *words], check=True)
        shutil.copytree(new, old)
        up(orch, bed, "hostA", at=new, check=0)
        (new / "helper.py").touch()
        for words in (("add", "."), ("commit", "-qm", "more")):
            subprocess.run([*git, *words], check=True)
        done = up(orch, bed, "hostA", at=new, check=2)
        assert f"'{new}' is not what it is where orch runs: its commit is " in done.err
    finally:
        for place in (old, new):
            shutil.rmtree(place, ignore_errors=True)


def test_what_is_wrong_on_several_hosts_is_said_once_and_names_all_of_them(orch: Orch, bed: Bed) -> None:
    (bed.own / "here").mkdir()
    (bed.own / "here/script.py").write_text("")
    try:
        done = up(orch, bed, "hostA,hostB", at=bed.own / "here", check=2)
    finally:
        subprocess.run(["rm", "-rf", str(bed.own / "here")], check=True)
    assert f"error: hosts hostA, hostB: the working directory '{bed.own}/here' does not exist" in done.err


def test_a_script_outside_of_what_is_copied_is_refused(orch: Orch, bed: Bed, project: Path) -> None:
    done = orch("up", "/etc/passwd", "-H", "hostA", "--set", "backend.code=ship", check=2)
    assert "lies outside of" in done.err


def test_a_file_that_cannot_be_read_is_not_left_out_without_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "settings.yaml").touch()

    def refuse(path: Any, *_: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(code_sync, "open", refuse, raising=False)
    monkeypatch.setattr(code_sync, "digest_of", refuse)
    with pytest.raises(UsageError, match=r"settings.yaml cannot be copied to the hosts: Permission denied"):
        collect(str(tmp_path), 100, runs=tmp_path / ".orch")


def test_what_orch_prints_is_not_copied(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").touch()
    with (tmp_path / "up.log").open("w") as log:
        kept = os.dup(2)
        try:
            os.dup2(log.fileno(), 2)
            files = collect(str(tmp_path), 100, runs=tmp_path / ".orch").files
        finally:
            os.dup2(kept, 2)
            os.close(kept)
    assert [file.path for file in files] == ["train.py"]


class _Link:
    """The connection to a host that lacks all files."""

    host = SimpleNamespace(name="hostA")

    def __init__(self) -> None:
        self.sent: dict[str, bytes] = {}

    async def request(self, code: Code, _: object) -> CodeWanted:
        return CodeWanted(tuple(file.digest for file in code.files))

    def order(self, part: CodePart, data: bytes) -> None:
        self.sent[part.digest] = self.sent.get(part.digest, b"") + data

    async def drain(self) -> None: ...


def test_a_file_is_sent_as_it_was_found_also_after_it_was_changed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("one")
    (tmp_path / "empty").touch()
    (tmp_path / "large").write_bytes(large := os.urandom(2 * code_sync.PART_BYTES))
    code = collect(str(tmp_path), 100, runs=tmp_path / ".orch", copies=tmp_path / "copies")
    (tmp_path / "train.py").write_text("two")
    (tmp_path / "empty").write_text("no more")
    (tmp_path / "large").unlink()
    link = _Link()
    asyncio.run(code.send(cast("AgentLink", link)))
    assert sorted(link.sent.values()) == sorted([b"", b"one", large])
    assert {file.path: file.size for file in code.files} == {"train.py": 3, "empty": 0, "large": len(large)}


def test_a_host_gets_no_file_of_which_it_was_not_told(tmp_path: Path) -> None:
    class Curious(_Link):
        async def request(self, code: Code, _: object) -> CodeWanted:
            return CodeWanted((code.files[0].digest, "../private"))

    (tmp_path / "private").write_text("a key")
    (tmp_path / "work").mkdir()
    (tmp_path / "work/train.py").touch()
    code, link = collect(str(tmp_path / "work"), 100, runs=tmp_path / ".orch", copies=tmp_path / "copies"), Curious()
    with pytest.raises(OrchError, match="hostA asks for files that are not in"):
        asyncio.run(code.send(cast("AgentLink", link)))
    assert not link.sent


def test_of_a_file_that_is_cut_while_it_is_copied_the_rest_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log").write_text("one")
    monkeypatch.setattr(code_sync, "_refuse_too_much", lambda *_: (tmp_path / "log").write_text("x"))
    code, link = collect(str(tmp_path), 100, runs=tmp_path / ".orch", copies=tmp_path / "copies"), _Link()
    asyncio.run(code.send(cast("AgentLink", link)))
    assert list(link.sent.values()) == [b"x"]
    assert [file.size for file in code.files] == [1]


def test_a_link_to_a_secret_is_a_secret(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_rsa").touch()
    (tmp_path / ".ssh" / "config").touch()
    (tmp_path / ".env").touch()
    (tmp_path / "readme").symlink_to(".ssh/id_rsa")
    (tmp_path / "conf").symlink_to(".ssh")
    (tmp_path / "settings.txt").symlink_to(".env")
    (tmp_path / "train.py").touch()
    (tmp_path / "again.py").symlink_to("train.py")
    found = collect(str(tmp_path), 100, runs=tmp_path / ".orch")
    assert sorted(file.path for file in found.files) == ["again.py", "train.py"]
    assert {"readme", "settings.txt", "conf/config"} <= set(found.secret)
