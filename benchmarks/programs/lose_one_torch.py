"""The same as ``lose_one.py`` for PyTorch with gloo, started by torchrun. Usage: ``lose_one_torch.py DIRECTORY``."""

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

directory = sys.argv[1]
died = os.path.join(directory, "died")
again = os.path.exists(died)


def write(name, value):
    path = os.path.join(directory, name)
    with open(path + ".part", "w") as file:
        json.dump(value, file)
    os.rename(path + ".part", path)


dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
if again:
    write(f"{dist.get_rank()}.json", {"reduced": time.time()})
    dist.destroy_process_group()
    sys.exit()
for _ in range(20):
    dist.all_reduce(one)
if dist.get_rank() == 1:
    write("died", time.time())
    os.kill(os.getpid(), signal.SIGKILL)
while True:
    dist.all_reduce(one)
