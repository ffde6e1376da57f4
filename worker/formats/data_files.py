"""Files of data. Standard library only."""

from __future__ import annotations

import glob
import os


def matching(pattern: str, directory: str = "") -> list[str]:
    """The files and directories that fit a pattern, sorted by the bytes of their names, each once.

    `pattern`: as for `glob.glob`, relative to `directory`; ``**`` stands for any number of directories. A pattern that is itself the name
    of an existing file stands for this file, whatever characters it contains.
    """
    path = os.path.join(directory, pattern)
    if os.path.lexists(path):
        return [path]
    found = glob.glob(os.path.join(glob.escape(directory), pattern), recursive=True)
    return sorted(set(found), key=os.fsencode)
