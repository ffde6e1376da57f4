"""Puts the documentation into the wheel: hatchling runs this class (pyproject.toml). pip installs share/man/man1/orch.1 from there, and
`orch help` prints parts of the other pages.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Pages(BuildHookInterface):  # type: ignore[misc]
    """Makes the man page of the tree that is built, so that no page of another day can be in a wheel. An editable one keeps that of its
    day, and has the other pages where they are written.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="orch-man-")
        page = Path(self._place.name, "orch.1")
        with open(page, "wb") as output:
            subprocess.run([sys.executable, Path(self.root, "docs", "make_man.py")], check=True, stdout=output)
        if version != "editable":
            pages = (page for page in Path(self.root, "docs").iterdir() if page.suffix in (".md", ".csv"))
            build_data["force_include"] |= {str(page): f"orchestrator/cli/pages/{page.name}" for page in pages}
        build_data["shared_data"][str(page)] = "share/man/man1/orch.1"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._place.cleanup()
