"""The words of the judge: what one unit is in one world, beside one process."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from worker.values.fast_dataclass import dataclass

from .case import Case
from .place import MISSING
from .worlds import Answers

RELATIVE, ABSOLUTE = 1e-3, 2e-5
"""How far two numbers may be apart. Sums of float32 in another order differ by some 1e-6, and ten steps of training, with optimizers that
divide by the root of a small number, make up to some 1e-4 of this. Every mistake that was found makes 1e-2 and more of some number."""

AS_ONE, SAYS_SO, REFUSED, ABSENT = "as one process", "differs, and says so", "refused", "-"
BY_HAND = "fails without orch too"
DIFFERS, WORKERS_DIFFER, CRASHES, HANGS = "differs", "workers differ", "crashes", "hangs"
GOOD, BAD = (AS_ONE, SAYS_SO, REFUSED, BY_HAND, ABSENT), (DIFFERS, WORKERS_DIFFER, CRASHES, HANGS)
ORDER = (ABSENT, AS_ONE, REFUSED, BY_HAND, SAYS_SO, DIFFERS, WORKERS_DIFFER, CRASHES, HANGS)
UNEVEN = re.compile("parts of (unequal|different) size")
UNCLEAR = ("AttributeError", "TypeError", "KeyError", "IndexError", "AssertionError", "NameError", "UnboundLocalError")
"""Exceptions that are no refusal: a program was not ready for what it got."""


@dataclass(frozen=True)
class Verdict:
    word: str
    detail: str = ""
    lines: tuple[str, ...] = ()
    """What orch has said."""


def judge(case: Case, row: str, answers: Answers, reference: Answers) -> Verdict:
    (truth,) = reference.values()
    if "result" not in truth:
        return Verdict(ABSENT, f"one process: {truth.get('error') or truth.get('ended')}"[:300])
    lines = tuple(dict.fromkeys(line for answer in answers.values() for line in answer.get("lines", ())))
    if any(answer.get("fails_by_hand") for answer in answers.values()):
        return Verdict(BY_HAND, next((answer["error"] for answer in answers.values() if "error" in answer), ""), lines)
    if any("result" not in answer for answer in answers.values()):
        return _failed(answers, lines)
    results = [answer["result"] for answer in answers.values()]
    wanted = truth["result"]
    if row != case.name:
        results, wanted = [result[row] for result in results], wanted[row]
    if wanted == MISSING:
        return Verdict(ABSENT, "this Keras does not have it", lines)
    apart = next((text for other in results[1:] for text in differences(results[0], other, first="worker-0", second="another")), "")
    if apart and case.compare != "finite":
        return Verdict(SAYS_SO if _is_said(case, row, lines) else WORKERS_DIFFER, apart, lines)
    against = {"one process": wanted, "workers": results[0], "finite": results[0]}[case.compare]
    found = next(differences(results[0], against, first="found", second="one process"), "") or next(not_finite(results, wanted), "")
    if found:
        return Verdict(SAYS_SO if _is_said(case, row, lines) else DIFFERS, found, lines)
    return Verdict(AS_ONE, "", lines)


def _failed(answers: Answers, lines: tuple[str, ...]) -> Verdict:
    errors = [answer.get("error", "") for answer in answers.values()]
    endings = [answer.get("ended", "") for answer in answers.values()]
    if "hangs" in endings:
        return Verdict(HANGS, next(filter(None, errors), ""), lines)
    kinds = [kind for answer in answers.values() for kind in answer.get("kinds", ())]
    is_clear = all(errors) and not any(kind.endswith(f".{name}") for kind in kinds for name in (*UNCLEAR, "OpError"))
    if is_clear and len({re.sub(r"worker-\d|task \d+", "", error) for error in errors}) == 1:
        return Verdict(REFUSED, errors[0], lines)
    died = next((ending for ending in endings if re.search("SIG|exit code", ending) and "SIGKILL" not in ending), "")
    return Verdict(CRASHES, died or next(filter(None, errors), "") or "; ".join(endings), lines)


def _is_said(case: Case, row: str, lines: tuple[str, ...]) -> bool:
    said = case.words_of(row)
    return any(UNEVEN.search(line) or (said and re.search(said, line)) for line in lines)


def differences(found: Any, wanted: Any, *, first: str, second: str, path: str = "") -> Iterator[str]:
    """Where two results differ by more than rounding."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        if found.keys() != wanted.keys():
            yield f"{path}: {sorted(found.keys() ^ wanted.keys())} only in one of them"
            return
        for name, value in wanted.items():
            yield from differences(found[name], value, first=first, second=second, path=f"{path} {name}".strip())
    elif isinstance(wanted, (list, tuple)) and isinstance(found, (list, tuple)):
        if len(found) != len(wanted):
            yield f"{path}: {len(found)} {first}, {len(wanted)} {second}"
            return
        for number, value in enumerate(wanted):
            yield from differences(found[number], value, first=first, second=second, path=f"{path}[{number}]")
    elif not _is_as(found, wanted):
        yield f"{path}: {_short(found)} {first}, {_short(wanted)} {second}"


def _is_as(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, float) or isinstance(found, float):
        if math.isnan(wanted) or math.isnan(found):
            return math.isnan(wanted) and math.isnan(found)
        return bool(found == wanted) or abs(found - wanted) <= ABSOLUTE + RELATIVE * abs(wanted)
    return bool(found == wanted)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)[:80]


def not_finite(found: Any, wanted: Any) -> Iterator[str]:
    """Numbers that are not finite though all numbers of one process are."""
    if all(map(math.isfinite, _numbers(wanted))) and not all(map(math.isfinite, _numbers(found))):
        yield "a number that is not finite"


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _numbers(each)
    elif isinstance(value, float):
        yield value
