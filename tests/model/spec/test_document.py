"""Reading YAML into a tree with places, and laying changes over a tree."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import Problem, SpecError
from orchestrator.model.settings.document import MAX_DEPTH, Node, empty, overlay, parse_assignment, place_of, read, scalar
from tests.trees import value_of, wrap


def plain(node: Node) -> Any:
    if isinstance(node.value, dict):
        return {key: plain(item) for key, item in node.value.items()}
    if isinstance(node.value, list):
        return [plain(item) for item in node.value]
    return node.value


def refused(text: bytes | str) -> Problem:
    with pytest.raises(SpecError) as caught:
        read(text, "orch.yaml")
    (problem,) = caught.value.problems
    return problem


# --- scalars ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((word, None) for word in ("", "~", "null", "Null", "NULL")),
        *((word, True) for word in ("true", "True", "TRUE")),
        *((word, False) for word in ("false", "False", "FALSE")),
        *(
            (word, word)
            for word in (
                "on",
                "off",
                "yes",
                "no",
                "y",
                "N",
                "nULL",
                "tRUE",
                "2024-01-31",
                "12:30:00",
                "1_000",
                "0b11",
                "0o17",
                "0x1F",
                ".inf",
                "-.INF",
                ".NaN",
            )
        ),
        *((word, word) for word in ("٣", "\uff11", "1.2.3", "41000-41999", ".", "+", "1e", "e5", "nan", "inf", ".inf", ".NaN", "--1")),
        ("4", 4),
        ("-4", -4),
        ("+4", 4),
        ("007", 7),
        ("9999999999999999999", 9999999999999999999),
        ("1.5", 1.5),
        ("1.", 1.0),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("-1E-2", -0.01),
        ("1e999", math.inf),
    ],
)
def test_plain_scalars_have_the_meaning_of_yaml_1_2(text: str, value: Any) -> None:
    node = scalar(text, "here")
    assert (node.value, type(node.value), node.text) == (value, type(value), text)


@pytest.mark.parametrize("digits", ["9" * 1001, "9" * 5000, "1" * 5000 + ".5"])
def test_a_number_of_thousands_of_digits_stays_a_text(digits: str) -> None:
    assert scalar(digits, "here").value == digits


def test_quoted_and_block_scalars_are_texts() -> None:
    tree = read("a: '4'\nb: \"null\"\nc: |\n  true\nd: >-\n  1\n  2\n", "orch.yaml")
    assert plain(tree) == {"a": "4", "b": "null", "c": "true\n", "d": "1 2"}


# --- reading ------------------------------------------------------------------------------------


def test_every_node_knows_its_line() -> None:
    tree = read("script: train.py\n\ntasks:\n  worker:\n    count: 4\nargs:\n  - a\n  - b\n", "orch.yaml")
    assert tree.place == "orch.yaml"
    assert place_of(tree, "tasks.worker.count") == "orch.yaml:5"
    assert place_of(tree, "tasks") == "orch.yaml:3", "a mapping's value is at its key"
    assert place_of(tree, "tasks.worker.env") == "orch.yaml:4", "what is missing is at the mapping that lacks it"
    assert [item.place for item in value_of(tree)["args"].value] == ["orch.yaml:7", "orch.yaml:8"]


@pytest.mark.parametrize("text", [b"", "", "\n\n", "# nothing\n", "---\n", "--- ~\n", "null", "\ufeff", b"\xef\xbb\xbf", "{}"])
def test_an_empty_document_is_an_empty_mapping(text: str | bytes) -> None:
    assert read(text, "orch.yaml") == Node({}, "orch.yaml")


@pytest.mark.parametrize(
    "text", [b"\xef\xbb\xbfa: 1\r\nb: 2\r\n", "\ufeffa: 1\r\nb: 2\r\n", "%YAML 1.2\n---\na: 1\nb: 2\n...\n", '{"a": 1, "b": 2}']
)
def test_byte_order_mark_crlf_directives_and_json(text: str | bytes) -> None:
    assert plain(read(text, "orch.yaml")) == {"a": 1, "b": 2}


@pytest.mark.parametrize("text", ["- a", "word", "4", "[a]", "'text'"])
def test_the_top_level_must_be_a_mapping(text: str) -> None:
    assert "top level must be a mapping" in refused(text).message


def nested(levels: int) -> str:
    return "a: " + "[" * (levels - 1) + "]" * (levels - 1)


def test_depth_has_a_limit() -> None:
    assert read(nested(MAX_DEPTH), "orch.yaml").value
    assert "more than 64 levels" in refused(nested(MAX_DEPTH + 1)).message
    assert "more than 64 levels" in refused("a: " + "[" * 500_000).message
    assert "more than 64 levels" in refused("a: " + "{a: " * 200_000).message
    assert "more than 64 levels" in refused("- " * 400_000).message


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("a: 1\nb: *c", "orch.yaml:2", "the anchor or alias 'c' is not allowed\nfix: write the value in each place"),
        ("a: &c [x]", "orch.yaml:1", "the anchor or alias 'c' is not allowed\nfix: write the value in each place"),
        ("a:\n  <<: {}\n  <<: {}", "orch.yaml:3", "the key '<<' is given twice\nfix: keep one of the two; the first is at orch.yaml:2"),
        ("a: 1\nb: 2\na: 3", "orch.yaml:3", "the key 'a' is given twice\nfix: keep one of the two; the first is at orch.yaml:1"),
        ("t:\n  '1': x\n  1: y", "orch.yaml:3", "the key '1' is given twice\nfix: keep one of the two; the first is at orch.yaml:2"),
        ("? [a]\n: b", "orch.yaml:1", "a key must be a text, not a mapping, a list or an alias"),
        ("? {a: 1}\n: b", "orch.yaml:1", "a key must be a text, not a mapping, a list or an alias"),
        ("a: 1\n*x : 3", "orch.yaml:2", "a key must be a text, not a mapping, a list or an alias"),
        ("a: !!python/object/apply:os.system ['true']", "orch.yaml:1", "the tag '!!python/object/apply:os.system' is not allowed"),
        ("a: !foo bar", "orch.yaml:1", "the tag '!foo' is not allowed"),
        ("a: ! bar", "orch.yaml:1", "the tag '!' is not allowed"),
        ("a: !!str 4", "orch.yaml:1", "the tag '!!str' is not allowed"),
        ("!!map {a: 1}", "orch.yaml:1", "the tag '!!map' is not allowed"),
        ("!!python/name:os.system x: 1", "orch.yaml:1", "the tag '!!python/name:os.system' is not allowed"),
        ("a: 1\n---\nb: 2", "orch.yaml:2", "a second document starts here"),
        ("a: 1\nb: [1, 2\nc: 3", "orch.yaml:3", "cannot be read as YAML"),
        ("a: b: c", "orch.yaml:1", "mapping values are not allowed in this context (column 5)"),
        ("a:\n\t- b", "orch.yaml:2", "a tab stands before the text\nfix: indent with spaces"),
        ('a: "open', "orch.yaml:1", "end of stream (column 9, while scanning a quoted scalar)"),
        ("a: @b", "orch.yaml:1", "cannot start any token"),
        ("%YAML 2.0\n---\na: 1", "orch.yaml:1", "incompatible YAML document"),
        ("a: 1\nb: x\0y", "orch.yaml:2", "the character U+0000 is not allowed in YAML"),
        ("a: \x1b[0m", "orch.yaml:1", "the character U+001B is not allowed in YAML"),
        ("a: \udc80", "orch.yaml:1", "the character U+DC80 is not allowed in YAML"),
        (b"a: 1\nb: \xff", "orch.yaml:2", "the byte 0xff is not UTF-8\nfix: save the file as UTF-8"),
        ("a: 1".encode("utf-16"), "orch.yaml:1", "the byte 0xff is not UTF-8"),
        (b"a: 1\n\xc3", "orch.yaml:2", "the byte 0xc3 is not UTF-8"),
    ],
)
def test_what_cannot_be_read_is_refused_with_line_and_reason(text: str | bytes, place: str, message: str) -> None:
    problem = refused(text)
    assert problem.place == place
    assert message in str(problem)
    assert "\n" not in problem.message + problem.hint


def test_keys_are_taken_as_they_are_written() -> None:
    assert list(value_of(read("1: a\n1e3: b\ntrue: c\n~: d\n'': e\n", "orch.yaml"))) == ["1", "1e3", "true", "~", ""]


json_text = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF, categories=["Cs"])),
    max_size=20,
)
json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | json_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(json_text, inner, max_size=4),
    max_leaves=15,
)


@given(st.dictionaries(json_text, json_value, max_size=5), st.sampled_from([None, 1]))
def test_json_is_read_as_json_means_it(value: dict[str, Any], indent: int | None) -> None:
    assert plain(read(json.dumps(value, indent=indent), "orch.yaml")) == value
    assert plain(wrap(value, "here")) == value


@given(st.one_of(st.binary(), st.text(alphabet=" \n\t:-?[]{},&*!<|>'\"%@#ab1~\\ux\0", max_size=60), st.text()))
def test_any_bytes_are_read_or_refused(text: str | bytes) -> None:
    with suppress(SpecError):
        assert isinstance(read(text, "orch.yaml").value, dict)


def test_yaml_is_imported_only_when_something_is_read() -> None:
    code = "import sys, orchestrator.model.settings.parse; sys.exit('yaml' in sys.modules or 'tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- overlay ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "path", "value", "after"),
    [
        ("", "name", "x", {"name": "x"}),
        ("", "tasks.worker.count", 4, {"tasks": {"worker": {"count": 4}}}),
        ("name: a", "name", "b", {"name": "b"}),
        ("name: a", "name", None, {"name": None}),
        ("tasks: {worker: 4}", "tasks.worker.count", 2, {"tasks": {"worker": {"count": 2}}}),
        ("tasks: {worker: 4}", "tasks.worker.env.A", "x", {"tasks": {"worker": {"count": 4, "env": {"A": "x"}}}}),
        ("tasks: {worker: {env: {A: x}}}", "tasks.worker", 3, {"tasks": {"worker": {"env": {"A": "x"}, "count": 3}}}),
        ("tasks: {worker: 4}", "tasks.worker", {"count": 1}, {"tasks": {"worker": {"count": 1}}}),
        ("tasks: {worker: 4}", "tasks.worker", None, {"tasks": {"worker": None}}),
        ("tasks:", "tasks.ps.count", 1, {"tasks": {"ps": {"count": 1}}}),
        ("tasks: {ps: }", "tasks.ps.env.A", "x", {"tasks": {"ps": {"env": {"A": "x"}}}}),
        ("backend: local", "backend.option", 1, {"backend": {"type": "local", "option": 1}}),
        ("backend: {option: 1}", "backend", "local", {"backend": {"option": 1, "type": "local"}}),
        ("prepare: [a, b]", "prepare.hosts", "first", {"prepare": {"run": ["a", "b"], "hosts": "first"}}),
        ("prepare: {hosts: first}", "prepare", ["a"], {"prepare": {"hosts": "first", "run": ["a"]}}),
        ("restart: 3", "restart.backoff_s", 2, {"restart": {"max": 3, "backoff_s": 2}}),
        ("restart: {max: 1, backoff_s: 9}", "restart", 5, {"restart": {"max": 5, "backoff_s": 9}}),
        ("backend: {hosts: {a: 2}}", "backend.hosts.a.python", "x", {"backend": {"hosts": {"a": {"slots": 2, "python": "x"}}}}),
        ("backend: {hosts: {a: {python: x}}}", "backend.hosts.a", 3, {"backend": {"hosts": {"a": {"python": "x", "slots": 3}}}}),
        ("name: a", "name.b", 1, {"name": {"b": 1}}),
        ("args: [a]", "args.b", 1, {"args": {"b": 1}}),
        ("", ("defaults", "env", "A.B"), "x", {"defaults": {"env": {"A.B": "x"}}}),
    ],
)
def test_overlay(before: str, path: Any, value: Any, after: Any) -> None:
    document = read(before, "orch.yaml")
    copy = plain(document)
    assert plain(overlay(document, path, wrap(value, "--set"))) == after
    assert plain(document) == copy, "the document itself never changes"


def test_overlay_keeps_the_places_of_everything_else() -> None:
    document = read("script: a.py\ntasks:\n  worker: 4\n", "orch.yaml")
    changed = overlay(document, "tasks.worker.env.A", wrap("x", "--env"))
    assert place_of(changed, "script") == "orch.yaml:1"
    assert place_of(changed, "tasks.worker.count") == "orch.yaml:3"
    assert place_of(changed, "tasks.worker.env.A") == "--env"
    assert place_of(overlay(empty(), "tasks.worker.count", wrap(1, "--workers")), "tasks") == "--workers"


# --- assignments --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("name=x", "name", "x"),
        ("tasks.worker.count=4", "tasks.worker.count", 4),
        ("timeouts.run_s = 1.5", "timeouts.run_s ", 1.5),
        ("serve=true", "serve", True),
        ("serve=off", "serve", "off"),
        ("name=", "name", None),
        ("defaults.env.A=b=c", "defaults.env.A", "b=c"),
        ("defaults.env.A=a: b # c", "defaults.env.A", "a: b # c"),
        ("defaults.env.A=!tag *alias &x", "defaults.env.A", "!tag *alias &x"),
        ("defaults.env.A=\udcff", "defaults.env.A", "\udcff"),
        ("defaults.env.A='4'", "defaults.env.A", "4"),
        ('defaults.env.A="\\n"', "defaults.env.A", "\n"),
        ('args=["--epochs", "5", x=y]', "args", ["--epochs", "5", "x=y"]),
        ("defaults.devices={cpus: 2}", "defaults.devices", {"cpus": 2}),
    ],
)
def test_assignments(text: str, path: str, value: Any) -> None:
    found_path, node = parse_assignment(text, "--set")
    assert (found_path, plain(node)) == (path, value)
    assert node.place == "--set"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workers", "'workers' has no '='"),
        ("", "'' has no '='"),
        ("=4", "'' is not the path of a key"),
        ("a..b=4", "'a..b' is not the path of a key"),
        (".=4", "'.' is not the path of a key"),
        ("a." * 10_000 + "a=4", "is not the path of a key"),
        ("args=[a", "'args': cannot be read as YAML"),
        ('args="a" b', "'args': cannot be read as YAML"),
        ("args=[!!python/name:x y]", "'args': the tag '!!python/name:x' is not allowed"),
        ("args=" + "[" * 100_000, "'args': is nested more than 64 levels deep"),
        ("args=[\udcff]", "'args': the character U+DCFF is not allowed in YAML"),
    ],
)
def test_wrong_assignments_say_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_assignment(text, "--set")
    (problem,) = caught.value.problems
    assert problem.place == "--set"
    assert message in problem.message


@given(st.text())
def test_any_assignment_is_read_or_refused(text: str) -> None:
    for candidate in (text, f"a={text}", f"a=[{text}]"):
        with suppress(SpecError):
            path, node = parse_assignment(candidate, "--set")
            assert isinstance(overlay(empty(), path, node).value, dict)
