"""`orch completion`: what a shell offers, asked as bash asks and, for zsh and fish, by the protocol of their scripts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Orch

Script = Callable[..., Path]


@pytest.fixture(autouse=True)
def hello(script: Script) -> Path:
    return script("import worker\nworker.report(loss=0.5)\n", "hello.py")


def offered(orch: Orch, *words: str) -> list[str]:
    env = {"_ORCH_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(["orch", *words]), "COMP_CWORD": str(len(words))}
    return [line.partition(",")[2] for line in orch(check=0, env=env).out.split()]


def in_bash(directory: Path, *words: str) -> list[str]:
    """What bash offers for the last of these words, once it has read the script that `orch completion` prints."""
    lines = (
        'eval "$(orch completion bash)"; complete -p orch >&2; '
        f'COMP_WORDS=(orch {" ".join(words)}); COMP_CWORD={len(words)}; _orch_completion orch; echo "${{COMPREPLY[@]}}"'
    )
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run([bash, "-c", lines], cwd=directory, env=env, capture_output=True, text=True, check=True)
    assert done.stderr.endswith(" -F _orch_completion orch\n"), done.stderr
    return done.stdout.split()


def test_commands_options_words_and_files_are_offered(orch: Orch) -> None:
    assert offered(orch, "pla") == ["plan", "placement"]
    assert "--keras" in offered(orch, "up", "--ker")
    assert offered(orch, "up", "--strategy", "mi") == ["mirrored"]
    assert offered(orch, "up", "--set", "restart.m") == ["restart.max="]
    assert offered(orch, "up", "hel") == ["hel"]  # of type file: the shell completes the name
    assert offered(orch, "logs", "--color", "al") == ["always"]
    assert offered(orch, "he") == ["help"]
    assert offered(orch, "help", "ch") == ["checkpoints", "chief", "checkpoint"]
    assert offered(orch, "help", "the-disk") == ["the-disk-is-full"]
    assert "PATH" in offered(orch, "up", "--env", "PA")


@pytest.mark.slow
def test_runs_and_tasks_are_offered(orch: Orch) -> None:
    assert offered(orch, "ps", "") == []
    orch("up", "hello.py", "--strategy", "none", "--name", "first", check=0)
    orch("up", "hello.py", "-n", "2", "--name", "second", check=0)
    newest, oldest = offered(orch, "ps", "")
    assert newest.startswith("second-")
    assert oldest.startswith("first-")
    assert offered(orch, "down", "fi") == offered(orch, "up", "--resume", "fi") == [oldest]
    assert offered(orch, "ps", "--all", "--sort", "lo") == ["loss"]
    assert offered(orch, "ps", "--sort", "st") == ["started", "state"]
    assert offered(orch, "logs", "w") == ["worker-0", "worker-1"]
    assert offered(orch, "logs", oldest, "w") == ["worker-0"]
    assert offered(orch, "placement", "--task", "worker-1") == ["worker-1"]
    assert in_bash(orch.cwd, "logs", "w") == ["worker-0", "worker-1"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(orch: Orch, shell: str) -> None:
    assert "_ORCH_COMPLETE" in orch.in_process("completion", shell, check=0).out
    assert "'powershell'" in orch.in_process("completion", "powershell", check=2).err


def test_the_schema_is_printed_and_named_by_a_new_file(orch: Orch, tmp_path: Path) -> None:
    orch.in_process("init", check=0)
    first = (tmp_path / "orch.yaml").read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=.orch.schema.json", "no path of this machine"
    printed = json.loads(orch.in_process("init", "--schema", check=0).out)
    assert printed == json.loads((tmp_path / ".orch.schema.json").read_text())
    assert printed["$id"] == "urn:orch-tf:schema:orch.yaml"
