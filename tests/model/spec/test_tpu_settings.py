"""The key `tpu:`: what it means, and what is wrong with it before anything starts."""

from __future__ import annotations

import json
from typing import Any

import pytest

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
