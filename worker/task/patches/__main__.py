"""Checks the table of patches against the installed packages: ``python -m worker.task.patches --check``.

Reads source files, and imports neither TensorFlow nor Keras. Exit code 0: all rows fit. 1: some do not, and their features are off.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from .package_sources import PACKAGES, Sources, problems_of
from .table import FEATURES, NAMES


def main(argv: Sequence[str]) -> int:
    """Print the rows that do not fit, and how many features are on. `argv`: ``--check``, and a directory of packages, if not Python's."""
    if argv[:1] != ["--check"] or len(argv) > 2:
        print("usage: python -m worker.task.patches --check [DIRECTORY_OF_PACKAGES]", file=sys.stderr)
        return 2
    place = argv[1] if len(argv) > 1 else None
    sources = Sources(None if place is None else lambda package: _directory_in(place, package))
    there = {package: sources.version(package) for package in PACKAGES if sources.directory(package)}
    print(", ".join(f"{package} {version or '?'}" for package, version in there.items()) or "none of the packages is installed")
    found = {name: problems for name in FEATURES if (problems := problems_of(name, sources))}
    for feature, problems in found.items():
        print(f"off: {feature}")
        for problem in problems:
            print(f"    {problem}")
    replaced = sum(not each.is_read for each in NAMES.values())
    print(f"{len(FEATURES) - len(found)} of {len(FEATURES)} features are on; orch replaces {replaced} names")
    return 1 if found else 0


def _directory_in(place: str, package: str) -> str:
    directory = os.path.join(place, package)
    return directory if os.path.isdir(directory) else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
