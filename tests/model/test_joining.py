"""What each engine tells a process that it has started on a node, by recorded environments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.model.joining import FACTS, ROWS, detect, stripped

RECORDED = json.loads((Path(__file__).parent / "environments_of_engines.json").read_text())


@pytest.mark.parametrize("recorded", RECORDED, ids=[recorded["name"] for recorded in RECORDED])
def test_the_environment_of_an_engine_says_where_a_process_is(recorded: dict[str, dict[str, str]]) -> None:
    place = detect(recorded["env"], str(recorded.get("host", "")), recorded.get("files"))
    known = {fact: value for fact in FACTS if (value := getattr(place, fact)) not in (None, "")}
    assert {"engine": place.engine, **known} == recorded["place"]
    assert bool(place.advice) == bool(recorded.get("refused"))
    assert place.sources.keys() == known.keys()
    read = {name for names in place.sources.values() for name in names.split(", ")}
    assert read <= {*recorded["env"], "the name of this machine"}


def test_every_row_has_a_recorded_environment() -> None:
    assert {row.engine for row in ROWS} <= {recorded["place"].get("engine") for recorded in RECORDED}


def test_values_that_no_engine_writes_give_no_facts() -> None:
    for text in ("", "x", "-1", "1:4", "9" * 30, "[" * 100_000, "{}", '{"cluster": [1]}', '{"cluster": {"worker": 1}, "task": 3}'):
        for recorded in RECORDED:
            place = detect(dict.fromkeys(recorded["env"], text))
            assert place.nodes is None or place.nodes >= 0


def test_what_an_engine_says_of_the_cluster_reaches_no_task() -> None:
    hidden = ["PMI_FD", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "TF_CONFIG", "ORCH_JOIN_TOKEN", "PET_NNODES"]
    assert stripped(dict.fromkeys(["SLURM_JOB_ID", "TF_CONFIG_X", "PATH", *hidden], "1")) == hidden
    assert detect({"JOB_ID": "99", "NHOSTS": "2"}).requeue == "--requeue-code 99"
    assert detect({"OMPI_COMM_WORLD_RANK": "0"}).requeue == ""
