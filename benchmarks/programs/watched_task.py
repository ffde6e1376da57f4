"""Does what a quick training does for its agent, and nothing else: it listens at its port, and writes its pace once a second, a report four
times a second, and a line of output once a second.
"""

import json
import os
import socket
import time

cluster = json.loads(os.environ["TF_CONFIG"])
address = cluster["cluster"][cluster["task"]["type"]][cluster["task"]["index"]]
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind(("", int(address.rpartition(":")[2])))
listener.listen()
directory = os.environ["ORCH_LOG_DIR"]
time.sleep(cluster["task"]["index"] / 64)  # trainings do not write at one moment
with open(os.path.join(directory, "reports.jsonl"), "ab", buffering=0) as reports:
    for step in range(1, 1_000_000):
        reports.write(json.dumps({"at": time.time(), "step": step, "loss": 1 / step}).encode() + b"\n")
        if step % 4 == 0:
            pace = {"step": step, "rate": 4.0, "work": 0.2, "peers": 0.04, "input": 0.01}
            pace |= {"window": step // 20, "came": step, "met": step, "waits": 0.0}
            with open(os.path.join(directory, "pace.json"), "w") as file:
                file.write(json.dumps(pace))
            print(f"step {step}", flush=True)
        time.sleep(0.25)
