"""What must be in the environment before TensorFlow is imported where the task takes a TPU."""

from __future__ import annotations

import importlib.util
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SKIP_QUERY = "TPU_SKIP_MDS_QUERY"
LOAD_LIBRARY = "TPU_LOAD_LIBRARY"


def prepare(settings: dict[str, Any]) -> None:
    """Set what libtpu reads while TensorFlow is imported; what is set already stands. `settings`: `TpuSettings` as JSON.

    A TPU that is not the machine's own is driven by the runtime of its hosts, and libtpu must not take a local one from it
    (TPU_LOAD_LIBRARY=0, as Google's guide to TensorFlow on pods has it; xla/stream_executor/tpu/tpu_initializer_framework_helper.cc).
    For the machine's own, libtpu asks the metadata server for the TPU's layout, 30 times for each of five values: where the server has none
    to tell, that was seen to take 200 s (libtpu 0.0.14), and TPU_SKIP_MDS_QUERY leaves it out.
    """
    from ...settings.tpu_settings import LOCAL, TpuSettings, target
    from ...tpu_host import is_tpu_vm

    if target(TpuSettings(tpu=settings.get("tpu", "")), os.environ)[0] != LOCAL:
        os.environ.setdefault(LOAD_LIBRARY, "0")
    elif SKIP_QUERY not in os.environ and importlib.util.find_spec("libtpu") is not None and not is_tpu_vm(os.environ):
        os.environ[SKIP_QUERY] = "1"
