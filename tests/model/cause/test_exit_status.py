"""How a process has ended, in words."""

from __future__ import annotations

import pytest

from orchestrator.model.cause.exit_status import describe_answer, describe_code


@pytest.mark.parametrize(
    ("code", "killed", "words"),
    [
        (0, False, "exit code 0"),
        (7, False, "exit code 7"),
        (128, False, "exit code 128"),
        (137, True, "killed by SIGKILL"),
        (137, False, "exit code 137, a shell's word for SIGKILL"),
        (139, True, "killed by SIGSEGV: segmentation fault"),
        (162, True, "killed by SIGRTMIN"),
        (163, True, "killed by signal 35"),
        (255, False, "exit code 255"),
    ],
)
def test_an_end_in_words(code: int, killed: bool, words: str) -> None:
    assert describe_code(code, killed) == words


@pytest.mark.parametrize(
    ("err", "code", "reason", "words"),
    [
        ("", 0, "", "it ended with exit code 0"),
        ("first\nno such library\n\n", 127, "", "it ended with exit code 127: no such library"),
        (" \n", -11, "", "it was killed by SIGSEGV: segmentation fault"),
        ("y\n", None, "it has not answered for 5 s", "it has not answered for 5 s: y"),
        ("", None, "it never stops talking", "it never stops talking"),
        ("x" * 5000, 1, "", "it ended with exit code 1: " + "x" * 300),
    ],
)
def test_the_end_of_one_that_was_asked_in_words(err: str, code: int | None, reason: str, words: str) -> None:
    assert describe_answer(err, code, reason) == words
