"""orch.yaml -> ClusterSpec: what every key means, the rules across keys, and the way back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.errors import SpecError
from orchestrator.model.settings import BACKENDS, ClusterSpec, LocalSettings, Restart, TaskDevices, TaskSpec, Timeouts
from orchestrator.model.settings.backend_sections import keys_of_all
from orchestrator.model.settings.derive import struct_of
from orchestrator.model.settings.describe import json_schema, root, template
from orchestrator.model.settings.document import Node, empty, overlay, parse_assignment, read
from orchestrator.model.settings.kinds import Number, Struct, sentence
from orchestrator.model.settings.parse import parse, to_document
from orchestrator.model.settings.task_sections import DEVICES
from orchestrator.model.strategies import STRATEGIES
from tests import golden
from tests.trees import value_of, wrap
from worker.protocol.messages import Program
from worker.protocol.task_id import TASK_TYPES
from worker.settings.collective_settings import CollectiveSettings
from worker.settings.device_settings import DeviceSettings, ThreadSettings
from worker.values.words import few

ROOT = root()


def spec_of(text: str | bytes) -> ClusterSpec:
    return parse(read(text, "orch.yaml"), workdir="/home/me")


def problems_of(text: str | bytes) -> list[str]:
    with pytest.raises(SpecError) as caught:
        spec_of(text)
    return [str(problem) for problem in caught.value.problems]


# --- what the keys mean -------------------------------------------------------------------------


def test_a_script_is_enough() -> None:
    assert spec_of("script: src/train.py") == ClusterSpec(
        name="train",
        strategy="multi_worker_mirrored",
        program=Program("script", "src/train.py"),
        tasks=(TaskSpec("worker", 1),),
        workdir="/home/me",
    )


def test_every_key() -> None:
    text = """
    name: digits
    strategy: parameter_server
    module: digits.train
    args: [--epochs, 5, 1e3, yes, "", "a b"]
    python: /opt/python/bin/python3
    workdir: work
    tasks:
      evaluator: 1
      ps: {count: 2, args: [], devices: {cpus: 3}}
      worker: {count: 4, args: [x], env: {A: own, N: 007}}
    defaults:
      env: {A: all, FLAG: yes, EXP: 1e3, EMPTY: "", QUOTED: "a\\nb"}
      devices: {cpus: 2, threads: {intra: 4, inter: 1}}
      log_level: error
    serve: true
    timeouts: {start_s: 60, hang_s: 600, run_s: 3600.5, grace_s: 0}
    restart: {max: 3, backoff_s: 0.5, backoff_max_s: 30, without_progress: 0, progress_s: 60}
    ports: 41000-41999
    backend: {type: local}
    """
    devices = TaskDevices(DeviceSettings(2, ThreadSettings(4, 1)))
    assert spec_of(text) == ClusterSpec(
        name="digits",
        strategy="parameter_server",
        program=Program("module", "digits.train", ("--epochs", "5", "1e3", "yes", "", "a b")),
        tasks=(
            TaskSpec("chief", 1, devices=devices),
            TaskSpec("worker", 4, ("x",), {"A": "own", "N": "007"}, devices),
            TaskSpec("ps", 2, (), {}, TaskDevices(DeviceSettings(3, ThreadSettings(4, 1)))),
            TaskSpec("evaluator", 1, devices=devices),
        ),
        workdir="/home/me/work",
        python="/opt/python/bin/python3",
        env={"A": "all", "FLAG": "yes", "EXP": "1e3", "EMPTY": "", "QUOTED": "a\nb", "TF_CPP_MIN_LOG_LEVEL": "2"},
        serve=True,
        ports=(41000, 41999),
        timeouts=Timeouts(start_s=60.0, hang_s=600, run_s=3600.5, grace_s=0.0),
        restart=Restart(max=3, backoff_s=0.5, backoff_max_s=30, without_progress=0, progress_s=60),
        backend=LocalSettings(),
    )


def test_collectives_are_tensorflows_own_where_nothing_is_said() -> None:
    """A shorter heartbeat than TensorFlow's would end runs that go on by hand: a laptop that sleeps, a container that is paused."""
    assert spec_of("script: a").collectives == CollectiveSettings()
    found = spec_of("script: a\ncollectives: {implementation: nccl}").collectives
    assert found == CollectiveSettings(None, "nccl")
    assert spec_of("script: a\ncollectives: {heartbeat_s: 0.5}").collectives == CollectiveSettings(0.5)


def test_a_null_is_a_missing_key() -> None:
    keys = "".join(f"{key}:\n" for key in ROOT.keys if key != "script")
    assert spec_of("script: train.py\n" + keys) == spec_of("script: train.py")
    nulls = (
        "tasks: {worker: ~, ps: ~}\ndefaults: {env: , devices: {cpus: , threads: }, log_level: }\ntimeouts: {grace_s: }\nbackend: {type: }"
    )
    assert spec_of("script: train.py\n" + nulls) == spec_of("script: train.py")


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("script: train.py", "train"),
        ("script: /data/my runs/é train-1.py", "train-1"),
        ("script: ..", "run"),
        ("script: _private.py", "private"),
        ("module: package.sub.train", "train"),
        ("command: /usr/bin/my_tool.sh", "my_tool"),
        (f"script: {'x' * 300}.py", "x" * 40),
        ("script: a/b/", "b"),
        ("script: 日本.py", "run"),
        ("script: 日本2.py", "2"),
    ],
)
def test_a_derived_name_can_always_be_part_of_a_directory_name(program: str, name: str) -> None:
    spec = spec_of(program)
    assert spec.name == name
    assert spec_of(f"{program}\nname: '{name}'") == spec


def test_a_name_is_derived_from_a_path_that_is_not_utf_8() -> None:
    assert spec_of(json.dumps({"script": "\udc80\udcff.py"})).name == "run"


@pytest.mark.parametrize("name", ["a", "4", "007", "yes", "x" * 40, "A.b_c-1"])
def test_a_given_name_is_kept(name: str) -> None:
    assert spec_of(f"script: train.py\nname: {name}").name == name


@pytest.mark.parametrize(
    ("given", "workdir"), [("sub/dir", "/home/me/sub/dir"), (".", "/home/me"), ("/data", "/data"), ("../you", "/home/me/../you")]
)
def test_a_relative_workdir_starts_at_the_default(given: str, workdir: str) -> None:
    assert spec_of(f"script: train.py\nworkdir: {given}").workdir == workdir


@pytest.mark.parametrize(
    ("level", "env"),
    [
        ("debug", {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_MAX_VLOG_LEVEL": "1"}),
        ("info", {"TF_CPP_MIN_LOG_LEVEL": "0"}),
        ("warning", {"TF_CPP_MIN_LOG_LEVEL": "1"}),
        ("error", {"TF_CPP_MIN_LOG_LEVEL": "2"}),
    ],
)
def test_log_levels(level: str, env: dict[str, str]) -> None:
    assert spec_of(f"script: a.py\ndefaults: {{log_level: {level}}}").env == env


def test_the_environment_wins_over_the_log_level() -> None:
    assert spec_of("script: a.py\ndefaults: {log_level: debug, env: {TF_CPP_MIN_LOG_LEVEL: 3}}").env == {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_CPP_MAX_VLOG_LEVEL": "1",
    }


@pytest.mark.parametrize("ports", ["41000-41999", "'41000 - 41999'"])
def test_ports(ports: Any) -> None:
    assert spec_of(f"script: a.py\nports: {ports}").ports == (41000, 41999)


# --- counts and strategies ----------------------------------------------------------------------

COUNTS_WITH_DATA = {"chief": 1, "worker": 1, "ps": 1, "dispatcher": 1, "data_worker": 2}


@pytest.mark.parametrize(
    ("text", "strategy", "counts"),
    [
        ("", "multi_worker_mirrored", {"worker": 1}),
        ("tasks: {worker: 4}", "multi_worker_mirrored", {"worker": 4}),
        ("tasks: {worker: {env: {A: b}}}", "multi_worker_mirrored", {"worker": 1}),
        ("tasks: {evaluator: 1, worker: 2, chief: 1}", "multi_worker_mirrored", {"chief": 1, "worker": 2, "evaluator": 1}),
        ("tasks: {chief: 0, ps: 0, evaluator: 0}", "multi_worker_mirrored", {"worker": 1}),
        ("tasks: {ps: 2}", "parameter_server", {"chief": 1, "worker": 1, "ps": 2}),
        ("tasks: {ps: 1, worker: 3}\nserve: true", "parameter_server", {"chief": 1, "worker": 3, "ps": 1}),
        ("strategy: parameter_server\ntasks: {ps: {}}", "parameter_server", {"chief": 1, "worker": 1, "ps": 1}),
        ("tasks: {data_worker: 2}", "multi_worker_mirrored", {"worker": 1, "dispatcher": 1, "data_worker": 2}),
        ("tasks: {data_worker: 2, ps: 1}", "parameter_server", COUNTS_WITH_DATA),
        ("strategy: mirrored\ntasks: {data_worker: {env: {A: b}}}", "mirrored", {"worker": 1, "dispatcher": 1, "data_worker": 1}),
        ("tasks: {data_worker: 0}", "multi_worker_mirrored", {"worker": 1}),
        (
            "tasks: {data_worker: 1}\nbackend: {hosts: {a: 3, b: 3}}",
            "multi_worker_mirrored",
            {"worker": 4, "dispatcher": 1, "data_worker": 1},
        ),
        ("strategy: mirrored", "mirrored", {"worker": 1}),
        ("strategy: one_device\ntasks: {worker: 1, ps: 0}", "one_device", {"worker": 1}),
        ("strategy: none\nserve: false", "none", {"worker": 1}),
        ("tasks: {worker: 100000}", "multi_worker_mirrored", {"worker": 100_000}),
    ],
)
def test_counts(text: str, strategy: str, counts: dict[str, int]) -> None:
    spec = spec_of("script: a.py\n" + text)
    assert spec.strategy == strategy
    assert [(tasks.type, tasks.count) for tasks in spec.tasks] == list(counts.items())
    assert spec.size == sum(counts.values())


# --- what is wrong ------------------------------------------------------------------------------


@golden.cases("refusals.txt")
def test_what_is_refused(case: golden.Case) -> None:
    case.check("\n".join(problems_of(case.given)))


def test_a_key_that_is_like_none_is_answered_with_the_first_of_them() -> None:
    known = few([*keys_of_all().keys], 25)
    (problem,) = problems_of("script: a\nbackend: {workdir: ship}")
    assert problem == f"orch.yaml:2: backend: unknown key 'workdir'\nfix: write one of these keys: {known}; orch help reference names all"


def test_an_empty_key_is_not_taken_for_a_setting_without_an_option() -> None:
    (problem,) = problems_of("script: a\n'': 4")
    assert problem.startswith("orch.yaml:2: unknown key ''\nfix: write one of these keys: name, ")


def test_flags_are_laid_over_the_file_and_named_in_errors() -> None:
    document = read("script: a.py\ntasks: {worker: {count: 2, env: {A: b}}}", "orch.yaml")
    document = overlay(document, *parse_assignment("tasks.worker=4", "--set"))
    document = overlay(document, "script", wrap(None, "-m"))
    document = overlay(document, "module", wrap("pkg.train", "-m"))
    spec = parse(document, workdir="/")
    assert (spec.program, spec.tasks) == (Program("module", "pkg.train"), (TaskSpec("worker", 4, env={"A": "b"}),))

    document = overlay(document, "tasks.worker.count", wrap(0, "--workers"))
    document = overlay(document, *parse_assignment("strategey=none", "ORCH_SET"))
    with pytest.raises(SpecError) as caught:
        parse(document, workdir="/")
    assert [str(problem) for problem in caught.value.problems] == [
        "--workers: must be at least 1, not 0",
        "ORCH_SET: unknown key 'strategey'\nfix: did you mean 'strategy'?",
    ]


def test_an_empty_document_has_no_place_to_name() -> None:
    with pytest.raises(SpecError, match=r"^there is nothing to run"):
        parse(empty(), workdir="/")


# --- the template -------------------------------------------------------------------------------


def test_the_template_is_valid_as_it_stands() -> None:
    spec = spec_of(template())
    assert (spec.name, spec.program, spec.tasks) == ("train", Program("script", "train.py"), (TaskSpec("worker", 2),))


def blocks_of_template() -> list[str]:
    return template().split("\n\n")[1:]


@pytest.mark.parametrize("key", [name for name, key in ROOT.keys.items() if not key.is_own])
def test_each_key_of_the_template_is_valid_once_uncommented(key: str) -> None:
    (block,) = (block for block in blocks_of_template() if re.search(f"^#?{key}:", block, re.MULTILINE))
    uncommented = re.sub(r"^( *)#(?! )", r"\1", block, flags=re.MULTILINE)
    uncommented = re.sub(r"^#(?=  )", "", uncommented, flags=re.MULTILINE)
    context = "" if key in ("script", "module", "command") else "script: train.py\n"
    context += "strategy: parameter_server\n" if key == "tasks" else ""
    document = read(context + uncommented, "orch.yaml")
    assert value_of(document)[key].value not in (None, {})
    if key != "backend":
        assert spec_of(context + uncommented)
        return
    for name, section in BACKENDS.items():  # each key with a backend that has it
        found = value_of(document)["backend"].value
        assert isinstance(found, dict)
        keys = {**{one: node for one, node in found.items() if one in struct_of(section).keys}, "type": Node(name, "o", name)}
        whole = Node({"script": Node("train.py", "o", "train.py"), "backend": Node(keys, "o")}, "o")
        assert parse(whole, workdir="/home/me").backend.type == name


def test_the_template_shows_every_key_with_its_description_and_default() -> None:
    text = re.sub(r"\n *(#  )*(  )*# ?(?=\S)", " ", template())
    words = " ".join(text.replace("#", " ").split())

    def look(struct: Struct) -> None:
        for name, key in struct.keys.items():
            if key.is_own:
                assert " ".join(sentence(key).split()) not in words
                continue
            assert f" {name}:" in words
            if key.example or key.live or not isinstance(key.kind, Struct):
                assert " ".join(sentence(key).split()) in words
            if isinstance(key.kind, Struct):
                look(key.kind)

    look(ROOT)
    assert "Default: multi_worker_mirrored; parameter_server with ps tasks; tpu with a TPU." in words


# --- the JSON Schema ----------------------------------------------------------------------------


def test_the_shipped_json_schema_is_up_to_date() -> None:
    shipped = (resources.files("orchestrator.model.settings") / "orch.schema.json").read_text()
    command = "python -m orchestrator.model.settings.describe > orchestrator/model/settings/orch.schema.json"
    assert json.loads(shipped) == json_schema(), f"bring it up to date: {command}"


def test_the_json_schema_is_one_and_describes_every_key() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["properties"].keys() == ROOT.keys.keys()
    assert all(part["title"] and part["description"] for part in schema["properties"].values())


# --- properties ---------------------------------------------------------------------------------

TEXTS = st.text(
    st.one_of(
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
        st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF, categories=["Cs"]),
    ),
    max_size=15,
)
FULL_TEXTS = TEXTS.filter(bool)
ARGS = st.lists(TEXTS, max_size=4)
ENV = st.dictionaries(
    FULL_TEXTS.filter(lambda name: "=" not in name and name != "TF_CONFIG" and not name.startswith("ORCH_")), TEXTS, max_size=4
)
SMALL = st.integers(1, 1024)
SECONDS = st.floats(0, 1e9, exclude_min=True)
# Wide enough for every cluster that is drawn below: a range with too few ports is an error.
PORTS = st.tuples(st.integers(1024, 50000), st.integers(62000, 65535)).map(lambda ends: f"{ends[0]}-{ends[1]}")


Parts = dict[str, st.SearchStrategy[Any]]


def some_of(**parts: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={name: part | st.none() for name, part in parts.items()})


# What reaches a command as well as a script; what is set inside Python; and the two words on memory, of which a GPU takes one.
OUTER_DEVICES: Parts = {
    "threads": some_of(intra=SMALL, inter=SMALL),
    "gpus": st.sampled_from(["auto", 0, 2, "0,1", [3, "GPU-5e8a", "/device:GPU:1"], []]),
    "share_gpus": st.booleans(),
    "determinism": st.booleans(),
}
INNER_DEVICES: Parts = {"cpus": SMALL, "soft_placement": st.booleans(), "xla": st.booleans(), "tf32": st.booleans()}
COLLECTIVES = some_of(heartbeat_s=SECONDS, implementation=st.sampled_from(["auto", "ring", "nccl"]), measured=st.booleans())
INPUT = st.sampled_from(["auto", "file", "data", "hint", "off"]) | some_of(
    auto_shard=st.sampled_from(["auto", "off"]),
    global_batch_size=SMALL,
    drop_remainder=st.booleans(),
    prefetch=st.integers(-1, 9),
    per_replica_buffer_size=SMALL,
    replication_mode=st.sampled_from(["per_worker", "per_replica"]),
    files=ARGS,
    apply=st.booleans(),
)
GROWTH: Parts = {"memory_growth": st.booleans()}
LIMITS: Parts = {"memory_limit_mb": SMALL}


def tasks_of(counts: st.SearchStrategy[int], devices: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    overrides = st.fixed_dictionaries({"0": some_of(devices=devices)})
    return counts | some_of(count=counts, args=ARGS, env=ENV, devices=devices, input=INPUT, overrides=overrides)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    strategy = draw(st.sampled_from([*STRATEGIES, None]))
    kind = draw(st.sampled_from(["script", "module", "command"]))
    memory = draw(st.sampled_from([GROWTH, LIMITS] if kind != "command" else [GROWTH]))
    devices = some_of(**OUTER_DEVICES, **memory, **(INNER_DEVICES if kind != "command" else {}))
    kinds = {"worker": tasks_of(st.just(1), devices)}
    if strategy not in ("mirrored", "one_device", "tpu", "none"):
        kinds = {"worker": tasks_of(st.integers(1, 9999), devices), "chief": tasks_of(st.just(1), devices)}
        kinds["evaluator"] = tasks_of(st.just(1), devices)
    if strategy == "parameter_server":
        kinds["ps"] = tasks_of(st.integers(1, 99), devices)
    kinds["data_worker"] = st.integers(0, 9) | some_of(count=st.integers(1, 9), env=ENV)
    tasks = draw(some_of(**kinds))
    if strategy == "parameter_server" and tasks.get("ps") is None:
        tasks["ps"] = 1
    rest = some_of(
        name=st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,39}\Z"),
        args=ARGS,
        python=FULL_TEXTS,
        workdir=FULL_TEXTS.filter(lambda path: not path.startswith("~")),
        restart=st.integers(0, 9) | some_of(max=st.integers(0, 99), backoff_s=SECONDS, backoff_max_s=SECONDS, progress_s=SECONDS),
        defaults=some_of(env=ENV, devices=devices, log_level=st.sampled_from(["debug", "info", "warning", "error"])),
        timeouts=some_of(start_s=SECONDS, hang_s=SECONDS, run_s=SECONDS | st.integers(1, 10**9), grace_s=SECONDS | st.just(0)),
        ports=PORTS,
        input=INPUT,
        serve=st.just(strategy == "parameter_server"),
        backend=st.just("local") | some_of(type=st.just("local")),
        **({"collectives": COLLECTIVES} if kind != "command" and strategy == "multi_worker_mirrored" else {}),
    )
    program = {kind: draw(FULL_TEXTS)}
    return {**draw(rest), **program, "strategy": strategy, "tasks": tasks}


@given(documents())
def test_a_spec_survives_the_way_to_a_document_and_back(data: Any) -> None:
    spec = parse(read(json.dumps(data), "orch.yaml"), workdir="/home/me")
    document = to_document(spec)
    assert parse(read(json.dumps(document), "spec.yaml"), workdir="/elsewhere") == spec
    assert parse(wrap(document, "spec"), workdir="/elsewhere") == spec


VALIDATOR = jsonschema.Draft202012Validator(json_schema())


@given(documents())
def test_the_json_schema_accepts_whatever_is_valid(data: Any) -> None:
    spec = parse(wrap(data, "here"), workdir="/")
    VALIDATOR.validate(data)
    VALIDATOR.validate(to_document(spec))


STRUCTS = [ROOT, *(key.kind for key in ROOT.keys.values() if isinstance(key.kind, Struct))]
EXTRA_KEYS = {"count", "intra", "inter", "overrides", "0", "GPU:0", "master", "<<", "", *DEVICES.keys}
KEYS = sorted(EXTRA_KEYS.union(*(struct.keys for struct in STRUCTS)))
WORDS = st.sampled_from([*STRATEGIES, *TASK_TYPES, "local", "info", "x", "", "~", "41000-41999", "9" * 5000, "off"])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), WORDS, st.text(max_size=5))
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=5),
    max_leaves=25,
)


def assert_spec_or_problems(document: Node) -> None:
    """A spec that is whole, or problems that can be shown; any other exception fails the test."""
    try:
        spec = parse(document, workdir="/")
    except SpecError as error:
        lines = str(error).splitlines()
    else:
        assert spec.size >= 1
        return
    assert lines
    assert all(line.isprintable() for line in lines)


@given(st.dictionaries(st.sampled_from(KEYS), TREES, max_size=6))
def test_any_tree_is_a_spec_or_refused(data: Any) -> None:
    assert_spec_or_problems(wrap(data, "here"))


@given(st.one_of(st.binary(), st.text(), st.dictionaries(st.sampled_from(KEYS), TREES, max_size=6).map(json.dumps)))
@example("script: 2024-01-31\ntasks: {worker: 2024-01-31}")
@example("script: a\ntasks: {worker: 9999999999999999999, ps: .nan, chief: .inf, evaluator: -.inf}")
@example(f"script: a\ntimeouts: {{run_s: {'9' * 999}, start_s: {'9' * 4999}, grace_s: 1e999}}")
@example("script: a\r\ntasks:\r\n  worker: ٣\r\n")
@example('"": ""\n"script": ""\ntasks: {"": "", worker: {"": ""}}')
@example("script: ~\nmodule: ~\ncommand: ~\ntasks: {worker: {count: ~, args: [~], env: {A: ~}}}")
@example(b"\xef\xbb\xbfscript: a\nname: \xc3\xa9")
def test_any_text_is_a_spec_or_refused(text: str | bytes) -> None:
    try:
        document = read(text, "orch.yaml")
    except SpecError:
        return
    assert_spec_or_problems(document)


def test_a_tree_that_is_no_mapping_is_refused() -> None:
    values: tuple[Any, ...] = (None, 4, "x", [], True)
    for value in values:
        with pytest.raises(SpecError, match="must be a mapping"):
            parse(Node(value, "here", "x"), workdir="/")


def ranges(struct: Struct, path: str = "") -> Iterator[tuple[str, Number]]:
    """Each number that a section declares, with its path."""
    for name, key in struct.keys.items():
        if isinstance(key.kind, Struct) and name != "backend":
            yield from ranges(key.kind, f"{path}{name}.")
        elif isinstance(key.kind, Number) and path != "tasks.":
            yield f"{path}{name}", key.kind


@pytest.mark.parametrize(("path", "kind"), list(ranges(ROOT)))
def test_each_declared_number_is_held_to_its_range(path: str, kind: Number) -> None:
    below = 0 if kind.minimum is None else kind.minimum - 1
    for value in (below, kind.maximum + 1):
        document = overlay(read("script: a", "orch.yaml"), *parse_assignment(f"{path}={value}", "--set"))
        with pytest.raises(SpecError) as caught:
            parse(document, workdir="/")
        assert str(caught.value.problems[0]).startswith(f"--set: {path}: must be ")
