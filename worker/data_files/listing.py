"""Which files of this host a pattern names. Standard library only."""

from __future__ import annotations

import glob
import os


def matching(pattern: str, directory: str = "") -> list[str]:
    """The files and directories that a pattern names, in the order of their bytes, each once. Empty: none.

    `pattern`: as `glob.glob`; ``**`` stands for any number of directories. It is relative to `directory`. A name that is there stands for
    itself, whatever characters are in the name.
    """
    path = os.path.join(directory, pattern)
    if os.path.lexists(path):
        return [path]
    found = glob.glob(os.path.join(glob.escape(directory), pattern), recursive=True)
    return sorted(set(found), key=os.fsencode)
