"""The same as ``lose_one.py`` for PyTorch with gloo, started by torchrun. Usage: ``lose_one_torch.py DIRECTORY``."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from moments import write

directory = sys.argv[1]
died = os.path.join(directory, "died")
again = os.path.exists(died)

dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
if again:
    write(directory, f"{dist.get_rank()}.json", {"reduced": time.time()})
    dist.destroy_process_group()
    sys.exit()
for _ in range(20):
    dist.all_reduce(one)
if dist.get_rank() == 1:
    write(directory, "died", time.time())
    os.kill(os.getpid(), signal.SIGKILL)
while True:
    dist.all_reduce(one)
