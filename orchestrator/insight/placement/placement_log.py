"""Which operations ran on which device: the lines of `tf.debugging.set_log_device_placement(True)`, counted.

What TensorFlow 2.21 writes (looked at in real runs; older releases begin a line with its date, as in tensorflow#59743):

- An eager op, each time it runs, on stderr: ``… execute.cc:1775] Executing op MatMul in device /job:…/device:CPU:0``. A function
  is such an op too, with the device that it was started on, which says nothing about the ops inside.
- An op that is sent to another task's runtime: ``… execute.cc:2062] Executing op NAME on task /job:ps/…``.
- Each node of a graph, once, when the graph is placed (a function's first call, and the first use of an eager op), on stderr as
  ``… placer.cc:162] mm: (MatMul): /job:…`` and *again* on stdout without the beginning. `TF_CPP_MIN_LOG_LEVEL` above 0 silences stderr
  and not stdout. So nodes are counted in both streams and the fuller one is believed.
- On processors with AVX-512, oneDNN has kernels of its own for some ops. An eager MatMul is then placed as MatMul, placed *again* as
  ``_MklMatMul``, and runs as ``_MklMatMul`` (mkl_eager_op_rewrite.cc; names: mkl_graph_util.h, ``_Mkl`` or ``_MklNative`` before the op's
  own). It is counted as MatMul, placed once: which processor ran an op changes nothing about where it ran.

Pure: bytes in, counts out; memory grows with the number of different ops and not with the log.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import field

from worker.fast_dataclass import dataclass

from . import device_text
from .cross_device_reads import ARGUMENTS, READ, GraphReads, VariableRead

MAX_LINE = 1 << 20
"""A line without an end is not looked at from this many bytes on."""
MAX_COMPLAINTS = 20
MAX_COMPLAINT = 4096
MAX_KNOWN = 1 << 14
"""Different lines that are recognised without being taken apart again."""
MAX_TEXT = 4096
"""A longer line is none of TensorFlow's about placement."""


@dataclass(slots=True)
class _Line:
    """One text of the log, and how often it came. `kind`: ``executed``, ``sent`` or ``placed``.

    `name`: a node's. `matters`: it is a node that begins a graph or reads a variable.
    """

    kind: str
    op: bytes
    device: bytes
    name: bytes = b""
    matters: bool = False
    number: int = 0


_NAMED = re.compile(
    rb"(?:Executing op (\S+) (in device|on task)|([^\s:()]+): \((\w+)\):) (/job:\w+/replica:\d+/task:\d+/device:[A-Z_]+:\d+)"
)
_ONEDNN = re.compile(rb"_Mkl(?:Eager|Native)?(?=[A-Z])")
_CREATED = re.compile(rb"\] Created device (/job:\S+/device:GPU:\d+) ")
_COMPLAINTS = (b" device specification", b"explicitly assigned to", b"find any devices for spec", b"unknown device.")
"""One of these is in each text that `devices.explain` knows."""
_HOW = {b"in device": "executed", b"on task": "sent"}
_FUNCTION = re.compile(r"__(?:inference|forward|backward)_(.+?)_\d+(?:_partitioned_\d+_\d+)?")

BOOKKEEPING = frozenset(
    ("_Arg", "_DeviceArg", "_Retval", "_DeviceRetval", "_EagerConst", "Const", "NoOp", "Placeholder", "Identity", "IdentityN")
)
"""Ops that a table for people leaves out: they compute nothing, and every graph is full of them."""
# What belongs on the CPU, GPU or not: input pipelines, files, texts, and what only describes other tensors.
_HOST = re.compile(
    r".*(?:Dataset|DatasetV\d|Iterator\w*|Summary\w*|Barrier\w*|Queue\w*|TensorList\w*)"
    r"|(?:Save|Restore|MergeV2|ShardedFilename|ReadFile|WriteFile|MatchingFiles|Decode|Encode|String|Regex|Parse|Lookup|Print|Assert|Var(?:Handle|IsInit)"
    r"|Assign|Read(?:Variable)?|Destroy|DeleteIterator|Anonymous|Collective|Send|_Send|Recv|_Recv|Shape|Size|Rank|OptionalHas|Multi[Dd]evice|PyFunc|EagerPyFunc)\w*"
)


@dataclass(frozen=True, slots=True)
class Count:
    """How often one op met one device in one task. `executed`: eager runs; `sent`: eager runs on another task;
    `placed`: nodes of graphs, counted once per graph however often it ran."""

    executed: int = 0
    sent: int = 0
    placed: int = 0

    @property
    def total(self) -> int:
        return self.executed + self.sent + self.placed


@dataclass(frozen=True, slots=True)
class TaskPlacement:
    """What the logs of one task say. `counts`: by op and device; a function's op is its name and ``()``.

    `gpus`: the GPUs that the log shows the task to have. `complaints`: lines about devices that do not exist.
    `is_muted`: only stdout had lines, so that eager runs are missing.
    """

    task: str
    counts: dict[tuple[str, str], Count]
    reads: dict[VariableRead, int] = field(default_factory=dict)
    gpus: frozenset[str] = frozenset()
    complaints: tuple[str, ...] = ()
    is_muted: bool = False

    @property
    def fallbacks(self) -> dict[str, Count]:
        """Ops on the task's own CPU that may have come there for want of a GPU kernel, if the task has a GPU.

        Left out is what belongs on the CPU. Whether `tf.device` asked for the CPU, or the type of the data (int32 is kept on the
        host) decided, the log does not say.
        """
        if not self.gpus:
            return {}
        found: dict[str, Count] = {}
        for (op, device), count in self.counts.items():
            if device.startswith("CPU:") and not op.endswith("()") and op not in BOOKKEEPING and not _HOST.fullmatch(op):
                found[op] = _added(found.get(op, Count()), count)
        return found


class StreamScan:
    """Counts the lines of one stream of one task."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, bytes, bytes]] = Counter()
        self._known: dict[bytes, _Line] = {}
        self.reads = GraphReads()
        self.gpus: set[bytes] = set()
        self.complaints: dict[str, None] = {}
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """The next bytes of the stream, cut anywhere."""
        cut = data.rfind(b"\n") + 1
        if cut:
            self._scan(self._rest + data[:cut])
            self._rest = data[cut:]
        elif len(self._rest) < MAX_LINE:
            self._rest += data

    def finish(self) -> None:
        """The stream has ended."""
        self._scan(self._rest)
        self._rest = b""
        self._settle()
        self.reads.end()

    def count(self, kind: str) -> Counter[tuple[str, str]]:
        """How often each op met each device, in lines of this kind. Only after `finish`."""
        found: Counter[tuple[str, str]] = Counter()
        for (what, op, device), number in self._counts.items():
            if what == kind:
                found[_op_name(op), device.decode(errors="replace")] += number
        return found

    def _scan(self, block: bytes) -> None:
        known, reads = self._known, self.reads
        pending = reads.pending
        for line in block.split(b"\n"):
            if b"/job:" not in line:
                continue
            text = line.rpartition(b"] ")[2]
            entry = known.get(text) or self._recognise(text)
            if entry is None:
                continue
            entry.number += 1
            if entry.matters or (pending and entry.name):
                reads.add(entry.name, entry.op, entry.device)
        if b"] Created device " in block:
            self.gpus.update(_CREATED.findall(block))
        if any(words in block for words in _COMPLAINTS):
            self._note_complaints(block)

    def _recognise(self, text: bytes) -> _Line | None:
        found = _NAMED.fullmatch(text.rstrip(b"\r")) if len(text) <= MAX_TEXT else None
        if found is None:
            return None
        ran, how, name, op, device = found.groups()
        if ran:
            entry = _Line(_HOW[how], _ONEDNN.sub(b"", ran, count=1) if ran.startswith(b"_Mkl") else ran, device)
        elif _ONEDNN.match(op):
            return None  # it was placed under its own name just before
        else:
            entry = _Line("placed", op, device, name, op == READ or op in ARGUMENTS)
        if len(self._known) >= MAX_KNOWN:
            self._settle()
        self._known[text] = entry
        return entry

    def _settle(self) -> None:
        """Add up what the known lines have counted, and forget them."""
        for entry in self._known.values():
            self._counts[entry.kind, entry.op, entry.device] += entry.number
        self._known.clear()

    def _note_complaints(self, block: bytes) -> None:
        for line in block.split(b"\n"):
            if len(self.complaints) < MAX_COMPLAINTS and any(words in line for words in _COMPLAINTS):
                self.complaints[line[:MAX_COMPLAINT].decode(errors="replace")] = None


def summarise(task: str, stderr: StreamScan, stdout: StreamScan, failure: str = "") -> TaskPlacement:
    """What both streams of a task, finished, say together. `failure`: the message of its error, if it has one."""
    graphs = max(stderr, stdout, key=lambda scan: scan.count("placed").total())
    counts: dict[tuple[str, str], Count] = {}
    for kind, counter in (
        ("executed", stderr.count("executed") + stdout.count("executed")),
        ("sent", stderr.count("sent") + stdout.count("sent")),
        ("placed", graphs.count("placed")),
    ):
        for (op, device), number in counter.items():
            key = op, _short(device, task)
            counts[key] = _added(counts.get(key, Count()), Count(**{kind: number}))
    gpus = {_short(device.decode(), task) for device in stderr.gpus | stdout.gpus} | {
        device for _, device in counts if device.startswith("GPU:")
    }
    return TaskPlacement(
        task,
        counts,
        dict(_variable_reads(task, graphs.reads)),
        frozenset(gpus),
        tuple(_explained([failure, *stderr.complaints, *stdout.complaints])),
        is_muted=bool(counts) and not any(count.executed or count.sent for count in counts.values()),
    )


def _explained(texts: Iterable[str]) -> Iterator[str]:
    """One explanation for each missing device, however often and in whatever words it was complained of."""
    found = (device_text.explain(text) for text in texts)
    # The longer text of a device also says what there is.
    best: dict[str, str] = {}
    for text in filter(None, found):
        about = text.partition(",")[0]
        best[about] = max(best.get(about, ""), text, key=len)
    return iter(best.values())


def _variable_reads(task: str, reads: GraphReads) -> Iterator[tuple[VariableRead, int]]:
    for (name, op, device, source, evidence), number in reads.found.items():
        node = name.decode(errors="replace").removeprefix("StatefulPartitionedCall/")
        yield VariableRead(node, op.decode(), _short(device.decode(), task), _short(source.decode(), task), evidence), number


def _short(device: str, task: str) -> str:
    try:
        return device_text.shorten(device, task)
    except ValueError:
        return device


def _op_name(op: bytes) -> str:
    text = op.decode(errors="replace")
    found = _FUNCTION.fullmatch(text)
    return f"{found[1]}()" if found else text


def _added(one: Count, other: Count) -> Count:
    return Count(one.executed + other.executed, one.sent + other.sent, one.placed + other.placed)
