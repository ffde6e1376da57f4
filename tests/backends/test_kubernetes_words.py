"""What kubectl and the status of a pod say, in orch's words: tables. The texts of kubectl are those of 1.20, where nothing else is said."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.backends import Diagnosis, Host, Request, RunFacts, StartFailure, Transport, kubernetes
from orchestrator.backends.kubernetes import Kubernetes, kubectl, pod_wait
from orchestrator.backends.kubernetes.kubectl import Documents
from orchestrator.backends.kubernetes.kubectl_errors import explain_exec, to_error
from orchestrator.backends.kubernetes.pod_states import PodState, describe_end, describe_waiting, read, remedy_of
from orchestrator.backends.kubernetes.pod_wait import PodWait
from orchestrator.errors import OrchError
from orchestrator.model.settings import KubernetesSettings
from orchestrator.model.settings.document import read as document
from orchestrator.model.settings.parse import parse
from tests import golden
from worker.values.codec import to_json


@golden.cases("texts/kubectl.txt")
def test_what_kubectl_complains_of(case: golden.Case) -> None:
    error = to_error("cannot make the pods", case.given)
    case.check(f"{type(error).__name__}: {error}")


def test_a_kubectl_that_says_nothing() -> None:
    assert str(to_error("cannot make the pods", "")) == "cannot make the pods: it did not say why\nmore: orch help kubernetes"


@golden.cases("texts/kubectl_exec.txt")
def test_why_no_agent_came_up_in_a_pod(case: golden.Case) -> None:
    """The exit code of kubectl exec, and what it has said."""
    code, _, said = case.given.partition("\n")
    told = explain_exec(said, int(code))
    case.check("nothing is known" if told is None else json.dumps(to_json(told)))


def test_a_python_that_is_too_old_is_told_as_elsewhere() -> None:
    host = Host("x-0", "", sees_run_dir=False, transport=Transport(("kubectl",)))
    said = "orch: /usr/bin/python3 is Python 3.6\ncommand terminated with exit code 96"
    told = Kubernetes().explain(host, StartFailure("kubectl", 96, said))
    words = ("/usr/bin/python3 is Python 3.6; orch needs 3.10 or newer there", "set python: for x-0")
    assert told == Diagnosis(*words, is_mistake=True, about="kubernetes")


# --- the status of a pod --------------------------------------------------------------------------


def pod(status: Any, *, node: str = "n1", deleted: bool = False, memory: str = "", gates: Sequence[Any] = ()) -> dict[str, Any]:
    limits = {"resources": {"limits": {"memory": memory}}} if memory else {}
    return {
        "kind": "Pod",
        "metadata": {"name": "x-0", **({"deletionTimestamp": "2026-11-24T18:00:00Z"} if deleted else {})},
        "spec": {"schedulingGates": gates} if gates else {"nodeName": node, "containers": [{"name": "main", **limits}]},
        "status": status,
    }


RUNS = {"phase": "Running", "podIP": "10.0.0.7", "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": "x"}}}]}


@golden.cases("texts/pod_status.txt")
def test_the_state_of_a_pod_and_how_it_ended(case: golden.Case) -> None:
    """What Kueue writes into a status is from its pkg/controller/jobs/pod/pod_controller.go, `Stop`."""
    given = yaml.safe_load(case.given)
    found = None if given is None else pod(**given)
    state = "" if found is None else json.dumps(to_json(read(found)))
    case.check(f"state: {state}\nend: {describe_end(found)}\nfix: {remedy_of(found)}")


def test_a_pod_that_is_gone_does_not_go_on_though_it_was_seen_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection was cut before, and made again; then the pod was removed at once, as by ``kubectl delete --force``."""
    answers: list[dict[str, Any] | None] = [pod(RUNS)]
    monkeypatch.setattr(kubernetes, "read_pod", lambda *_: answers[0])
    monkeypatch.setattr(kubernetes, "SETTLED_S", -1.0)
    backend, host = Kubernetes(), Host("x-0", "", sees_run_dir=False, transport=Transport(("kubectl",)))
    lost = StartFailure("kubectl", 1, "", had_answered=True)
    assert backend.explain(host, lost).cause.endswith("the pod goes on on n1")
    answers[0] = None
    assert backend.explain(host, lost) == Diagnosis("the pod was deleted", about="kubernetes")


def test_what_a_run_waits_for() -> None:
    states = {
        "x-0": PodState("x-0", is_ready=True),
        "x-1": PodState("x-1", waits="unschedulable: no node"),
        "x-2": PodState("x-2", waits="unschedulable: no node"),
        "x-3": PodState("x-3", waits="is starting on n1"),
    }
    words = describe_waiting(["x-0", "x-1", "x-2", "x-3", "x-4"], states, {"x-3": "FailedMount: no such volume"})
    assert words == (
        "1 of 5 pods ready; x-1, x-2: unschedulable: no node; x-3 is starting on n1: FailedMount: no such volume; x-4 is not there yet"
    )


def test_documents_are_cut_out_of_a_stream_wherever_it_is_cut() -> None:
    texts = [{"type": "ADDED", "object": {"a": "ü{\n}"}}, [1], {"b": '"}'}]
    stream = "\n".join(json.dumps(one, indent=1, ensure_ascii=False) for one in texts).encode()
    for step in (1, 3, 7, len(stream)):
        documents = Documents()
        assert [one for at in range(0, len(stream), step) for one in documents.feed(stream[at : at + step])] == texts


# --- the wait, with a kubectl that a test writes: what a real API server does not do on demand ------


def wait_for(tmp_path: Path, script: str, names: list[str]) -> tuple[dict[str, PodState], list[str]]:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f"#!/bin/sh\ncd {tmp_path}\n{script}\n")
    kubectl.chmod(0o700)
    said: list[str] = []
    settings = KubernetesSettings(kubectl=(str(kubectl),))
    return asyncio.run(PodWait(settings, "a=b", names, "python3", said.append).run()), said


def test_a_watch_that_ends_is_begun_again_without_a_loss(tmp_path: Path) -> None:
    """The first watch ends before the pod is ready; the second one fails, as while the API server is restarted; the third one sees all."""
    for number, status in ((1, {}), (3, RUNS)):
        (tmp_path / f"{number}.json").write_text(json.dumps({"type": "ADDED", "object": pod(status)}))
    script = (
        "echo x >> calls; n=$(wc -l < calls)\n"
        "[ $n = 2 ] && { echo 'The connection to the server a:1 was refused - did you specify the right host or port?' >&2; exit 1; }\n"
        "cat $n.json; [ $n = 3 ] && exec sleep 600; exit 0"
    )
    states, said = wait_for(tmp_path, script, ["x-0"])
    assert states["x-0"].address == "10.0.0.7"
    assert said[0] == "0 of 1 pod ready; x-0 is starting on n1"
    assert said[1].startswith("cannot watch the pods: The connection to the server a:1 was refused")


def test_a_watch_that_is_forbidden_ends_the_wait(tmp_path: Path) -> None:
    said = 'Error from server (Forbidden): pods is forbidden: User "me" cannot watch resource "pods" in API group "" in the namespace "ml"'
    with pytest.raises(OrchError, match='cannot watch the pods: User "me" may not watch pods in the namespace ml\nfix: ask for a Role'):
        wait_for(tmp_path, f"echo '{said}' >&2; exit 1", ["x-0"])


def test_a_pod_that_is_deleted_before_it_is_ready_ends_the_wait(tmp_path: Path) -> None:
    (tmp_path / "gone.json").write_text(json.dumps({"type": "DELETED", "object": pod({}, node="")}))
    with pytest.raises(OrchError, match="x-0: the pod was deleted"):
        wait_for(tmp_path, "cat gone.json; exec sleep 600", ["x-0"])


def test_a_pod_that_no_watch_has_shown_is_asked_for_before_it_counts_as_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that is so busy that kubectl itself needs longer."""
    monkeypatch.setattr(pod_wait, "ABSENT_S", 0.1)
    (tmp_path / "x-0.json").write_text(json.dumps({**pod(RUNS), "kind": "Pod"}))
    script = '[ "$2" = pods ] && exec sleep 600; cat $3.json 2>&- ; exit 0'
    states, _ = wait_for(tmp_path, script, ["x-0"])
    assert states["x-0"].is_ready
    with pytest.raises(OrchError, match="x-1: the pod was deleted"):
        wait_for(tmp_path, script, ["x-1"])


def test_a_watch_that_ends_again_and_again_does_not_hide_a_pod_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_wait, "ASK_AGAIN_S", 0.01)
    monkeypatch.setattr(pod_wait, "ABSENT_S", 1.0)
    with pytest.raises(OrchError, match="x-1: the pod was deleted"):
        wait_for(tmp_path, "exit 0", ["x-1"])


def test_pods_may_appear_while_the_others_are_asked_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = PodWait(KubernetesSettings(), "a=b", ["x-0", "x-1"], "python3", lambda _: None)
    wait._states = {"x-0": PodState("x-0", is_ready=True)}
    wait._renewed_at = -1e9
    monkeypatch.setattr(pod_wait, "ask", lambda *_: wait._states.setdefault("x-1", PodState("x-1", is_ready=True)))
    asyncio.run(wait._look_closer())
    assert len(wait._states) == 2


# --- the way back ----------------------------------------------------------------------------------


@pytest.fixture
def request_of(tmp_path: Path) -> Callable[[str], tuple[Kubernetes, Request]]:
    """``request_of("exit 1")``: a run whose kubectl is this script, where ``$*`` are the words without the options."""

    def make(script: str) -> tuple[Kubernetes, Request]:
        kubectl = tmp_path / "kubectl"
        kubectl.write_text(f'#!/bin/sh\ncd {tmp_path}\nshift 2; echo "$*" >> calls\n{script}\n')
        kubectl.chmod(0o700)
        text = f"{{script: x.py, backend: {{type: kubernetes, image: 'tf:1', context: lab, namespace: ml, kubectl: ['{kubectl}']}}}}"
        spec = parse(document(text, "orch.yaml"), workdir="/home/me")
        backend = Kubernetes()
        return backend, backend.request(RunFacts(spec, "x-20261124-181500-1a2b3c4d", "/runs/x"))

    return make


async def lend(backend: Kubernetes, request: Request) -> None:
    async with backend.allocate(request, lambda _: None):
        pass


REFUSED = "echo 'The connection to the server a:1 was refused' >&2; exit 1"


def test_pods_that_cannot_be_deleted_are_told_with_the_command_that_deletes_them(
    request_of: Callable[[str], tuple[Kubernetes, Request]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After three tries; the first error comes first, and its kind decides about the exit code."""
    monkeypatch.setattr(kubectl, "DELETE_PAUSES_S", (0.0, 0.0))
    backend, request = request_of(
        f'case "$*" in auth*) ;; *jsonpath*) echo u-1;; create*) echo exceeded quota >&2; exit 1;; *) {REFUSED};; esac'
    )
    with pytest.raises(OrchError) as caught:
        asyncio.run(lend(backend, request))
    first, fix, more, second, third = str(caught.value).splitlines()
    assert (first, fix[:18], more) == ("cannot make the pods: exceeded quota", "fix: ask for less ", "more: orch help kubernetes")
    assert second.startswith("the pods were not deleted: The connection to the server a:1 was refused")
    options = f"{tmp_path}/kubectl --context=lab --namespace=ml"
    assert third.endswith(f": {options} delete service orch-x-1a2b3c4d --ignore-not-found --wait=false".partition(" --ignore")[0])
    assert (tmp_path / "calls").read_text().splitlines() == [
        "auth can-i create pods --subresource=exec",
        "create -f - -o jsonpath={.metadata.uid}",
        "create -f -",
        *["delete service orch-x-1a2b3c4d --ignore-not-found --wait=false"] * 3,
    ]
    hint = backend.cancel(request.run).hint.splitlines()[-1]
    selector = "app.kubernetes.io/instance=orch-x-1a2b3c4d,app.kubernetes.io/managed-by=orch"
    assert hint.endswith(f": {options} delete service -l {selector}")


def test_a_deletion_that_fails_once_is_tried_again(
    request_of: Callable[[str], tuple[Kubernetes, Request]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubectl, "DELETE_PAUSES_S", (0.0, 0.0))
    script = f'case "$*" in auth*) ;; create*) echo EOF >&2; exit 1;; *) [ -e tried ] && exit 0; touch tried; {REFUSED};; esac'
    backend, request = request_of(script)
    with pytest.raises(OrchError) as caught:
        asyncio.run(lend(backend, request))
    assert "not deleted" not in str(caught.value)
    assert (tmp_path / "calls").read_text().count("delete") == 2


@pytest.mark.parametrize("script", [f'case "$*" in auth*) echo no - nobody may;; *) {REFUSED};; esac', REFUSED])
def test_where_nothing_was_made_nothing_is_told_of_pods(
    request_of: Callable[[str], tuple[Kubernetes, Request]], monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(kubectl, "DELETE_PAUSES_S", (0.0, 0.0))
    with pytest.raises(OrchError) as caught:
        asyncio.run(lend(*request_of(script)))
    said, _, more = str(caught.value).splitlines()
    assert said.startswith("cannot make the pods: ")
    assert more == "more: orch help kubernetes"


def test_a_wait_that_is_cancelled_tells_of_the_pods_that_are_left(
    request_of: Callable[[str], tuple[Kubernetes, Request]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubectl, "DELETE_PAUSES_S", (0.0, 0.0))
    backend, request = request_of(f'case "$*" in delete*) {REFUSED};; get*) touch waits; exec sleep 600;; *) echo yes;; esac')

    async def cancel() -> None:
        waiting = asyncio.create_task(lend(backend, request))
        while not (tmp_path / "waits").exists():
            await asyncio.sleep(0.01)
        waiting.cancel()
        await waiting

    with pytest.raises(OrchError, match="delete service orch-x-1a2b3c4d"):
        asyncio.run(cancel())


def test_the_time_for_many_pods_grows_with_their_number(
    request_of: Callable[[str], tuple[Kubernetes, Request]], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []
    monkeypatch.setattr(kubectl, "call", lambda *_: subprocess.CompletedProcess("", 0, "yes"))
    monkeypatch.setattr(kubectl, "ask", lambda argv, doing, given, limit_s=60.0: limits.append(limit_s) or "uid")
    kubernetes._create(KubernetesSettings(), "a\n---\nb\n", 512, kubernetes._Made())
    assert limits == [60, 60 + 256]
