"""Declares, reads and checks the settings of orch.yaml: what the user wants. Pure.

`document` reads a text, `parse` makes a `ClusterSpec` of it; the values are re-exported here.

May import: orchestrator.errors, orchestrator.model.device_names, orchestrator.model.strategies, orchestrator.model.tpu_topology,
    worker.protocol, worker.settings.
"""

from .backend_sections import BACKENDS as BACKENDS
from .backend_sections import BackendSpec as BackendSpec
from .backend_sections import JoinSettings as JoinSettings
from .backend_sections import KubernetesSettings as KubernetesSettings
from .backend_sections import LocalSettings as LocalSettings
from .backend_sections import NodeSpec as NodeSpec
from .backend_sections import SlurmSettings as SlurmSettings
from .backend_sections import SshSettings as SshSettings
from .gpu_wish import GpuWish as GpuWish
from .host_list import HostSpec as HostSpec
from .pod_section import PodSettings as PodSettings
from .run_sections import DEFAULT_PRELOAD as DEFAULT_PRELOAD
from .run_sections import PROGRAM_KINDS as PROGRAM_KINDS
from .run_sections import ClusterSpec as ClusterSpec
from .run_sections import Restart as Restart
from .run_sections import Timeouts as Timeouts
from .run_sections import works as works
from .task_sections import TaskDevices as TaskDevices
from .task_sections import TaskSpec as TaskSpec
from .task_sections import trains as trains
