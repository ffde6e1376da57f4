"""The key `input:`, for a cluster and over that for the tasks of one type."""

from __future__ import annotations

import json

from orchestrator.model.settings import ClusterSpec
from orchestrator.model.settings.document import read
from orchestrator.model.settings.parse import parse, to_document
from worker.settings.input_settings import InputSettings

CLUSTER = InputSettings(auto_shard="off", prefetch=-1, files=("a/*.csv",), apply=False)


def spec_of(text: str) -> ClusterSpec:
    return parse(read(text, "orch.yaml"), workdir="/home/me")


def test_a_type_of_tasks_has_its_own_word_over_that_of_the_cluster() -> None:
    spec = spec_of("""
    script: train.py
    input: {auto_shard: off, prefetch: -1, files: ["a/*.csv"], apply: false}
    tasks: {chief: 1, worker: {count: 2, input: file}, evaluator: {input: {apply: true, files: [b.csv]}}, data_worker: 1}
    """)
    inputs = {tasks.type: tasks.input for tasks in spec.tasks}
    assert spec.input == inputs["chief"] == CLUSTER
    assert inputs["worker"] == InputSettings(auto_shard="file", prefetch=-1, files=("a/*.csv",), apply=False)
    assert inputs["evaluator"] == InputSettings(auto_shard="off", prefetch=-1, files=("b.csv",))
    assert inputs["data_worker"] == InputSettings()
    assert parse(read(json.dumps(to_document(spec)), "spec.yaml"), workdir="/") == spec
