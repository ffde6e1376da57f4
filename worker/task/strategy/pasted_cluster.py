"""The strategy for the cluster of a TF_CONFIG that a user has pasted into a script that runs without orch."""

from __future__ import annotations

from collections.abc import Mapping


def strategy_of(cluster: Mapping[str, tuple[str, ...]]) -> str:
    """The name of the strategy for this cluster, which is empty without TF_CONFIG."""
    workers = len(cluster.get("chief", ())) + len(cluster.get("worker", ()))
    return "parameter_server" if "ps" in cluster else "multi_worker_mirrored" if workers > 1 else "none"
