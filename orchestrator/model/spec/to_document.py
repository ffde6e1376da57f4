"""The way back from a `ClusterSpec`: plain data that `parse` reads again."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from worker.contract import DATA_SERVICE, CollectiveSettings

from . import device_keys
from .sections import DEFAULT_COLLECTIVES, BackendSpec, ClusterSpec, Restart, TaskSpec, Timeouts


def to_document(spec: ClusterSpec) -> dict[str, Any]:
    """The spec as plain data under the keys of orch.yaml: `parse` reads it (as JSON, too) and gives the same spec."""
    document = {
        "name": spec.name,
        "strategy": spec.strategy,
        spec.program.kind: spec.program.target,
        "args": list(spec.program.args),
        "python": spec.python,
        "workdir": spec.workdir,
        "tasks": {tasks.type: _task_document(tasks) for tasks in spec.tasks},
        "defaults": {"env": dict(spec.env)},
        "serve": spec.serve,
        "timeouts": {field.name: getattr(spec.timeouts, field.name) for field in fields(Timeouts)},
        "collectives": _collectives_document(spec.collectives),
        "restart": {field.name: getattr(spec.restart, field.name) for field in fields(Restart)},
        "ports": list(spec.ports or ()),
        "backend": _backend_document(spec.backend),
    }
    given = {key: value for key, value in document.items() if value not in ("", [], {})}
    return given if spec.preload is None else {**given, "preload": list(spec.preload)}


def _collectives_document(collectives: CollectiveSettings) -> dict[str, Any]:
    """What differs from the default: under another strategy the key must not be there at all."""
    return {
        field.name: getattr(collectives, field.name)
        for field in fields(CollectiveSettings)
        if getattr(collectives, field.name) != getattr(DEFAULT_COLLECTIVES, field.name)
    }


def _backend_document(backend: BackendSpec) -> dict[str, Any]:
    if not backend.hosts:
        return {**_given_fields(backend), "type": backend.type}
    return {**_given_fields(backend), "type": backend.type, "hosts": [_given_fields(host) for host in backend.hosts]}


def _given_fields(value: Any) -> dict[str, Any]:
    """The fields that are not at their default, as plain data."""
    found = {field.name: getattr(value, field.name) for field in fields(value) if getattr(value, field.name) != field.default}
    return {name: list(item) if isinstance(item, tuple) else item for name, item in found.items()}


def _task_document(tasks: TaskSpec) -> dict[str, Any]:
    if tasks.type in DATA_SERVICE:
        return {"count": tasks.count, "env": dict(tasks.env)}
    return {
        "count": tasks.count,
        "args": None if tasks.args is None else list(tasks.args),
        "env": dict(tasks.env),
        "devices": device_keys.write(tasks.devices),
        "overrides": {str(index): {"devices": device_keys.write(devices)} for index, devices in tasks.overrides.items()},
    }
