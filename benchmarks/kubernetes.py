"""Kubernetes, on the tests' own bed (two nodes in network namespaces of this machine; root only), in turns with pods written by hand.

From nothing, and from pods that are ready, to the first all-reduce of two workers: ``orch up``, ``orch up -d``, and two pods with TF_CONFIG
in their manifest, as an Indexed Job makes them. Requests to the API server: until the tasks run, and in a minute while they run. A run of
32 pods with tasks that need no TensorFlow. All nodes share this machine's cores, and the image is on them.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import PROGRAMS, environment, load, orch_command, spread, table
from tests.kubernetes_bed.bed import Namespace
from tests.kubernetes_bed.outside import joined, missing, used

DEADLINE_S = 400.0
WORKERS = 2
PORT = 2222
SCRIPT = """\
import json, os, first_reduce
first_reduce.reduce_once("/tmp")
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
print("times", open(f"/tmp/{index}.json").read(), flush=True)
"""
COUNTED = """\
#!/bin/sh
exec {kubectl} --v=6 --logtostderr=false --log-file={logs}/$$.log "$@"
"""
REQUEST = re.compile(r"\b(GET|POST|PUT|PATCH|DELETE) https")
Start = tuple[float, float]
"""Seconds to the last worker's first all-reduce: from nothing, and from pods that are all ready."""


@contextmanager
def namespace(files: Path) -> Iterator[Namespace]:
    with joined() as connection, used(alone=False):
        found = Namespace(connection, files)
        found.make()
        try:
            yield found
        finally:
            found.take_away()


def write(kube: Namespace, directory: Path, *, kubectl: str = "kubectl") -> None:
    """A directory with the script and its spec."""
    shutil.copy(PROGRAMS / "first_reduce.py", directory)
    (directory / "train.py").write_text(SCRIPT)
    settings = {"type": "kubernetes", "image": kube.image, "image_pull_policy": "Never", "kubectl": [kubectl]}
    (directory / "orch.yaml").write_text(json.dumps({"backend": settings}))


def call(kube: Namespace, directory: Path, *words: str, check: bool = True) -> str:
    """The output of a command of orch."""
    env = environment(TF_CPP_MIN_LOG_LEVEL="2", **kube.env)
    argv = [*orch_command(), *words]
    done = subprocess.run(argv, cwd=directory, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S)
    if check and done.returncode:
        raise SystemExit(f"orch {' '.join(words)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def times_in(texts: list[str]) -> list[dict[str, float]]:
    found = [json.loads(line.partition("times ")[2]) for text in texts for line in text.splitlines() if "times {" in line]
    if len(found) != WORKERS:
        raise SystemExit(f"{len(found)} of {WORKERS} workers have told their times:\n{texts}")
    return found


def by_orch(kube: Namespace, *more: str) -> Start:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        write(kube, directory)
        began = time.time()
        call(kube, directory, "up", "train.py", "-n", str(WORKERS), "--quiet", *more)
        if more:
            call(kube, directory, "wait")
        run = directory / ".orch/latest"
        reduced = max(one["reduced"] for one in times_in([path.read_text() for path in run.glob("attempt-1/*/stdout.log")]))
        events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
        ready = next(event["at"] for event in events if event["event"] == "allocated")
        return reduced - began, reduced - ready


def attached(kube: Namespace) -> Start:
    return by_orch(kube)


def detached(kube: Namespace) -> Start:
    return by_orch(kube, "-d")


def by_hand(kube: Namespace) -> Start:
    """Two pods, whose main process is the script; it begins when the pod is ready."""
    names = [f"train-{index}" for index in range(WORKERS)]
    cluster = {"worker": [f"{name}.train:{PORT}" for name in names]}
    files = {"first_reduce.py": (PROGRAMS / "first_reduce.py").read_text(), "train.py": SCRIPT}
    labels = {"app": "train"}
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels}
    objects = [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "train"}, "spec": service},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "train"}, "data": files},
        *(_pod(kube, name, labels, {"cluster": cluster, "task": {"type": "worker", "index": index}}) for index, name in enumerate(names)),
    ]
    began = time.time()
    kube.kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    for name in names:
        kube.wait_for_phase(name, "Succeeded")
    found = times_in([kube.kubectl("logs", name) for name in names])
    kube.kubectl("delete", "pod,service,configmap", *names, "train", "--ignore-not-found")
    reduced = max(one["reduced"] for one in found)
    return reduced - began, reduced - max(one["begun"] for one in found)


def _pod(kube: Namespace, name: str, labels: dict[str, str], tf_config: dict[str, object]) -> dict[str, object]:
    container = {
        "name": "main",
        "image": kube.image,
        "imagePullPolicy": "Never",
        "command": ["python3", "/code/train.py"],
        "env": [{"name": "TF_CONFIG", "value": json.dumps(tf_config)}, {"name": "HOME", "value": "/tmp"}],
        "volumeMounts": [{"name": "code", "mountPath": "/code"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        "hostname": name,
        "subdomain": "train",
        "containers": [container],
        "volumes": [{"name": "code", "configMap": {"name": "train"}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


# --- requests, and many pods --------------------------------------------------------------------


def many(kube: Namespace, pods: int, seconds: float, *more: str) -> tuple[float, int, float]:
    """The seconds until all tasks of so many pods run, the requests to the API server until then, and those of a minute after that."""
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as logs:
        directory, counted = Path(name), Path(logs, "kubectl")
        counted.write_text(COUNTED.format(kubectl=shutil.which("kubectl", path=kube.env["PATH"]), logs=logs))
        counted.chmod(0o755)
        write(kube, directory, kubectl=str(counted))
        (directory / "first_reduce.py").unlink()
        (directory / "train.sh").write_text("#!/bin/sh\necho up\nexec sleep 1000\n")
        (directory / "train.sh").chmod(0o755)
        env, none = environment(**kube.env), subprocess.DEVNULL
        began = time.time()
        words = ["up", "--no-python", "./train.sh", "-n", str(pods), "--quiet", *more]
        with open(Path(logs, "said"), "wb") as said:
            up = subprocess.Popen([*orch_command(), *words], cwd=directory, env=env, stdin=none, stdout=said, stderr=said)
        try:
            while not _all_run(kube, directory, pods, is_far=bool(more)):
                if time.time() > began + DEADLINE_S or (up.poll() or 0) != 0:
                    raise SystemExit(f"{pods} pods do not run:\n{Path(logs, 'said').read_text()[-2000:]}")
                time.sleep(2.0 if more else 0.2)
            ran_s = _started(directory) - began
            before, at = _requests(logs), time.monotonic()
            time.sleep(seconds)
            return ran_s, before, (_requests(logs) - before) * 60 / (time.monotonic() - at)
        finally:
            call(kube, directory, "down", check=False)
            up.wait(DEADLINE_S)
            call(kube, directory, "wait", check=False)


def _all_run(kube: Namespace, directory: Path, pods: int, *, is_far: bool) -> bool:
    """Whether all tasks have begun. A run whose controller is far is asked, which is a request."""
    if is_far:
        call(kube, directory, "ps", check=False)
    events = directory / ".orch/latest/events.jsonl"
    return events.exists() and events.read_text().count('"task_started"') >= pods


def _started(directory: Path) -> float:
    lines = (directory / ".orch/latest/events.jsonl").read_text().splitlines()
    return max(float(event["at"]) for event in map(json.loads, lines) if event["event"] == "task_started")


def _requests(logs: str) -> int:
    return sum(len(REQUEST.findall(path.read_text(errors="replace"))) for path in Path(logs).glob("*.log"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pods", type=int, default=32)
    parser.add_argument("--quick", action="store_true", help="one round")
    options = parser.parse_args()
    if why := missing():
        print(f"kubernetes: NOT MEASURED: {why}")
        return
    with tempfile.TemporaryDirectory() as files, namespace(Path(files)) as kube:
        ways: tuple[Callable[[Namespace], Start], ...] = (attached, detached, by_hand)
        rounds = [[way(kube) for way in ways] for _ in range(1 if options.quick else options.rounds)]
        rows = []
        for number, words in enumerate(("from nothing to the first all-reduce (s)", "from pods that are ready to it (s)")):
            rows.append((words, *(spread([one[way][number] for one in rounds], "{:.1f}") for way in range(len(ways)))))
        table((f"{WORKERS} workers", "orch up", "orch up -d", "TF_CONFIG by hand"), rows)
        minute = 20.0 if options.quick else 60.0
        for words, more in (("orch up", ()), ("orch up -d", ("-d",))):
            for pods in (WORKERS, options.pods):
                ran_s, before, after = many(kube, pods, minute, *more)
                said = f"{words}, {pods} pods without TensorFlow: all tasks run after {ran_s:.1f} s and {before} requests to the API server"
                print(f"{said}; then {after:.1f} requests a minute", flush=True)
        print(load())


if __name__ == "__main__":
    main()
