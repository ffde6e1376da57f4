"""The types of settings: what each accepts, and what it says about everything else."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import pytest

from orchestrator.errors import Problem, SpecError
from orchestrator.model.settings.derive import struct_of
from orchestrator.model.settings.document import Node, read
from orchestrator.model.settings.findings import MAX_FINDINGS, Findings, listed, nearest, quoted
from orchestrator.model.settings.kinds import ANY_TEXT, Duration, Flag, Integer, Kind, Listing, Mapping_, Number, OneOf, Struct, Text
from tests.trees import value_of, wrap
from worker.settings.declare import Setting, setting
from worker.values.fast_dataclass import dataclass

INNER = Struct(
    {
        "count": Setting("How many.", kind=Integer(1, 9)),
        "env": Setting("Names.", kind=Mapping_(ANY_TEXT, lambda name: "" if name else "is empty")),
    },
    "count",
)
OUTER = Struct(
    {
        "inner": Setting("Inside.", kind=INNER),
        "args": Setting("Words.", kind=Listing(ANY_TEXT)),
        "on": Setting("Whether.", kind=Flag(), words="false"),
    },
    misplaced={"outer": "it belongs elsewhere"},
)


def checked(kind: Kind, written: str) -> tuple[object, list[str]]:
    """What a kind makes of a value written in YAML, and what it finds wrong."""
    findings = Findings()
    node = value_of(read(f"it: {written}", "o"))["it"]
    return kind.check(node, "it", findings), [str(problem) for problem in findings.problems]


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        (Text(), "train.py", "train.py"),
        (Text(), "1e3", "1e3"),
        (Text(), "007", "007"),
        (Text(), "yes", "yes"),
        (Text(), "true", "true"),
        (Text(), "null", "null"),
        (ANY_TEXT, "''", ""),
        (Integer(0, 9), "0", 0),
        (Number(None, 9), "1", 1.0),
        (Number(None, 9), "9", 9.0),
        (Number(None, 9), "5e-324", 5e-324),
        (Number(0, 9), "0", 0.0),
        (Number(0.5, 9), "0.5", 0.5),
        (Number(-1, 9), "-1", -1.0),
        (Duration(None, 99_999), "90", 90.0),
        (Duration(None, 99_999), "90s", 90.0),
        (Duration(None, 99_999), "10m", 600.0),
        (Duration(None, 99_999), "2h30m", 9000.0),
        (Duration(None, 99_999), "1d", 86400.0),
        (Duration(None, 99_999), "0.5m", 30.0),
        (Duration(None, 99_999), "1:30:00", 5400.0),
        (Duration(None, 99_999), "'10:00'", 600.0),
        (Duration(0, 9), "0s", 0.0),
        (Flag(), "true", True),
        (Flag(), "FALSE", False),
        (OneOf(("none", "local")), "none", "none"),
        (Listing(ANY_TEXT), "[a, 1e3, yes, '']", ("a", "1e3", "yes", "")),
        (Listing(Integer(0, 9)), "[]", ()),
        (Mapping_(ANY_TEXT, lambda name: ""), "{FOO: yes, BAR: 1e3, EMPTY: , 1: ~}", {"FOO": "yes", "BAR": "1e3", "EMPTY": "", "1": "~"}),
        (INNER, "4", {"count": 4}),
        (INNER, "{count: 4}", {"count": 4}),
        (OUTER, "{inner: 4, args: ~, on: }", {"inner": {"count": 4}}),
    ],
)
def test_accepted(kind: Kind, written: str, value: Any) -> None:
    found, problems = checked(kind, written)
    assert (found, problems) == (value, [])
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "written", "problem"),
    [
        (Text(), "''", "must not be empty"),
        (Text(), "[a]", "must be a text, not a list"),
        (Text(), '"a\\0b"', "must not hold U+0000"),
        (Integer(0, 9), "-1", "must be at least 0, not -1"),
        (Integer(0, 9), "9999999999999999999", "must be at most 9, not 9999999999999999999"),
        (Integer(0, 9), "9" * 5000, f"must be a whole number, not '{'9' * 57}...'"),
        (Integer(0, 9), "4.0", "must be a whole number, not 4.0"),
        (Integer(0, 9), "'4'", "must be a whole number, not '4'\nfix: write it without quotes"),
        (Integer(0, 9), "true", "must be a whole number, not true"),
        (Integer(0, 9), "٣", "must be a whole number, not '٣'"),
        (Integer(0, 9), "", "must be a whole number, not nothing"),
        (Number(None, 9), "0", "must be more than 0, not 0"),
        (Number(0.5, 9), "0.1", "must be at least 0.5, not 0.1"),
        (Number(None, 1_000_000), "1e7", "must be at most 1,000,000, not 1e7"),
        (Number(None, 9), ".inf", "must be a number, not '.inf'"),
        (Number(None, 9), "1e999", "must be a number, not 1e999"),
        (Number(None, 9), "9" * 900, f"must be at most 9, not {'9' * 57}..."),
        (Number(None, 9), "5s", "must be a number, not '5s'"),
        (Duration(None, 9), "10m", "must be at most 9, not '10m'"),
        (Duration(None, 9), "0m", "must be more than 0, not '0m'"),
        (Duration(None, 9), "m", "must be a time, not 'm'"),
        (Duration(None, 9), "5m3h", "must be a time, not '5m3h'"),
        (Duration(None, 9), "false", "must be a time, not false"),
        (Flag(), "yes", "must be true or false, not 'yes'\nfix: write true"),
        (Flag(), "0", "must be true or false, not 0\nfix: write false"),
        (Flag(), "perhaps", "must be true or false, not 'perhaps'"),
        (OneOf(("mirrored", "none")), "tpu", "'tpu' is not known\nfix: write mirrored or none"),
        (OneOf(("mirrored", "none")), "4", "4 is not known\nfix: write mirrored or none"),
        (OneOf(("mirrored", "none")), "[none]", "a list is not known\nfix: write mirrored or none"),
        (Listing(ANY_TEXT), "{a: 1}", "must be a list, not a mapping\nfix: write [a, b]"),
        (OUTER, "[4]", "must be a mapping, not a list\nfix: write a mapping with some of these keys: inner, args and on"),
        (INNER, "{x: 4}", "unknown key 'x'\nfix: write one of these keys: count and env"),
        (OUTER, "{outer: 4}", "unknown key 'outer'\nfix: it belongs elsewhere"),
    ],
)
def test_refused(kind: Kind, written: str, problem: str) -> None:
    found, problems = checked(kind, written)
    assert problems == [f"o:1: it: {problem}"]
    assert found in (None, {})


def test_a_text_handed_in_is_its_value_however_it_was_typed() -> None:
    assert Text().read(Node("/home/me/train.py", "SCRIPT", "train.py")) == "/home/me/train.py"


def test_half_a_character_stands_only_for_a_byte_that_is_not_utf_8() -> None:
    assert Text().read(wrap("\udc80😀", "o")) == "\udc80😀"
    for text, code in (("\ud800", "U+D800"), ("\udfff", "U+DFFF")):
        with pytest.raises(SpecError, match=f"must not hold {re.escape(code)}"):
            Text().read(wrap(text, "o"))


def test_everything_wrong_is_found_at_once_each_in_its_place() -> None:
    findings = Findings()
    document = read('inner:\n  count: 0\n  env:\n    "": a\n    A: [b]\nargs: [a, {}, []]\non: on\nfoo: 1\n', "o")
    assert OUTER.check(document, "", findings) == {"inner": {"env": {"": "a", "A": None}}, "args": ("a", None, None)}
    assert [str(problem) for problem in findings.problems] == [
        "o:2: inner.count: must be at least 1, not 0",
        "o:4: inner.env: the name '' is empty",
        "o:5: inner.env.A: must be a text, not a list",
        "o:6: args[1]: must be a text, not a mapping",
        "o:6: args[2]: must be a text, not a list",
        "o:7: on: must be true or false, not 'on'\nfix: write true",
        "o:8: unknown key 'foo'\nfix: write one of these keys: inner, args and on",
    ]


def test_findings_say_which_keys_can_still_be_relied_on() -> None:
    findings = Findings()
    findings.add("tasks.ps.count", Problem("o", "is wrong"))
    findings.add("", Problem("o", "is all wrong"))
    assert [str(problem) for problem in findings.problems] == ["o: tasks.ps.count: is wrong", "o: is all wrong"]
    assert findings.spoiled == {"tasks", ""}


def test_a_mistyped_key_spoils_what_it_was_meant_to_be() -> None:
    findings = Findings()
    OUTER.check(read("iner: 4", "o"), "", findings)
    assert "inner" in findings.spoiled
    assert "args" not in findings.spoiled


def test_thousands_of_findings_are_counted_not_listed() -> None:
    findings = Findings()
    Listing(Integer(0, 9)).check(wrap(["x"] * 50_000, "o"), "it", findings)
    assert len(findings.problems) == MAX_FINDINGS + 1
    assert str(findings.problems[-1]) == "and 49,900 more"


def test_messages_stay_one_printable_line() -> None:
    findings = Findings()
    nasty = '\x1b[31m\n\u202e\udc80"' * 100
    document = wrap({nasty: 1, "inner": {"count": nasty, "env": {nasty: []}}, "on": nasty, "args": nasty}, "o")
    OUTER.check(document, "", findings)
    messages = [problem.message + problem.hint for problem in findings.problems]
    assert len(messages) == 5
    for message in messages:
        assert message.isprintable()
        assert len(message) < 400


@pytest.mark.parametrize(
    ("word", "right"),
    [
        ("wrker", "worker"),
        ("WORKER", "worker"),
        ("workers", "worker"),
        ("MultiWorkerMirroredStrategy", "multi_worker_mirrored"),
        ("multi-worker-mirrored", "multi_worker_mirrored"),
        ("zebra", ""),
        ("", ""),
        ("w" * 1_000_000, ""),
    ],
)
def test_nearest(word: str, right: str) -> None:
    assert nearest(word, ["chief", "worker", "multi_worker_mirrored"]) == right


def test_words_in_sentences() -> None:
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(["a", "b"], "or") == "a or b"
    assert quoted("a\nb") == r"'a\nb'"
    assert quoted("x" * 61) == f"'{'x' * 57}...'"


def test_the_json_schema_of_a_struct() -> None:
    schema = OUTER.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["additionalProperties"] is False
    assert schema["properties"]["on"] == {
        "title": "on",
        "description": "Whether. Default: false.",
        "anyOf": [{"type": "boolean"}, {"type": "null"}],
    }
    accepts = jsonschema.Draft202012Validator(schema).is_valid
    assert accepts({"inner": 4, "args": ["a", 1, True, None]})
    assert accepts({"inner": {"count": 4, "env": {"A": "x"}}, "on": None})
    assert not accepts({"inner": {"cuont": 4}})
    assert not accepts({"inner": 0})
    assert not accepts({"on": "yes"})
    assert not accepts({"foo": 1})


@dataclass(frozen=True, slots=True)
class Unlimited:
    tries: int = setting(0, "How often.")
    pause_s: float | None = setting(None, "How long.")


def test_a_number_without_a_largest_one_takes_any_up_to_a_billion() -> None:
    kind = struct_of(Unlimited)
    assert checked(kind, "{tries: 1000000000, pause_s: 1000000000}") == ({"tries": 10**9, "pause_s": 1e9}, [])
    assert checked(kind, "{tries: 1000000001}")[1] == ["o:1: it.tries: must be at most 1,000,000,000, not 1000000001"]
