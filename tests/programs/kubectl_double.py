"""A kubectl with an API server and nodes that behave as Kubernetes 1.36 does, in the directory ``$KUBECTL_DOUBLE``.

A pod is there and ready as soon as it is made, and ``exec`` runs its command on this machine. `evict` takes a pod away as the API does: its
object gets the reason and the time of its deletion, its agent gets SIGTERM, and half a second later the object is gone. Only then do the
connections to the pod end.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

GONE_S = 0.5
"""How long after SIGTERM a current kubelet has the API server remove a pod whose processes end at once."""
BUSY_S = 30.0
"""How much longer the object stays where nobody has asked for it yet: on a busy machine the question may be late, but must come before the
connections end, which they do only once the object is gone."""


def evict(home: Path, name: str, condition: dict[str, str]) -> None:
    """Take a pod away, and wait until its object is gone."""
    path = home / f"{name}.json"
    pod = json.loads(path.read_text())
    pod["metadata"]["deletionTimestamp"] = "2026-11-28T12:00:00Z"
    pod["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", **condition}]
    new = home / "new"
    new.write_text(json.dumps(pod))
    new.rename(path)
    os.kill(int((home / f"{name}.pid").read_text()), signal.SIGTERM)
    time.sleep(GONE_S)
    until = time.monotonic() + BUSY_S
    while not (home / "asked").exists() and time.monotonic() < until:
        time.sleep(0.01)
    path.unlink()


def _ready(name: str) -> dict[str, Any]:
    status = {
        "phase": "Running",
        "podIP": "127.0.0.1",
        "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": "2026-11-28T11:00:00Z"}}}],
    }
    return {"kind": "Pod", "metadata": {"name": name}, "spec": {"nodeName": "node-1", "containers": []}, "status": status}


def main(home: Path, words: list[str]) -> int:
    words = [word for word in words if not word.startswith(("--context=", "--namespace=", "--kubeconfig="))]
    match words:
        case ["auth", *_]:
            print("yes")
        case ["create", "-f", "-", *more]:
            text = sys.stdin.read()
            for name in re.findall(r"^kind: Pod\nmetadata:\n  name: (\S+)", text, re.MULTILINE):
                (home / f"{name}.json").write_text(json.dumps(_ready(name)))
            print("uid-1" if more else "created")
        case ["get", "pods", *_]:
            for path in sorted(home.glob("*.json")):
                print(json.dumps({"type": "ADDED", "object": json.loads(path.read_text())}), flush=True)
            time.sleep(600)
        case ["get", "pod", name, *_]:
            path = home / f"{name}.json"
            text = path.read_text() if path.exists() else ""
            if "deletionTimestamp" in text:
                (home / "asked").touch()
            print(text)
        case ["exec", "-i", name, "-c", "main", "--", *argv]:
            agent = subprocess.Popen(argv)
            (home / f"{name}.pid").write_text(str(agent.pid))
            code, path = agent.wait(), home / f"{name}.json"
            while path.exists() and "deletionTimestamp" in path.read_text():
                time.sleep(0.01)
            return code
        case ["delete", *_]:
            for path in home.glob("*.json"):
                path.unlink()
        case _:
            print(f"error: unknown command {words}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(os.environ["KUBECTL_DOUBLE"]), sys.argv[1:]))
