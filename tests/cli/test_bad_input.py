"""What the program says to a mistake: one message with place, reason and remedy, the right exit code, and nothing left behind."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import socket
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from orchestrator import cli
from tests import golden
from tests.conftest import Completed, Orch

Script = Callable[..., Path]


@pytest.fixture(autouse=True)
def hello(script: Script) -> Path:
    return script("print('hello')\n", "hello.py")


def complaint(done: Completed, code: int, *words: str) -> str:
    """The one message of a run that was refused. `words` must stand in it, in this order."""
    assert done.code == code, done
    assert done.out == "", done
    assert "Traceback" not in done.err, done
    (begin,) = re.finditer("^error: ", done.err, re.MULTILINE)
    message = done.err[begin.start() :]
    at = 0
    for word in words:
        assert word in message[at:], f"{word!r} is not said (or not there)\n{done}"
        at = message.index(word, at) + len(word)
    return message


def nothing_was_kept(directory: Path) -> None:
    assert not list(directory.glob(".orch/runs/*"))


# --- a word that is not known, a number that cannot be ------------------------------------------


@golden.cases("refusals.txt")
def test_a_wrong_command_line_is_answered_with_the_reason_and_the_remedy(orch: Orch, tmp_path: Path, case: golden.Case) -> None:
    done = orch.in_process(*shlex.split(case.given)[1:])
    case.check(f"exit code {done.code}\n{complaint(done, done.code)}")
    nothing_was_kept(tmp_path)


def test_a_wrong_variable_is_named_and_not_its_option(orch: Orch, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, said in (("ORCH_COLOR", "'never'"), ("ORCH_QUIET", "boolean"), ("ORCH_CHIEF", "boolean"), ("ORCH_WORKERS", "number")):
        with monkeypatch.context() as patch:
            patch.setenv(name, "maybe")
            assert "--" not in complaint(orch.in_process("up", "hello.py"), 2, name, said).partition("more: ")[0]


# --- programs that cannot be run ----------------------------------------------------------------


@pytest.mark.parametrize("detached", [False, True], ids=["attached", "detached"])
def test_a_missing_script_is_named_with_the_one_that_was_meant(orch: Orch, tmp_path: Path, detached: bool) -> None:
    message = complaint(orch("up", "helo.py", *["-d"][: int(detached)]), 2, "'helo.py'", "No such file", "did you mean 'hello.py'?")
    assert str(tmp_path) in message
    nothing_was_kept(tmp_path)


def test_a_home_directory_that_no_shell_has_written_out_is_explained(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "orch.yaml").write_text("script: ~/train.py\n")
    complaint(orch.in_process("plan"), 2, "~ is not replaced here: write the whole path")


def test_a_typed_script_that_lies_in_the_tasks_directory_is_found_there(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").touch()
    meant = tmp_path / "src/train.py"
    complaint(orch("up", "train.py", "--set", "workdir=src"), 2, f"'{tmp_path}/train.py'", "No such file", f"did you mean '{meant}'?")


def test_a_syntax_error_is_shown_with_its_line(orch: Orch, script: Script, tmp_path: Path) -> None:
    script("x = 1\nprint('a'\ny = 2\n", "bad.py")
    complaint(orch("up", "bad.py"), 2, "'bad.py'", "line 2", "never closed", "print('a'")
    nothing_was_kept(tmp_path)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (b"x = '\0'\n", "null bytes"),
        (b"\xff\xfe = 1\n", "utf-8" if sys.version_info < (3, 14) else "Non-UTF-8"),
        (b"# coding: klingon\n", "unknown encoding: klingon"),
    ],
    ids=["NUL", "not UTF-8", "unknown encoding"],
)
def test_bytes_that_are_no_python_source_are_refused(orch: Orch, tmp_path: Path, source: bytes, said: str) -> None:
    (tmp_path / "odd.py").write_bytes(source)
    complaint(orch("up", "odd.py"), 2, "'odd.py'", "not valid Python", said)
    nothing_was_kept(tmp_path)


def test_a_script_must_be_a_file_that_can_be_read(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop.py").symlink_to("loop.py")
    os.mkfifo(tmp_path / "pipe.py")
    complaint(orch("up", "folder"), 2, "'folder'", "directory without a __main__.py")
    complaint(orch("up", "loop.py"), 2, "'loop.py'", "symbolic links")
    complaint(orch("up", "hello.py/more.py"), 2, "Not a directory")
    complaint(orch("up", "/proc/self/mem"), 2, "'/proc/self/mem'", "cannot be read")
    for endless in ("pipe.py", "/dev/stdin", "/dev/zero"):
        complaint(orch("up", endless), 2, endless, "pipe or a device", "save it to a file")
    complaint(orch("up", ""), 2, "SCRIPT", "empty")
    nothing_was_kept(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="NOT TESTED: root reads every file")
def test_a_script_without_permission_is_refused(orch: Orch, hello: Path, tmp_path: Path) -> None:
    hello.chmod(0)
    complaint(orch("up", "hello.py"), 2, "'hello.py'", "Permission denied")
    nothing_was_kept(tmp_path)


def test_a_missing_module_is_named_with_where_it_was_looked_for(orch: Orch, tmp_path: Path) -> None:
    complaint(orch("up", "-m", "no_such_module"), 2, "'no_such_module'", str(tmp_path))
    nothing_was_kept(tmp_path)


def test_a_missing_command_is_named(orch: Orch, tmp_path: Path) -> None:
    complaint(orch("up", "--no-python", "no-such-program"), 2, "'no-such-program'", "not on PATH")
    complaint(orch.in_process("up", "--set", "command=python train.py"), 2, "one name with blanks: write script: train.py")
    complaint(orch("up", "--no-python", "./no-such-program"), 2, "'./no-such-program'", "does not exist")
    complaint(orch("up", "--no-python", "./hello.py"), 2, "'./hello.py'", "not executable", "; chmod +x ./hello.py makes it so")
    nothing_was_kept(tmp_path)


def test_a_missing_interpreter_is_named(orch: Orch, tmp_path: Path) -> None:
    beside = {wrong: tmp_path / wrong for wrong in ("./no-such-python", "./hello.py")}
    for wrong, meant in {"no-such-python": "no-such-python", **beside, ".": "."}.items():
        complaint(orch("up", "hello.py", "--python", wrong), 2, f"'{meant}'", "cannot be run", "--python")
    nothing_was_kept(tmp_path)


@pytest.mark.parametrize("program", ["/bin/true", "/bin/cat", "/bin/echo"])
def test_an_interpreter_that_is_no_python_is_asked_about(orch: Orch, program: str) -> None:
    complaint(orch("up", "hello.py", "--python", program), 125, f"is '{program}' a Python?", "--python")


def test_an_interpreter_that_is_too_old_says_so(orch: Orch, tmp_path: Path) -> None:
    old = tmp_path / "old"
    text = "import runpy, sys; sys.version_info = (3, 9, 18); del sys.argv[0], sys.argv[:sys.argv[0] == '-I']; "
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{text}runpy.run_path(sys.argv[0], run_name=\'__main__\')" "$@"\n')
    old.chmod(0o755)
    words = f"{sys.executable} is Python 3.9; orch needs 3.10 or newer"
    complaint(orch("up", "hello.py", "--python", "./old"), 125, f"host local cannot be used: {words}\n       fix: set python: or --python")
    complaint(orch("warm", "start", "--python", "./old"), 125, f"{words}; set --python")


def test_a_missing_working_directory_is_named(orch: Orch, tmp_path: Path) -> None:
    complaint(orch("up", "hello.py", "--set", "workdir=/no/such/place"), 2, "'/no/such/place'", "does not exist")
    complaint(orch("up", "hello.py", "--set", "workdir=ship"), 2, "/ship' does not exist")
    nothing_was_kept(tmp_path)


# --- files that are no spec ---------------------------------------------------------------------


def test_a_spec_that_cannot_be_read_is_named(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    complaint(orch.in_process("up", "-f", "none.yaml"), 2, "none.yaml", "No such file")
    complaint(orch.in_process("up", "-f", "folder"), 2, "folder", "directory")
    complaint(orch.in_process("up", env={"ORCH_FILE": "other.yaml"}), 2, "other.yaml", "No such file")
    nothing_was_kept(tmp_path)


def test_a_spec_of_ten_megabytes_is_refused_by_its_size(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "orch.yaml").write_text("script: hello.py\nargs: [" + '"some argument", ' * 700_000 + "]\n")
    assert (tmp_path / "orch.yaml").stat().st_size > 10_000_000
    complaint(orch.in_process("up"), 2, "orch.yaml", "too long", "at most 1 MiB")
    complaint(orch.in_process("plan"), 2, "orch.yaml", "too long", "at most 1 MiB")


def test_a_yaml_bomb_is_refused(orch: Orch, tmp_path: Path) -> None:
    letters = "abcdefghi"
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in pairwise(letters)]
    (tmp_path / "orch.yaml").write_text("\n".join(lines))
    complaint(orch.in_process("up"), 2, "orch.yaml:", "alias")


def test_a_yaml_tag_runs_nothing(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "orch.yaml").write_text('script: !!python/object/apply:os.system ["touch was-run"]\n')
    complaint(orch.in_process("up"), 2, "orch.yaml:1", "tag", "not allowed")
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize(
    "text", [b"\xff\xfe\x00", b"script: [", b"- a\n- b\n", b"just words", b"script: a.py\nscript: b.py\n", b"\0", b"script:\t\tx: y: z"]
)
def test_text_that_is_no_spec_is_refused_with_its_place(orch: Orch, tmp_path: Path, text: bytes) -> None:
    (tmp_path / "orch.yaml").write_bytes(text)
    complaint(orch.in_process("up"), 2, "orch.yaml")
    nothing_was_kept(tmp_path)


# --- places that cannot be written --------------------------------------------------------------


@pytest.mark.parametrize("place", ["hello.py", "hello.py/below", "/proc/orch-test", "/dev/null/below"])
def test_a_run_directory_that_cannot_be_made_is_named_with_another_way(orch: Orch, tmp_path: Path, place: str) -> None:
    complaint(orch("up", "hello.py", "--home", place), 125, str(tmp_path / place), "--home", "ORCH_HOME")
    complaint(orch("up", "hello.py", "-d", env={"ORCH_HOME": place}), 125, str(tmp_path / place))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hello.py"]


@pytest.mark.skipif(os.geteuid() == 0, reason="NOT TESTED: root writes everywhere; see the read-only mount")
def test_a_directory_without_permission_is_named(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o500)
    complaint(orch("up", "hello.py", "--home", "mine/runs"), 125, "Permission denied", "--home")


@pytest.mark.parametrize("words", [("init", "--schema"), ("ps", "--all"), ("--help",), ("plan", "hello.py")])
def test_output_that_cannot_be_written_is_an_error_in_words(orch: Orch, words: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as disk:
        done = orch.start(*words, stdout=disk).wait(check=125)
    assert done.err == "error: standard output cannot be written: No space left on device\n"


@pytest.mark.root
def test_a_read_only_disk_is_named(mounted: Callable[[str], Path], orch: Orch) -> None:
    disk = mounted("ro,size=300k")
    complaint(orch("up", "hello.py", "--home", disk / "runs"), 125, str(disk), "Read-only file system", "--home")


@pytest.mark.root
@pytest.mark.parametrize("size", ["4k", "40k"])
@pytest.mark.parametrize("detached", [False, True], ids=["attached", "detached"])
def test_a_disk_that_is_full_before_the_start_is_named(mounted: Callable[[str], Path], orch: Orch, size: str, detached: bool) -> None:
    disk = mounted(f"size={size}")
    done = orch("up", "hello.py", "--home", disk / "runs", *["-d"][: int(detached)])
    complaint(done, 125, str(disk), "No space left on device", "--home")
    assert not list(disk.glob("runs/runs/*"))


@pytest.mark.root
def test_a_disk_that_the_tasks_fill_ends_the_run_and_still_holds_the_verdict(
    mounted: Callable[[str], Path], orch: Orch, script: Script
) -> None:
    disk = mounted("size=600k")
    script(
        """
        import sys, time
        try:
            while True:
                sys.stdout.write("x" * 999 + "\\n")
        except OSError:
            time.sleep(600)
        """,
        "fill.py",
    )
    done = orch("up", "fill.py", "-n", "2", "--quiet", "--home", disk / "runs")
    assert done.code == 125, done
    assert "Traceback" not in done.err
    assert f"no space left for the tasks' output in {disk}" in done.err
    result = json.loads((disk / "runs" / "latest" / "result.json").read_text())
    assert (result["outcome"], result["exit_code"]) == ("broken", 125)
    assert str(disk) in result["cause"]["what"]
    shown = orch("ps", "--json", "--home", disk / "runs", check=0)
    assert [task["state"] for task in json.loads(shown.out)["tasks"]] == ["stopped", "stopped"]


# --- ports ---------------------------------------------------------------------------------------


def test_a_port_range_that_is_used_up_is_named_with_the_numbers(orch: Orch, tmp_path: Path) -> None:
    with taken_port() as port:
        done = orch("up", "hello.py", "-n", "2", "--set", f"ports={port}-{port + 1}")
        complaint(done, 125, f"{port}-{port + 1}", "2 needed", "1 free")
        complaint(orch("up", "hello.py", "-n", "2", "-d", "--set", f"ports={port}-{port + 1}"), 125, f"{port}-{port + 1}", "2 needed")
    shown = json.loads(orch("ps", "-a", "--json", check=0).out)
    assert [run["result"]["exit_code"] for run in shown] == [125, 125]


class taken_port:
    """A port that another program listens on, with a free one behind it. Below those that the kernel gives to anybody's connections."""

    def __enter__(self) -> int:
        while True:
            port = random.randrange(20_000, 32_000)
            self._socket = socket.socket()
            with socket.socket() as next_one:
                try:
                    self._socket.bind(("0.0.0.0", port))
                    next_one.bind(("0.0.0.0", port + 1))
                    return port
                except OSError:
                    self._socket.close()

    def __exit__(self, *_: object) -> None:
        self._socket.close()


# --- too long for the kernel --------------------------------------------------------------------


def test_a_variable_longer_than_the_kernel_takes_is_said_and_not_a_traceback(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "orch.yaml").write_text(f"script: hello.py\ndefaults: {{env: {{LONG: {'a' * 140_000}}}}}\n")
    done = orch("up")
    assert done.code == 125, done.code
    assert "worker-0 could not be started" in done.err
    assert "128 KiB" in done.err
    assert "Traceback" not in done.err
    assert len(done.err) < 4000


def test_an_argument_of_a_command_longer_than_the_kernel_takes_is_said(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "orch.yaml").write_text(f"command: /bin/echo\nargs: [{'a' * 140_000}]\n")
    done = orch("up")
    assert done.code == 125, done.code
    assert "/bin/echo" in done.err
    assert "128 KiB" in done.err


def test_an_argument_of_a_script_may_be_longer(orch: Orch, tmp_path: Path, script: Script) -> None:
    script("import sys\nprint(len(sys.argv[1]))\n", "measure.py")
    (tmp_path / "orch.yaml").write_text(f"script: measure.py\nargs: [{'a' * 140_000}]\n")
    assert "worker-0 | 140000\n" in orch("up", check=0).out


# --- runs and tasks that are not there ----------------------------------------------------------


@pytest.mark.parametrize(
    "command", [["logs"], ["logs", "worker-0"], ["wait"], ["down"], ["logs", "-f"], ["stacks", "--json"]], ids=" ".join
)
def test_before_any_run_there_is_nothing_to_show(orch: Orch, tmp_path: Path, command: list[str]) -> None:
    complaint(orch.in_process(*command), 2, "no run in", str(tmp_path / ".orch"))
    nothing_was_kept(tmp_path)


def test_no_run_is_an_empty_list(orch: Orch, tmp_path: Path) -> None:
    assert json.loads(orch("ps", "-a", "--json", check=0).out) == []
    assert "no run" in orch("ps", "-a", check=0).out
    nothing_was_kept(tmp_path)


def test_a_run_or_a_task_that_is_not_there_is_named_with_those_that_are(orch: Orch) -> None:
    orch("up", "hello.py", check=0)
    orch("up", "hello.py", check=0)
    newest_first = [run["run"] for run in json.loads(orch("ps", "-a", "--json", check=0).out)][::-1]
    several = f"the newest is {newest_first[0]}; all: {', '.join(newest_first)}"
    for command in ("ps", "wait", "down"):
        complaint(orch.in_process(command, "nosuch"), 2, "'nosuch'", "does not exist", *newest_first)
    for command in ("wait", "down", "restart", "profile"):
        complaint(orch.in_process(command, "hello"), 2, "'hello'", "write more of the name", several)
    assert "worker-0" not in complaint(orch.in_process("prune", "hello"), 2, several)
    for command in ("ps", "logs", "checkpoints"):  # those that only look take the newest
        done = orch.in_process(command, "hello", check=0)
        assert done.err == f"orch: note: 2 runs begin with 'hello'; this is the newest, {newest_first[0]}\n"
        assert newest_first[1] not in done.out
    complaint(orch("logs", "nosuch"), 2, "'nosuch'", "does not exist", "worker-0")
    complaint(orch.in_process("logs", "worker-5"), 2, "'worker-5'; tasks: worker-0")
    complaint(orch.in_process("logs", "ps"), 2, "'ps'", "worker-0")
    complaint(orch.in_process("logs", "one", "two"), 2, "one and two", "at most one")
    complaint(orch.in_process("logs", "--attempt", "3"), 2, "no attempt 3", "it has 1")
    complaint(orch.in_process("logs", "--grep", "("), 2, "--grep", "regular expression")
    complaint(orch.in_process("logs", "--tail", "-1"), 2, "--tail")


def test_an_error_that_repeats_what_a_host_said_does_not_command_the_terminal() -> None:
    assert cli._complaint("it said: \x1b[2J\x1b[31mred\x01\nand more") == "error: it said: red\\x01\n       and more"


def test_a_directory_in_which_no_checkpoint_can_be_saved_is_refused_before_a_task_starts(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text("print('started')\n")
    (tmp_path / "file").touch()
    done = orch("up", "hello.py", "-n", "2", "--checkpoint", "--set", f"checkpoints.dir={tmp_path}/file/x")
    told = complaint(done, 2, f"error: checkpoints.dir: '{tmp_path}/file/x' cannot be used: '{tmp_path}/file' is not a directory\n")
    assert told.endswith("       fix: --set checkpoints.dir=DIR, on a disk that all hosts share\n")
