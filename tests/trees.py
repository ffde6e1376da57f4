"""Trees of a spec, for tests that begin with plain data and not with a text."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.model.settings.document import Node


def wrap(value: Any, place: str) -> Node:
    """Plain data (the kind that JSON has) as a tree, every node at `place`."""
    if isinstance(value, dict):
        return Node({key: wrap(item, place) for key, item in value.items()}, place)
    if isinstance(value, (list, tuple)):
        return Node([wrap(item, place) for item in value], place)
    return Node(value, place, value if isinstance(value, str) else json.dumps(value))


def value_of(node: Node) -> Any:
    """The value of a node of which the test knows whether it is a mapping, a list or a scalar."""
    return node.value
