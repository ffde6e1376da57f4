"""Builds `TPUStrategy` for the TPU of the spec, with a message of its own for each step that fails.

The steps are those of TensorFlow's guide: find the TPU (`TPUClusterResolver`), connect to it, initialise it, assign devices to replicas
(`DeviceAssignment`), make the strategy. `_step` ends a step that hangs.
"""

from __future__ import annotations

import faulthandler
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...machine import tpu_host
from ...protocol.task_environment import bypass_proxies
from ...settings.tpu_settings import ADDRESS, LOCAL, PORT, TpuSettings, target
from ...values.words import count_of
from .. import failure
from .tpu_errors import NoTpu, TpuError

NEWEST_TENSORFLOW = "2.20"
"""The last release of TensorFlow that can drive a TPU: the package tensorflow-tpu ends there."""
INSTALL = "tensorflow-tpu==2.20.0 libtpu==0.0.14"
"""The newest packages that work together; docs/tpu.md has the older ones."""
_ASK_S = 10.0
"""The metadata server may take this long for one answer, in seconds."""
_OTHER_VERSION = ("Op type not registered", "not in Op<", "GraphDef-interpreting binary", "version mismatch")
"""Parts of TensorFlow's errors if the two ends of a connection have different operations."""


def build(settings: TpuSettings) -> Any:
    """The strategy on the TPU of these settings; None: none is named or here, and a fallback is set. Raises `TpuError`."""
    import tensorflow as tf

    name, source = target(settings, os.environ)
    try:
        resolver, topology = _start(name, source, settings)
    except NoTpu as error:
        is_without = name == LOCAL and not tpu_host.count_chips()
        if settings.fallback == "none":
            raise NoTpu(f"{error}{'; to try the script on the CPU: --set tpu.fallback=cpu' * is_without}") from None
        if not is_without:  # otherwise a run with a wrong name, or with a broken TPU, would train on the CPU for hours
            unused = f"fallback: {settings.fallback} is for a machine without a TPU where no other is named"
            raise NoTpu(f"{error}; the task does not go on without it: {unused}") from None
        print(f"orch: {error}\norch: fallback: {settings.fallback}: the task trains without a TPU", file=sys.stderr, flush=True)
        return None
    options: dict[str, Any] = {"experimental_spmd_xla_partitioning": settings.spmd}
    if settings.computation_shape or settings.num_replicas:
        options["experimental_device_assignment"] = _assign(topology, settings)
    return tf.distribute.TPUStrategy(resolver, **options)


def _start(name: str, source: str, settings: TpuSettings) -> tuple[Any, Any]:
    """Find, connect and initialise: the resolver and the `Topology`. Raises `NoTpu`."""
    import tensorflow as tf

    where = "the TPU of this machine" if name == LOCAL else f"the TPU {name or os.environ.get(source)!r} ({source})"
    limit_s, ends = settings.timeout_s, time.monotonic() + settings.timeout_s
    with _step(f"finding {where}", limit_s, ends, lambda error: _describe_lookup(error, where)):
        resolver = _find(name, settings)
        hosts = [address for job in resolver.cluster_spec().as_dict().values() for address in job]
    if hosts:
        bypass_proxies(os.environ, [address.rpartition(":")[0] for address in hosts])
    with _step(f"connecting to {where}", limit_s, ends, lambda error: f"{where} cannot be connected to: {_words(error)}"):
        tf.config.experimental_connect_to_cluster(resolver)
    with _step(f"initialising {where}", limit_s, ends, lambda error: _describe_absence(where, hosts, _words(error))):
        topology = tf.tpu.experimental.initialize_tpu_system(resolver)
        if not resolver.get_tpu_system_metadata().num_cores:
            raise LookupError("no device of the type TPU is listed")
    return resolver, topology


@contextmanager
def _step(doing: str, limit_s: float, ends: float, describe: Callable[[Exception], str]) -> Iterator[None]:
    """Turn every error of TensorFlow, of its client for the cloud's API and of the network into a `NoTpu`. End the process if the step has
    not come to its end at the time `ends`: TensorFlow tries a host that does not answer again without end, and cannot be interrupted."""
    message = (
        f"{doing} takes longer than {limit_s:g} s: is the TPU running, and its port, {PORT}, open to this machine? "
        "fix: tpu.timeout_s gives it more time"
    )
    watch = threading.Timer(ends - time.monotonic(), _end_process, (message,))
    watch.daemon = True
    watch.start()
    try:
        yield
    except Exception as error:
        raise NoTpu(describe(error)) from None
    finally:
        watch.cancel()


def _end_process(message: str) -> None:
    """End the process, after printing the stacks of all threads on stderr."""
    faulthandler.dump_traceback(all_threads=True)
    failure.end_process(NoTpu(message), os.environ.get("ORCH_LOG_DIR", ""))


def _find(name: str, settings: TpuSettings) -> Any:
    import tensorflow as tf

    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_ASK_S)  # TensorFlow sends requests to the metadata server without a time limit
    try:
        return tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name, zone=settings.zone or None, project=settings.project or None)
    finally:
        socket.setdefaulttimeout(before)


def _assign(topology: Any, settings: TpuSettings) -> Any:
    """The device assignment. Raises `TpuError` if the shape does not fit this TPU."""
    import tensorflow as tf

    shape = list(settings.computation_shape or (1, 1, 1, 1))
    mesh = [int(size) for size in topology.mesh_shape]
    most = math.prod(size // number for size, number in zip(mesh, shape, strict=True))
    try:
        return tf.tpu.experimental.DeviceAssignment.build(
            topology, computation_shape=shape, num_replicas=settings.num_replicas or most or 1
        )
    except (ValueError, AssertionError) as error:  # AssertionError: chips are missing
        said = f": {error}" if str(error) else ", of which chips are missing"
        advice = f"orch tpu --topology {'x'.join(map(str, mesh))} shows what fits"
        raise TpuError(f"the layout in orch.yaml does not fit this TPU, whose topology is {mesh}{said}; {advice}") from None


# --- messages --------------------------------------------------------------------------------------


def _words(error: Exception) -> str:
    """The type of an error, and the beginning of its message on one line."""
    import tensorflow as tf

    text = " ".join(str(getattr(error, "message", "") or error).split())[:300]
    differs = any(sign in str(error) for sign in _OTHER_VERSION)
    return f"{type(error).__name__}: {text}{f'; both ends need the same TensorFlow: here is {tf.__version__}' * differs}"


def _describe_lookup(error: Exception, where: str) -> str:
    if isinstance(error, OSError):  # urllib's errors are
        server = tpu_host.metadata_server(os.environ)
        return (
            f"{where} was not found: http://{server}, asked for the project and the zone, gave no answer ({error}). "
            f"fix: set tpu.zone and tpu.project, or the address: tpu: {ADDRESS}HOST:{PORT}"
        )
    if "cloud-tpu-client" in str(error):
        return (
            f"{where} cannot be looked up by its name: a package is not installed. "
            f"fix: {sys.executable} -m pip install cloud-tpu-client, or give the address: tpu: {ADDRESS}HOST:{PORT}"
        )
    return f"{where} was not found: {_words(error)}. Is the name right, and the project and zone, and may this account see the TPU?"


def _describe_absence(where: str, hosts: Sequence[str], said: str) -> str:
    """A message for hosts, or for this machine, without a TPU."""
    if hosts:
        return f"there is no TPU at {where}: {', '.join(hosts)} was reached, and is no TPU's runtime, or its TPU does not start ({said})"
    import tensorflow as tf

    found = tpu_host.count_chips()
    chips = f"{count_of(found, 'TPU chip')}" if found else "no TPU chip"
    support = ""
    if not has_tpu_support():
        support = (
            f"; and this TensorFlow, {tf.__version__}, is built without TPU support, which no release after {NEWEST_TENSORFLOW} has: "
            f"{sys.executable} -m pip install {INSTALL}"
        )
    return f"no TPU was found on this machine: it shows {chips} ({tpu_host.SEARCHED}){support}. TensorFlow says: {said}"


def has_tpu_support() -> bool:
    """True if this TensorFlow can drive a TPU of this machine: whether it has the kernel that starts a TPU."""
    from tensorflow.python.framework import kernels

    return bool(kernels.get_registered_kernels_for_op("_ConfigureDistributedTPU").kernel)
