"""TensorFlow's errors about a lost peer: such an error is never the first cause.

When a task is lost, TensorFlow has some twenty messages for the other tasks, and these tasks then end with a traceback too. `read`
recognises the messages, also in a chained exception (``raise MyError from error``), but not in a line of the user's source.

The texts are those of TensorFlow 2.21, and a few of 2.16 to 2.18: provoked for tests/model/cause/lost_peers.json, or read in the source
that each pattern names.
A message that can come from a mistake in this task is not in the table. For example, a peer can pass an error on (``grpc_status:3``,
INVALID_ARGUMENT, for shapes that do not match, or for a bad element in a dataset). Such an error is a first cause, though it names a peer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import takewhile

from worker.protocol.messages import Failure
from worker.values.fast_dataclass import dataclass

_TASK = r"/job:(?P<{0}>\w+)(?:/replica:\d+)?/task:(?P<{1}>\d+)"
_ANY_TASK = re.compile(_TASK.format("type", "index"))


@dataclass(frozen=True, slots=True)
class Loss:
    """Holds what an error says about a lost peer."""

    how: str
    """What happened to the peer: ``it refuses connections``."""
    peers: tuple[str, ...] = ()
    """The tasks that the error names, the likeliest first."""
    leader: bool = False
    """The error names the coordination service. `leader` finds the task that runs it."""


@dataclass(frozen=True, slots=True)
class Pattern:
    text: str
    how: str
    peers: str = ""
    """Where the names are: ``before`` or ``after`` the match, or ``target``: the remote target of the failed call."""


_REMOTE = re.compile(
    rf"Additional GRPC error information from remote target (?:{_TASK.format('type', 'index')}|(?P<service>coordination_service))"
)
"""`RPCState::OnCompleted` in xla/tsl/distributed_runtime/rpc/grpc_state.h. The first match is the call that failed."""

_LEADER_RPC = re.compile(
    r"(?:RPC: |while calling )/tensorflow\.CoordinationService/|Leader incarnation ID mismatch|Failed to send RPC to coordination service"
)

# The first match counts: more specific messages come first. With each pattern is the file of TensorFlow or gRPC that has the message;
# "measured": the message was also seen in a real cluster.
PATTERNS = (
    Pattern("unhealthy (stopped sending heartbeats):", "it stopped sending heartbeats", "after"),  # measured; coordination_service.cc
    # 2.16 to 2.18; coordination_service.cc
    Pattern(" heartbeat timeout. This indicates that the remote task has failed", "it stopped sending heartbeats", "before"),
    Pattern("Some timed out task names:", "it did not come to a barrier", "after"),  # coordination_service.cc, PassBarrier
    # coordination_service_error_util.cc
    Pattern("Failed to send RPC to coordination service", "its coordination service is gone"),
    Pattern("Leader incarnation ID mismatch", "it was restarted"),  # coordination_service_agent.cc, StartSendingHeartbeats
    Pattern("Deadline Exceeded\n\nRPC: /tensorflow.CoordinationService/", "its coordination service did not answer"),  # measured
    # measured: 2.16 and 2.17; the name of the leader and the call follow
    Pattern("Deadline Exceeded\nAdditional GRPC error information from remote target ", "its coordination service did not answer"),
    Pattern("Coordination service has stopped", "its coordination service has stopped"),  # coordination_service.cc
    # coordination_service_agent.cc
    Pattern("Coordination service agent is already in error state", "the coordination service had reported an error"),
    # coordination_service.cc
    Pattern("caused coordination service to shut down before the workers disconnect", "its coordination service has stopped"),
    Pattern("Connection refused", "it refuses connections", "target"),  # measured; gRPC, tcp_client_posix.cc
    Pattern("Connection reset by peer", "its connection was reset", "target"),  # measured; gRPC, posix_engine
    Pattern("Socket closed", "its connection was closed", "target"),  # measured; gRPC, chttp2_transport.cc
    Pattern("Broken pipe", "its connection was closed", "target"),  # gRPC; sendmsg(2)
    Pattern("failed to connect to all addresses", "it cannot be reached", "target"),  # measured; gRPC, pick_first.cc
    Pattern("keepalive watchdog timeout", "it did not answer", "target"),  # gRPC, chttp2_transport.cc
    Pattern("incarnation doesn't match with one in the group", "it was restarted", "before"),  # device_resolver_distributed.cc
    Pattern("expects a different device incarnation", "it was restarted", "target"),  # worker.cc, RecvBuf
    # collective_all_reduce_strategy.py, _check_health
    Pattern("cluster check alive failed, ", "it did not answer", "after"),
    Pattern("Collective has timed out", "a collective operation timed out"),  # measured; base_collective_executor.cc
    # measured; coordination_service_rpc_handler.cc, ReportErrorToTaskAsync
    Pattern("Error reported from ", "it reported an error", "after"),
    # xla client.h
    Pattern("Terminating process because the JAX distributed service detected fatal errors", "the coordination service reported an error"),
)

_UNAVAILABLE = re.compile(r"errors_impl\.UnavailableError|UNAVAILABLE:|grpc_status:14")
_TRACEBACK = "Traceback (most recent call last):\n"
CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_FATAL = re.compile(r"^F\d{4} ", re.MULTILINE)
"""How absl and glog begin the line after which they abort the process."""


def read(failure: Failure | None, last_words: str = "", own: str = "") -> Loss | None:
    """The lost peer that a failure is about; None: the failure is about the task itself. `own`: the name of the task."""
    text = _without_frames(f"{failure.traceback}\n{failure.message}" if failure is not None else _final(last_words))
    # A broken connection means a lost peer only in a call between TensorFlow's tasks; the program may have other connections.
    remote = _REMOTE.search(text)
    is_call = remote is not None and _UNAVAILABLE.search(text) is not None
    leads = (remote is not None and remote["service"] is not None) or _LEADER_RPC.search(text) is not None
    for pattern in PATTERNS:
        at = text.find(pattern.text)
        if at >= 0 and (is_call or pattern.peers != "target"):
            named = _peers(pattern, text, at)
            others = tuple(peer for peer in named if peer != own)
            # An error that names only this task means that its heartbeats were late. It did not lose a peer.
            return None if named and not others else Loss(pattern.how, others, leads)
    return None


def _final(words: str) -> str:
    """The part of a log that says why the program ended: the last traceback with its chain, or a fatal message.

    TensorFlow also logs losses that do not end the program, as a parameter server does when a worker restarts.
    """
    parts = words.split(_TRACEBACK)
    if len(parts) == 1:
        fatal = list(_FATAL.finditer(words))
        return words[fatal[-1].start() :] if fatal else ""
    first = len(parts) - 1
    while first > 1 and parts[first - 1].rstrip().endswith(CHAINED):
        first -= 1
    return _TRACEBACK.join(parts[first:])


def _without_frames(trace: str) -> str:
    """A traceback without the indented lines, which show the user's source."""
    return "\n".join(line for line in trace.splitlines() if not line.startswith("  "))


def _peers(pattern: Pattern, text: str, at: int) -> tuple[str, ...]:
    if pattern.peers == "target":
        match = _REMOTE.search(text, at) or _REMOTE.search(text)
        return (f"{match['type']}-{match['index']}",) if match and match["type"] else ()
    if pattern.peers == "before":
        return _names(text[max(0, at - 200) : at].splitlines()[-1:])
    if pattern.peers == "after":
        heading, *lines = text[at + len(pattern.text) :].splitlines() or [""]
        return _names([*takewhile(lambda line: line.startswith("/job:"), lines)] or [heading])
    return ()


def _names(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{match['type']}-{match['index']}" for line in lines for match in _ANY_TASK.finditer(line)))


def leader(tasks: Mapping[str, object]) -> str:
    """The task that runs the coordination service: `coordination_leader` in tensorflow/python/distribute/multi_worker_util.py."""
    return next((name for name in ("ps-0", "chief-0", "worker-0") if name in tasks), "")
