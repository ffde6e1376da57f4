"""The shapes of TPUs, and the replicas that fit on them, computed without TensorFlow and without a TPU. Pure.

A TPU's topology is a mesh of four dimensions, `(x, y, z, core)`: chips, and the devices that TensorFlow sees of each chip
(`tf.tpu.experimental.Topology`, tensorflow/python/tpu/topology.py). A computation shape is a block of that mesh: the logical devices of one
replica (`DeviceAssignment.build`, tensorflow/python/tpu/device_assignment.py).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from worker.values.fast_dataclass import dataclass
from worker.values.words import count_of

RANK = 4
MOST_DEVICES = 1 << 16
"""More than any TPU has: a larger mesh is a typing error."""

# Name -> chips in each dimension. A name counts TensorCores for v2, v3, v4 and v5p, of which a chip has two, and chips for v5e
# and v6e. v4, v5p: MaxText/accelerator_to_spec_map.py (AI-Hypercomputer/maxtext); the two largest of v5p: the table of slice shapes in
# docs.cloud.google.com/tpu/docs/v5p. v5e, v6e: "Configurations" in docs.cloud.google.com/tpu/docs/v5e and v6e: the same eight. v2, v3: the
# host bounds in PyTorch/XLA's torch_xla/_internal/tpu.py, for hosts of 2 x 2 chips.
_V2_V3 = {8: (2, 2), 32: (4, 4), 64: (4, 8), 128: (8, 8), 256: (8, 16), 512: (16, 16), 1024: (16, 32), 2048: (32, 32)}
_V4_V5P = {
    8: (2, 2, 1),
    16: (2, 2, 2),
    32: (2, 2, 4),
    64: (2, 4, 4),
    128: (4, 4, 4),
    256: (4, 4, 8),
    384: (4, 4, 12),
    512: (4, 8, 8),
    1024: (8, 8, 8),
    1536: (8, 8, 12),
    2048: (8, 8, 16),
    4096: (8, 16, 16),
}
_V5P = {**_V4_V5P, 8192: (16, 16, 16), 12288: (16, 16, 24)}
_V5E_V6E = {1: (1, 1), 4: (2, 2), 8: (2, 4), 16: (4, 4), 32: (4, 8), 64: (8, 8), 128: (8, 16), 256: (16, 16)}


@dataclass(frozen=True, slots=True)
class Generation:
    cores: int
    """The devices of a chip that TensorFlow sees."""
    sizes: Mapping[int, tuple[int, ...]]
    """The chips in each dimension, by the number in the name."""


GENERATIONS = {
    "v2": Generation(2, {size: chips for size, chips in _V2_V3.items() if size not in (64, 1024, 2048)}),
    "v3": Generation(2, _V2_V3),
    # The two cores of a chip work as one device ("megacore"), by the same table of MaxText. Not tested with TensorFlow.
    "v4": Generation(1, _V4_V5P),
    "v5p": Generation(1, _V5P),
    "v5e": Generation(1, _V5E_V6E),
    "v6e": Generation(1, _V5E_V6E),
}
_OTHER_NAMES = {"v5litepod": "v5e"}


class ShapeError(ValueError):
    """An impossible topology or shape. `hint`: what to write."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Mesh:
    name: str
    shape: tuple[int, ...]
    """(x, y, z, core)."""
    host: tuple[int, ...]
    """The chips of one host in x, y and z."""

    @property
    def devices(self) -> int:
        """The number of devices that TensorFlow sees."""
        return math.prod(self.shape)

    @property
    def hosts(self) -> int:
        return math.prod(self.shape[:3]) // math.prod(self.host)

    def coordinates(self) -> list[list[list[int]]]:
        """The coordinates of each device for `Topology`: by task (a task is a host), then by the number of the device on the host."""
        found = []
        steps = [range(0, size, step) for size, step in zip(self.shape, self.host, strict=False)]
        for z, y, x in itertools.product(*reversed(steps)):
            dx, dy, dz = self.host
            chips = itertools.product(range(z, z + dz), range(y, y + dy), range(x, x + dx))
            found.append([[i, j, k, core] for k, j, i in chips for core in range(self.shape[3])])
        return found


def parse(text: str) -> Mesh:
    """The topology of a name, such as ``v3-8``, or of four numbers, such as ``2x2x1x2``. Raises `ShapeError`."""
    text = text.strip()
    if named := re.fullmatch("(v[0-9][a-z]*)-([0-9]{1,6})", text.lower()):
        return _named(text, named[1], int(named[2]))
    if not re.fullmatch("[0-9]{1,6}([x,][0-9]{1,6})*", text.replace(" ", "")):
        raise ShapeError(f"{text!r:.60} is not a topology", "write a name, such as v3-8, or four numbers, such as 2x2x1x2")
    shape = tuple(int(part) for part in re.split("[x,]", text.replace(" ", "")))
    if len(shape) != RANK:
        chips = "x".join(map(str, (*shape, 1, 1)[:3]))
        hint = f"chips in x, y and z, and the devices of each chip: {chips}x2 for v2 and v3, {chips}x1 for v4 and newer"
        raise ShapeError(f"{text!r:.60} has {len(shape)} numbers, and a topology has {RANK}", hint if len(shape) in (2, 3) else "")
    if 0 in shape or math.prod(shape) > MOST_DEVICES:
        limit = "each number must be at least 1" if 0 in shape else f"it has {math.prod(shape):,} devices; the limit is {MOST_DEVICES:,}"
        raise ShapeError(f"{text!r:.60} is not a topology: {limit}")
    # A host has up to 2 x 2 chips (2 x 4 of a v5e-8 or v6e-8); an odd mesh is one host.
    host = (2, 2, 1) if shape[0] % 2 == 0 and shape[1] % 2 == 0 else shape[:3]
    return Mesh(text, shape, host)


def _named(text: str, generation: str, size: int) -> Mesh:
    generation = _OTHER_NAMES.get(generation, generation)
    known = GENERATIONS.get(generation)
    if known is None:
        names = ", ".join(GENERATIONS)
        raise ShapeError(f"{text!r} is not a topology that orch knows: the generations are {names}", "write its mesh, such as 4x4x1x1")
    if size not in known.sizes:
        sizes = ", ".join(f"{generation}-{one}" for one in known.sizes)
        raise ShapeError(f"there is no {text}", f"there are {sizes}; or write its mesh, such as 4x4x4x1")
    chips = (*known.sizes[size], 1)[:3]
    whole = known.sizes is _V5E_V6E and size <= 8  # one host has all of its chips
    return Mesh(text, (*chips, known.cores), chips if whole else (2, 2, 1))


def names_of(mesh: Mesh) -> list[str]:
    found = ((generation, size) for generation, known in GENERATIONS.items() for size in known.sizes)
    return [f"{name}-{size}" for name, size in found if _named("", name, size).shape == mesh.shape]


# --- computation shapes --------------------------------------------------------------------------


def computation_shape(shape: Sequence[int]) -> Sequence[int]:
    """A shape that may be a computation shape on some TPU. Raises `ShapeError`."""
    if len(shape) != RANK:
        message = f"must be {RANK} numbers, the devices in x, y, z and core, not {len(shape)}"
        raise ShapeError(message, "write [1, 1, 1, 2] for two devices of one chip")
    return shape


def fit_problem(mesh: Mesh, shape: Sequence[int], replicas: int | None = None) -> ShapeError | None:
    """Why replicas of this computation shape do not fit on this mesh; None if they do. `replicas` None: as many as fit."""
    devices = math.prod(shape)
    for axis, size, limit in zip(("x", "y", "z", "core"), shape, mesh.shape, strict=True):
        if size > limit:
            of = "the number of cores of a chip" if axis == "core" else f"the mesh's size in {axis}"
            where = f"the computation footprint {list(shape)} does not fit in the topology {list(mesh.shape)}"
            fitting = [str(list(other)) for other, _ in shapes(mesh) if math.prod(other) == devices]
            hint = f"shapes with {devices} logical devices that fit: {', '.join(fitting[:3])}"
            if not fitting:
                hint = f"{devices} logical devices for each replica cannot be had of its {mesh.devices} devices in equal parts"
            return ShapeError(f"{where}: {size} is more than {of}, {limit}", hint)
    most = count_replicas(mesh, shape)
    if replicas is not None and replicas > most:
        asked = f"{replicas} replicas of {count_of(devices, 'logical device')} are asked for"
        fit = f"{most} of the shape {list(shape)} fit in the topology {list(mesh.shape)}, which has {mesh.devices} devices"
        return ShapeError(f"{asked}, and {fit}", f"num_replicas: {most}, or a smaller computation shape")
    return None


def count_replicas(mesh: Mesh, shape: Sequence[int]) -> int:
    """The most replicas of a computation shape: whole blocks in each dimension, as in `device_assignment`."""
    return math.prod(size // number for size, number in zip(mesh.shape, shape, strict=True))


def shapes(mesh: Mesh) -> Iterator[tuple[tuple[int, ...], int]]:
    """The computation shapes that divide the mesh evenly, each with its number of replicas; small and compact shapes first."""
    divisors = [[number for number in range(1, size + 1) if size % number == 0] for size in mesh.shape]
    found = itertools.product(*divisors)
    # Both cores of a chip in preference to two chips, and a square in preference to a row.
    for shape in sorted(found, key=lambda one: (math.prod(one), -one[3], sum(one[:3]), one)):
        yield shape, count_replicas(mesh, shape)
