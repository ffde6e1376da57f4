"""What to do, for texts that CPython, TensorFlow 2.21 and Keras 3.15 have printed.

The copy to a GPU that has no room is as users of TensorFlow report it: it was not provoked here.
"""

from __future__ import annotations

import pytest

from orchestrator.model import remedies
from orchestrator.model.cluster import TaskStatus
from worker.contract import Evidence, Failure

TF = "tensorflow.python.framework.errors_impl."
ON_GPU = "on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"
FAILURES = {
    "ModuleNotFoundError": (
        "No module named 'frobnicate'",
        "frobnicate is not installed in /opt/py/bin/python: install it there, or choose",
    ),
    "OSError": ("[Errno 28] No space left on device", "the disk is full"),
    "OSError ": ("[Errno 122] Disk quota exceeded: 'x'", "the disk is full"),
    "OSError  ": ("[Errno 98] Address already in use", "a port was taken"),
    "OSError   ": ("[Errno 24] Too many open files: 'x'", "ulimit -n"),
    f"{TF}ResourceExhaustedError": (
        "{{function_node __wrapped__WriteFile}} /dev/full; No space left on device [Op:WriteFile]",
        "the disk is full",
    ),
    f"{TF}ResourceExhaustedError ": (
        "OOM when allocating tensor with shape[1048576,1048576,64] and type float on "
        "/job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu [Op:Fill] name: ",
        "the host's memory did not suffice",
    ),
    f"{TF}ResourceExhaustedError  ": (
        f"OOM when allocating tensor with shape[8] and type float {ON_GPU}",
        "--memory-growth or --gpu-memory MB",
    ),
    f"{TF}InternalError": ("failed call to cuInit: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "the GPU's memory is used up"),
    f"{TF}InternalError ": (
        "Failed copying input tensor from /job:localhost/replica:0/task:0/device:CPU:0 to /job:localhost/replica:0/task:0/device:GPU:0 "
        "in order to run _EagerConst: Dst tensor is not initialized.",
        "likely the GPU's memory is used up",
    ),
    "MemoryError": ("", "the host's memory did not suffice"),
    "numpy._core._exceptions._ArrayMemoryError": ("Unable to allocate 8.00 PiB for an array", "the host's memory did not suffice"),
    "PermissionError": ("[Errno 13] Permission denied: '/root/x'", "this user may not do that"),
    f"{TF}UnknownError": ("Could not start gRPC server", "a port was taken"),
    "RuntimeError": ("Collective ops must be configured at program startup", "make the strategy before anything else"),
    "ValueError": (
        "Attempt to convert a value (PerReplica:{\n  0: <tf.Tensor: shape=(2, 2), dtype=float32, numpy=\narray([[1., 1.]], "
        "dtype=float32)>\n}) with an unsupported type (<class 'tensorflow.python.distribute.values.PerReplica'>) to a Tensor.",
        "fit() of Keras 3 does not work on several workers",
    ),
    "ValueError ": ("Invalid reduction dimension 0 for input with 0 dimensions", "fit() of Keras 3 does not work on several workers"),
    "ValueError  ": (
        "To use this dataset, you need to pass this dataset to ClusterCoordinator.create_per_worker_dataset.",
        "fit() of Keras 3 does not work with parameter servers",
    ),
    f"{TF}InvalidArgumentError": (
        "Collective ops is aborted by: Shape mismatch in the collective instance 100. Op at device /job:worker/replica:0/task:1",
        "tensors of different shapes",
    ),
    f"{TF}InvalidArgumentError ": (
        "Failed to get element from worker 127.0.0.1:50239: Failed to get an element, with a nonretryable error: Failed to get element: "
        "ValueError: Could not find callback with key=pyfunc_1 in the registry.",
        "apply it after distribute()",
    ),
}


def failed(kind: str, message: str, trace: str = "") -> TaskStatus:
    failure = Failure(kind.strip(), message, f"Traceback …\n{trace}{kind.strip()}: {message}\n", 1.0)
    return TaskStatus("worker-0", "a", code=1, failure=failure, evidence=Evidence(python="/opt/py/bin/python"))


@pytest.mark.parametrize("kind", FAILURES)
def test_a_known_failure_has_its_remedy(kind: str) -> None:
    message, remedy = FAILURES[kind]
    assert remedy in remedies.find(failed(kind, message))


def test_every_remedy_is_reached() -> None:
    evaluator = failed("KeyError", "'evaluator'", '  File "/x/tensorflow/python/distribute/multi_worker_util.py", line 1, in f\n')
    found = {remedies.find(task) for task in (evaluator, *(failed(kind, message) for kind, (message, _) in FAILURES.items()))}
    assert "" not in found
    assert len(found) == len({remedy.advice for remedy in remedies.REMEDIES})


@pytest.mark.parametrize(
    ("kind", "message"), [("ValueError", "boom"), ("KeyError", "'evaluator'"), ("OSError", "[Errno 5] Input/output error")]
)
def test_what_is_not_known_has_none(kind: str, message: str) -> None:
    assert remedies.find(failed(kind, message)) == ""


def test_a_killed_task_ran_out_of_memory_only_if_the_kernel_says_so() -> None:
    seen = Evidence(out_of_memory="the kernel killed a process in its memory cgroup (limit 200 MiB)")
    assert remedies.find(TaskStatus("worker-0", "a", code=137, evidence=seen)).startswith(
        "likely out of memory: the kernel killed a process in"
    )
    assert "out of memory" not in remedies.find(TaskStatus("worker-0", "a", code=137))


@pytest.mark.parametrize(
    ("code", "words", "remedy"),
    [
        (
            1,
            "Traceback (most recent call last):\n  File 'x'\nModuleNotFoundError: No module named 'a.b'\n",
            "a.b is not installed in the tasks' Python",
        ),
        (1, "MemoryError\n", "the host's memory"),
        (134, "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n", "the host's memory"),
        (1, "cp: error writing 'x': No space left on device\n", "the disk is full"),
        (127, "./run.sh: line 3: frobnicate: command not found\n", "a program was not found"),
        (139, "", "a crash in native code"),
        (3, "it did not work\n", ""),
    ],
)
def test_a_program_that_is_not_python_is_judged_by_the_end_of_its_log(code: int, words: str, remedy: str) -> None:
    found = remedies.find(TaskStatus("worker-0", "a", code=code, evidence=Evidence(last_words=words)))
    assert (remedy in found) if remedy else found == ""


def test_a_server_that_left_is_told_otherwise_than_a_worker() -> None:
    task = TaskStatus("worker-0", "a", code=0)
    assert "--serve" in remedies.find(task, serves=True)
    assert "same number of steps" in remedies.find(task)
