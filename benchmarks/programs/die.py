"""Waits until all its peers have started; then the last one notes the time and dies, and the others wait for SIGTERM.

Usage: ``die.py DIRECTORY TASKS [INDEX]``; without INDEX, the RANK of the environment. The time goes to ``DIRECTORY/died``.
"""

import os
import sys
import time
from pathlib import Path

directory, tasks = Path(sys.argv[1]), int(sys.argv[2])
index = int(sys.argv[3] if len(sys.argv) > 3 else os.environ["RANK"])
SETTLE_S = 0.5

(directory / f"{index}.started").touch()
while len(list(directory.glob("*.started"))) < tasks:
    time.sleep(0.05)
if index < tasks - 1:
    time.sleep(3600)
time.sleep(SETTLE_S)  # The launcher has taken notice of everybody.
with open(directory / "died", "w") as file:
    file.write(repr(time.time()))
    file.flush()
    os._exit(7)
