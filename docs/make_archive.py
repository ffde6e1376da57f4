"""Makes orch.pyz, which is orch in one file: python docs/make_archive.py dist/orch.pyz

It has what orch needs, click and the reader of YAML, and no compiled module: it runs with each Python and on each machine. xz makes it
fit into a Secret or a ConfigMap of Kubernetes, of 1 MiB.
"""

from __future__ import annotations

import json
import lzma
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OTHERS = ("click", "pyyaml")


def files() -> Iterator[tuple[str, str]]:
    """The name and the text of each file."""
    for package in ("orchestrator", "worker"):
        for path in sorted((ROOT / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    for page in sorted((*ROOT.glob("docs/*.md"), *ROOT.glob("docs/*.csv"))):
        yield f"orchestrator/cli/pages/{page.name}", page.read_text(encoding="utf-8")
    yield "LICENSE", (ROOT / "LICENSE").read_text(encoding="utf-8")
    for name in OTHERS:
        found = metadata.distribution(name)
        for file in found.files or ():
            if file.suffix in (".py", ".typed") or "LICENSE" in file.name:
                yield file.as_posix(), file.read_text(encoding="utf-8")


def make(path: Path) -> None:
    packed = lzma.compress(json.dumps(dict(files())).encode(), preset=9 | lzma.PRESET_EXTREME)
    with open(path, "wb") as whole:
        whole.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(whole, "w") as archive:
            for name, data in (("__main__.py", (ROOT / "docs" / "archive_main.py").read_bytes()), ("files.json.xz", packed)):
                archive.writestr(zipfile.ZipInfo(name), data)  # without a time: the same files are the same archive
    path.chmod(0o755)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
