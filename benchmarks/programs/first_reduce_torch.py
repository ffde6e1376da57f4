"""The same as ``first_reduce.py`` for PyTorch with gloo, started by torchrun.

Usage: ``first_reduce_torch.py DIRECTORY``. Each process writes ``DIRECTORY/<rank>.json``.
"""

import json
import os
import sys
import time

begun = time.time()
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

imported = time.time()
dist.init_process_group("gloo")
formed = time.time()
one = torch.ones(1)
dist.all_reduce(one)
assert one.item() == dist.get_world_size()
times = {"begun": begun, "imported": imported, "formed": formed, "reduced": time.time()}

path = os.path.join(sys.argv[1], f"{dist.get_rank()}.json")
with open(path + ".part", "w") as file:
    json.dump(times, file)
os.rename(path + ".part", path)
dist.destroy_process_group()  # or gloo may abort when its peers go first
