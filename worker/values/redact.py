"""Which variables of an environment orch shows, of a host's and of the spec's; and texts without what looks like a secret. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "no_proxy", "no_grpc_proxy")
PREFIXES = ("CUDA_", "TF_", "XLA_", "KERAS_", "NCCL_", "GRPC_", "OMP_", "ORCH_", "NVIDIA_", "TPU_")
NAMES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "TMPDIR")
MOST_CHARACTERS = 2000
_SECRET = re.compile("TOKEN|SECRET|PASSWORD|KEY", re.IGNORECASE)
_LOGIN = re.compile(r"//[^/@]*@")


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
_NAME = rf"[\w-]*{_WORD}[\w-]*"
_ENDS = rf"[\w-]*{_WORD}(?![\w-])"
"""An option that ends with the word: `--token-dim` is none of these."""
_OPTION = re.compile(f"-+{_ENDS}")
_IS_NAME = re.compile(rf"-*(?:{_NAME}|(?i:(?:proxy-)?authorization))")
_PLAIN = r"(?:[\d.]+|(?i:true|false|and|or|is|to|with))"
"""Behind an option with such a word, as in `--use-token true`, this is no secret."""
# `API_KEY=abc`, `"password": "a b"`, `--token abc`, `"--token", "abc"`; after a name without dashes and without a sign only a long word,
# for a sentence may speak of tokens.
_NAMED = re.compile(
    rf"""(--{_ENDS}[ \t]+(?=[^\s=:-])(?!{_PLAIN}(?:\s|$))|"""
    rf"""{_NAME}(?:["'],\s*(?=["'])|["']?(?:\s*[=:]\s*|\s+(?=[^\s=:]{{8}}))))"""
    r"""(?:(")(?:[^"\\\n]|\\.)*"?|(')[^'\n]*'?|[^\s"',;&]+)"""
)
_HEADER = re.compile(
    r"""(\b(?i:authorization)["']?\s*[=:]\s*["']?(?:(?i:bearer|basic|token)\s+)?|\bBearer\s+(?=[^\s"',;…]{6}))[^\s"',;…]+"""
)
_KNOWN = re.compile(
    r"\b(?:(?:AKIA|ASIA)[0-9A-Z]{8,}|gh[pousr]_\w{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}|hf_[A-Za-z0-9]{8,}|sk-[\w-]{16,}|xox[a-z]-[\w-]{8,}|"
    r"AIza[\w-]{30,}|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+)"
)
"""Keys that their first characters give away: of AWS, GitHub, GitLab, Hugging Face, OpenAI, Slack and Google, and JSON Web Tokens."""


def redact(text: str) -> tuple[str, int]:
    """The text with ``…`` in place of secrets, as far as a name before them or their first letters tell what they are; and their number."""
    count = 0
    for pattern, instead in (
        (_HEADER, r"\1…"),
        (_NAMED, lambda found: f"{found[1]}{(quote := found[2] or found[3] or '')}…{quote}"),
        (_KNOWN, "…"),
        (_LOGIN, "//…@"),
    ):
        text, found = pattern.subn(instead, text)
        count += found
    return text, count


def redact_json(text: str) -> tuple[str, int]:
    """`redact` for a JSON document, or for one in each line: the result is JSON, too. Another text is redacted as a text."""
    try:
        return _redact_document(text)
    except (ValueError, RecursionError):
        pass
    lines = []
    for line in text.splitlines(keepends=True):
        try:
            made, found = _redact_document(line) if line[:1] in "{[" else redact(line)
            lines.append((f"{made}\n" if line[:1] in "{[" else made, found))
        except (ValueError, RecursionError):  # the middle of a large file is left out
            lines.append(redact(line))
    return "".join(line for line, _ in lines), sum(found for _, found in lines)


def _redact_document(text: str) -> tuple[str, int]:
    counts: list[int] = []
    made = _redact_value(json.loads(text), counts)
    if not counts:
        return text.removesuffix("\n"), 0
    return json.dumps(made, ensure_ascii=False, indent=2 if "\n" in text.strip() else None), sum(counts)


def _redact_value(value: Any, counts: list[int], name: str = "") -> Any:
    """`name`: the key of the value, or the word before it in a list of arguments."""
    if isinstance(value, dict):
        return {key: _redact_value(item, counts, key) for key, item in value.items()}
    if isinstance(value, list):
        return [
            _redact_value(item, counts, word if _is_name_of(word, item) else "") for word, item in zip(("", *value), value, strict=False)
        ]
    if _IS_NAME.fullmatch(name) and value is not None and not isinstance(value, bool):
        counts.append(1)
        return "…"
    if not isinstance(value, str):
        return value
    made, found = redact(value)
    counts += [found] if found else []
    return made


def _is_name_of(word: Any, item: Any) -> bool:
    """Whether this word of a command line may be the name of the next one, as it is read in a text."""
    if not isinstance(word, str) or not isinstance(item, str):
        return False
    return len(item) >= 8 if not word.startswith("-") else _OPTION.fullmatch(word) is not None and not re.fullmatch(_PLAIN, item)


def redact_words(words: Sequence[str]) -> list[str]:
    """The same for the words of a command line."""
    found: list[str] = _redact_value(list(words), [])
    return found


def hide_secrets(text: str) -> str:
    """The text of `redact`."""
    return redact(text)[0]
