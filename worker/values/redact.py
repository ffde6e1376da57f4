"""Finds which variables of an environment orch shows, of a host's and of the spec's; and texts without what looks like a secret. Pure."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "no_proxy", "no_grpc_proxy")
PREFIXES = ("CUDA_", "TF_", "XLA_", "KERAS_", "NCCL_", "GRPC_", "OMP_", "ORCH_", "NVIDIA_", "TPU_")
NAMES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "TMPDIR")
MOST_CHARACTERS = 2000
_SECRET = re.compile("TOKEN|SECRET|PASSWORD|KEY", re.IGNORECASE)
_LOGIN = re.compile(r"""//[^/@\s]*@(?:[^/@\s"',<>]*@){0,9}""")


def disclose(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that change how TensorFlow runs, except those whose name looks like a secret. Passwords of proxies are left out."""
    found = {}
    for name, value in environment.items():
        if name.lower() in PROXIES:
            found[name] = _LOGIN.sub("//…@", value)
        elif (name.startswith(PREFIXES) or name in NAMES) and not _SECRET.search(name):
            found[name] = value[:MOST_CHARACTERS]
    return found


_KEYS = "api|access|private|auth|account|client|comet|encryption|hf|license|neptune|openai|signing|ssh|storage|wandb"
_LOGINS = "admin|database|db|mysql|pg|postgres|redis|root|smtp|user"
_WORD = (
    rf"(?:(?i:token(?!s|iz)|secret|passw(?:or)?d|passphrase|credential|(?:{_KEYS})[_-]?key|(?:{_LOGINS})[_-]?pass(?![a-z])|(?<![a-z])pwd|"
    r"webhook)|TOKEN|KEY)"
)
_ENDS = re.compile(rf"-[\w-]*{_WORD}")
"""An option that ends with the word: `--token-dim` is none of these."""
_IS_NAME = re.compile(rf"[\w-]*{_WORD}[\w-]*|-*(?i:(?:proxy-)?authorization)")
_PLAIN_VALUE = r"(?:[\d.]+|(?i:true|false|and|or|is|to|with))(?:\s|$)"
"""Behind an option with such a word, as in `--use-token true`, this is no secret."""
_PLAIN = re.compile(_PLAIN_VALUE)
_LONGEST_NAME = 200


def _after(words: str, end: str) -> str:
    """A pattern for the place behind `end`, if one of the words comes before it. It looks at the last letters first, as most fail there."""
    parts = sorted(words.split("|"), key=len)
    last = "".join(sorted({part[-1] for part in parts}))
    groups = [[f"[{part[0]}{part[0].upper()}](?i:{part[1:]})" for part in group] for _, group in itertools.groupby(parts, key=len)]
    joined, apart = ("|".join(f"(?<=(?:{'|'.join(group)}){sign}(?i:{end}))" for group in groups) for sign in ("", "[_-]"))
    return f"(?:(?<=(?i:[{last}]{end}))(?:{joined})|(?<=[_-](?i:{end}))(?:{apart}))"


# A text may be one word of a megabyte, or nothing but names. So each pattern begins with a sign or a rare letter, for which the machine
# looks fast, and tries a bounded number of letters from there on. What precedes a value is the one group of a pattern: a split of the
# text then leaves the values out without a call for each.
_BARE = r"""[^\s"',;&]+(?:[,;&](?![\w.-]{0,40}[=:])[^\s"',;&]+)*"""
"""A password may have these signs; behind one of them, the next name ends the value."""
_VALUE = rf"""(?:(?<=")[^"\\\n]*(?:\\.[^"\\\n]*)*|(?<=')[^'\\\n]*(?:\\.[^'\\\n]*)*|{_BARE})"""
_COLOR = r"(?:\x1b\[[\d;]{0,9}m)"
_OPENS = rf"""{_COLOR}?(?:(?:(?:[a-zA-Z_][\w.]{{0,20}})?[\[({{]{{1,2}})?[bBrRfFuU$]{{0,2}}(?:"{{3}}|'{{3}}|["']))?"""
"""What a value of a program begins with, as in `b'abc'` and `SecretStr('abc')`."""
_IN_NAME = (
    rf"[bckpBCKP][aehrwAEHRW](?:[nN](?<=(?i:token))(?:(?<=TOKEN)|(?!(?i:s|iz)))|[yY](?:(?<=KEY)|{_after(_KEYS, 'key')})"
    rf"|[eE](?:[tT](?<=(?i:secret))|(?i:dential)(?<=(?i:credential)))"
    rf"|[sS](?<=[pP]..)[sS](?:(?i:w(?:or)?d|phrase)|(?![a-zA-Z]){_after(_LOGINS, 'pass')})"
    r"|[dD](?<=(?i:pwd))(?<![a-zA-Z]...)|[oO](?i:ok)(?<=(?i:webhook)))"
)
"""`_WORD` from one of its letters on, of which the first two and the third are found fast."""
_NAMED = re.compile(
    rf"""({_IN_NAME}(?=([\w-]{{0,40}}))\2(?![\w-])"""
    rf"""(?:["'],\s*(?=["'])|(?:["'\]]|{_COLOR}){{0,4}}(?:[=:][=>]?\s*|\s+(?!\s)(?:[=:][=>]?\s*|(?=[^\s=:]{{8}})))){_OPENS})""" + _VALUE
)
"""The end of the name and what follows it in `API_KEY=abc`, `"password": "a b"`, `"--token", "abc"`. After a name without dashes and
without a sign, only a long word is a value, for a sentence may speak of tokens. The second group keeps the rest of the name whole."""
_OF_OPTION = re.compile(
    r"(--(?<![\w-]--)(?=([^\W_][\w-]{0,99}))\2(?=[ \t])"
    r"(?<=[dDeEkKlLnNsStTyY])(?:(?<=[nN])(?<=(?i:token))|(?<=[tT])(?<=(?i:secret))|(?<=[dD])(?:(?<=(?i:password))|(?<=(?i:passwd))|(?<=(?i:pwd))(?<![a-zA-Z]...))|"
    r"(?<=[eE])(?<=(?i:passphrase))|(?<=[lL])(?<=(?i:credential))|(?<=[kK])(?<=(?i:webhook))|"
    rf"(?<=[yY])(?:(?<=KEY)|{_after(_KEYS, 'key')})|(?<=[sS]){_after(_LOGINS, 'pass')})"
    rf"""[ \t]+(?=[^\s=:-])(?!{_PLAIN_VALUE}){_OPENS}){_VALUE}"""
)
_HEADERS = (
    re.compile(r"""([zZ](?<=(?i:authoriz))(?<!\w(?i:authoriz))(?i:ation)["']?\s*[=:]\s*["']?(?:(?i:bearer|basic|token)\s+)?)[^\s"',;…]+"""),
    re.compile(r"""(Bearer(?<!\wBearer)\s+(?=[^\s"',;…]{6}))[^\s"',;…]+"""),
)
_PRIVATE = re.compile(r"(PRIVATE KEY(?: BLOCK)?-----)[A-Za-z0-9+/=\s\\:,]+(?:-(?!----)[A-Za-z0-9+/=\s\\:,]+){0,9}")
"""A key of OpenSSL, OpenSSH or PGP, of several lines."""
# Keys that their first characters give away are of AWS, Databricks, GitHub, GitLab, Google, Hugging Face, NVIDIA, OpenAI and
# Slack, and JSON Web Tokens.
_KINDS = {
    **dict.fromkeys(("AKIA", "ASIA"), r"[0-9A-Z]{8,}"),
    "AIza": r"[\w-]{30,}",
    "gh": r"[pousr]_\w{8,}",
    "github_pat_": r"\w{8,}",
    "glpat-": r"[\w-]{8,}",
    "hf_": "[A-Za-z0-9]{8,}",
    "sk-": r"[\w-]{16,}",
    "xox": r"[a-z]-[\w-]{8,}",
    "hooks.slack.com/services/": r"[\w/]{8,}",
    "dapi": "[0-9a-f]{32}",
    **dict.fromkeys(("ya29.", "nvapi-"), r"[\w-]{16,}"),
    "eyJ": r"[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+",
}
_OTHERS = {
    first: re.compile(rf"{re.escape(first)}(?<!{before}{re.escape(first)}){rest}")
    for first, rest in _KINDS.items()
    for before in ([r"[\w-]"] if first == "eyJ" else [r"\w"])
}
_HEADS = (b"token", b"secret", b"key", b"pass", b"pwd", b"credential", b"webhook")
"""One of these is in each name, in small letters."""
_WORDS = (*_HEADS, b"authorization", b"bearer", b"private key")
_COUNTED = (b"tokens", b"tokeniz")
"""No names, as the next letter says, so the look takes a quarter of the time. Logs of language models are full of them."""
_SIGNS = ("token", "secret", "key", "pass", "pwd", "credential", "webhook", "authorization", "bearer", "//", "\\u")
"""One of these, or of what keys begin with, is in each JSON text of which something is to be hidden."""
_ANY = re.compile("|".join((*_SIGNS[:-1], *(re.escape(first.lower()) for first in _OTHERS))))
_SHORT = 1000
_MOST_DENSE = 1 << 17
"""The length from which a text is looked at for parts that are nothing but names of secrets."""
_BLOCK = 1 << 13
_APART, _APART_IN_BLOCK = 8, 10
"""How many characters there are at least for each option, and a quarter of those for each name. A text that has fewer has a block that
has fewer, too, although what lies across the end of a block is in none.
"""


def redact(text: str) -> tuple[str, int]:
    """The text with ``…`` in place of secrets, as far as a name before them or their first letters tell what they are; and their number.

    Takes time in proportion to the text. Of a long text with more names than values, the parts that are full of them are hidden whole.
    """
    if len(text) < _SHORT and _ANY.search(text.lower()) is None:
        return text, 0
    small = _small(text)
    words = {word: count for word in _WORDS if (count := small.count(word))}
    if words and len(text) >= _MOST_DENSE and _is_dense(small, words):
        return _redact_dense(text, redact, "…")
    patterns = []
    if b"private key" in words:
        patterns.append(_PRIVATE)
    if b"authorization" in words:
        patterns.append(_HEADERS[0])
    if b"bearer" in words:
        patterns.append(_HEADERS[1])
    if not words.keys().isdisjoint(_HEADS):
        patterns += [_OF_OPTION, _NAMED] if _options(small) else [_NAMED]
    count = 0
    for pattern in patterns:
        parts = pattern.split(text)
        if found := len(parts) // (pattern.groups + 1):
            if pattern.groups == 1:
                made = ["…"] * (3 * found + 1)
                made[0::3], made[1::3] = parts[0::2], parts[1::2]
            else:
                parts[2::3] = ["…"] * found
                made = parts
            text = "".join(made)
            count += found
    for first, pattern in _OTHERS.items():
        if first in text:
            text, found = pattern.subn("…", text)
            count += found
    if "//" in text and "@" in text:
        text, found = _LOGIN.subn("//…@", text)
        count += found
    return text, count


def _small(text: str) -> bytes:
    """The text in small letters, a byte for each character: of others than those of ASCII it takes Python ten times as long."""
    return text.encode("ascii", "replace").lower()


def _options(small: bytes) -> int:
    """How many options there may be: two dashes that are no part of a line of dashes. 0: there is none."""
    return small.count(b"--") - 2 * small.count(b"----")


def _is_dense(small: bytes, words: Mapping[bytes, int] | None = None, apart: int = _APART) -> bool:
    """True if names and options are so many that the look at each would take too long.

    `words`: how often each of `_WORDS` is there, if that is known.
    """
    every = sum(map(small.count, _WORDS)) if words is None else sum(words.values())
    counted = sum(map(small.count, _COUNTED)) if words is None or b"token" in words else 0
    return apart * (4 * every - 3 * counted + _options(small)) > len(small)


def _redact_dense(text: str, read: Callable[[str], tuple[str, int]], instead: str) -> tuple[str, int]:
    """Hide each block that is dense, and what may be the value of its last name; and redact what is between them."""
    made, count, done, at = list[str](), 0, 0, 0
    while at < len(text):
        end = _line_end(text, at + _BLOCK)
        if _is_dense(_small(text[at:end]), apart=_APART_IN_BLOCK):
            shown, found = read(text[done:at])
            end = _line_end(text, end)
            made += (shown, f"{instead}\n" if text[end - 1] == "\n" else instead)
            count, done = count + found + 1, end
        at = end
    shown, found = read(text[done:])
    return "".join((*made, shown)), count + found


def _line_end(text: str, at: int) -> int:
    """Return where the line of this place ends, or a place not far behind."""
    return text.find("\n", at, at + _BLOCK) + 1 or min(at + _BLOCK, len(text))


def redact_json(text: str) -> tuple[str, int]:
    """`redact` for a JSON document, or for one in each line: the result is JSON, too. Another text is redacted as a text."""
    if not _may_hide(text):
        return text, 0
    is_dense = len(text) >= _MOST_DENSE and _is_dense(_small(text))
    try:
        return ('"…"', 1) if is_dense and json.loads(text) else _redact_document(text)
    except (ValueError, RecursionError):
        pass
    if is_dense:
        return _redact_dense(text, redact_json, '"…"')
    made, count = list[str](), 0
    for is_json, lines in itertools.groupby(text.splitlines(keepends=True), key=lambda line: line[:1] in "{["):
        for part in lines if is_json else ["".join(lines)]:
            try:
                shown, found = _redact_document(part) if is_json and _may_hide(part) else redact(part)
            except (ValueError, RecursionError):  # the middle of a large file is left out
                shown, found = redact(part)
            made.append(shown)
            count += found
    return "".join(made), count


_NUMBERS = (int, float, type(None))


def _may_hide(text: str) -> bool:
    """True if anything in a JSON text may have to be hidden. A letter may be written as an escape."""
    small = text.lower()
    if len(text) < _SHORT:
        return "\\u" in text or _ANY.search(small) is not None
    return any(sign in small for sign in _SIGNS) or any(first in text for first in _OTHERS)


def _redact_document(text: str) -> tuple[str, int]:
    counts: list[int] = []
    made = _redact_value(json.loads(text), counts)
    if not counts:
        return text, 0
    shown = json.dumps(made, ensure_ascii=False, indent=2 if "\n" in text.strip() else None)
    return shown + "\n" * text.endswith("\n"), sum(counts)


def _redact_value(value: Any, counts: list[int], name: str = "") -> Any:
    """`name`: the key of the value, or the word before it in a list of arguments."""
    if isinstance(value, dict):
        if _is_plain(value, value.values()):
            return value
        return {key: _redact_value(item, counts, key) for key, item in value.items()}
    if isinstance(value, list):
        if _is_name(name):
            return [_redact_value(item, counts, name) for item in value]
        if _is_plain(value):
            return value
        return [
            _redact_value(item, counts, word if _is_name_of(word, item) else "") for word, item in zip(("", *value), value, strict=False)
        ]
    if value is not None and not isinstance(value, bool) and _is_name(name):
        counts.append(1)
        return "…"
    if not isinstance(value, str):
        return value
    made, found = redact(value)
    counts += [found] if found else []
    return made


def _is_plain(*groups: Iterable[Any]) -> bool:
    """True if these are numbers and texts of which nothing may have to be hidden."""
    values = [value for group in groups for value in group if not isinstance(value, _NUMBERS)]
    texts = [value for value in values if isinstance(value, str)]
    return len(texts) == len(values) and not _may_hide("\n".join(texts))


@functools.lru_cache(4096)
def _is_name(name: str) -> bool:
    return len(name) <= _LONGEST_NAME and _IS_NAME.fullmatch(name) is not None


def _is_name_of(word: Any, item: Any) -> bool:
    """True if this word of a command line may be the name of the next one, as it is read in a text."""
    if not isinstance(word, str) or not isinstance(item, str):
        return False
    if not word.startswith("-"):
        return len(item) >= 8
    return len(word) <= _LONGEST_NAME and _ENDS.fullmatch(word) is not None and not _PLAIN.fullmatch(item)


def redact_value(value: Any) -> Any:
    """The same for the data of a JSON document, such as settings: what stands under such a name is hidden whole."""
    return _redact_value(value, [])


def redact_words(words: Sequence[str]) -> list[str]:
    """The same for the words of a command line."""
    found: list[str] = _redact_value(list(words), [])
    return found


def hide_secrets(text: str) -> str:
    return redact(text)[0]
