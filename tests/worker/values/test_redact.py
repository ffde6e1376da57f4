"""Texts without what looks like a secret."""

from __future__ import annotations

import json

import pytest

from worker.values.redact import redact, redact_json, redact_words


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("API_KEY=abc x", "API_KEY=… x"),
        ('"password": "a\\"b", 1', '"password": "…", 1'),
        ('"--token", "abc"', '"--token", "…"'),
        ("train.py --token abc --my-api-key 'a b' --epochs 3", "train.py --token … --my-api-key '…' --epochs 3"),
        ("DB_PASS=a1 --wandb-key b2 --pwd c3", "DB_PASS=… --wandb-key … --pwd …"),
        ("SLACK_WEBHOOK=https://hooks.example.com/x y", "SLACK_WEBHOOK=… y"),
        ("Authorization: Bearer abcdefg", "Authorization: Bearer …"),
        ('-H "Authorization: Basic Zm9v"', '-H "Authorization: Basic …"'),
        ("Bearer abcdefgh", "Bearer …"),
        ("key AKIAABCDEFGHIJKLMNOP of", "key … of"),
        ("ghp_abcdefghijklmnop hf_abcdefghijkl xoxb-12345678-ab", "… … …"),
        ("sk-proj-0123456789abcdef", "…"),
        ("https://u:tok@host/x", "https://…@host/x"),
    ],
)
def test_what_is_left_of_a_line(text: str, left: str) -> None:
    assert redact(text) == (left, left.count("…"))


@pytest.mark.parametrize(
    "text",
    [
        *("Bearer of news", "tokens: 5", "tokenizer=x", "a task-skewed-by-one-straggler", "risk-free", "hf_hub", "the token is"),
        *("--token --x", "--token-dim 512", "--max-token-length 128", "--use-token true", "see --token and --epochs", "--token is needed"),
        *("first_pass=3", "--sort-key name", "db_passed=1", "--n-keys 5"),
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == (text, 0)


def test_the_words_of_a_command_line_are_read_as_in_a_text() -> None:
    words = ["train.py", "--token", "a b", "--max-token-length", "128", "--use-token", "true", "password", "hunter2hunter", "is", "8"]
    assert redact_words(words) == ["train.py", "--token", "…", *words[3:7], "password", "…", "is", "8"]


def test_json_stays_json() -> None:
    document = {
        "env": {"API_KEY": 'x"y', "N": "1", "headers": {"Authorization": "Bearer q"}},
        "args": ["--token", "abc", "API_KEY=1", "--epochs", "3"],
        "text": "your password: ",
        "private_key": {"id": 1},
        "count": 3,
    }
    made, count = redact_json(json.dumps(document))
    assert json.loads(made) == {
        "env": {"API_KEY": "…", "N": "1", "headers": {"Authorization": "…"}},
        "args": ["--token", "…", "API_KEY=…", "--epochs", "3"],
        "text": "your password: ",
        "private_key": {"id": 1},
        "count": 3,
    }
    assert count == 4
    lines = '{"a": 1}\n{"API_KEY": "q", "b": "…"}\n[... 5 bytes are left out ...]\nhalf a line, TOKEN=abc\n'
    assert redact_json(lines) == ('{"a": 1}\n{"API_KEY": "…", "b": "…"}\n[... 5 bytes are left out ...]\nhalf a line, TOKEN=…\n', 2)
