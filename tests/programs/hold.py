"""The controller of a run, as far as others see it: ``hold.py RUN_DIR`` prints each request, until its input closes or "stop" is asked."""

import os
import select
import sys
from pathlib import Path

from orchestrator.record.run_directory import RunDir

run = RunDir(Path(sys.argv[1]))
run.lock.acquire()
run.lock.sign()
print("locked", flush=True)
pipe = run.lock.requests
assert pipe is not None
while pipe in select.select([sys.stdin, pipe], [], [])[0]:
    for line in os.read(pipe, 4096).decode().splitlines():
        print(line, flush=True)
        if "stop" in line:
            sys.exit()
