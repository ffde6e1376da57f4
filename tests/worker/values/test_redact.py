"""Texts without what looks like a secret."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

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
        ("API_KEY: Bearer abcdefgh, --api-key Bearer", "API_KEY: … …, --api-key …"),
        ("eyJ0123456789abc.eyJ0123456789abc.sig", "…"),
        ("{'token': b'a\\'b', 'n': 1}", "{'token': b'…', 'n': 1}"),
        ("password=SecretStr('a b')", "password=SecretStr('…')"),
        ("x PASSWORD=['a b', 1", "x PASSWORD=['…', 1"),
        ("export TOKEN=$'a b'", "export TOKEN=$'…'"),
        ('secret = """a b"""', 'secret = """…"""'),
        ("PASSWORD=a,b;c&d, x", "PASSWORD=…, x"),
        ("?access_token=ab&user=c", "?access_token=…&user=c"),
        ("{token:ab,name:c}", "{token:…,name:c}"),
        ("os.environ['API_KEY'] = 'ab'", "os.environ['API_KEY'] = '…'"),
        ("password := ab, token => cd", "password := …, token => …"),
        ("\x1b[1mtoken\x1b[0m=\x1b[32m'ab'\x1b[0m", "\x1b[1mtoken\x1b[0m=\x1b[32m'…'\x1b[0m"),
        ("redis://u:p@ss@host/0, //x y@z", "redis://…@host/0, //x y@z"),
        ("-----BEGIN RSA PRIVATE KEY-----\nDEK-Info: AES\n\nMIIE+/=\nabc\n-----END", "-----BEGIN RSA PRIVATE KEY-----…-----END"),
        ("https://hooks.slack.com/services/T00/B00/abc ya29.0123456789abcdef-", "https://… …"),
    ],
)
def test_what_is_left_of_a_line(text: str, left: str) -> None:
    assert redact(text) == (left, left.count("…"))


@pytest.mark.parametrize(
    "text",
    [
        *("Bearer of news", "tokens: 5", "tokenizer=x", "a task-skewed-by-one-straggler", "risk-free", "hf_hub", "the token is"),
        *("--token --x", "--token-dim 512", "--max-token-length 128", "--use-token true", "see --token and --epochs", "--token is needed"),
        *("first_pass=3", "// see a@b", "--sort-key name", "db_passed=1", "--n-keys 5"),
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == (text, 0)


def test_the_words_of_a_command_line_are_read_as_in_a_text() -> None:
    words = ["train.py", "--token", "a b", "--max-token-length", "128", "--use-token", "true", "password", "hunter2hunter", "is", "8"]
    assert redact_words(words) == ["train.py", "--token", "…", *words[3:7], "password", "…", "is", "8"]


@pytest.mark.parametrize("end", ["", "_", "-x", "S", "IZE", "s", "2"])
@pytest.mark.parametrize("first", ["", "my_", "my-", "A", "x"])
def test_a_name_is_read_in_a_text_as_in_json(first: str, end: str) -> None:
    words = ["token", "TOKEN", "secret", "Password", "passwd", "passphrase", "credential", "key", "KEY", "pwd", "webhook", "pass"]
    words += [f"{word}{sign}{last}" for word in ("api", "hf", "encryption", "wandb") for sign in ("", "_", "-") for last in ("key", "Key")]
    words += [f"{word}{sign}pass" for word in ("db", "Database", "root", "admin", "redis") for sign in ("", "_", "-")]
    names = [f"{first}{word}{end}" for word in words]
    assert [redact(f"{name}=x")[1] for name in names] == [redact_json(json.dumps({name: "x"}))[1] for name in names]
    options = [f"--{name}" for name in names]
    assert [redact(f"{option} y")[1] for option in options] == [redact_words([option, "y"])[1].count("…") for option in options]


def test_a_long_part_that_is_nothing_but_names_is_hidden_whole() -> None:
    around, dense = "the first line of a log\n" * 10_000, "token=a\n" * 40_000
    made, _ = redact(f"{around}API_KEY=q1\n{dense}{around}")
    assert made.startswith(around[:200_000])
    assert made.endswith(around[-200_000:])
    assert not {"token=a", "q1"} & set(made.split())
    made, _ = redact(dense + 'key="\n' * 50_000 + "hunter2\n")
    assert set(made.split()) == {"…"}
    made, _ = redact_json('{"token": 1}\n' * 20_000)
    assert {json.loads(line) for line in made.splitlines()} == {"…"}
    assert redact_json(json.dumps([{"token": 1}] * 20_000)) == ('"…"', 1)


def test_a_text_is_dense_though_none_of_its_blocks_is_as_names_lie_across_their_ends() -> None:
    names = ("x" * 28 + "key") * 512
    text = ("y" + names + "x" * (16384 - 3 - len(names)) + "ke") * 30
    assert redact(text)[1] > 0  # it was redacted without an end
    assert redact_json(text)[1] > 0


def test_lines_of_dashes_are_not_looked_through_for_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.values.redact._OF_OPTION", None)
    for count in (4, 5, 29 * 4, 100_000):
        assert redact(f"{'-' * count}\nKEY=a {'-' * count}\n" * 20)[1] == 20


def test_a_log_that_counts_tokens_stays() -> None:
    for line in ("step 100 | tokens 123456 | tokens/s 45678\n", "--a --b --c\n"):
        assert redact(line * 5000) == (line * 5000, 0)


def test_a_secret_whose_name_is_written_with_escapes_is_hidden_too() -> None:
    text = '{"step": 1}\n{"\\u0074oken": "abcdefgh", "step": 2}\n'
    made, count = redact_json(text)
    assert [json.loads(line) for line in made.splitlines()] == [{"step": 1}, {"token": "…", "step": 2}]
    assert count == 1
    assert redact_json('{"step": 1}\n') == ('{"step": 1}\n', 0)


def test_json_stays_json() -> None:
    document = {
        "env": {"API_KEY": 'x"y', "N": "1", "headers": {"Authorization": "Bearer q"}},
        "args": ["--token", "abc", "API_KEY=1", "--epochs", "3"],
        "text": "your password: ",
        "private_key": {"id": 1},
        "passwords": {"password": ["a", ["b", 1]]},
        "count": 3,
    }
    made, count = redact_json(json.dumps(document))
    assert json.loads(made) == {
        "env": {"API_KEY": "…", "N": "1", "headers": {"Authorization": "…"}},
        "args": ["--token", "…", "API_KEY=…", "--epochs", "3"],
        "text": "your password: ",
        "private_key": {"id": 1},
        "passwords": {"password": ["…", ["…", "…"]]},
        "count": 3,
    }
    assert count == 7
    lines = '{"a": 1}\n{"API_KEY": "q", "b": "…"}\n[... 5 bytes are left out ...]\nhalf a line, TOKEN=abc\n'
    assert redact_json(lines) == ('{"a": 1}\n{"API_KEY": "…", "b": "…"}\n[... 5 bytes are left out ...]\nhalf a line, TOKEN=…\n', 2)


_TEXTS = {
    "one word": "x",
    "dashes": "-",
    "a name without an end": "key",
    "names and nothing else": "API_KEY-",
    "names without a value": "key ",
    "options": "--use-token true ",
    "a web token that does not end": "eyJ-",
    "logins without an end": "// ",
    "spaces": "key" + " " * 50,
    "quotation marks": 'key="\n',
    "sums": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  data.tfrecord\n",
    "steps": "117/1000 [==>....] - ETA: 3s - loss: 0.1234 - accuracy: 0.9876\n",
    "options without a secret": "--d --token-dim 5 ",
    "names that are said": "the token of a ",
    "names with a sign": "key=",
    "short secrets": "token=a\n",
    "quoted secrets": '"password": "a", ',
    "headers": "Authorization: ",
    "bearers": "Bearer abcdefg ",
    "signs in a value": "key=a" + ",a;a" * 1000,
    "private keys": "PRIVATE KEY-----" + "-a" * 1000,
    "logins in logins": "//" + "a@" * 1000,
    "openings": "key=a.a.a.a.a.a.a.a.a.a[[",
    "escapes in quotation marks": "key='\\",
    "names in an option that is none": f"DB_PASS=a1 --wand{'x' * 25}",
    "dashes behind names": f" key{'-' * 29}",
    "letters that are not of ASCII": "İ",
    "keys of many lines": "-----BEGIN RSA PRIVATE KEY-----\n",
    "bearers without a token": "Bearer  ",
    "tokens that are counted": "step 100 | tokens 123456 | tokens/s 45678\n",
    "secrets": "INFO worker-0 API_KEY=abc and so on, token: abc, then the next line\n",
}


@pytest.mark.parametrize("read", [redact, redact_json, lambda text: redact_words([text, text])], ids=["text", "JSON", "words"])
@pytest.mark.parametrize("kind", _TEXTS)
def test_the_time_is_in_proportion_to_the_text(kind: str, read: Callable[[str], object]) -> None:
    def seconds(size: int) -> float:
        text = _TEXTS[kind] * (size // len(_TEXTS[kind]))
        return min(_took(lambda: read(text)) for _ in range(3))

    # Sixteen times as long a text takes sixteen times as long; 256 times, if each character is tried with all that follow.
    assert seconds(1 << 18) < 80 * max(seconds(1 << 14), 1e-4)


@pytest.mark.parametrize("kind", _TEXTS)
def test_a_text_full_of_names_takes_not_much_longer_than_one_without(kind: str) -> None:
    text, usual = (_TEXTS[name] * (1_000_000 // len(_TEXTS[name])) for name in (kind, "steps"))
    took, plain = (min(_took(lambda one=one: redact(one)) for _ in range(3)) for one in (text, usual))
    assert took < 8 * plain  # a call of Python for each name would make it 20 to 30 times


def _took(call: Callable[[], object]) -> float:
    began = time.thread_time()
    call()
    return time.thread_time() - began
