"""Counts on which device each operation ran, from the lines of `tf.debugging.set_log_device_placement(True)`.

TensorFlow 2.21 writes these lines (seen in real runs; in older releases a line begins with its date, as in tensorflow#59743):

- Each run of an eager op, on stderr: ``… execute.cc:1775] Executing op MatMul in device /job:…/device:CPU:0``. A function is such an op
  too; its device is the one that started it, not the device of the ops inside.
- An op for the runtime of another task: ``… execute.cc:2062] Executing op NAME on task /job:ps/…``.
- Each node of a graph, when the graph is placed (at a function's first call, and at the first use of an eager op), on stderr as
  ``… placer.cc:162] mm: (MatMul): /job:…``, and *again* on stdout without the beginning. `TF_CPP_MIN_LOG_LEVEL` above 0 removes the lines
  on stderr only. So nodes are counted in both streams, and the higher number is used.
- On processors with AVX-512, oneDNN has its own kernels for some ops. An eager MatMul is then placed as MatMul, placed *again* as
  ``_MklMatMul``, and runs as ``_MklMatMul`` (mkl_eager_op_rewrite.cc; the names ``_Mkl…`` and ``_MklNative…`` are in mkl_graph_util.h).
  Here it counts as MatMul, placed once.

Pure: bytes in, counts out. The memory depends on the number of different ops, not on the length of the log.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import field
from functools import lru_cache
from typing import Literal

from worker.values.fast_dataclass import dataclass

from ..model import device_names
from .cross_device_reads import GraphReads, VariableRead

MAX_KNOWN = 1 << 14
"""The most different lines whose meaning is kept."""
MAX_TEXT = 4096
"""The longest line about placement, in bytes."""

_NAMED = re.compile(
    rb"(?:Executing op (\S+) (?:in device|on task)|([^\s:()]+): \((\w+)\):) (/job:\w+/replica:\d+/task:\d+/device:[A-Z_]+:\d+)"
)
_CREATED = re.compile(rb"Created device (/job:\S+/device:GPU:\d+) ")
_ONEDNN = re.compile(rb"_Mkl(?:Eager|Native)?(?=[A-Z])")
_FUNCTION = re.compile(r"__(?:inference|forward|backward)_(.+?)_\d+(?:_partitioned_\d+_\d+)?")

BOOKKEEPING = frozenset(
    ("_Arg", "_DeviceArg", "_Retval", "_DeviceRetval", "_EagerConst", "Const", "NoOp", "Placeholder", "Identity", "IdentityN")
)
"""Ops that the table leaves out: they compute nothing, and every graph has many of them."""
# Ops that belong on the CPU: input pipelines, files, texts, and descriptions of other tensors.
_HOST = re.compile(
    r".*(?:Dataset|DatasetV\d|Iterator\w*|Summary\w*|Barrier\w*|Queue\w*|TensorList\w*)"
    r"|(?:Save|Restore|MergeV2|ShardedFilename|ReadFile|WriteFile|MatchingFiles|Decode|Encode|String|Regex|Parse|Lookup|Print|Assert|Var(?:Handle|IsInit)"
    r"|Assign|Read(?:Variable)?|Destroy|DeleteIterator|Anonymous|Collective|Send|_Send|Recv|_Recv|Shape|Size|Rank|OptionalHas|Multi[Dd]evice|PyFunc|EagerPyFunc)\w*"
)


@dataclass(frozen=True, slots=True)
class OperationCount:
    """Tells how often an op was on a device, in one task."""

    executed: int = 0
    """Eager runs, also those that the task had another task's runtime do."""
    placed: int = 0
    """Nodes of graphs, once for each graph."""

    @property
    def total(self) -> int:
        return self.executed + self.placed


@dataclass(frozen=True, slots=True)
class TaskPlacement:
    task: str
    counts: dict[tuple[str, str], OperationCount]
    """By op and device. The op of a function is its name with ``()``."""
    reads: dict[VariableRead, int] = field(default_factory=dict)
    gpus: frozenset[str] = frozenset()
    is_muted: bool = False
    """Whether only stdout has lines, so that eager runs are missing."""

    @property
    def fallbacks(self) -> dict[tuple[str, str], OperationCount]:
        """The `counts` of ops on the CPU of a task that has a GPU: ops that may have no GPU kernel. Ops that belong there are left out.

        The log does not show whether `tf.device` or the data type (int32 stays on the host) was the reason.
        """
        if not self.gpus:
            return {}
        return {
            (op, device): count
            for (op, device), count in self.counts.items()
            if device.startswith("CPU:") and not op.endswith("()") and op not in BOOKKEEPING and not _HOST.fullmatch(op)
        }


@dataclass(slots=True)
class StreamScan:
    """The lines about placement in one stream of one task. The names are TensorFlow's."""

    executed: Counter[tuple[bytes, bytes]] = field(default_factory=Counter)
    """The eager runs, by op and device."""
    placed: Counter[tuple[bytes, bytes]] = field(default_factory=Counter)
    """The nodes of graphs, by op and device."""
    reads: GraphReads = field(default_factory=GraphReads)
    gpus: set[bytes] = field(default_factory=set)


def scan(lines: Iterable[bytes]) -> StreamScan:
    found = StreamScan()
    for line in lines:
        text = line.rpartition(b"] ")[2] if b"/job:" in line else b""
        meaning = _recognise(text) if 0 < len(text) <= MAX_TEXT else None
        if meaning is None:
            continue
        kind, op, device, name = meaning
        if kind == "executed":
            found.executed[op, device] += 1
        elif kind == "placed":
            found.placed[op, device] += 1
            found.reads.add(name, op, device)
        else:
            found.gpus.add(device)
    found.reads.end()
    return found


@lru_cache(MAX_KNOWN)
def _recognise(text: bytes) -> tuple[Literal["executed", "placed", "created"], bytes, bytes, bytes] | None:
    """The kind, op, device and node's name in a line without its beginning; None: the line is not about placement."""
    if created := _CREATED.match(text):
        return "created", b"", created[1], b""
    found = _NAMED.fullmatch(text.rstrip(b"\r\n"))
    if found is None:
        return None
    ran, name, op, device = found.groups()
    if ran:
        return "executed", _ONEDNN.sub(b"", ran, count=1) if ran.startswith(b"_Mkl") else ran, device, b""
    # oneDNN's op was placed under its own name just before.
    return None if _ONEDNN.match(op) else ("placed", op, device, name)


def shorten(device: str, task: str = "") -> str:
    """A device's name as seen by `task` (``worker-1``): ``GPU:0`` if it is the task's own, else ``ps-0 CPU:0``."""
    found = device_names.read(device)
    if found is None:
        return device
    return str(found) if found.owner in ("", task) else f"{found.owner} {found}"


def summarise(task: str, stderr: StreamScan, stdout: StreamScan) -> TaskPlacement:
    graphs = max(stderr, stdout, key=lambda scan: scan.placed.total())
    executed, placed = _readable(stderr.executed + stdout.executed, task), _readable(graphs.placed, task)
    return TaskPlacement(
        task,
        {where: OperationCount(executed[where], placed[where]) for where in executed | placed},
        _variable_reads(graphs.reads, task),
        frozenset(shorten(device.decode(), task) for device in stderr.gpus | stdout.gpus)
        | {device for _, device in executed | placed if device.startswith("GPU:")},
        is_muted=bool(placed) and not executed,
    )


def _readable(counts: Counter[tuple[bytes, bytes]], task: str) -> Counter[tuple[str, str]]:
    """The same counts, by names for users."""
    found: Counter[tuple[str, str]] = Counter()
    for (op, device), number in counts.items():
        text = op.decode(errors="replace")
        function = _FUNCTION.fullmatch(text)
        found[f"{function[1]}()" if function else text, shorten(device.decode(errors="replace"), task)] += number
    return found


def _variable_reads(reads: GraphReads, task: str) -> Counter[VariableRead]:
    found: Counter[VariableRead] = Counter()
    for (name, op, device, source, evidence), number in reads.found.items():
        node = name.decode(errors="replace").removeprefix("StatefulPartitionedCall/")
        found[VariableRead(node, op.decode(), shorten(device.decode(), task), shorten(source.decode(), task), evidence)] += number
    return found
