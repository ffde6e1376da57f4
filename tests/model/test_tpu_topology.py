"""The shapes of TPUs and what fits on them; TensorFlow itself is asked in tests/real/test_tpu.py."""

from __future__ import annotations

import math

import pytest

from orchestrator.model import tpu_topology
from worker.settings import partition


@pytest.mark.parametrize(
    ("text", "shape", "hosts"),
    [
        ("v2-8", (2, 2, 1, 2), 1),
        ("v3-32", (4, 4, 1, 2), 4),
        ("v4-16", (2, 2, 2, 1), 2),
        ("V5E-8", (2, 4, 1, 1), 1),
        ("v5litepod-16", (4, 4, 1, 1), 4),
        ("v5p-128", (4, 4, 4, 1), 16),
        ("v5p-8192", (16, 16, 16, 1), 1024),
        ("v5p-12288", (16, 16, 24, 1), 1536),
        ("v6e-8", (2, 4, 1, 1), 1),
        ("v6e-16", (4, 4, 1, 1), 4),
        ("v6e-256", (16, 16, 1, 1), 64),
        ("2x2x1x2", (2, 2, 1, 2), 1),
        ("2, 2, 1, 2", (2, 2, 1, 2), 1),
        ("3x1x1x2", (3, 1, 1, 2), 1),
    ],
)
def test_a_name_or_four_numbers_is_a_mesh(text: str, shape: tuple[int, ...], hosts: int) -> None:
    mesh = tpu_topology.parse(text)
    assert (mesh.shape, mesh.hosts, mesh.devices) == (shape, hosts, math.prod(shape))


@pytest.mark.parametrize("generation", tpu_topology.GENERATIONS)
def test_every_name_has_a_mesh_that_its_hosts_fill_once(generation: str) -> None:
    known = tpu_topology.GENERATIONS[generation]
    for size in known.sizes:
        mesh = tpu_topology.parse(f"{generation}-{size}")
        assert math.prod(mesh.shape[:3]) == (size if generation in ("v5e", "v6e") else size // 2)
        assert f"{generation}-{size}" in tpu_topology.names_of(mesh)
        places = [tuple(place) for task in mesh.coordinates() for place in task]
        assert len(set(places)) == len(places) == mesh.devices
        assert len(mesh.coordinates()) == mesh.hosts
        assert all(0 <= at < limit for place in places for at, limit in zip(place, mesh.shape, strict=True))


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("v3-9", "there is no v3-9", "there are v3-8, v3-32"),
        ("v9-8", "'v9-8' is not a topology that orch knows: the generations are v2, v3, v4, v5p, v5e, v6e", "write its mesh"),
        ("2x2x2", "'2x2x2' has 3 numbers, and a topology has 4", "2x2x2x2 for v2 and v3, 2x2x2x1 for v4"),
        ("4x4", "'4x4' has 2 numbers, and a topology has 4", "4x4x1x2 for v2 and v3"),
        ("0x2x1x2", "'0x2x1x2' is not a topology: each number must be at least 1", ""),
        ("999x999x999x2", "the limit is 65,536", ""),
        ("a TPU", "'a TPU' is not a topology", "write a name, such as v3-8"),
        ("", "'' is not a topology", "write a name"),
        ("-2x2x1x2", "is not a topology", "write a name"),
    ],
)
def test_what_is_no_topology_says_why(text: str, message: str, hint: str) -> None:
    with pytest.raises(tpu_topology.ShapeError) as refused:
        tpu_topology.parse(text)
    assert message in str(refused.value)
    assert hint in refused.value.hint


def test_the_shapes_that_fit_divide_the_mesh() -> None:
    found = list(tpu_topology.shapes(tpu_topology.parse("v2-8")))
    assert found[:3] == [((1, 1, 1, 1), 8), ((1, 1, 1, 2), 4), ((1, 2, 1, 1), 4)]
    assert found[-1] == ((2, 2, 1, 2), 1)
    assert all(math.prod(shape) * replicas == 8 for shape, replicas in found)


def test_a_footprint_that_does_not_fit_is_explained() -> None:
    problem = tpu_topology.fit_problem(tpu_topology.parse("v2-8"), (1, 2, 2, 2))
    assert problem is not None
    assert str(problem) == (
        "the computation footprint [1, 2, 2, 2] does not fit in the topology [2, 2, 1, 2]: 2 is more than the mesh's size in z, 1"
    )
    assert problem.hint == "shapes with 8 logical devices that fit: [2, 2, 1, 2]"
    problem = tpu_topology.fit_problem(tpu_topology.parse("v4-8"), (1, 1, 1, 2))
    assert "2 is more than the number of cores of a chip, 1" in str(problem)
    problem = tpu_topology.fit_problem(tpu_topology.parse("v2-8"), (3, 1, 1, 1))
    assert problem is not None
    assert "3 logical devices for each replica cannot be had" in problem.hint


def test_more_replicas_than_fit_are_refused() -> None:
    mesh = tpu_topology.parse("v2-8")
    assert tpu_topology.fit_problem(mesh, (1, 1, 1, 2), 4) is None
    problem = tpu_topology.fit_problem(mesh, (1, 1, 1, 2), 5)
    assert problem is not None
    assert str(problem).startswith("5 replicas of 2 logical devices are asked for, and 4 of the shape [1, 1, 1, 2] fit in the topology")
    assert problem.hint.startswith("num_replicas: 4")


# --- the three rules -----------------------------------------------------------------------------


def test_a_tensor_that_can_be_split() -> None:
    assert list(partition.complaints([1, 2, 4, 1], [128, 224, 224, 3], 8)) == []
    assert partition.part_of([1, 2, 4, 1], [128, 224, 224, 3]) == (128, 112, 56, 3)
    assert partition.count_bytes((128, 112, 56, 3), "float32") == 128 * 112 * 56 * 3 * 4
    assert list(partition.complaints([1, 2, 4, 1], [None, 224, 224, 3], 8)) == []
    assert partition.part_of([2, 2], [None, 6]) == (None, 3)


def test_each_rule_has_its_own_words() -> None:
    rank, product = partition.complaints([1, 2, 4], [128, 224, 224, 3], 2)
    assert rank.startswith("[1, 2, 4] has 3 numbers, and the tensor has 4 dimensions, [128, 224, 224, 3]: ")
    assert product == "[1, 2, 4] makes 8 parts, and a replica has 2 logical devices: the product of the numbers must be 2"
    assert list(partition.complaints([1, 2, 4, 1], [128, 225, 222, 3], 8)) == [
        "dimension 1 has the size 225, which cannot be divided into 2 equal parts",
        "dimension 2 has the size 222, which cannot be divided into 4 equal parts",
    ]


def test_what_nobody_knows_is_not_judged() -> None:
    assert list(partition.complaints([2, 2], None, None)) == []
    assert list(partition.complaints([2, 2], [3, None], None)) == ["dimension 0 has the size 3, which cannot be divided into 2 equal parts"]
