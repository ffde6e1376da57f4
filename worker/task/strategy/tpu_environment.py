"""The environment variables that a task with a TPU needs before its import of TensorFlow."""

from __future__ import annotations

import importlib.util
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SKIP_QUERY = "TPU_SKIP_MDS_QUERY"
LOAD_LIBRARY = "TPU_LOAD_LIBRARY"


def apply_soon(settings: dict[str, Any], log_dir: str) -> None:
    """Set the variables that libtpu reads during the import of TensorFlow, if they are not set. `settings`: `TpuSettings` as JSON data.

    The runtime of its own hosts drives a TPU of other machines, and libtpu must not use a local TPU then (TPU_LOAD_LIBRARY=0, as in
    Google's guide to TensorFlow on pods; xla/stream_executor/tpu/tpu_initializer_framework_helper.cc). For the machine's own TPU, libtpu
    requests five values from the metadata server, 30 times each. If the server has no values, this took 200 s (libtpu 0.0.14);
    TPU_SKIP_MDS_QUERY prevents these requests.
    """
    from ...settings.tpu_settings import LOCAL, TpuSettings, target
    from ...tpu_host import is_tpu_vm

    if target(TpuSettings(tpu=settings.get("tpu", "")), os.environ)[0] != LOCAL:
        os.environ.setdefault(LOAD_LIBRARY, "0")
    elif SKIP_QUERY not in os.environ and importlib.util.find_spec("libtpu") is not None and not is_tpu_vm(os.environ):
        os.environ[SKIP_QUERY] = "1"
