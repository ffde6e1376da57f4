"""The output of `orch tpu`, as text or JSON: the mesh of a TPU, the replicas, and the parts of tensors. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from worker.settings.partition import ITEM_BYTES, complaints, count_bytes, part_of, show
from worker.settings.tpu_settings import Partition
from worker.values.fast_dataclass import dataclass
from worker.values.words import bytes_of, count_of

from ..model import tpu_topology
from ..model.tpu_topology import Mesh
from ..record.text.lines import RESET

MOST_SHOWN = 256
"""The most devices in the table and the picture; --json has all."""
_WIDTH = 160
_COLORS = ("\x1b[36m", "\x1b[33m", "\x1b[32m", "\x1b[35m", "\x1b[34m", "\x1b[31m")


@dataclass(frozen=True, slots=True)
class TpuReplicas:
    """TensorFlow's device assignment."""

    places: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """The coordinates (x, y, z, core), by replica and logical device."""
    names: tuple[tuple[str, ...], ...] = ()
    """The names of the devices, by replica and logical device."""
    version: str = ""
    problem: str = ""
    """Why there is no assignment."""


@dataclass(frozen=True, slots=True)
class Layout:
    mesh: Mesh
    shape: tuple[int, ...]
    """The computation shape: the devices of one replica in x, y, z and core."""
    replicas: int
    assignment: TpuReplicas

    @property
    def cores(self) -> int:
        """The number of logical devices of a replica."""
        return math.prod(self.shape)


def names() -> Iterator[str]:
    """The topologies that have a name, as a table."""
    yield "name          mesh: x, y, z, core   devices  hosts"
    for known in names_json():
        yield f"{known['name']:<13} {'x'.join(map(str, known['mesh'])):<21} {known['devices']:>7}  {known['hosts']:>5}"


def names_json() -> list[dict[str, Any]]:
    """The topologies that have a name, as data."""
    meshes = (tpu_topology.parse(f"{name}-{size}") for name, known in tpu_topology.GENERATIONS.items() for size in known.sizes)
    return [{"name": mesh.name, "mesh": mesh.shape, "devices": mesh.devices, "hosts": mesh.hosts} for mesh in meshes]


def to_text(layout: Layout, partitions: Sequence[Partition], *, color: bool) -> Iterator[str]:
    yield from _head(layout)
    if layout.assignment.problem:
        yield ""
        yield f"no core assignment: {layout.assignment.problem}"
    else:
        yield from _table(layout, color)
        yield from _picture(layout, color)
    yield from _shapes(layout)
    for one in partitions:
        yield from _partition(one, layout.cores)


def to_json(layout: Layout, partitions: Sequence[Partition]) -> dict[str, Any]:
    mesh, assignment = layout.mesh, layout.assignment
    return {
        "topology": list(mesh.shape),
        "names": tpu_topology.names_of(mesh),
        "devices": mesh.devices,
        "hosts": mesh.hosts,
        "computation_shape": list(layout.shape),
        "logical_devices": layout.cores,
        "num_replicas": layout.replicas,
        "most_replicas": tpu_topology.count_replicas(mesh, layout.shape),
        "assignment": [[list(place) for place in replica] for replica in assignment.places] or None,
        "device_names": [list(replica) for replica in assignment.names] or None,
        "tensorflow": assignment.version or None,
        "problem": assignment.problem or None,
        "shapes": [{"computation_shape": list(shape), "replicas": count} for shape, count in tpu_topology.shapes(mesh)],
        "partitions": [_partition_json(one, layout.cores) for one in partitions],
    }


def _partition_json(one: Partition, cores: int) -> dict[str, Any]:
    broken = list(complaints(one.dims, one.shape, cores))
    found: dict[str, Any] = {"name": one.name, "dims": list(one.dims), "dtype": one.dtype, "problems": broken}
    if one.shape is not None and not broken:
        part = part_of(one.dims, one.shape)
        found |= {"shape": list(one.shape), "part": list(part), "part_bytes": None if None in part else count_bytes(part, one.dtype)}
    return found


def breaks(one: Partition, cores: int) -> bool:
    """True if this split of a tensor over the logical devices of a replica is impossible."""
    return any(True for _ in complaints(one.dims, one.shape, cores))


def _head(layout: Layout) -> Iterator[str]:
    mesh = layout.mesh
    x, y, z, cores = mesh.shape
    known = [name for name in tpu_topology.names_of(mesh) if name != mesh.name.lower()]
    also = f" (also {', '.join(known)})" if known else ""
    of_each = f", {cores} devices each" if cores > 1 else ""
    yield f"topology {mesh.name}{also}: {count_of(x * y * z, 'chip')} in a mesh of {x} x {y} x {z}{of_each}"
    yield f"  {count_of(mesh.devices, 'device')} on {count_of(mesh.hosts, 'host')}"
    most = tpu_topology.count_replicas(mesh, layout.shape)
    yield f"computation shape {list(layout.shape)}: {count_of(layout.cores, 'logical device')} for each replica"
    used = layout.replicas * layout.cores
    idle = f"; {count_of(mesh.devices - used, 'device')} idle" if used < mesh.devices else ""
    yield f"  {count_of(layout.replicas, 'replica')}{f' of {most} that fit' if layout.replicas < most else ''}{idle}"


def _table(layout: Layout, color: bool) -> Iterator[str]:
    places, names = layout.assignment.places, layout.assignment.names
    yield ""
    yield f"TensorFlow {layout.assignment.version} (DeviceAssignment.build) gives them these devices:"
    yield "  replica  logical device  x,y,z,core  device"
    rows = [(replica, core) for replica in range(layout.replicas) for core in range(layout.cores)]
    for replica, core in rows[:MOST_SHOWN]:
        place = ",".join(map(str, places[replica][core]))
        yield f"  {_paint(f'{replica:<7}', replica, color)}  {core:<14}  {place:<10}  {names[replica][core]}"
    if len(rows) > MOST_SHOWN:
        yield f"  … and {len(rows) - MOST_SHOWN:,} more; --json has all"


def _picture(layout: Layout, color: bool) -> Iterator[str]:
    """Each plane of the mesh, with a row for each y and a column for each x; a cell has the cores of a chip."""
    x, y, z, cores = layout.mesh.shape
    cell = len(f"{layout.replicas - 1}.{layout.cores - 1}")
    idle = "-".ljust(cell)
    chip = cores * (cell + 1) + 1
    if layout.mesh.devices > MOST_SHOWN * 4 or 6 + x * (chip + 2) > _WIDTH:
        return
    cells = {
        place: _paint(f"{replica}.{core}".ljust(cell), replica, color)
        for replica, places in enumerate(layout.assignment.places)
        for core, place in enumerate(places)
    }
    yield ""
    yield "the mesh: REPLICA.LOGICAL DEVICE, or a dash for a device that is idle"
    for plane in range(z):
        yield f"  {f'z={plane}' if z > 1 else '':<4} {'  '.join(f'x={column}'.ljust(chip) for column in range(x))}".rstrip()
        for row in range(y):
            chips = (" ".join(cells.get((column, row, plane, core), idle) for core in range(cores)) for column in range(x))
            yield f"  {f'y={row}':<4} [{']  ['.join(chips)}]"


def _paint(text: str, replica: int, color: bool) -> str:
    return f"{_COLORS[replica % len(_COLORS)]}{text}{RESET}" if color else text


def _shapes(layout: Layout) -> Iterator[str]:
    yield ""
    yield "computation shapes that fit this topology without a rest:"
    yield "  logical devices  replicas  shapes"
    for size, group in itertools.groupby((shape for shape, _ in tpu_topology.shapes(layout.mesh)), key=math.prod):
        found = [",".join(map(str, shape)) for shape in group]
        more = f"  … {len(found) - 5} more" if len(found) > 5 else ""
        yield f"  {size:<15}  {layout.mesh.devices // size:<8}  {'  '.join(found[:5])}{more}"


def _partition(one: Partition, cores: int) -> Iterator[str]:
    yield ""
    name = f"{one.name}: " if one.name else ""
    of = f"{one.dtype}{show(one.shape)}" if one.shape is not None else "a tensor of unknown shape"
    yield f"{name}{of} split by {list(one.dims)} over {count_of(cores, 'logical device')}"
    found = _partition_json(one, cores)
    yield from (f"  no: {message}" for message in found["problems"])
    if one.shape is not None and "part" in found:
        part = found["part"]
        yield f"  each device gets {one.dtype}{show(part)}: {_bytes(part, one.dtype)} of {_bytes(one.shape, one.dtype)}"
    elif not found["problems"]:
        yield "  the product is right; the tensor's shape would say what each device gets"


def _bytes(shape: Sequence[int | None], dtype: str) -> str:
    rest = " for each element of the dimensions of unknown size" if None in shape else ""
    return bytes_of(count_bytes(shape, dtype)) + rest


DTYPES = tuple(ITEM_BYTES)
