"""Hosts with different versions of Python or TensorFlow: their cluster may hang, or fail with an error that names no version."""

from __future__ import annotations

from collections.abc import Mapping

from worker.protocol.messages import HostReady
from worker.values.words import few


def compare(facts: Mapping[str, HostReady]) -> list[str]:
    """A sentence for each version that is not the same on all hosts. Patch releases of Python do not count."""
    found = {
        "Python": {host: ".".join(known.python_version.split(".")[:2]) for host, known in facts.items()},
        "TensorFlow": {host: known.tensorflow for host, known in facts.items() if known.tensorflow},
    }
    lines = []
    for what, versions in found.items():
        hosts = {version: [host for host in versions if versions[host] == version] for version in versions.values()}
        if len(hosts) > 1:
            differ = "; ".join(f"{version} on {few(names, 4)}" for version, names in hosts.items())
            lines.append(f"the hosts' {what} differs: {differ}; a cluster of them may hang or fail (python: and setup: choose another)")
    return lines
