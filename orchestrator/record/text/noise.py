"""Finds which lines of a task's output are TensorFlow's own and say nothing about the task. A view folds these lines; the files keep them.

A line is noise by its shape:

* Every C++ line of level INFO (``I0000 … file.cc:12] …``) is noise, no matter who wrote it.
* A C++ warning or error is noise if it is on a short list (`_HARMLESS`).
* A C++ warning or error about a lost connection or an aborted call (`_LOSS`), about memory that did not suffice (`_OUT_OF_MEMORY`), or
  about a wrong value (`_SAID_AGAIN`) is noise: the exception of the program says the same.
* Lines of ``tf.debugging.set_log_device_placement(True)`` are noise: `orch placement` sums them up.
* A warning of an installed Python package, or of the loggers of TensorFlow and Keras, is noise if a task of this run has printed the same
  one before (but for `without_own`).
* A message is noise as a whole: which lines may follow is known by its head (`BODIES`), such as a node, a peer, a protocol buffer.

All other lines are shown: a line of the user that is missing would be worse than a line too many.
The lists come from real runs of TensorFlow 2.17 to 2.21; the samples are in tests/record/output/noise. Pure: no I/O, no clock.

Patterns that most runs never need are kept as texts, which `re` compiles at the first use: the report of a failure waits for this module.
"""

from __future__ import annotations

import re
from typing import Literal

# Both shapes of a C++ log line. absl's Python line looks like the first one.
#   I0000 00:00:1795231330.190410    3957 coordination_service.cc:221] Initializing CoordinationService
#   2026-11-21 03:37:14.963850: I external/local_xla/xla/tsl/cuda/cudart_stub.cc:32] Could not find cuda drivers ...
_LOG_LINE = re.compile(
    r"(?:([IWE])\d{4} \d\d:\d\d:[\d.]+ +\d+ |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: ([IWE]) )[\w./-]*\.(cc|h|py):\d+\] ", re.ASCII
)
_PREAMBLE = re.compile(
    r"(?:WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    r"|To enable the following instructions: [\w ]+, in other operations, rebuild TensorFlow with the appropriate compiler flags\.)\Z"
)
_RENDEZVOUS = "Local rendezvous is aborting with status: "
_HARMLESS = (
    # The end of a dataset, a cancelled receive, and a graph that was cleaned up: tensorflow/core/framework/local_rendezvous.cc
    *(_RENDEZVOUS + status for status in ("OUT_OF_RANGE: End of sequence", "CANCELLED: ", "ABORTED: Cleanup ")),
    "computation placer already registered. Please check linkage and avoid linking the same target more than once.",
    "TF-TRT Warning: Could not find TensorRT",
    "Input of GeneratorDatasetOp::Dataset will not be optimized because the dataset does not implement the AsGraphDefInternal() method",
    # The documented behaviour of AUTO: tensorflow/core/grappler/optimizers/data/auto_shard.cc
    "AUTO sharding policy will apply DATA sharding policy as it failed to apply FILE sharding policy",
    *(f"Unable to register {library} factory: Attempting to register factory for plugin" for library in ("cuDNN", "cuFFT", "cuBLAS")),
    # The graph runs nevertheless: tensorflow#57052
    "Type inference failed. This indicates an invalid graph that escaped type checking. Error message: ",
    # A loop stays as it is: tensorflow/core/grappler/optimizers/loop_optimizer.cc
    "Skipping loop optimization for Merge node with control input: ",
    # float16 on a processor without AVX-512: tensorflow/core/util/util.cc
    "oneDNN supports DT_HALF only on platforms with AVX-512. Falling back to the default Eigen-based implementation",
    # Code 303 means that no driver library is installed. Other codes are news.
    "failed call to cuInit: INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)",
)
# The statuses of a call that a lost or stopping peer has ended, and all that the coordination service says at these levels.
_LOSS = re.compile(r"\b(?:UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED): |coordination_service\w*\.(?:cc|h):")
_OUT_OF_MEMORY = re.compile(r"\bbfc_allocator\.cc:\d+\] |\bRESOURCE_EXHAUSTED: OOM when allocating ")
_SAID_AGAIN = re.compile(r"\b(?:OP_REQUIRES failed at \S+ : |Local rendezvous is aborting with status: )INVALID_ARGUMENT: ")
_NO_FAILURE = "The caller indicates that this is not a failure"  # bfc_allocator.cc: a hint that more memory would make the program faster
# The end of a dataset, as a coordinator reports it for every closure that it had scheduled: cluster_coordinator.py.
_CLOSURE = (
    r"(?a)(?:ERROR:tensorflow:|E\d{4} \d\d:\d\d:[\d.]+ +\d+ cluster_coordinator\.py:\d+\] )"
    r"(?:Start cancelling closures due to error OutOfRangeError\(|Remote function on worker \S+ failed with CancelledError\("
    r"| /job:worker/task:\d+ encountered the following error when processing closure: OutOfRangeError\()"
)
_WARNING = re.compile(r"/.{1,400}/(?:site|dist)-packages/.{1,400}\.py:\d+: \w{0,100}Warning: |WARNING:(?:tensorflow|absl):")
"""A line may have a million letters: without limits, each of them would be tried with each."""
_OF_WARNING = re.compile(r"  |(?:Please report this to the TensorFlow team\.|Cause: |To silence this warning, )")  # autograph/impl/api.py

# execute.cc and placer.cc. Lines of the second kind also go to stdout, without the beginning of a log line.
_DEVICE = r"/job:\w+/replica:\d+/task:\d+/device:[A-Z_]+:\d+\Z"
_PLACED = rf"[\w.\\/>-]+: \(\w+\): {_DEVICE}"
_EXECUTED_OR_PLACED = rf"Executing op \S+ (?:in device|on task) {_DEVICE}|{_PLACED}"
_PLACED_MARK = "): /job:"

# Lines that belong to the line before them.
DETAIL = (
    r"(?a)(?:/job:\w+/replica:\d+/task:\d+"  # a task of a list
    r"|\t \[\[.*\]\](?: \[type\.googleapis\.com/[\w.]+='[^']*'\])?"  # the node of an error
    r"|Additional GRPC error information from remote target .*|:UNKNOWN:Error received from peer .*|:\{\"created\":\"@.*"
    r"|RPC: /tensorflow\..*|The error could be from a previous operation\. Restart your program to reset\."
    r"(?: \[(?:Op:\w+|type\.googleapis\.com/.*)\](?: name: .*)?)?"
    # cluster_coordinator.py
    r"|Detected at node .* defined at \(most recent call last\):|<stack traces unavailable>|\d+ root error\(s\) found\."
    r"|  File \".*\", line \d+, in .+| *End of sequence|  \(\d+\) (?:OUT_OF_RANGE|CANCELLED): .*"
    r"|\d+ (?:successful operations|derived errors ignored)\.|This derived error is ignored and not reported to users\.)\Z"
)
_CRASHED = r"The tasks have crashed\. Check the task logs .*|This suggests that the workers are out of sync\. .*"
# The lines of the messages whose heads come from these files, in addition to `DETAIL`.
BODIES = {
    # xla/tsl/framework/bfc_allocator.cc: what it says before the exception, and its statistics
    "bfc_allocator.cc": (
        r"If the cause is memory fragmentation .*|Current allocation summary follows\.| *|"
        r"(?:Limit|InUse|MaxInUse|NumAllocs|MaxAllocSize|Reserved|PeakReserved|LargestFreeBlock): +\S+"
    ),
    # xla/tsl/distributed_runtime/coordination/coordination_service.cc
    "coordination_service": (
        rf"{_CRASHED}|Barrier timed out\. Id: .*"
        r"|# of tasks that reached the barrier: .*|The first task at the barrier: .*|(?:UNAVAILABLE|DEADLINE_EXCEEDED|INTERNAL): .*| *"
    ),
    # Both repeat the message of the coordination service: tensorflow/core/common_runtime and tensorflow/core/framework
    "base_collective_executor.cc": _CRASHED,
    "local_rendezvous.cc": _CRASHED,
    # tensorflow/core/common_runtime/type_inference.cc: types as text
    "type_inference.cc": (
        r"(?:  )*(?:type_id: TFT_\w+|(?:args|[a-z_]+) \{|\})| is neither a subtype nor a supertype of the combined inputs preceding it:"
        r"|\tfor .* function \d+|\twhile inferring type of node '.*'| *"
    ),
    # tensorflow/core/data/service/dispatcher_impl.cc: after the protocol buffer
    "dispatcher_impl.cc": r"It will not recover its state on restart\.",
}
_NO_BODY = r"(?!)"
_FILE = re.compile(r"([\w/]+\.(?:cc|h)):\d+\] ", re.ASCII)
_EMPTY_FOLLOWS = re.compile(r"  File |.*Graph execution error:\Z")
# A protocol buffer as text: it begins below such a line, and an empty line is its end.
_DUMP = re.compile(r"goo\.gle/debug\w+ *\Z")
_DUMP_LINE = re.compile(r"(?:  )*(?:[a-z_]+(?: \{|: .*)|\})\Z")

_SHAPES = (_LOG_LINE, _PREAMBLE, _CLOSURE, _WARNING)
_FIRST = frozenset("IWET2/")
"""How a line that may be noise begins: with a level, WARNING, INFO, To, the year, or the path of a package."""


class Noise:
    """Recognises the noise in the lines of one stream. Each stream has its own object; the lines are given in order.

    `warnings`: the packages' warnings that tasks of this run have printed so far. All streams of a view share this set.
    `shows_losses`: lines about a lost connection are no noise here. `hides_warnings`: all C++ warnings are noise here.
    """

    def __init__(self, warnings: set[str] | None = None, *, shows_losses: bool = False, hides_warnings: bool = False) -> None:
        self._warnings = set() if warnings is None else warnings
        self._shows_losses, self._levels = shows_losses, "IW" if hides_warnings else "I"
        self._before: Literal["", "noise", "warning", "dump"] = ""
        """What the line before was, if lines may belong to it."""
        self._last = ""
        self._body = _NO_BODY
        """The lines that may belong to the message that began last."""

    def fold(self, lines: list[str]) -> list[str]:
        """The lines that are not noise, in order; the same list object if these are all."""
        if not self._before:
            # Ordinary output returns here: the first character of each line decides.
            suspects = [line for line in lines if line[:1] in _FIRST or _PLACED_MARK in line]
            if not any(_says_placement(line) or any(re.match(shape, line) for shape in _SHAPES) for line in suspects):
                return lines
        return [line for line in lines if not self.hides(line)]

    def hides(self, line: str) -> bool:
        """True if this next line of the stream is noise."""
        hidden = self._belongs(line) or self._is_hidden(line)
        self._last = line
        return hidden

    def _is_hidden(self, line: str) -> bool:
        self._before = ""
        if _says_placement(line):
            return True
        if line[:1] not in _FIRST:
            return False
        if _is_noise(line, self._shows_losses, self._levels):
            self._before = "noise"
        elif _WARNING.match(line):
            warning = without_own(line)
            self._before = "warning" if warning in self._warnings else ""
            self._warnings.add(warning)
        hidden = bool(self._before)
        if hidden:
            self._body = _body_of(line)
        if _DUMP.search(line) and _LOG_LINE.match(line):
            self._before = "dump"
        return hidden

    def _belongs(self, line: str) -> bool:
        """True if the line belongs to the one before it."""
        match self._before:
            case "warning":
                if line.startswith("  "):  # the line of source
                    self._before = ""
                return _OF_WARNING.match(line) is not None
            case "dump":
                if not line:
                    self._before = "noise" if self._body is not _NO_BODY else ""
                return not line or _DUMP_LINE.match(line) is not None
            case "noise":
                is_own = re.match(DETAIL, line) or re.fullmatch(self._body, line)
                return is_own is not None or (not line and _EMPTY_FOLLOWS.match(self._last) is not None)
        return False


_OWN = re.compile(
    r"\b0x[0-9a-f]{6,}\b|(?<=/task:)\d+\b|(?<=\b__autograph_generated_file)\w+|(?<=\b__inference_)\w+|(?<= Label values: )[\d -]+", re.ASCII
)


def without_own(line: str) -> str:
    """The line without what is another text in each task: addresses of objects, the task's number in the name of a device, the names
    that TensorFlow makes for functions and files, and the labels of its batch."""
    return _OWN.sub("…", line)


def _body_of(head: str) -> str:
    """The pattern of the other lines of a message with this head, in addition to `DETAIL`."""
    found = _FILE.search(head)
    name = found[1].rpartition("/")[2] if found else ""
    return next((body for start, body in BODIES.items() if name.startswith(start)), _NO_BODY)


def _says_placement(line: str) -> bool:
    """True if this line has the device on which an operation ran or was placed."""
    if "/device:" not in line:
        return False
    found = _LOG_LINE.match(line)
    if found is None:
        return re.match(_PLACED, line, re.ASCII) is not None
    level, text = found[1] or found[2], found.end()
    return level == "I" and found[3] == "cc" and re.compile(_EXECUTED_OR_PLACED, re.ASCII).match(line, text) is not None


def _is_noise(line: str, shows_losses: bool, levels: str) -> bool:
    """True if a line, by itself, is noise or the first line of some. `shows_losses`: lines about a lost connection are none.

    `levels`: the letters of the C++ levels at which every line is noise.
    """
    found = _LOG_LINE.match(line)
    if found is None or found[3] == "py":
        return _PREAMBLE.match(line) is not None or re.match(_CLOSURE, line) is not None
    if (found[1] or found[2]) in levels or line.startswith(_HARMLESS, found.end()):
        return True
    if not shows_losses and _SAID_AGAIN.search(line) is not None:
        return True
    return not shows_losses and (_LOSS.search(line) is not None or (_OUT_OF_MEMORY.search(line) is not None and _NO_FAILURE not in line))
