"""What to do about a failure, where that is known: one line for the report.

A remedy says no more than is known: a task that was killed is said to have run out of memory only if the kernel's counters
say so. The texts are those of CPython and its errno table, of TensorFlow 2.21 and of Keras 3.15, each provoked once
but the one that says "likely"; tests/model/test_remedies.py holds them.
"""

from __future__ import annotations

import re

from worker.contract import DATA_SERVICE
from worker.records import dataclass

from .cluster import TaskStatus

_SIGKILL, _SIGABRT, _SIGBUS, _SIGSEGV, _SIGILL = (128 + number for number in (9, 6, 7, 11, 4))


@dataclass(frozen=True, slots=True)
class Remedy:
    """`kind`: pattern of the exception's type, without its module; `text`: one that its message or its traceback holds.

    `advice` may use the groups of `text` and ``{python}``, the task's interpreter.
    """

    kind: str
    text: str
    advice: str


# The first that fits counts.
REMEDIES = (
    Remedy(
        "ModuleNotFoundError",
        r"No module named '(?P<name>[^']+)'",
        "{name} is not installed in {python}: install it there, or choose the tasks' interpreter with --python",
    ),
    Remedy(
        r"\w+",
        r"No space left on device|Disk quota exceeded",
        "the disk is full: make room, or write somewhere else (orch's own files: --run-dir)",
    ),
    Remedy(
        "ResourceExhaustedError|InternalError",
        r"(?:OOM when allocating|CUDA_ERROR_OUT_OF_MEMORY)[\s\S]*GPU|CUDA_ERROR_OUT_OF_MEMORY|failed to allocate memory on (?:the )?GPU",
        "the GPU's memory is used up: a smaller batch for each replica; if tasks share the GPU, --memory-growth or --gpu-memory MB",
    ),
    Remedy(
        "InternalError",
        r"Dst tensor is not initialized",
        "likely the GPU's memory is used up: a tensor on its way there found no room. A smaller batch for each replica; "
        "if tasks share the GPU, --memory-growth or --gpu-memory MB",
    ),
    Remedy(
        "ResourceExhaustedError",
        r"OOM when allocating",
        "the host's memory did not suffice: a smaller batch for each replica, or fewer tasks on this host",
    ),
    Remedy(
        "MemoryError|_ArrayMemoryError|bad_alloc",
        r"",
        "the host's memory did not suffice: load less at once (tf.data reads as it goes), or run fewer tasks on this host",
    ),
    Remedy(
        "OSError|UnknownError",
        r"Address already in use|Could not start gRPC server",
        "a port was taken: let orch choose the ports (TF_CONFIG has them), or find who listens there: ss -ltnp",
    ),
    Remedy(
        "OSError", r"Too many open files", "too many files were open at once: raise the limit of the shell that starts orch (ulimit -n)"
    ),
    Remedy(
        "PermissionError|PermissionDeniedError",
        r"[Pp]ermission denied",
        "this user may not do that on this host: look at the owner and the mode of what is named above",
    ),
    Remedy(
        "KeyError",
        r"cluster_resolver|multi_worker_util",
        "TF_CONFIG does not list this task's own type: leave TF_CONFIG to orch, which writes a different one for the evaluator",
    ),
    Remedy(
        "ValueError",
        r"Attempt to convert a value \(PerReplica:[\s\S]*unsupported type|Invalid reduction dimension 0 for input with 0 dimensions",
        "fit() of Keras 3 does not work on several workers: write the training loop yourself (examples/mwms_custom_loop.py), "
        "or use tf-keras and --env TF_USE_LEGACY_KERAS=1",
    ),
    Remedy(
        "ValueError",
        r"pass this dataset to ClusterCoordinator\.create_per_worker_dataset",
        "fit() of Keras 3 does not work with parameter servers: write the training loop yourself (examples/parameter_server.py), "
        "or use tf-keras and --env TF_USE_LEGACY_KERAS=1",
    ),
    Remedy(
        "RuntimeError",
        r"Collective ops must be configured at program startup",
        "make the strategy before anything else touches TensorFlow's devices, tensors included",
    ),
    Remedy(
        "InvalidArgumentError",
        r"Shape mismatch in the collective instance",
        "the workers reduced tensors of different shapes: their batches or their models differ",
    ),
    Remedy(
        "InvalidArgumentError",
        r"Could not find callback with key=pyfunc_",
        "a py_function, a numpy_function or from_generator runs only in the process that made it, never in a data worker: "
        "apply it after distribute()",
    ),
)

_LEFT_EARLY = "its peers went on: give all workers the same number of steps, whatever their share of the data (dataset.repeat())"
_SERVER_LEFT = "a server must outlive the chief: server.join() in the script, or --serve"
_BY_CODE = {
    _SIGKILL: "orch did not send this SIGKILL: a person, a scheduler or a memory watchdog may have",
    _SIGSEGV: "a crash in native code: the stacks that Python had are at the end of its stderr",
    _SIGABRT: "native code gave up (abort): the reason stands at the end of its stderr",
    _SIGBUS: "a crash in native code (SIGBUS): a memory-mapped file that was cut short, or a full /dev/shm",
    _SIGILL: "the processor lacks an instruction that this TensorFlow was built with: install a build for this host",
    126: "the program could not be executed: is it executable, and its first line right?",
    127: "a program was not found: look at PATH in its environment",
}


def of_stalled(name: str) -> str:
    """The remedy where a task is missed by its peers, though it has not ended."""
    return f"find out what held {name} up: where it was, and its log; a stalled task often waits for input or for a lock"


def find(task: TaskStatus, *, serves: bool = False) -> str:
    """The remedy for a task's own end; empty if none is known. `serves`: it was to run until others are done."""
    if task.code == 0 and task.type in DATA_SERVICE:
        return ""  # orch's own servers: nothing that a script does makes them end
    if task.code == 0:
        return _SERVER_LEFT if serves else _LEFT_EARLY
    evidence = task.evidence
    if evidence.out_of_memory:
        return f"likely out of memory: {evidence.out_of_memory}; give the tasks less to hold, run fewer on this host, or raise the limit"
    if task.failure is not None:
        kind, text = task.failure.type.rpartition(".")[2], f"{task.failure.message}\n{task.failure.traceback}"
        return _look_up(kind, text, evidence.python)
    return _of_words(evidence.last_words, evidence.python) or _BY_CODE.get(task.code or 0, "")


def _look_up(kind: str, text: str, python: str) -> str:
    for remedy in REMEDIES:
        match = re.search(remedy.text, text) if re.fullmatch(remedy.kind, kind) else None
        if match is not None:
            return remedy.advice.format(python=python or "the tasks' Python", **match.groupdict())
    return ""


_ERROR_LINE = re.compile(
    r"^(?:[\w.]+\.)?(\w*(?:Error|bad_alloc))\b:? ?(.*)$|^terminate called after throwing an instance of 'std::(bad_alloc)'", re.MULTILINE
)


def _of_words(words: str, python: str) -> str:
    """The same for what a log ends with: the last line there that looks like an error's."""
    found = list(_ERROR_LINE.finditer(words))
    if found:
        last = found[-1]
        return _look_up(last[1] or last[3], words[last.start() :], python)
    return _look_up("OSError", words[-400:], python) if "No space left on device" in words[-400:] else ""
