"""The key `tpu:`: what it means, and what is wrong with it before anything starts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.errors import SpecError
from orchestrator.model.settings import ClusterSpec
from orchestrator.model.settings.document import read
from orchestrator.model.settings.parse import parse, to_document
from worker.settings.tpu_settings import Partition, TpuSettings, target


def spec_of(text: str) -> ClusterSpec:
    return parse(read(text, "orch.yaml"), workdir="/home/me")


def test_the_section_means_the_strategy_and_comes_back_as_it_was() -> None:
    spec = spec_of("""
    script: train.py
    tpu:
      tpu: my-tpu
      zone: us-central2-b
      project: my-project
      topology: v3-8
      computation_shape: [2, 2, 1, 2]
      num_replicas: 1
      spmd: true
      partition: {image: [1, 2, 4, 1], sound: {dims: "8,1", shape: [~, 7], dtype: bfloat16}}
      fallback: cpu
    """)
    assert spec.strategy == "tpu"
    assert spec.counts == {"worker": 1}
    assert spec.tpu == TpuSettings(
        tpu="my-tpu",
        zone="us-central2-b",
        project="my-project",
        topology="v3-8",
        computation_shape=(2, 2, 1, 2),
        num_replicas=1,
        spmd=True,
        partition=(Partition("image", (1, 2, 4, 1)), Partition("sound", (8, 1), (None, 7), "bfloat16")),
        fallback="cpu",
    )
    assert parse(read(json.dumps(to_document(spec)), "spec.yaml"), workdir="/") == spec


def test_the_strategy_alone_takes_the_tpu_of_the_environment_and_imports_nothing_ahead() -> None:
    spec = spec_of("script: train.py\nstrategy: tpu")
    assert spec.tpu == TpuSettings(tpu="auto")
    assert spec.imported_ahead == ()
    assert spec_of("script: train.py\nstrategy: tpu\npreload: [numpy]").imported_ahead == ("numpy",)
    assert spec_of("script: train.py").imported_ahead == ("tensorflow",)
    assert spec_of("script: train.py\ntpu: local").tpu == TpuSettings(tpu="local")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tpu: {topology: v3-9}", "tpu.topology: there is no v3-9 (there are v3-8, v3-32"),
        ("tpu: {topology: 2x2x2}", "tpu.topology: '2x2x2' has 3 numbers, and a topology has 4"),
        ("tpu: {computation_shape: [1, 2]}", "tpu.computation_shape: must be 4 numbers, the devices in x, y, z and core, not 2"),
        (
            "tpu: {topology: v2-8, computation_shape: [1, 2, 2, 2]}",
            "tpu.computation_shape: the computation footprint [1, 2, 2, 2] does not fit in the topology [2, 2, 1, 2]",
        ),
        (
            "tpu: {topology: v2-8, computation_shape: [1, 1, 1, 2], num_replicas: 5}",
            "tpu.num_replicas: 5 replicas of 2 logical devices are asked for, and 4 of the shape [1, 1, 1, 2] fit",
        ),
        ("tpu: {topology: v2-8, num_replicas: 9}", "tpu.num_replicas: 9 replicas of 1 logical device are asked for"),
        (
            "tpu: {computation_shape: [1, 1, 1, 2], partition: {x: {dims: [2, 1], shape: [3, 4]}}}",
            "tpu.partition.x: dimension 0 has the size 3, which cannot be divided into 2 equal parts",
        ),
        ("tpu: {partition: {x: {dims: [1, 1], shape: [[1, 2], 3]}}}", "tpu.partition.x.shape: must be a whole number, not a list"),
        ("tpu: {partition: {x: [1, 2]}}", "tpu.partition.x: [1, 2] makes 2 parts, and a replica has 1 logical device"),
        ("tpu: {computation_shape: [1, 1, 1, 2], partition: {x: {dims: [2], shape: [4, 4]}}}", "has 1 number, and the tensor has 2"),
        ("tpu: {partition: {x: {shape: [4]}}}", "tpu.partition.x: has no dims"),
        ("tpu: {partition: {x: {dims: [1], dtype: float31}}}", "tpu.partition.x.dtype: 'float31' is not known (write bool, int8, "),
        ("tpu: {tpu: a, zone: z}", "tpu.zone: a TPU is looked up in a zone of a project, and no project is given (give both, or neither"),
        ("tpu: {tpu: a, project: p}", "tpu.project: a TPU is looked up in a zone of a project, and no zone is given"),
        ("tpu: {tpu: local, zone: z, project: p}", "tpu.zone: finds a TPU by its name, and tpu.tpu is 'local'"),
        ("tpu: {tpu: 'grpc://a:1', project: p}", "tpu.project: finds a TPU by its name, and tpu.tpu is 'grpc://a:1'"),
        (
            "tpu: 10.0.0.2:8470",
            "tpu.tpu: '10.0.0.2:8470' is no name of a TPU (an address begins with grpc://: write tpu: grpc://HOST:8470)",
        ),
        ("tpu: grpc://", "tpu.tpu: 'grpc://' is not an address (write grpc://HOST:8470, several with commas)"),
        ("tpu: local\ntasks: {worker: 2}", "strategy tpu runs in one process: it takes 1 task; TensorFlow drives all hosts of a TPU"),
        ("tpu: local\nstrategy: tpu\ntasks: {ps: 1}", "tasks.ps: ps tasks are for strategy parameter_server, not tpu"),
        ("tpu: local\ntasks: {ps: 1}", "tpu: is for strategy tpu, not parameter_server"),
        ("tpu: local\nstrategy: mirrored", "tpu: is for strategy tpu, not mirrored"),
        ("topology: v3-8", "unknown key 'topology' (write it as tpu: {topology: ...})"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec_of(f"script: train.py\n{text}")
    assert problem in str(caught.value)
    assert str(caught.value).startswith("orch.yaml:")


@pytest.mark.parametrize(
    ("tpu", "env", "found"),
    [
        ("local", {"TPU_NAME": "a"}, ("local", "the spec")),
        ("auto", {}, ("local", "nothing else is named")),
        ("auto", {"TPU_NAME": "a", "TPU_WORKER_HOSTNAMES": "h0,h1"}, ("", "TPU_NAME")),
        ("auto", {"TPU_NAME": "a", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://b"}, ("", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS")),
        ("", {"TPU_WORKER_HOSTNAMES": "h0, h1"}, ("grpc://h0:8470,h1:8470", "TPU_WORKER_HOSTNAMES")),
        ("auto", {"TPU_WORKER_HOSTNAMES": "localhost"}, ("local", "nothing else is named")),
    ],
)
def test_the_tpu_that_is_meant(tpu: str, env: dict[str, str], found: tuple[str, str]) -> None:
    settings: dict[str, Any] = {"tpu": tpu}
    assert target(TpuSettings(**settings), env) == found
