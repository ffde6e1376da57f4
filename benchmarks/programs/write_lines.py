"""Writes numbered lines to stdout as fast as they are taken, then waits until all its peers have done so.

Usage: ``write_lines.py DIRECTORY WRITERS LINES [INDEX]``; without INDEX, the RANK of the environment. Its times go to
``DIRECTORY/<index>.json``. It waits for the others because honcho ends everything when the first process ends.
"""

import json
import os
import sys
import time
from pathlib import Path

directory, writers, lines = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
index = int(sys.argv[4] if len(sys.argv) > 4 else os.environ["RANK"])
PADDING = "x" * 100

begun = time.time()
for first in range(0, lines, 100):
    block = "".join(f"writer {index} line {number:09d} {PADDING}\n" for number in range(first, min(first + 100, lines)))
    sys.stdout.write(block)
sys.stdout.flush()
ended = time.time()

unfinished = directory / f"{index}.part"
unfinished.write_text(json.dumps({"begun": begun, "ended": ended}))
unfinished.rename(directory / f"{index}.json")
while len(list(directory.glob("*.json"))) < writers:
    time.sleep(0.01)
