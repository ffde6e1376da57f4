"""Words for what kubectl complains of, with a remedy. Pure.

The texts are those of kubectl 1.20 to 1.35 and of the API server behind it.
"""

from __future__ import annotations

import re

from worker.values.fast_dataclass import dataclass

from ...errors import OrchError, UnansweredError, UsageError
from .. import Diagnosis

ABOUT = "kubernetes"
_FORBIDDEN = re.compile(
    r'(?P<who>User "[^"]*") cannot (?P<verb>\w+) resource "(?P<what>[\w./-]+)" in API group "[^"]*"'
    r'(?: in the namespace "(?P<where>[^"]*)")?'
)
_LOGIN = "log in again, as your cluster's documentation says; kubectl auth whoami tells who you are"
_ADDRESS = "is the cluster up, and can this machine reach it? kubectl version tells"


@dataclass(frozen=True, slots=True)
class Rule:
    """A sign in the output of kubectl, and what follows."""

    sign: str
    remedy: str
    is_mistake: bool = False
    """The request will never be accepted as it is."""
    passing: bool = False
    """Another try may help."""


RULES = (
    Rule(
        "exceeded quota", "ask for less (backend.resources, backend.pods), or wait until others have ended: kubectl describe resourcequota"
    ),
    Rule(
        "violates PodSecurity|PodSecurityPolicy|pod security",
        "the namespace forbids such a pod: change backend.user or backend.pod_template",
    ),
    Rule('namespaces? "[^"]*" not found', "name one that exists, with backend.namespace: kubectl get namespaces", is_mistake=True),
    Rule("context .*(does not exist|not found)|context was not found", "kubectl config get-contexts lists them", is_mistake=True),
    Rule(
        "localhost:8080|no configuration has been provided|invalid configuration",
        "kubectl knows no cluster: log in, set KUBECONFIG, or backend.context, backend.kubeconfig; kubectl get pods must work",
    ),
    Rule("must be logged in|Unauthorized|credentials|oidc|executable .* not found.*auth|getting credentials", _LOGIN),
    # kubectl asks for a schema before it sends anything, and then says "error validating", whatever kept it from the server.
    Rule("failed to download openapi(?!.*(?:certificate|x509|credentials|Unauthorized))", _ADDRESS, passing=True),
    Rule("certificate|x509", "the certificate of the API server does not fit the kubeconfig: fetch a new kubeconfig"),
    Rule(
        "strict decoding error|unknown field|error validating|is invalid:|BadRequest|invalid value", "correct backend: in orch.yaml", True
    ),
    Rule("no such host", "the name of the API server has no address here: check the network, or the kubeconfig"),
    Rule(
        "connection refused|was refused|i/o timeout|TLS handshake timeout|deadline exceeded|EOF|no route to host|network is unreachable|"
        "unexpected error when reading response body|etcdserver|too many requests|ServiceUnavailable|Timeout|error dialing backend|"
        "connection reset",
        _ADDRESS,
        passing=True,
    ),
    Rule('unable to upgrade connection: container not found|container not found \\("', "the container of the pod has ended", passing=True),
    Rule('pods "[^"]*" not found', "the pod was deleted"),
    Rule("unknown command|unknown flag|unknown shorthand", "update kubectl: orch needs 1.20 or newer", is_mistake=True),
)


def last_line(said: str) -> str:
    """Return what kubectl ended with: its last line that is no warning."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith(("Warning:", "W0", "W1", "I0", "I1"))]
    return lines[-1] if lines else ""


def complaint_of(said: str) -> str:
    """The complaint in few words: without the words that kubectl puts in front."""
    text = last_line(said)
    text = re.sub(r"^(error: |Error from server(?: \(\w+\))?: |Unable to connect to the server: )", "", text)
    text = re.sub(r'^error when creating "STDIN": ', "", text)
    # The schema that it wanted first is no matter of the user, why it did not get the schema is.
    text = re.sub(r'^error validating "STDIN": error validating data: failed to download openapi: (?:Get "[^"]*": )?(?=.)', "", text)
    return re.sub("; if you choose to ignore these errors, turn validation off with --validate=false$", "", text)


def diagnose(said: str) -> tuple[Diagnosis, bool]:
    """The complaint with its remedy; and whether the request will never be accepted as it is."""
    complaint = complaint_of(said) or "it did not say why"
    if (found := _FORBIDDEN.search(said)) is not None:
        where = f" in the namespace {found['where']}" if found["where"] else ""
        text = f"{found['who']} may not {found['verb']} {found['what']}{where}"
        return Diagnosis(text, f"ask for a Role that has {found['verb']} on {found['what']}"), False
    for rule in RULES:
        if re.search(rule.sign, said, re.IGNORECASE):
            return Diagnosis(complaint, rule.remedy, passing=rule.passing), rule.is_mistake
    return Diagnosis(complaint), False


class PassingError(OrchError):
    """kubectl has failed, and may succeed with another try (exit code 125)."""


def to_error(doing: str, said: str) -> OrchError:
    """The exception for a kubectl that has failed."""
    told, is_mistake = diagnose(said)
    return (UsageError if is_mistake else PassingError if told.passing else OrchError)(f"{doing}: {told.cause}", told.remedy, ABOUT)


def no_answer(doing: str, limit_s: float) -> OrchError:
    """The exception for a kubectl that has not ended."""
    return UnansweredError(f"{doing}: kubectl has not answered for {limit_s:g} s", _ADDRESS, ABOUT)


_EXEC_SIGNS = re.compile(r"executable file not found|no such file or directory|permission denied|exec format error", re.IGNORECASE)


def without_end(said: str) -> str:
    """Return what a program in a pod has said, without kubectl's own last line about its exit code."""
    return "\n".join(line for line in said.splitlines() if not line.startswith("command terminated with"))


def explain_exec(said: str, code: int) -> Diagnosis | None:
    """Why `kubectl exec` ended before the program in the pod ran; None: the program ran, and failed by itself."""
    text = last_line(without_end(said))
    if _EXEC_SIGNS.search(text) and (found := re.search(r'exec: "([^"]+)"', text)):  # otherwise some other file is missing
        return Diagnosis(f"the image has no program {found[1]}", "name its Python with python: or --python")
    if text.startswith(("error:", "Error from server", "Unable to connect", "The connection to the server")) or (code == 1 and text):
        return diagnose(text)[0]
    return None
