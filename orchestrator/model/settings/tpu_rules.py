"""The rules between the keys of `tpu:`. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from worker.settings import partition
from worker.settings.tpu_settings import ADDRESS, AUTO, LOCAL

from .. import tpu_topology
from ..strategies import Complaint
from .draft import Draft
from .findings import listed, quoted


def complaints(draft: Draft) -> Iterator[Complaint]:
    given = draft.given.get("tpu", {})
    yield from _named(given)
    for key, check in (("topology", tpu_topology.parse), ("computation_shape", tpu_topology.computation_shape)):
        try:
            if key in given:
                check(given[key])
        except tpu_topology.ShapeError as error:
            yield f"tpu.{key}", f"tpu.{key}: {error}", error.hint
            return
    shape, replicas = given.get("computation_shape"), given.get("num_replicas")
    if given.get("topology"):
        mesh, block = tpu_topology.parse(given["topology"]), shape or (1,) * tpu_topology.RANK
        if problem := tpu_topology.fit_problem(mesh, block, replicas):
            path = "tpu.num_replicas" if replicas and not tpu_topology.fit_problem(mesh, block) else "tpu.computation_shape"
            yield path, f"{path}: {problem}", problem.hint
    for one in given.get("partition") or ():
        path, devices = f"tpu.partition.{one.name}", math.prod(shape or (1,))
        if one.dtype not in partition.ITEM_BYTES:
            yield f"{path}.dtype", f"{path}.dtype: {quoted(one.dtype)} is not known", f"write {listed(partition.ITEM_BYTES, 'or')}"
        for message in partition.complaints(one.dims, one.shape, devices) if one.dims else ("has no dims",):
            yield path, f"{path}: {message}", "" if shape else "say computation_shape, the devices of a replica"


def _named(given: Mapping[str, Any]) -> Iterator[Complaint]:
    name, zone = given.get("tpu", ""), given.get("zone")
    said = [key for key in ("zone", "project") if given.get(key)]
    if said and (name in ("", AUTO, LOCAL) or name.startswith(ADDRESS)):
        message = f"tpu.{said[0]}: finds a TPU by its name, and tpu.tpu is {repr(name) if name else 'not given'}"
        yield f"tpu.{said[0]}", message, "name the TPU with tpu: {tpu: NAME}, or leave zone and project out"
    elif len(said) == 1:
        message = f"tpu.{said[0]}: a TPU is looked up in a zone of a project, and no {'project' if zone else 'zone'} is given"
        yield f"tpu.{said[0]}", message, "give both, or neither: TensorFlow then asks the metadata server of the machine"
    if ":" in name and not name.startswith(ADDRESS):
        yield "tpu.tpu", f"tpu.tpu: {name!r:.80} is no name of a TPU", f"an address begins with {ADDRESS}: write tpu: {ADDRESS}HOST:8470"
    if name.startswith(ADDRESS) and not all(part.partition(":")[0] for part in name[len(ADDRESS) :].split(",")):
        yield "tpu.tpu", f"tpu.tpu: {name!r:.80} is not an address", f"write {ADDRESS}HOST:8470, several with commas"
