"""The controller of a run, as far as its lock says, that does nothing: ``hold.py RUN_DIR``, until its standard input closes."""

import sys
from pathlib import Path

from orchestrator.record.storage.run_directory import RunDir

run = RunDir(Path(sys.argv[1]))
run.lock.acquire()
print("locked", flush=True)
sys.stdin.read()
