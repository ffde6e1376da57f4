"""TensorFlow's start-up noise: which lines of a task's output say nothing about the task.

Every TensorFlow process prints the same lines when it starts: what its build supports, which servers it
started, which plug-ins were registered twice. A view folds them; the files keep them. The lists below come
from real starts of TensorFlow 2.17, 2.19 and 2.21 (the samples are test data) and from its sources.

The lines of `tf.debugging.set_log_device_placement(True)`, thousands of them, are folded as well, and counted apart: `orch placement`
sums them up.

Two rules. A warning or an error is folded only if it is on a list, with its level. A line that only looks
like one of TensorFlow's is shown: to show too much is a nuisance, to hide a user's line is a fault.
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

_CPP = {
    "I": (
        # tensorflow/core/platform/cpu_feature_guard.cc, tensorflow/core/util/port.cc
        "This TensorFlow binary is optimized to use available CPU instructions in performance-critical operations.",
        "oneDNN custom operations are on.",
        # xla/tsl/cuda/cudart_stub.cc: a CUDA build on a host without the driver
        "Could not find cuda drivers on your machine, GPU will not be used.",
        # tensorflow/core/distributed_runtime: the servers of a cluster
        "Started server with target: grpc",
        "Creating sync eager service context with rendezvous_id on host ",
        "Creating async eager service context with rendezvous_id on host ",
        "Ignoring error status when releasing multi-device function handle UNIMPLEMENTED: Releasing a multi-device component handle",
        # tensorflow/core/data/service: the servers of a tf.data service
        "Attempting to restore dispatcher state from journal in ",
        "No journal found. Starting dispatcher from new state.",
        "Restored from journal in ",
        "Started tf.data DispatchServer running at ",
        "Started tf.data WorkerServer running at ",
        # xla/tsl/distributed_runtime/coordination
        "Initializing CoordinationService",
        "Coordination agent has successfully connected.",
        # tensorflow/core/data, tensorflow/core/framework/local_rendezvous.cc: the ordinary end of a dataset
        "Memory patch applied: M_TRIM_THRESHOLD",
        "Local rendezvous is aborting with status: OUT_OF_RANGE: End of sequence",
        # GPUs that were found: tensorflow/core/common_runtime/gpu, xla/service, xla/stream_executor/cuda
        "Created device /job:",
        "Loaded cuDNN version ",
        "XLA service 0x",
        "StreamExecutor [",
        "  StreamExecutor device (",
        "Compiled cluster using XLA!",
    ),
    "W": (
        "computation placer already registered. Please check linkage and avoid linking the same target more than once.",
        "TF-TRT Warning: Could not find TensorRT",
        "Input of GeneratorDatasetOp::Dataset will not be optimized because the dataset does not implement the AsGraphDefInternal() method",
        "Local rendezvous is aborting with status: OUT_OF_RANGE: End of sequence",
    ),
    "E": (
        "Unable to register cuDNN factory: Attempting to register factory for plugin cuDNN when one has already been registered",
        "Unable to register cuFFT factory: Attempting to register factory for plugin cuFFT when one has already been registered",
        "Unable to register cuBLAS factory: Attempting to register factory for plugin cuBLAS when one has already been registered",
        # 303 is the answer of the stand-in for a driver library that is not there. Other codes are news, and shown.
        "failed call to cuInit: INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)",
    ),
}
_CPP_CLUSTER = re.compile(
    r"/job:\w+/replica:\d+/task:\d+ has connected to coordination service\. Incarnation: \d+"
    r"|Waiting for \d+/\d+ tasks to connect\."
    r"|Barrier\(WaitForAllTasks::\d+(?:::\d+)?\) has passed with status: OK\Z"
)
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

# Lines that belong to the noise line before them.
_STRAGGLERS = "Example stragglers:"
_STRAGGLER = re.compile(r"/job:\w+/replica:\d+/task:\d+\Z")
_RENDEZVOUS = "Local rendezvous is aborting"
_NODE = re.compile(r"\t \[\[\{\{node [^\]]*\}\}\]\]")
_SESSION_OPTIONS = "SessionOptions: goo.gle/debug"
_CONFIG_OPENS = re.compile(r"(?:  )*[a-z_]+ \{\Z")
_CONFIG_FIELD = re.compile(r"(?:  )+[a-z_]+: \S+\Z|(?:allow|isolate|log|inter|intra|operation|placement|share|use)_[a-z_]+: \w+\Z")

_SERVICE_CONFIG = re.compile(
    r"(?:Started tf\.data service dispatcher with|Worker registered with dispatcher running at \S+ Worker) config: goo\.gle/"
)
# The fields of tensorflow/core/protobuf/service_config.proto.
_SERVICE_FIELD = re.compile(
    r"(?:port|protocol|work_dir|fault_tolerant_mode|deployment_mode|gc_dynamic_sharding_jobs|(?:job_gc|client|worker|dispatcher|heartbeat"
    r"|shutdown|data_transfer|snapshot|cross_trainer)_[a-z_]+): \S"
)

_FIRST = frozenset("IWET2")
"""How a noise line begins: a level, WARNING, INFO, To, or the year."""

_Expecting = Literal["", "straggler", "node", "config", "service"]


class StartupNoise:
    """Recognises the noise in the lines of one stream; one object per stream, fed in order.

    Some noise runs over several lines (a dump of ``SessionOptions`` or of a data server's, the list of stragglers), so what a line
    means depends on the one before it. Such a continuation must have the expected shape, and ends with the
    first line that has not.
    """

    __slots__ = ("_depth", "_expecting", "placements")

    def __init__(self) -> None:
        self.placements = 0
        """How many of the lines that were noise said where an operation was placed."""
        self._expecting: _Expecting = ""
        self._depth = 0

    def fold(self, lines: list[str]) -> list[str]:
        """The lines that are not noise, in order; the same list object if none is."""
        if not self._expecting:
            # Ordinary output passes here: one look at the first character of each line, and no more.
            suspects = [line for line in lines if line[:1] in _FIRST or _PLACED_MARK in line]
            if not any(_starts_noise(line) or _says_placement(line) for line in suspects):
                return lines
        return [line for line in lines if not self.hides(line)]

    def hides(self, line: str) -> bool:
        """Whether this next line of the stream is noise."""
        if self._expecting and self._continues(line):
            return True
        self._expecting = ""
        if _says_placement(line):
            self.placements += 1
            return True
        if line[:1] not in _FIRST or not _starts_noise(line):
            return False
        if line.endswith(_STRAGGLERS):
            self._expecting = "straggler"
        elif _RENDEZVOUS in line:
            self._expecting = "node"
        elif _SESSION_OPTIONS in line:
            self._expecting, self._depth = "config", 0
        elif _SERVICE_CONFIG.search(line):
            self._expecting = "service"
        return True

    def _continues(self, line: str) -> bool:
        if self._expecting == "straggler":
            return _STRAGGLER.match(line) is not None
        if self._expecting == "node":
            return _NODE.match(line) is not None
        if self._expecting == "service":
            if not line:
                self._expecting = ""  # the empty line is the dump's last one
                return True
            return _SERVICE_FIELD.match(line) is not None
        if _CONFIG_OPENS.match(line):
            self._depth += 1
            return True
        if line.strip(" ") == "}" and self._depth:
            self._depth -= 1
            return True
        if not line and not self._depth:
            self._expecting = ""  # the empty line is the dump's last one
            return True
        # Inside a block a field is indented; outside, only names of ConfigProto count.
        return _CONFIG_FIELD.match(line) is not None and line.startswith("  ") == (self._depth > 0)


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
    if line.startswith(_CPP[level], text):
        return True
    if level != "I":
        return False
    if line[text:] == _STRAGGLERS or line.startswith(_SESSION_OPTIONS, text):
        return True
    return any(pattern.match(line, text) for pattern in (_CPP_CLUSTER, _SERVICE_CONFIG))
