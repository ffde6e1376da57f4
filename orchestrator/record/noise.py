"""TensorFlow's start-up noise: which lines of a task's output say nothing about the task.

Every TensorFlow process prints the same lines when it starts, and others when a dataset ends or a server lets go of its clients: what
its build supports, which servers it started, which plug-ins were registered twice, which receives were cancelled. A view folds them; the
files keep them. The lists below come from real runs of TensorFlow 2.17 to 2.21 (the samples are test data) and from its sources.

The lines of `tf.debugging.set_log_device_placement(True)`, thousands of them, are folded as well, and counted apart: `orch placement`
sums them up.

The rules. What C++ logs at level INFO is noise, whoever wrote it, unless it speaks of trouble (`_NEWS`). A warning, an error and what
Python logs are folded only if they are on a list, with their level. Lines that belong to a folded line are folded with it: the node, the
peer, the tasks that it names. The dump of a protocol buffer (a graph's node, ``SessionOptions``) is folded even below a line that is shown.
All else is shown: to show too much is a nuisance, to hide a user's line is a fault.

One error is noise only if all ends well: that the coordination service does not answer any more, said by a worker that leaves some seconds
later than the leader. Once the leader has ended with success such lines are held back, and shown at the end unless the run succeeds.
So is what a coordinator says where a dataset ends: to it, each call that is scheduled there is an error; to the program, a sign to stop.
Pure: no I/O, no clock.
"""

from __future__ import annotations

import re
from typing import Literal

_PREAMBLE = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR"
_FLAGS = re.compile(
    r"To enable the following instructions: [\w ]+, in other operations, rebuild TensorFlow with the appropriate compiler flags\.\Z"
)

# Both shapes of a C++ log line, and absl's Python one, which looks like the first:
#   I0000 00:00:1795231330.190410    3957 coordination_service.cc:221] Initializing CoordinationService
#   2026-11-21 03:37:14.963850: I external/local_xla/xla/tsl/cuda/cudart_stub.cc:32] Could not find cuda drivers ...
_LOG_LINE = re.compile(
    r"(?:([IWE])\d{4} \d\d:\d\d:[\d.]+ +\d+ |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: ([IWE]) )[\w./-]*\.(cc|h|py):\d+\] ",
    re.ASCII,
)
_PYTHON_LINE = "INFO:tensorflow:"
# execute.cc and placer.cc; the second kind also goes to stdout, as it is, without the beginning of a log line.
_DEVICE = r"/job:\w+/replica:\d+/task:\d+/device:[A-Z_]+:\d+\Z"
_EXECUTED = re.compile(rf"Executing op \S+ (?:in device|on task) {_DEVICE}", re.ASCII)
_PLACED = re.compile(rf"[\w.\\/>-]+: \(\w+\): {_DEVICE}", re.ASCII)
_PLACED_MARK = "): /job:"

# What C++ says at level INFO of trouble: a status that is not OK, or such a word.
_NEWS = re.compile(
    r"\b[A-Z]+(?:_[A-Z]+)*: |[Ee]rror|ERROR|[Ff]ail|[Aa]bort|[Ll]ost|[Tt]imed? ?out|[Uu]nhealthy|[Hh]eartbeat|[Pp]reempt|[Rr]estart"
    r"|[Uu]nexpected|[Dd]isconnect|Could not satisfy|[Ff]illing up shuffle buffer"
)
_ABORTING = "Local rendezvous is aborting with status: "
# tensorflow/core/framework/local_rendezvous.cc: a dataset's end, a cancelled receive and a graph that was cleaned up are no failures.
_RENDEZVOUS = tuple(_ABORTING + status for status in ("OUT_OF_RANGE: End of sequence", "CANCELLED: ", "ABORTED: Cleanup "))
_CPP = {
    "I": (
        *_RENDEZVOUS,
        "Ignoring error status when releasing multi-device function handle UNIMPLEMENTED: Releasing a multi-device component handle",
        # tensorflow/core/util/port.cc
        "oneDNN custom operations are on. You may see slightly different numerical results due to floating-point round-off errors",
        # tensorflow/core/data/service: a dispatcher that comes back, not one that is lost
        "Attempting to restore dispatcher state from journal in ",
        "Restored from journal in ",
        # tensorflow/core/grappler/optimizers/data/auto_shard.cc: AUTO does as documented
        "AUTO sharding policy will apply DATA sharding policy as it failed to apply FILE sharding policy",
    ),
    "W": (
        *_RENDEZVOUS,
        "computation placer already registered. Please check linkage and avoid linking the same target more than once.",
        "TF-TRT Warning: Could not find TensorRT",
        "Input of GeneratorDatasetOp::Dataset will not be optimized because the dataset does not implement the AsGraphDefInternal() method",
        "AUTO sharding policy will apply DATA sharding policy as it failed to apply FILE sharding policy",
    ),
    "E": (
        "Unable to register cuDNN factory: Attempting to register factory for plugin cuDNN when one has already been registered",
        "Unable to register cuFFT factory: Attempting to register factory for plugin cuFFT when one has already been registered",
        "Unable to register cuBLAS factory: Attempting to register factory for plugin cuBLAS when one has already been registered",
        # 303 is the answer of the stand-in for a driver library that is not there. Other codes are news, and shown.
        "failed call to cuInit: INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)",
    ),
}
_LEADER_GONE = "UNAVAILABLE: Failed to send RPC to coordination service. Either the leader task "
# tensorflow/python/distribute/coordinator/cluster_coordinator.py: _raise_if_error and _process_closure, with the error's own lines.
_CLOSURE = re.compile(
    r"(?:ERROR:tensorflow:|E\d{4} \d\d:\d\d:[\d.]+ +\d+ cluster_coordinator\.py:\d+\] )"
    r"(?:Start cancelling closures due to error OutOfRangeError\(|Remote function on worker \S+ failed with CancelledError\("
    r"| /job:worker/task:\d+ encountered the following error when processing closure: OutOfRangeError\()",
    re.ASCII,
)
_CLOSURE_DETAIL = re.compile(
    r"(?:Detected at node .* defined at \(most recent call last\):|<stack traces unavailable>|\d+ root error\(s\) found\."
    r"|  File \".*\", line \d+, in .+| *End of sequence|  \(\d+\) (?:OUT_OF_RANGE|CANCELLED): .*"
    r"|\d+ (?:successful operations|derived errors ignored)\."
    r"|This derived error is ignored and not reported to users\.)\Z",
    re.ASCII,
)
MOST_HELD = 200
"""Lines of one stream that are held back at most, to be shown if the run fails. Of a coordinator's further ones the files have all."""
_PYTHON = (
    # tensorflow/python/distribute: collective_all_reduce_strategy, mirrored_strategy, cross_device_ops
    "Enabled multi-worker collective ops with available devices: ",
    "Waiting for the cluster, timeout = ",
    "Cluster is ready.",
    "Check health not enabled.",
    "MultiWorkerMirroredStrategy with cluster_spec = ",
    "Single-worker MultiWorkerMirroredStrategy with local_devices = ",
    "Using MirroredStrategy with devices ",
    "Collective all_reduce tensors: ",
    "Collective all_reduce IndexedSlices: ",
    # parameter_server_strategy, parameter_server_strategy_v2
    "`tf.distribute.experimental.ParameterServerStrategy` is initialized with cluster_spec: ",
    "ParameterServerStrategyV2 is now connecting to cluster with cluster_spec: ",
    "ParameterServerStrategy (CentralStorageStrategy if you are using a single machine) with compute_devices = ",
    "Multi-worker ParameterServerStrategy with cluster_spec = ",
    "Number of GPUs on workers: ",
)

# Lines that belong to the line before them.
_DETAIL = re.compile(
    r"/job:\w+/replica:\d+/task:\d+\Z"  # "Example stragglers:"
    r"|\t \[\[.*\]\](?: \[type\.googleapis\.com/[\w.]+='[^']*'\])?\Z"  # the nodes of an error
    r"|Additional GRPC error information from remote target /job:|:UNKNOWN:Error received from peer |:\{\"created\":\"@"
)
# Protocol buffers as text: what follows, to the empty line behind it, has this shape. Outside of a block only these names count.
_DUMP = re.compile(r"goo\.gle/debug\w+ *\Z")
_OPENS = re.compile(r"(?:  )*[a-z_]+ \{\Z")
_FIELD = re.compile(r"(?:  )+[a-z_]+: \S")
_TOP_FIELD = re.compile(
    r"(?:name|op|input|device): \"|(?:allow|isolate|log|inter|intra|operation|placement|share|use)_[a-z_]+: \w+\Z"
    # The fields of tensorflow/core/protobuf/service_config.proto.
    r"|(?:port|protocol|work_dir|fault_tolerant_mode|deployment_mode|gc_dynamic_sharding_jobs|(?:job_gc|client|worker|dispatcher|heartbeat"
    r"|shutdown|data_transfer|snapshot|cross_trainer)_[a-z_]+): \S"
)

_FIRST = frozenset("IWET2")
"""How a line of TensorFlow's begins: a level, WARNING, INFO, To, or the year."""


class StartupNoise:
    """Recognises the noise in the lines of one stream; one object per stream, fed in order.

    What a line means may depend on the one before it. A line that belongs to another must have the expected shape.
    """

    __slots__ = ("_before", "_depth", "_empty_follows", "held", "leader_has_left", "placements")

    def __init__(self, leader_has_left: bool = False) -> None:
        self.placements = 0
        """How many of the lines that were noise said where an operation was placed."""
        self.leader_has_left = leader_has_left
        """The task that runs the coordination service has ended with success."""
        self.held: list[str] = []
        """Lines that `fold` has kept back, and that are noise if the run succeeds."""
        self._before: Literal["", "noise", "dump", "held", "closure"] = ""
        self._empty_follows = False
        """Below an error's first line, and below each line of its stack, there is an empty one."""
        self._depth = 0

    def fold(self, lines: list[str]) -> list[str]:
        """The lines that are not noise, in order; the same list object if none is."""
        if not self._before:
            # Ordinary output passes here: one look at the first character of each line, and no more.
            suspects = [line for line in lines if line[:1] in _FIRST or _PLACED_MARK in line]
            if not any(_LOG_LINE.match(line) or _starts_noise(line) or _CLOSURE.match(line) or _says_placement(line) for line in suspects):
                return lines
        return [line for line in lines if not self.hides(line)]

    def hides(self, line: str) -> bool:
        """Whether this next line of the stream is noise, or is held back."""
        if self._before and self._continues(line):
            if self._before in ("held", "closure"):
                self._hold(line)
            return True
        self._before = ""
        if _says_placement(line):
            self.placements += 1
            return True
        if line[:1] not in _FIRST:
            return False
        if self.leader_has_left and _LEADER_GONE in line and _LOG_LINE.match(line) and len(self.held) < MOST_HELD:
            self._hold(line)
            self._before = "held"
            return True
        if _CLOSURE.match(line):
            self._hold(line)
            self._before, self._empty_follows = "closure", line.endswith("Graph execution error:")
            return True
        is_noise = _starts_noise(line)
        if _DUMP.search(line) and _LOG_LINE.match(line):
            self._before, self._depth = "dump", 0
        elif is_noise:
            self._before = "noise"
        return is_noise

    def _hold(self, line: str) -> None:
        if len(self.held) < MOST_HELD:
            self.held.append(line)

    def _continues(self, line: str) -> bool:
        if self._before == "closure":
            is_expected, self._empty_follows = self._empty_follows and not line, line.startswith("  File ")
            return is_expected or _CLOSURE_DETAIL.match(line) is not None or _DETAIL.match(line) is not None
        if self._before != "dump":
            return _DETAIL.match(line) is not None
        if _OPENS.match(line):
            self._depth += 1
            return True
        if line.strip(" ") == "}" and self._depth:
            self._depth -= 1
            return True
        if not line and not self._depth:
            self._before = ""  # the empty line is the dump's last one
            return True
        return (_FIELD if self._depth else _TOP_FIELD).match(line) is not None


def _says_placement(line: str) -> bool:
    """Whether a line says on which device an operation ran or was placed."""
    if "/device:" not in line:
        return False
    found = _LOG_LINE.match(line)
    if found is None:
        return _PLACED.match(line) is not None
    level, text = found[1] or found[2], found.end()
    return level == "I" and found[3] == "cc" and (_EXECUTED.match(line, text) or _PLACED.match(line, text)) is not None


def _starts_noise(line: str) -> bool:
    """Whether a line, by itself, is noise or the first line of some."""
    found = _LOG_LINE.match(line)
    if found is None:
        if line.startswith(_PYTHON_LINE):
            return line.startswith(_PYTHON, len(_PYTHON_LINE))
        return line == _PREAMBLE or _FLAGS.match(line) is not None
    level, text = found[1] or found[2], found.end()
    if found[3] == "py":
        return level == "I" and line.startswith(_PYTHON, text)
    return line.startswith(_CPP[level], text) or (level == "I" and _NEWS.search(line, text) is None)
