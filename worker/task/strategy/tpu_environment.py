"""Defines what a task with a TPU needs before its import of TensorFlow: environment variables, and the spec's TPU for the program's own
code."""

from __future__ import annotations

import importlib.util
import os

from ...machine.tpu_host import is_tpu_vm
from ...settings.tpu_settings import LOCAL, TpuSettings, target
from .. import patches
from ..patches.features import TPU

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SKIP_QUERY = "TPU_SKIP_MDS_QUERY"
LOAD_LIBRARY = "TPU_LOAD_LIBRARY"
_RESOLVER = "tensorflow.python.distribute.cluster_resolver.tpu.tpu_cluster_resolver"


def apply_soon(settings: dict[str, Any], log_dir: str) -> None:
    """Set the variables that libtpu reads during the import of TensorFlow, if they are not set. `settings`: `TpuSettings` as JSON data.

    The runtime of its own hosts drives a TPU of other machines, and libtpu must not use a local TPU then (TPU_LOAD_LIBRARY=0, as in
    Google's guide to TensorFlow on pods; xla/stream_executor/tpu/tpu_initializer_framework_helper.cc). For the machine's own TPU, libtpu
    requests five values from the metadata server, 30 times each. If the server has no values, this took 200 s (libtpu 0.0.14);
    TPU_SKIP_MDS_QUERY prevents these requests.
    """
    tpu = target(TpuSettings(tpu=settings.get("tpu", "")), os.environ)[0]
    place = {"tpu": tpu, **{name: settings[name] for name in ("zone", "project") if settings.get(name)}}
    patches.after(TPU, _RESOLVER, lambda module: _give_tpu(place))
    if tpu != LOCAL:
        os.environ.setdefault(LOAD_LIBRARY, "0")
    elif SKIP_QUERY not in os.environ and importlib.util.find_spec("libtpu") is not None and not is_tpu_vm(os.environ):
        os.environ[SKIP_QUERY] = "1"


def _give_tpu(place: dict[str, str]) -> None:
    """Have ``TPUClusterResolver(tpu='')`` of TensorFlow's guides find the TPU of the spec. Without orch this call reads variables alone."""

    def init(real: Any, resolver: Any, tpu: Any = None, *args: Any, **kwargs: Any) -> None:
        if not tpu and not args and place["tpu"]:
            tpu, kwargs = place["tpu"], {**place, **kwargs}
            del kwargs["tpu"]
        real(resolver, tpu, *args, **kwargs)

    patches.replace(TPU, "TPUClusterResolver.__init__", init)
