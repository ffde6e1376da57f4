"""Finds which variables of an environment orch shows, of a host's and of the spec's; and texts without what looks like a secret. Pure."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "no_proxy", "no_grpc_proxy")
PREFIXES = ("CUDA_", "TF_", "XLA_", "KERAS_", "NCCL_", "GRPC_", "OMP_", "ORCH_", "NVIDIA_", "TPU_")
NAMES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "TMPDIR")
MOST_CHARACTERS = 2000
_SECRET = re.compile("TOKEN|SECRET|PASSWORD|KEY", re.IGNORECASE)
_LOGIN = re.compile(r"//[^/@\s]*@")


def disclose(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that change how TensorFlow runs, except those whose name looks like a secret. Passwords of proxies are left out."""
    found = {}
    for name, value in environment.items():
        if name.lower() in PROXIES:
            found[name] = _LOGIN.sub("//…@", value)
        elif (name.startswith(PREFIXES) or name in NAMES) and not _SECRET.search(name):
            found[name] = value[:MOST_CHARACTERS]
    return found


_KEYS = "api|access|private|auth|account|client|comet|encryption|hf|neptune|openai|ssh|storage|wandb"
_LOGINS = "admin|database|db|mysql|pg|postgres|redis|root|smtp|user"
_WORD = (
    rf"(?:(?i:token(?!s|iz)|secret|passw(?:or)?d|passphrase|credential|(?:{_KEYS})[_-]?key|(?:{_LOGINS})[_-]?pass(?![a-z])|(?<![a-z])pwd|"
    r"webhook)|TOKEN|KEY)"
)
_HAS_WORD = re.compile(_WORD)
_ENDS = re.compile(rf"-[\w-]*{_WORD}")
"""An option that ends with the word: `--token-dim` is none of these."""
_IS_NAME = re.compile(rf"[\w-]*{_WORD}[\w-]*|-*(?i:(?:proxy-)?authorization)")
_PLAIN = re.compile(r"(?:[\d.]+|(?i:true|false|and|or|is|to|with))(?:\s|$)")
"""Behind an option with such a word, as in `--use-token true`, this is no secret."""
_LONGEST_NAME = 200

# A text may be one word of a megabyte. So each pattern begins with a letter or a sign, for which the machine looks fast, and none tries
# again, for each start in a name, all that follows: the parts of a name are bounded, or only what precedes them may begin a match.
_CORE = re.compile(
    r"""(?:token|secret|key|pass|pwd|credential|webhook)(?![\w-]{64})[\w-]*(?=["'],\s*["']|["']?\s*[=:]|["']?\s+[^\s=:]{8})"""
)
"""The words of `_WORD` in a name that a value may follow, for texts in small letters."""
_VALUE = r"""(?:(")(?:[^"\\\n]|\\.)*"?|(')[^'\n]*'?|[^\s"',;&]+)"""
_NAMED = re.compile(rf"""(["'],\s*(?=["'])|["']?(?:\s*[=:]\s*|\s+(?=[^\s=:]{{8}}))){_VALUE}""")
"""What follows the name in `API_KEY=abc`, `"password": "a b"`, `"--token", "abc"`. After a name without dashes and without a sign, only a
long word is a value, for a sentence may speak of tokens."""
_OF_OPTION = re.compile(
    r"(--(?<![\w-]--)(?=[^\W_])[\w-]{1,100}(?![\w-])(?:"
    + "|".join(f"(?<=(?i:{end}))" for end in ("token", "secret", "word", "passwd", "phrase", "credential", "key", "pass", "pwd", "webhook"))
    + rf")[ \t]+(?=[^\s=:-])){_VALUE}"
)
"""`--token abc`."""
# Keys that their first characters give away are of AWS, GitHub, GitLab, Hugging Face, OpenAI, Slack and Google, and JSON Web Tokens.
_OTHERS = (
    (
        re.compile(
            r"A(?<!\w.)(?:(?:KIA|SIA)[0-9A-Z]{8,}|Iza[\w-]{30,})|g(?<!\w.)(?:h[pousr]_\w{8,}|ithub_pat_\w{8,}|lpat-[\w-]{8,})|"
            r"h(?<!\w.)f_[A-Za-z0-9]{8,}|s(?<!\w.)k-[\w-]{16,}|x(?<!\w.)ox[a-z]-[\w-]{8,}|e(?<![\w-].)yJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+"
        ),
        "…",
    ),
    (_LOGIN, "//…@"),
)
_HEADERS = (
    re.compile(r"""([aA](?<!\w.)(?i:uthorization)["']?\s*[=:]\s*["']?(?:(?i:bearer|basic|token)\s+)?)[^\s"',;…]+"""),
    re.compile(r"""(Bearer(?<!\wBearer)\s+(?=[^\s"',;…]{6}))[^\s"',;…]+"""),
)
_ANY = re.compile(
    "token|secret|key|pass|pwd|credential|webhook|authorization|bearer|//|akia|asia|aiza|gh[pousr]_|github_|glpat|hf_|sk-|xox|eyj"
)
"""One of these is in each text, in small letters, in which something is to be hidden."""


def redact(text: str) -> tuple[str, int]:
    """The text with ``…`` in place of secrets, as far as a name before them or their first letters tell what they are; and their number.

    Takes time in proportion to the text.
    """
    if _ANY.search(_lower(text)) is None:
        return text, 0
    count = 0
    for pattern in _HEADERS:
        text, found = pattern.subn(r"\1…", text)
        count += found
    for step in (_redact_options, _redact_named):
        text, found = step(text)
        count += found
    for pattern, instead in _OTHERS:
        text, found = pattern.subn(instead, text)
        count += found
    return text, count


def _redact_options(text: str) -> tuple[str, int]:
    """The text without what follows an option, as in `--token abc`."""
    made, at = list[str](), 0
    for found in _OF_OPTION.finditer(text):
        if _ENDS.fullmatch(found[1].rstrip()) and not _PLAIN.match(text, found.end(1)):
            made += (text[at : found.end(1)], _hidden(found))
            at = found.end()
    return "".join((*made, text[at:])), len(made) // 2


def _redact_named(text: str) -> tuple[str, int]:
    """The text without the values of names, as in `API_KEY=abc`."""
    made, at, small = list[str](), 0, _lower(text)
    begun = _CORE.search(small)
    while begun is not None:
        begin, end = begun.span()
        while begin > begun.start() - 40 and begin > 0 and (text[begin - 1].isalnum() or text[begin - 1] in "_-"):
            begin -= 1  # `api` of `api_key` is before the core
        found = _NAMED.match(text, end) if _HAS_WORD.search(text, begin, end) else None
        if found is not None:
            made += (text[at : found.end(1)], _hidden(found))
            at = end = found.end()
        begun = _CORE.search(small, end)
    return "".join((*made, text[at:])), len(made) // 2


def _hidden(found: re.Match[str]) -> str:
    """Return what stands in place of a value, in its quotation marks."""
    quote = found[2] or found[3] or ""
    return f"{quote}…{quote}"


def _lower(text: str) -> str:
    """The text in small letters, each in its place: those of some languages are two."""
    small = text.lower()
    return small if len(small) == len(text) else "".join(one if len(one) == 1 else " " for one in map(str.lower, text))


def redact_json(text: str) -> tuple[str, int]:
    """`redact` for a JSON document, or for one in each line: the result is JSON, too. Another text is redacted as a text."""
    if not _may_hide(text):
        return text, 0
    try:
        return _redact_document(text)
    except (ValueError, RecursionError):
        pass
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


def _may_hide(text: str) -> bool:
    """True if anything in a JSON text may have to be hidden. A letter may be written as an escape."""
    return "\\u" in text or _ANY.search(_lower(text)) is not None


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
        return {key: _redact_value(item, counts, key) for key, item in value.items()}
    if isinstance(value, list):
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


def redact_words(words: Sequence[str]) -> list[str]:
    """The same for the words of a command line."""
    found: list[str] = _redact_value(list(words), [])
    return found


def hide_secrets(text: str) -> str:
    """The text of `redact`."""
    return redact(text)[0]
