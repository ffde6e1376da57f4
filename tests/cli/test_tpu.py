"""`orch tpu`: a layout on a TPU that is not there, with TensorFlow's own core assignment."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.checks.tpu_report import Layout, TpuReplicas, to_text
from orchestrator.model import tpu_topology
from tests.conftest import Orch

FAST = "--no-tensorflow"
PAIRS = """\
topology 2x2x1x2 (also v2-8, v3-8): 4 chips in a mesh of 2 x 2 x 1, 2 devices each
  8 devices on 1 host
computation shape [1, 1, 1, 2]: 2 logical devices for each replica
  3 replicas of 4 that fit; 2 devices idle

TensorFlow VERSION (DeviceAssignment.build) gives them these devices:
  replica  logical device  x,y,z,core  device
  0        0               0,0,0,0     /task:0/device:TPU:0
  0        1               0,0,0,1     /task:0/device:TPU:1
  1        0               1,0,0,0     /task:0/device:TPU:2
  1        1               1,0,0,1     /task:0/device:TPU:3
  2        0               0,1,0,0     /task:0/device:TPU:4
  2        1               0,1,0,1     /task:0/device:TPU:5

the mesh: REPLICA.LOGICAL DEVICE, or a dash for a device that is idle
       x=0        x=1
  y=0  [0.0 0.1]  [1.0 1.1]
  y=1  [2.0 2.1]  [-   -  ]

computation shapes that fit this topology without a rest:
  logical devices  replicas  shapes
  1                8         1,1,1,1
  2                4         1,1,1,2  1,2,1,1  2,1,1,1
  4                2         1,2,1,2  2,1,1,2  2,2,1,1
  8                1         2,2,1,2
"""


@pytest.mark.tensorflow
def test_the_layout_is_drawn_as_tensorflow_makes_it(orch: Orch) -> None:
    asked = ("tpu", "--topology", "2x2x1x2", "--computation-shape", "1,1,1,2", "--num-replicas", "3")
    out = orch(*asked, check=0).out
    version = out.partition("TensorFlow ")[2].partition(" ")[0]
    assert out == PAIRS.replace("VERSION", version)


@pytest.mark.tensorflow
def test_a_spec_says_it_and_a_program_reads_it(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "orch.yaml").write_text(
        "script: train.py\n"
        "tpu: {topology: v4-16, computation_shape: [2, 2, 1, 1], partition: {image: {dims: [1, 2, 2, 1], shape: [null, 224, 224, 3]}}}\n"
    )
    told = json.loads(orch("tpu", "--json", "--partition", "4", "--shape", "8", "--dtype", "bfloat16", check=0).out)
    assert (told["topology"], told["hosts"], told["num_replicas"], told["logical_devices"]) == ([2, 2, 2, 1], 2, 2, 4)
    places = [tuple(place) for replica in told["assignment"] for place in replica]
    assert sorted(places) == [(x, y, z, 0) for x in (0, 1) for y in (0, 1) for z in (0, 1)]
    assert {name.partition("/device")[0] for replica in told["device_names"] for name in replica} == {"/task:0", "/task:1"}
    image, own = told["partitions"]
    assert (image["name"], image["part"], image["part_bytes"], image["problems"]) == ("image", [None, 112, 112, 3], None, [])
    assert (own["part"], own["part_bytes"]) == ([2], 4)


def test_a_tensor_is_split_or_it_is_said_why_not(orch: Orch) -> None:
    asked = ("tpu", FAST, "--topology", "v3-8", "--computation-shape", "2,2,1,2", "--partition", "1,2,4,1")
    out = orch(*asked, "--shape", "128,224,224,3", check=0).out
    assert out.endswith(
        "float32[128, 224, 224, 3] split by [1, 2, 4, 1] over 8 logical devices\n"
        "  each device gets float32[128, 112, 56, 3]: 9.6 MB of 77.1 MB\n"
    )
    out = orch(*asked, "--shape", "?,224,224,3", check=0).out
    assert "each device gets float32[?, 112, 56, 3]: 75.3 kB for each element of the dimensions of unknown size" in out
    out = orch(*asked, "--shape", "128,225,224", check=1).out
    assert "  no: [1, 2, 4, 1] has 4 numbers, and the tensor has 3 dimensions, [128, 225, 224]" in out
    out = orch(*asked[:-1], "1,2,2,1", "--shape", "128,225,224,3", check=1).out
    assert "  no: dimension 1 has the size 225, which cannot be divided into 2 equal parts\n  no: [1, 2, 2, 1] makes 4 parts" in out


def test_names(orch: Orch) -> None:
    out = orch("tpu", check=0).out.splitlines()
    told = json.loads(orch("tpu", "--json", check=0).out)
    assert [one["name"] for one in told] == [line.split()[0] for line in out[1:]]
    assert next(one for one in told if one["name"] == "v3-8") == {"name": "v3-8", "mesh": [2, 2, 1, 2], "devices": 8, "hosts": 1}
    assert out[0].split() == ["name", "mesh:", "x,", "y,", "z,", "core", "devices", "hosts"]
    assert ["v3-32", "4x4x1x2", "32", "4"] in [line.split() for line in out]


def test_a_spec_of_other_tasks_that_happens_to_be_there_is_no_obstacle(orch: Orch, tmp_path: Path) -> None:
    (tmp_path / "orch.yaml").write_text("script: train.py\nstrategy: multi_worker_mirrored\ntasks: {worker: 2}\n")
    assert "  8 replicas\n" in orch("tpu", FAST, "--topology", "v3-8", check=0).out
    assert "runs in one process" in orch("tpu", FAST, "--topology", "v3-8", "-f", "orch.yaml", "--strategy", "tpu", check=2).err
    (tmp_path / "orch.yaml").write_text("tasks: {worker: 2}\ntpu: {topology: v3-8, computation_shape: [1, 1, 1, 2]}\n")
    assert "  4 replicas\n" in orch("tpu", FAST, check=0).out


def test_without_tensorflow_there_are_the_sizes_alone(orch: Orch, script: Callable[..., Path]) -> None:
    python = script(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n', "bare-python")
    python.chmod(0o755)
    out = orch("tpu", "--topology", "v3-8", "--python", str(python), check=0).out
    assert "no core assignment: TensorFlow, which makes it, is not installed for this interpreter; the sizes above need none" in out
    assert "  8 replicas\n" in out


def test_colour_is_one_for_each_replica() -> None:
    mesh = tpu_topology.parse("1x1x1x2")
    assignment = TpuReplicas((((0, 0, 0, 0),), ((0, 0, 0, 1),)), (("/task:0/device:TPU:0",), ("/task:0/device:TPU:1",)), "2.21.0")
    out = list(to_text(Layout(mesh, (1, 1, 1, 1), 2, assignment), [], color=True))
    assert "  y=0  [\x1b[36m0.0\x1b[0m \x1b[33m1.0\x1b[0m]" in out
